"""Features of Python and torch, a small program for each: graphs, breaks, and whether the answer is eager's.

    python benchmarks/features.py [REGEX] [--save] [--compiler dynajit]

Each program is called three times or more by each compiler, on fresh inputs; graphs are run eagerly, and answers
compared to the bit. Graphs and breaks are those of all calls; what the last one compiles is told. With a REGEX `--save`
leaves the page's other rows as they are. One more feature: a function behind `@feature` that gives a function and its
arguments.
"""

import contextlib
import copy
import dataclasses
import io
import random
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import features_idioms  # noqa: F401 - fills FEATURES
import features_loops  # noqa: F401 - fills FEATURES
import features_models  # noqa: F401 - fills FEATURES
import features_modules  # noqa: F401 - fills FEATURES
import features_more  # noqa: F401 - fills FEATURES
import features_parts  # noqa: F401 - fills FEATURES
import features_python  # noqa: F401 - fills FEATURES
import features_torch  # noqa: F401 - fills FEATURES
import features_trained  # noqa: F401 - fills FEATURES
import features_users  # noqa: F401 - fills FEATURES
import features_varied  # noqa: F401 - fills FEATURES
import numpy as np
import side_by_side as sbs
import torch
from feature_table import FEATURES, Calls, Made
from torch import Tensor
from torch.utils import _pytree as pytree

CALLS = 3

# ---------------------------------------------------------------------------------------- counting


@dataclasses.dataclass
class Found:
    """What one compiler did with a program. `again`: what the last of the calls compiled."""

    graphs: int = 0
    breaks: int = 0
    again: int = 0
    equal: bool = False
    why: str = ""

    def cells(self) -> list[str]:
        return [str(self.graphs), str(self.breaks), str(self.again), "yes" if self.equal else "**no**"]


class Counting:
    """A backend that counts graphs with operations in them, and runs them eagerly."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += any(node.op.startswith("call") for node in module.graph.nodes)
        return module.forward


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a caller sees of one call: the result or the exception, the arguments, and what was printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            result = fn(*args)
            if isinstance(result, Tensor) and result.requires_grad and not result.is_nested:
                result.sum().backward()
            return result, None, args, printed.getvalue()
        except Exception as error:
            return None, (type(error).__name__, str(error)), args, printed.getvalue()


def difference(actual: Any, expected: Any) -> str:
    from dynajit.outcomes import compare

    def plain(value: Any) -> Any:
        """Tensors that `compare` can't read by numbers, as those that it can."""
        if isinstance(value, Tensor) and value.is_nested:
            return [value.requires_grad, *(part.detach() for part in value.unbind())]
        if isinstance(value, Tensor) and value.layout is not torch.strided:
            return value.detach().to_dense()
        if isinstance(value, Tensor) and value.is_quantized:
            return value.int_repr()
        return value

    kinds = (Tensor,)
    try:
        compare(pytree.tree_map_only(kinds, plain, actual), pytree.tree_map_only(kinds, plain, expected))
    except Exception as error:
        return str(error).replace("\n", " ")[:120]
    return ""


def look(compiler: str, make: Callable[[], Made]) -> Found:
    found, counting = Found(), Counting()
    sides = []
    for compiled in (False, True):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        fn, *args = make()
        first = args[0] if len(args) == 1 and isinstance(args[0], Calls) else [tuple(args)] * CALLS
        calls = [tuple(copy_of(arg) for arg in call) for call in first]
        run = reset(compiler, fn, counting) if compiled else fn
        results = []
        for number, call in enumerate(calls):
            before = counting.graphs, breaks_of(compiler)[0] if compiled else 0
            results.append(outcome(run, call))
            if compiled and number == len(calls) - 1:
                found.again = counting.graphs - before[0]
        sides.append(results)
    found.graphs = counting.graphs
    found.breaks, found.why = breaks_of(compiler)
    wrong = [text for text in map(difference, sides[1], sides[0]) if text]
    found.equal = not wrong
    found.why = f"WRONG: {wrong[0]}" if wrong else found.why
    return found


