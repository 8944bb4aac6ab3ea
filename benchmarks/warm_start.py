"""The first call in a new process: with empty caches, with kept kernels, with kept variants (`config.keep_variants`).

    python benchmarks/warm_start.py [--layers 2,12,48] [--kind gpt2|llama] [--compilers dynajit,torch.compile] [--save]

Each number is a new process: a GPT-2 or Llama shape is built and, unless `--cold-model`, runs eagerly once, then
compiled once, without gradients. Seconds are of the CPU, of the process and of the compilers it starts. "cold": the
caches are empty; "kernels": what a compiler keeps by itself is there; "kept": variants are, too. "traced": frames that
were looked at in that last process, which is to be 0.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import growth
import side_by_side as sbs
import torch

HEADER = ("layers", "compiler", "cold s", "kernels s", "kept s", "kept, wall s", "traced", "error")
BAR = 0.3


def first_call(kind: str, layers: int, compiler: str, cold_model: bool) -> dict[str, Any]:
    """What a child measures."""
    import dynajit

    model, inputs = growth.KINDS[kind](layers)
    with torch.no_grad():
        expected = None if cold_model else model(**inputs).logits
        cpu, wall = sbs.tree_cpu_seconds(), time.perf_counter()
        actual = sbs.COMPILERS[compiler](model, None)(**inputs).logits
        found: dict[str, Any] = {
            "wall": time.perf_counter() - wall,
            "cpu": sbs.tree_cpu_seconds() - cpu,
            "frames": dynajit.counters["frames"]["total"],
            "loaded": dynajit.counters["kept"]["loaded"],
        }
        expected = model(**inputs).logits if expected is None else expected
    return {**found, "error": float((actual - expected).abs().max())}


def in_new_process(arguments: list[str], cache: Path, keep: bool) -> dict[str, Any]:
    os.environ["DYNAJIT_KEEP_VARIANTS"] = "1" if keep else "0"
    return sbs.run_child(__file__, arguments, cache, timeout=1200)


def main() -> int:
    parser = sbs.argument_parser(__doc__, child=True)
    parser.add_argument("--layers", default="2,12,48")
    parser.add_argument("--kind", choices=growth.KINDS, default="gpt2")
    parser.add_argument("--compilers", default="dynajit")
    parser.add_argument("--cold-model", action="store_true", help="no eager call before the compiled one")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/warm_start.md")
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        found = first_call(options.kind, int(options.layers), options.compilers, options.cold_model)
        sbs.finish_child(options.out, found)
    table = sbs.Table(HEADER, "64", "torch.compile")
    print(sbs.machine(), *table.lines, sep="\n", flush=True)
    fine = True
    for compiler in options.compilers.split(","):
        for layers in options.layers.split(","):
            child = ["--layers", layers, "--kind", options.kind, "--compilers", compiler]
            child += ["--cold-model"] if options.cold_model else []
            with tempfile.TemporaryDirectory(prefix="warm-", ignore_cleanup_errors=True) as folder:
                cold, kernels = (in_new_process(child, Path(folder), keep=False) for _ in range(2))
                cells = [layers, compiler, f"{cold['cpu']:.2f}", f"{kernels['cpu']:.2f}"]
                if compiler == "dynajit":
                    in_new_process(child, Path(folder), keep=True)
                    kept = in_new_process(child, Path(folder), keep=True)
                    cells += [f"{kept['cpu']:.2f}", f"{kept['wall']:.2f}", str(kept["frames"]), f"{kept['error']:.0e}"]
                    fine &= kept["cpu"] <= BAR and kept["frames"] == 0
                else:
                    cells += ["-", "-", "-", f"{kernels['error']:.0e}"]
            print(table.add(cells), flush=True)
    print(f"\nbar for dynajit's kept variants: {BAR} CPU seconds, nothing traced: {'met' if fine else 'missed'}")
    if options.save:
        how = f"python benchmarks/warm_start.py --layers {options.layers} --kind {options.kind}"
        how += f" --compilers {options.compilers}" + (" --cold-model" if options.cold_model else "") + " --save"
        print("written:", sbs.save("warm_start", "The first call in a new process", str(table), how))
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
