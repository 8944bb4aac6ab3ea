"""Write a compiled program into a file, and run it in a process that has neither the model's source nor a compiler.

It shows `dynajit.export` and `dynajit.load`: a size that varies, a process without this file's classes, what a wrong
call gets, and how soon the first answer is there.

    python examples/export_and_serve.py
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from serve_concurrently import Classifier
from torch.export import Dim

import dynajit

SERVER = """
import sys, time
begin = time.perf_counter()
import torch, dynajit
imported = time.perf_counter()
program = dynajit.load(sys.argv[1])
x, expected = torch.load(sys.argv[2])
found = program(x)
print((found - expected).abs().max().item(), time.perf_counter() - imported)
try:
    program(x.float())
except dynajit.exc.ArtifactError as error:
    print(error)
assert "serve_concurrently" not in sys.modules
"""


def main(length: int = 40) -> dict[str, float]:
    torch.manual_seed(0)
    model = Classifier().eval()
    tokens = torch.randint(1, 1000, (3, length))
    begin = time.perf_counter()
    exported = dynajit.export(model, (tokens,), dynamic_shapes=({0: Dim("batch", max=64), 1: Dim("length", max=512)},))
    seconds = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        program, case = Path(folder) / "classifier.djt", Path(folder) / "case.pt"
        exported.save(program)
        other = torch.randint(1, 1000, (7, length + 9))  # another batch, another length
        with torch.no_grad():
            torch.save((other, model(other)), case)
        size = program.stat().st_size
        # no compiler is found on this PATH, and nothing in this cache
        nothing = {"PATH": "", "DYNAJIT_CACHE_DIR": folder}
        environment = {**os.environ, **nothing, "PYTHONPATH": os.pathsep.join(sys.path[1:])}
        command = [sys.executable, "-c", SERVER, str(program), str(case)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder)
    figures, refusal = done.stdout.splitlines()[:2]
    apart, first = (float(figure) for figure in figures.split())
    print(f"exported in {seconds:.1f} s, {size / 1e6:.1f} MB")
    print(f"in the other process: loaded and answered in {first * 1e3:.0f} ms, {apart:.1e} from eager's")
    print(f"a wrong call: {refusal}")
    return {"apart": apart, "first_s": first, "refused": "expected is" in refusal}


if __name__ == "__main__":
    main()
