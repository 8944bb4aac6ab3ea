"""Many models that nobody tuned for: is each captured whole, right, and faster than eager and torch.compile?

In: torchvision's and transformers' models by name, with random weights (what is not installed is left out), a few of
torch's own, of `zoo_varied.py` and of `zoo_sized.py`. Out: a line of JSON for each model and kind of call (inference,
training), and with `--save` a table.
Each is measured in a process of its own: seconds of the first call, milliseconds a call (medians, in turns), whether
results and gradients are as close to float64's as eager's (`closeness.py`), graphs that run as captured, warnings.

    python benchmarks/zoo.py --rows zoo.jsonl                        # all; goes on where an earlier run ended
    python benchmarks/zoo.py --rows zoo.jsonl --peer resnet bert     # these, torch.compile too
    python benchmarks/zoo.py --rows zoo.jsonl --against before.jsonl # and names those that became slower by 3%
    python benchmarks/zoo.py --rows zoo.jsonl --save                 # the table of what was measured
    python benchmarks/zoo.py --rows small.jsonl --peer varied        # `zoo_varied.py`: for one thread of a CPU
    python benchmarks/zoo.py --rows sized.jsonl --peer sized         # `zoo_sized.py`: for a large GPU

One more model: a function behind `@family` that gives names and how each is made.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import importlib.util
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import closeness
import side_by_side as sbs
import torch
from models_cpu import loss_of
from torch import Tensor, nn
from zoo_sized import sized
from zoo_varied import varied

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dynajit  # noqa: E402
from dynajit.report import records  # noqa: E402

# -> model, and the keyword or positional arguments of a call
Make = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]
FAMILIES: list[Callable[[], Iterator[tuple[str, Make]]]] = []
SLOWER = 1.03
_KINDS = ("inference", "training")


def family(names: Callable[[], Iterator[tuple[str, Make]]]) -> Callable[[], Iterator[tuple[str, Make]]]:
    FAMILIES.append(names)
    return names


@family
def vision() -> Iterator[tuple[str, Make]]:
    """torchvision's classifiers, segmentation and video models."""
    if importlib.util.find_spec("torchvision") is None:
        return
    from torchvision import models

    for room in (models, models.segmentation, models.video):
        names = [name for name in models.list_models(room) if not name.startswith("raft")]
        kinds = {name.partition("_")[0].rstrip("0123456789"): name for name in reversed(names)}
        for name in names:
            if name in (*_USED, *kinds.values()):
                yield f"torchvision {name}", lambda name=name, room=room: _vision(name, room)  # type: ignore[misc]


# beside the first of each kind
_USED = ("resnet50", "efficientnet_v2_s", "densenet121", "vit_b_16", "swin_t", "convnext_tiny", "regnet_y_1_6gf")


def _vision(name: str, room: Any) -> Any:
    from torchvision import models

    size = 299 if name.startswith("inception") else 256 if name.startswith("swin_v2") else 224
    shapes = {models: (16, 3, size, size), models.segmentation: (4, 3, size, size)}
    shape = shapes.get(room, (2, 3, 16, 224, 224) if name.startswith(("mvit", "swin")) else (2, 3, 16, 112, 112))
    backbone = {"weights_backbone": None} if room is models.segmentation else {}
    return models.get_model(name, weights=None, **backbone), (torch.randn(shape),), {}


@family
def transformers() -> Iterator[tuple[str, Make]]:
    """transformers' architectures by their configuration classes, six layers of 512."""
    if importlib.util.find_spec("transformers") is None:
        return
    import survey

    survey._SMALL.update(
        {
            **{name: 512 for name, size in survey._SMALL.items() if size == 64},
            **{name: 2048 for name, size in survey._SMALL.items() if size == 96},
            **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"), 6),
            **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"), 6),
            **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 8),
            **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 8),
            **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions"), 512),
            "head_dim": 64,
            "d_kv": 64,
            "moe_intermediate_size": 512,
            "image_size": 224,
            "patch_size": 16,
        }
    )
    for name, (class_name, kind) in survey.families().items():
        yield (
            f"transformers {name}",
            lambda name=name, class_name=class_name, kind=kind: _of_survey(  # type: ignore[misc]
                name, class_name, kind
            ),
        )


def _of_survey(name: str, class_name: str, kind: str) -> Any:
    import survey

    model = survey.make(name, class_name)
    return model, (), survey._inputs(model, kind, 8, 128)