def copy_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return copy.deepcopy(value)


_RECORDS: list[Any] = []


def reset(compiler: str, fn: Any, backend: Any) -> Any:
    if compiler == "dynajit":
        import dynajit

        dynajit.reset()
    else:
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
    _RECORDS.clear()
    return sbs.COMPILERS[compiler](fn, backend)


def breaks_of(compiler: str) -> tuple[int, str]:
    """How many breaks there were since `reset`, and the first one's words."""
    if compiler == "dynajit":
        from dynajit.report.explain import ExplainReport

        reasons = ExplainReport(_RECORDS).break_reasons
        skipped = [str(record.skipped) for record in _RECORDS if record.skipped]
        # what an exception leaves goes on nowhere: nothing is cut
        reasons = [reason for reason in reasons if reason.kind != "exception"]
        told = [f"{reason.kind}: {reason.reason}" for reason in reasons]
        return len(reasons) + len(skipped), "; ".join(dict.fromkeys([*told, *skipped]))
    # what ends a frame that is then run eagerly, or at a jump, is counted under the second name only
    counted = [torch._dynamo.utils.counters[name] for name in ("graph_break", "unimplemented")]
    texts = [text.split("\n")[0] for each in counted for text in each]
    return sum(sum(each.values()) for each in counted), next(iter(texts), "")


def kept_rows() -> dict[str, list[str]]:
    """The rows of the page that is there, by feature."""
    lines = (sbs.RESULTS / "features.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    return {row[1]: row for row in rows[1:]}


def main() -> int:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("only", nargs="?", default="", metavar="REGEX", help="features and areas to look at")
    parser.add_argument("--compiler", choices=list(sbs.COMPILERS), help="one compiler")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/features.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    who = [options.compiler] if options.compiler else list(sbs.COMPILERS)
    from dynajit.report import records

    chosen = {name: row for name, row in FEATURES.items() if re.search(options.only, f"{row[0]}: {name}")}
    columns = [f"{name} {what}" for name in who for what in ("graphs", "breaks", "again", "equal")]
    whys = ["why it breaks", "why it breaks there"]
    table = sbs.Table(["area", "feature", *columns, *whys], "area", "feature", *whys)
    more, wrong = [], []
    kept = kept_rows() if options.save and options.only else {}
    with records.listen(_RECORDS.append):
        for name, (area, make) in FEATURES.items():
            if name not in chosen:
                if name in kept:
                    table.add(kept[name])
                    ours_broke, ours_equal, graphs, broke, _, equal = kept[name][3], *kept[name][5:10]
                    more += [name] if ours_broke != "0" != graphs and broke == "0" and equal == "yes" else []
                    wrong += [name] if ours_equal != "yes" else []
                continue
            seen = {compiler: look(compiler, make) for compiler in who}
            ours = seen.get("dynajit", Found(equal=True))
            theirs = seen.get("torch.compile", Found())
            print(
                area,
                name,
                *(cell for found in seen.values() for cell in found.cells()),
                ours.why,
                theirs.why,
                sep=" | ",
                flush=True,
            )
            table.add(
                [
                    area,
                    name,
                    *(cell for found in seen.values() for cell in found.cells()),
                    *(found.why.replace("|", "/")[:110] for found in (ours, theirs)),
                ]
            )
            if ours.breaks and theirs.graphs and not theirs.breaks and theirs.equal:
                more.append(name)
            if not ours.equal:
                wrong.append(name)
    verdict = f"Breaks where torch.compile has graphs, no break, and is right: {len(more)}"
    verdict += f" ({'; '.join(more)}). Not equal: {'; '.join(wrong) or 'none'}."
    print(verdict)
    if options.save:
        about = "Graphs and breaks of three calls or more; what the last one compiles; whether the answers are eager's."
        body = "\n".join([about, "", str(table), "", verdict])
        only = f" '{options.only}' (the other rows earlier)" if options.only else ""
        print("written:", sbs.save("features", "Features", body, f"python benchmarks/features.py --save{only}"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
