"""Make the virtual environment that the Makefile works in.

In: the folder to make it in, the Python running this script. Out: an environment with everything dynajit, its tests
and its benchmarks need. An installed torch that is new enough is used as it is; what is already there is not
installed again, and if nothing is missing the network is not touched. Needs only the standard library. One more
package: a line in `PACKAGES`.

    python3 tools/setup_env.py .venv [--torch torch==2.13.0] [--pip-flags="..."]
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_TORCH = "2.11"

# Distribution name and oldest version. Versions are the oldest that are tried, not the newest that exist.
PACKAGES = {
    "numpy": "1.26",
    "setuptools": "77",
    "bytecode": "0.16",
    "pytest": "8",
    "pytest-xdist": "3.5",
    "transformers": "4.50",
    "ruff": "0.12",
    "mypy": "1.15",
    "expecttest": "0.2",
    "triton": "3.5",  # kernels for GPUs are tested without one
}
# Releases from these on are not known to work.
TOO_NEW = {"triton": "3.8"}

# Run by a Python to learn what it has. Prints JSON.
PROBE = """
import importlib.metadata as metadata, json, sys, sysconfig
have = {}
for name in sys.argv[1:]:
    try:
        have[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        have[name] = None
print(json.dumps({"have": have, "site": sysconfig.get_paths()["purelib"], "version": sys.version.split()[0]}))
"""


def probe(python: str) -> dict:
    """Versions of the packages that `python` sees, its site-packages folder and its own version."""
    out = subprocess.run([python, "-c", PROBE, "torch", *PACKAGES], check=True, capture_output=True, text=True, cwd="/")
    return json.loads(out.stdout)


def at_least(version: str | None, oldest: str) -> bool:
    """Is `version` (None: not installed) `oldest` or newer? Looks at the leading numbers only."""

    def numbers(text: str) -> list[int]:
        match = re.match(r"\d+(\.\d+)*", text)
        return [int(part) for part in match.group().split(".")] if match else []

    return version is not None and numbers(version) >= numbers(oldest)


def requirement(name: str) -> str:
    """What pip is asked for."""
    return f"{name}>={PACKAGES[name]}" + (f",<{TOO_NEW[name]}" if name in TOO_NEW else "")


def fits(name: str, version: str | None) -> bool:
    return at_least(version, PACKAGES[name]) and not (name in TOO_NEW and at_least(version, TOO_NEW[name]))


def torch_works(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True, cwd="/").returncode == 0


def check_python() -> None:
    """Stop with a sentence where this Python can't build the extension."""
    known = sorted((ROOT / "csrc" / "python").glob("compat_3[0-9][0-9].c"))
    names = [f"3.{path.stem[-2:]}" for path in known]
    running = ".".join(map(str, sys.version_info[:2]))
    if names and running not in names:
        sys.exit(
            f"dynajit knows CPython {', '.join(names)}; this is {running}. Name another: make PYTHON=python{names[-1]}"
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        sys.exit(f"{sys.executable} has no Python.h, which the extension needs (Debian: apt install python3-dev)")
    if not any(shutil.which(name) for name in (*os.environ.get("CXX", "").split()[:1], "c++", "g++", "clang++")):
        sys.exit("no C++ compiler found (g++ or clang++), which the extension needs")


def make_venv(folder: Path, use_host: bool) -> str:
    """A fresh environment; `use_host` lets it see the packages of the Python running this script."""
    if folder.is_symlink():  # venv --clear would empty the folder that it leads to
        sys.exit(f"{folder} is a link to {folder.resolve()}, which is not made anew. Name another: make VENV=...")
    command = [sys.executable, "-m", "venv", "--clear"]
    if use_host:
        command.append("--system-site-packages")
    # The host's pip and setuptools do where they are seen; a bundled pair would stand before them, and may be older.
    if find_spec("ensurepip") is None or (use_host and find_spec("pip")):
        command.append("--without-pip")
    subprocess.run([*command, str(folder)], check=True)
    python = str(folder / "bin" / "python")
    site = Path(probe(python)["site"])
    if use_host:
        # --system-site-packages means those of the base Python. Where this script itself runs in a virtual environment,
        # or finds packages elsewhere on its path, a .pth file reaches them.
        hosts = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (site / "dynajit-host.pth").write_text("".join(f"{path}\n" for path in hosts))
    (site / "dynajit-checkout.pth").write_text(f"{ROOT}\n")
    return python


def pip_install(python: str, requirements: list[str], flags: list[str]) -> None:
    print("installing:", ", ".join(requirements), flush=True)
    own = subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0
    pip = [python, "-m", "pip"] if own else [sys.executable, "-m", "pip", "--python", python]
    if subprocess.run([*pip, "install", "--disable-pip-version-check", "--quiet", *flags, *requirements]).returncode:
        hint = "" if own else " (this Python has no ensurepip; Debian: install python3-venv)"
        sys.exit(f"could not install {', '.join(requirements)}{hint}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--torch", default="torch==2.13.0", help="what to install where no torch is there (default: %(default)s)"
    )
    parser.add_argument("--pip-flags", default="", help="passed on to pip install")
    options = parser.parse_args()
    flags = shlex.split(options.pip_flags)

    check_python()
    host = probe(sys.executable)
    use_host = at_least(host["have"]["torch"], OLDEST_TORCH) and torch_works(sys.executable)
    seen = (
        f"torch {host['have']['torch']} is there and will be used" if use_host else f"{options.torch} will be installed"
    )
    print(f"environment {options.folder}: Python {host['version']}; {seen}", flush=True)
    python = make_venv(options.folder.absolute(), use_host)

    have = probe(python)["have"]
    if not at_least(have["torch"], OLDEST_TORCH):
        pip_install(python, [options.torch], flags)
    missing = [requirement(name) for name in PACKAGES if not fits(name, have[name])]
    if missing:
        pip_install(python, missing, flags)


if __name__ == "__main__":
    main()