@family
def own() -> Iterator[tuple[str, Make]]:
    """Models of torch's modules alone."""
    wide = nn.TransformerEncoderLayer(512, 8, 2048, 0.0, "gelu", batch_first=True)
    yield "TransformerEncoder", lambda: (nn.TransformerEncoder(wide, 6), (torch.randn(8, 128, 512),), {})
    yield "LSTM", lambda: (nn.LSTM(256, 256, 2, batch_first=True), (torch.randn(16, 64, 256),), {})
    yield "GRU", lambda: (nn.GRU(256, 256, 2, batch_first=True), (torch.randn(16, 64, 256),), {})
    deep = [layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.SiLU(), nn.LayerNorm(256))]
    yield "MLP", lambda: (nn.Sequential(*deep), (torch.randn(1024, 256),), {})


family(varied)
if torch.cuda.is_available():
    family(sized)


def zoo() -> dict[str, Make]:
    return {name: make for names in FAMILIES for name, make in names()}


# ------------------------------------------------------------------------------------------------------- one of them


def _moved(tree: Any, device: str, dtype: torch.dtype) -> Any:
    if isinstance(tree, Tensor):
        return tree.to(device, dtype) if tree.is_floating_point() else tree.to(device)
    if isinstance(tree, dict):
        return {key: _moved(value, device, dtype) for key, value in tree.items()}
    return tuple(_moved(value, device, dtype) for value in tree)


def _step(model: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any, train: bool) -> Callable[[], Any]:
    def infer() -> dict[str, Tensor]:
        with torch.no_grad():
            found = closeness.tensors(call(*args, **kwargs))
        return {f"result {i}": each for i, each in enumerate(found)}

    def learn() -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        out = call(*args, **kwargs)
        loss = loss_of(out)
        loss.backward()
        grads = {f"grad {name}": each.grad for name, each in model.named_parameters() if each.grad is not None}
        return {"loss": loss.detach(), **grads}

    return learn if train else infer


