"""Check a wheel of dynajit as its users get it: what is in it, and that it works in a fresh environment.

In: the wheel's path (or the folder that holds one). Out: a line for each check; exit status 1 at the first that fails.
The environment is made in a temporary folder, outside of any checkout; torch and the other packages that dynajit needs
are those of the Python running this script, so that nothing is downloaded. Needs only the standard library.

    python tools/check_wheel.py dist
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
import sys, torch, dynajit

@dynajit.compile
def f(x, w, b):
    return torch.relu(x * w + b) * 0.5

x, w, b = torch.randn(64, 256), torch.randn(256, requires_grad=True), torch.randn(256)
result = f(x, w, b)
assert torch.equal(result, torch.relu(x * w + b) * 0.5)
result.sum().backward()
assert w.grad is not None
assert dynajit.explain(f)(x, w, b).graph_count == 1
assert f"-{dynajit.__version__}-" in sys.argv[1], dynajit.__version__
print(dynajit.__version__, dynajit.__file__)
"""


def contents(wheel: Path) -> None:
    """Everything needed to run is in it, and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    info = next(top for top in tops if top.endswith(".dist-info"))
    assert tops == {"dynajit", info}, tops
    assert "dynajit/py.typed" in names and "dynajit/_C.pyi" in names, "no types"
    assert sum(name.startswith("dynajit/_C.") and name.endswith(".so") for name in names) == 1, "one extension"
    assert not [name for name in names if "test_" in name or name.endswith((".c", ".cpp", ".o"))], "tests or sources"
    print(f"contents: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB")


def sources(sdist: Path) -> None:
    """An sdist has every source of the extension."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.*") if path.is_file()}
    missing = sorted({"setup.py", "pyproject.toml", "README.md", "LICENSE", *wanted} - names)
    assert not missing, f"{sdist.name} lacks {missing}"
    print(f"sdist: {len(names)} files")


def run(python: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """What Python writes, out of any checkout; an error if it fails."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DYNAJIT"))}
    done = subprocess.run(
        [python, *arguments], cwd=Path(python).parent, env={**clean, **(env or {})}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)[:80]} failed\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def works(wheel: Path) -> None:
    """Installed in a fresh environment, it runs: with a compiler, without one, and its command line."""
    with tempfile.TemporaryDirectory(prefix="dynajit-wheel-") as folder:
        venv = Path(folder, "venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        python = str(venv / "bin" / "python")
        site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
        # The checkout's own .pth file is not read there: only the environment's own folder has its .pth files read.
        hosts = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (site / "zz-host.pth").write_text("".join(f"{path}\n" for path in hosts))
        target = ["--target", str(site), "--no-deps", "--no-index", "--quiet", str(wheel)]
        subprocess.run([sys.executable, "-m", "pip", "install", *target], check=True)
        cache = {"DYNAJIT_CACHE_DIR": str(Path(folder, "cache"))}
        found = run(python, "-c", PROGRAM, wheel.name, env=cache).strip()
        assert str(site) in found, found
        print(f"runs: {found}")
        run(python, "-m", "dynajit", "doctor", env=cache)
        print("runs: python -m dynajit doctor")
        demo = run(python, "-m", "dynajit", "demo", "--seconds", "0", env=cache)
        print(f"runs: python -m dynajit demo\n{demo.strip()}")
        without = {"PATH": folder, "DYNAJIT_CACHE_DIR": str(Path(folder, "other"))}
        bare = run(python, "-c", PROGRAM, wheel.name, env=without)
        assert bare.count("no C compiler works") == 1, bare
        print("runs: without a C compiler, and says so once")


def main() -> None:
    found = Path(sys.argv[1])
    wheels = sorted(found.glob("*.whl")) if found.is_dir() else [found]
    assert len(wheels) == 1, f"{found} holds {len(wheels)} wheels"
    tag = f"cp{sysconfig.get_config_var('py_version_nodot')}"
    assert tag in wheels[0].name, f"{wheels[0].name} is not for this Python"
    for sdist in wheels[0].parent.glob("*.tar.gz"):
        sources(sdist)
    contents(wheels[0])
    works(wheels[0].absolute())


if __name__ == "__main__":
    main()
