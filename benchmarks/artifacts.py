"""Models as exported programs: saved, loaded in a process that has not their source, and compared.

    python benchmarks/artifacts.py FOLDER [--models REGEX] [--rows FILE] [--save]

FOLDER holds `models.py` with `REGISTRY`: name -> a function that makes a case with `fn`, `args`, `kwargs`, and `args2`,
`kwargs2` of other sizes or None. Each model is exported with the dimensions that differ between the two as ones that
vary, and saved with its weights, in one process. Another one, in which transformers, torchvision and timm can't be
imported, loads it and calls it on both inputs. "import", "load", "export": CPU seconds of `import dynajit` after
`import torch`, of `dynajit.load`, and of the export with saving. "error": the largest difference from eager mode, over
the largest number. ms: medians of one thread's CPU time, of the compiled model where it was exported, of the program
where it was loaded.
"""

import inspect
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
from closeness import tensors

HEADER = (
    *("model", "sizes", "error", "export s", "file MB", "import s", "load s", "compiled ms", "loaded ms"),
    "loaded/compiled",
)
ABSENT = ("transformers", "torchvision", "timm")
INPUTS, PROGRAM = "inputs.pt", "model.djt"


def _varying(one: Any, other: Any) -> Any:
    """Which dimensions differ, as `dynamic_shapes` says it."""
    if isinstance(one, torch.Tensor):
        differ = (at for at, sizes in enumerate(zip(one.shape, other.shape, strict=True)) if len({*sizes}) > 1)
        return dict.fromkeys(differ, torch.export.Dim.AUTO) or None
    if isinstance(one, dict):
        return {name: _varying(item, other[name]) for name, item in one.items()}
    if isinstance(one, (list, tuple)):
        return type(one)(_varying(item, then) for item, then in zip(one, other, strict=True))
    return None


def _dynamic_shapes(case: Any) -> Any:
    if case.args2 is None:
        return None
    function = case.fn.forward if isinstance(case.fn, torch.nn.Module) else case.fn
    names = [name for name, _ in zip(inspect.signature(function).parameters, case.args, strict=False)]
    return {**dict(zip(names, _varying(case.args, case.args2), strict=True)), **_varying(case.kwargs, case.kwargs2)}


def _milliseconds(call: Any) -> float:
    times = sbs.interleave({"call": call}, seconds=0.5, clock=sbs.clock_for(1))["call"]
    return sorted(times)[len(times) // 2] * 1e3


def export(folder: Path, models: str, name: str) -> dict[str, Any]:
    """What the first process does."""
    sys.path.insert(0, models)
    from models import REGISTRY

    import dynajit

    case = REGISTRY[name]()
    if isinstance(case.fn, torch.nn.Module):
        case.fn.eval()
    calls = [(case.args, case.kwargs)] + ([] if case.args2 is None else [(case.args2, case.kwargs2)])
    with torch.no_grad():
        wanted = [[one.clone() for one in tensors(case.fn(*args, **kwargs))] for args, kwargs in calls]
        begin = time.process_time()
        exported = dynajit.export(case.fn, case.args, case.kwargs, dynamic_shapes=_dynamic_shapes(case))
        exported.save(folder / PROGRAM)
        took = time.process_time() - begin
        compiled = dynajit.compile(case.fn)
        compiled(*case.args, **case.kwargs)
        ms = _milliseconds(lambda: compiled(*case.args, **case.kwargs))
    torch.save({"calls": calls, "wanted": wanted}, folder / INPUTS)
    return {"export": took, "mb": (folder / PROGRAM).stat().st_size / 2**20, "ms": ms, "sizes": len(calls)}


def load(folder: Path) -> dict[str, Any]:
    """What the second process does."""
    for module in ABSENT:
        sys.modules[module] = None  # type: ignore[assignment]
    begin = time.process_time()
    import dynajit

    imported = time.process_time()
    program = dynajit.load(folder / PROGRAM)
    took = time.process_time() - imported
    known = torch.load(folder / INPUTS)
    error = 0.0
    for (args, kwargs), wanted in zip(known["calls"], known["wanted"], strict=True):
        for got, one in zip(tensors(program(*args, **kwargs)), wanted, strict=True):
            if got.shape != one.shape or got.dtype != one.dtype:
                raise RuntimeError(f"a result is {got.dtype}{[*got.shape]}, eager mode's is {one.dtype}{[*one.shape]}")
            if one.numel():
                scale = max(1.0, float(one.double().abs().max()))
                error = max(error, float((got.double() - one.double()).abs().max()) / scale)
    args, kwargs = known["calls"][0]
    ms = _milliseconds(lambda: program(*args, **kwargs))
    return {"import": imported - begin, "load": took, "error": error, "loaded": ms}


def measure(models: str, name: str) -> dict[str, Any]:
    """Both processes; {"why": …} where it is none."""
    with tempfile.TemporaryDirectory(prefix="artifacts-", ignore_cleanup_errors=True) as folder:
        try:
            made = sbs.run_child(__file__, [models, "--models", name, "--at", folder], Path(folder), timeout=600)
            there = Path(folder) / "elsewhere"  # caches: none of the first process's are read
            return made | sbs.run_child(__file__, ["-", "--at", folder], there, timeout=600)
        except sbs.ChildFailed as error:
            return {"why": str(error)}


def main() -> int:
    parser = sbs.argument_parser(__doc__, child=True)
    parser.add_argument("folder")
    parser.add_argument("--models", default="")
    parser.add_argument("--at", help="where a child finds and leaves files")
    parser.add_argument("--rows", help="a JSON file of what was measured, which is gone on with")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/artifacts.md")
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        at = Path(options.at)
        found = load(at) if options.folder == "-" else export(at, options.folder, options.models)
        sbs.finish_child(options.out, found)
    sys.path.insert(0, options.folder)
    from models import REGISTRY

    rows = Path(options.rows) if options.rows else None
    known: dict[str, Any] = json.loads(rows.read_text()) if rows is not None and rows.exists() else {}
    for name in REGISTRY:
        if re.search(options.models, name) and name not in known:
            known[name] = measure(options.folder, name)
            print(name, json.dumps(known[name]), flush=True)
            if rows is not None:
                rows.write_text(json.dumps(known))
    table = sbs.Table(HEADER, max(known, key=len))
    for name, row in known.items():
        if "why" not in row:
            cells = [name, str(row["sizes"]), f"{row['error']:.0e}", f"{row['export']:.1f}", f"{row['mb']:.1f}"]
            cells += [f"{row[what]:.2f}" for what in ("import", "load", "ms", "loaded")]
            table.add([*cells, f"{row['loaded'] / row['ms']:.2f}"])
    refused = "\n".join(f"* {name}: {row['why']}" for name, row in known.items() if "why" in row)
    print(table, refused, sep="\n\n")
    if options.save:
        how = "python benchmarks/artifacts.py FOLDER --save"
        print("written:", sbs.save("artifacts", "Exported programs", f"{table}\n\nNot exported:\n\n{refused}", how))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