def measure(name: str, kind: str, peer: bool, seconds: float, dtype: torch.dtype | None) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    modes = ("default", "reduce-overhead") if device == "cuda" else ("default",)
    train = kind == "training"
    torch.manual_seed(0)
    half = dtype or (torch.bfloat16 if device == "cuda" else torch.float32)
    row: dict[str, Any] = {"model": name, "kind": kind}
    try:
        model, args, kwargs = zoo()[name]()
        closeness.without_dropout(model)
        model.train(train)
        # batch norms learn from each call: every side has a copy of its own
        eager = copy.deepcopy(model).to(device, half)
        args, kwargs = _moved(args, device, half), _moved(kwargs, device, half)
        wanted = {key: value.clone() for key, value in _step(eager, eager, args, kwargs, train)().items()}
    except Exception as error:  # a package is missing, the configuration does not fit, or eager has no such operator
        return row | {"left out": f"{type(error).__name__}: {error}".splitlines()[0][:160]}
    double = copy.deepcopy(model).to(device, torch.float64)
    exact_args, exact_kwargs = closeness.in_double(tuple(args)), closeness.in_double(kwargs)
    try:
        exact = _step(double, double, exact_args, exact_kwargs, train)()
    except Exception:  # float32 is written in the model, or cuDNN has no double: eager's own are compared with
        exact = wanted
    del double
    steps = {"eager": _step(eager, eager, args, kwargs, train)}
    for compiler, compile in {"dynajit": dynajit.compile, **({"torch.compile": torch.compile} if peer else {})}.items():
        for mode in modes:
            column = f"{compiler} {mode}"
            copied = copy.deepcopy(model).to(device, half)
            step = _step(copied, compile(copied, mode=mode), args, kwargs, train)
            try:
                found: list[records.CompileRecord] = []
                with warnings.catch_warnings(record=True) as warned, records.listen(found.append):
                    begun = time.perf_counter()
                    got = {key: value.clone() for key, value in step().items()}
                    row[f"{column} first"] = time.perf_counter() - begun
                    step()
                    known = len(found)
                    step()
                row[f"{column} again"] = [f"{each.code_name}: {each.recompile_reason}" for each in found[known:]]
                why = closeness.whats_wrong(got, wanted, exact)
                row |= {f"{column} wrong": why} if why else {}
                ours = [str(each.message)[:160] for each in warned if "dynajit" in str(each.message)]
                row |= {f"{column} warns": ours} if ours else {}
                steps[column] = step
            except Exception as error:  # the other sides are worth having
                row[f"{column} wrong"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    row["as captured"] = sorted(dynajit.counters["as_captured"])
    clock = sbs.clock_for(1) if device == "cpu" else time.perf_counter
    if device == "cuda":
        steps = {column: _synchronised(step) for column, step in steps.items()}
    # those beside this one compile meanwhile, but none measures
    with open(Path(tempfile.gettempdir()) / "zoo.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        times = sbs.interleave(steps, seconds=seconds, clock=clock)
    return row | {column: statistics.median(each) * 1e3 for column, each in times.items()}


def _synchronised(step: Callable[[], Any]) -> Callable[[], None]:
    def call() -> None:
        step()
        torch.cuda.synchronize()

    return call


# ------------------------------------------------------------------------------------------------------------ the run


def run(name: str, kind: str, peer: bool, limit: float, dtype: str | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, kind, *(["--peer"] if peer else [])]
    command += ["--dtype", dtype] if dtype else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"model": name, "kind": kind, "failed": f"not done after {limit:.0f} s"}
    line = next((line for line in done.stdout.splitlines() if line.startswith('{"model"')), None)
    last = (done.stderr.strip().splitlines() or [""])[-1][:200]
    return json.loads(line) if line else {"model": name, "kind": kind, "failed": f"{done.returncode}: {last}"}


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    done = [row for row in rows if "eager" in row]
    modes = [mode for mode in ("default", "reduce-overhead") if any(f"dynajit {mode}" in row for row in done)]
    for kind in _KINDS:
        these = [row for row in done if row["kind"] == kind]
        for mode in modes:
            for other in ("eager", f"torch.compile {mode}"):
                ratios = [
                    row[other] / row[f"dynajit {mode}"] for row in these if {other, f"dynajit {mode}"} <= set(row)
                ]
                if ratios:
                    below = sum(each < 0.95 for each in ratios)
                    yield (
                        f"* {kind}, {mode}, {other} / dynajit: geometric mean {sbs.geometric_mean(ratios):.2f} of"
                        f" {len(ratios)} models, least {min(ratios):.2f}, {below} below 0.95"
                    )
    yield ""
    columns = [f"{who} {mode}" for mode in modes for who in ("dynajit", "torch.compile")]
    table = sbs.Table(
        ["model", "kind", "eager ms", *columns, "first call, s", "remarks"],
        max((r["model"] for r in done), key=len, default=""),
    )
    for row in sorted(done, key=lambda row: row["eager"] / row.get("dynajit default", math.inf)):
        remarks = [
            f"{key}: {value}"
            for key, value in row.items()
            if key.endswith(("wrong", "warns", "again", "captured")) and value
        ]
        cells = [f"{row[column]:.2f}" if column in row else "" for column in columns]
        table.add(
            [
                row["model"],
                row["kind"],
                f"{row['eager']:.2f}",
                *cells,
                f"{row.get('dynajit default first', math.nan):.1f}",
                "; ".join(remarks)[:200],
            ]
        )
    yield str(table)
    for row in rows:
        if failed := row.get("failed"):
            yield f"\n{row['model']}, {row['kind']}: {failed}"
    yield f"\nLeft out, since eager or the configuration refuses: {sum('left out' in row for row in rows)}."


def main() -> int:
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("names", nargs="*", help="parts of names")
    parser.add_argument("--rows", type=Path, default=Path("zoo.jsonl"))
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=_KINDS)
    parser.add_argument("--peer", action="store_true", help="torch.compile, too")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="bfloat16 on a GPU, else float32")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300, help="seconds for one")
    parser.add_argument("--minutes", type=float, default=math.inf, help="none is begun after this time")
    parser.add_argument("--against", type=Path, help="rows from before")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        dtype = getattr(torch, given.dtype) if given.dtype else None
        print(json.dumps(measure(*given.one, given.peer, 2.0, dtype)), flush=True)
        sys.exit()
    rows = [json.loads(line) for line in given.rows.read_text().splitlines()] if given.rows.exists() else []
    known = {(row["model"], row["kind"]) for row in rows}
    wanted = [name for name in zoo() if not given.names or any(part in name for part in given.names)]
    todo = [(name, kind) for name in wanted for kind in given.kinds if (name, kind) not in known]
    random.Random(0).shuffle(todo)  # a run that ends early is a sample of all families
    progress, end = sbs.Progress(), time.monotonic() + 60 * given.minutes
    with ThreadPoolExecutor(given.processes) as pool, given.rows.open("a") as file:
        job = lambda one: run(*one, given.peer, given.limit, given.dtype) if time.monotonic() < end else None  # noqa: E731
        for number, future in enumerate(as_completed([pool.submit(job, one) for one in todo]), 1):
            if row := future.result():
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
                progress.step(f"{number} of {len(todo)}: {row['model']}, {row['kind']}")
    progress.clear()
    text = "\n".join(_lines(rows))
    print(text)
    if given.save:
        sbs.save("zoo", "Models that nobody tuned for", text, "python benchmarks/zoo.py --save")
    if given.against:
        before = {(row["model"], row["kind"]): row for row in map(json.loads, given.against.read_text().splitlines())}
        for row in rows:
            old = before.get((row["model"], row["kind"]), {})
            for key in set(row) & set(old):
                if key in ("dynajit default", "dynajit reduce-overhead"):
                    was, now = old[key] / old["eager"], row[key] / row["eager"]
                    if now > SLOWER * was:
                        print(f"slower: {row['model']}, {row['kind']}, {key}: {was:.3f} of eager's time, now {now:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
