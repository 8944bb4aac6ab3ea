# make demo    set everything up, then real models side by side: eager, dynajit, torch.compile
# make test    the same set-up, then the tests            (TESTS="tests/guards -k tensor" for some of them,
#                                                         WORKERS=0 in one process; else one a core)
# make lint    ruff, mypy, and the extension with warnings as errors
# make fuzz    random programs against eager             (FUZZ="--backend codegen --seeds 0 100000 --minutes 60")
# make fuzz-many  many random programs in many processes (FUZZ_MANY="--seeds 0 100000 --minutes 60 --append runs.md")
# make fuzz-parts  random guards against their Python twins, random kernels against the reference interpreter
#                  (GUARDS="--seeds 0 100000" KERNELS="--seeds 0 5000")
# make fuzz-guided  random guards and bytecode, guided by what is reached in Python and C (GUIDED="all --minutes 600")
# make leaks       each program of the tests a thousand times: memory stays level (LEAKS="--only closure --calls 200")
# make sanitize    tests of the extension under AddressSanitizer and UBSan  (TESTS="tests/guards -k tensor")
# make operators   every operator of torch against eager (OPERATORS="--samples 8 --only conv")
# make modules     every module of torch's own table against eager, forward and backward (MODULES="--only Conv")
# make cpython CPython's own test-suite, each test function compiled    (CPYTHON="test_list --verbose")
# make wheel   an sdist and a wheel in dist/, and the wheel tested in a fresh environment
# make examples  the programs of examples/, and what they print into docs/outputs (installs FastAPI and diffusers the first time)
# make docs    the documentation as HTML, in build/docs (installs Sphinx the first time)
# make bench   all benchmarks; tables go to benchmarks/results/
# make clean   delete what was built; make distclean deletes the virtual environment too
#
# Set-up is done once: a virtual environment in .venv with what is missing, and the extension built in place.
#   PYTHON=python3.12            another Python
#   PIP_FLAGS="--index-url ..."  another package index (say, of CPU-only torch builds)

PYTHON    ?= python3
VENV      ?= .venv
TORCH     ?= torch==2.13.0
PIP_FLAGS ?=
TESTS     ?= tests
WORKERS   ?= $(shell nproc)
DEMO      ?=
FUZZ      ?= --seeds 0 2000
FUZZ_MANY ?= --seeds 0 10000
GUARDS    ?= --seeds 0 5000
KERNELS   ?= --seeds 0 500
GUIDED    ?= all --minutes 5
LEAKS     ?=
CPYTHON   ?=
OPERATORS ?= --samples 8 --save benchmarks/results/operators.md

BIN   := $(VENV)/bin
READY := $(VENV)/.packages
BUILT := $(VENV)/.extension

SOURCES := $(wildcard csrc/* csrc/*/*) setup.py pyproject.toml

.PHONY: demo test lint fuzz fuzz-many fuzz-parts fuzz-guided leaks sanitize operators modules cpython wheel examples docs bench build setup clean distclean
.DELETE_ON_ERROR:

demo: build
	$(BIN)/python benchmarks/demo.py $(DEMO)

test: build
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(TESTS)

lint: build
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy dynajit

fuzz: build
	$(BIN)/python tests/fuzz/run.py $(FUZZ)

fuzz-many: build
	$(BIN)/python tests/fuzz/many.py $(FUZZ_MANY)

fuzz-parts: build
	$(BIN)/python tests/fuzz/run_parts.py guards $(GUARDS)
	$(BIN)/python tests/fuzz/run_parts.py kernels $(KERNELS)

fuzz-guided: build
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(BIN)/python -m pip install $(PIP_FLAGS) --quiet atheris
	$(BIN)/python tools/fuzz_guided.py $(GUIDED)

leaks: build
	$(BIN)/python tools/leaks.py $(LEAKS)

sanitize: build
	$(BIN)/python tools/sanitize.py $(filter-out tests,$(TESTS))

operators: build
	$(BIN)/python tests/operators/run_operators.py $(OPERATORS)

modules: build
	$(BIN)/python tests/operators/run_modules.py $(MODULES)

cpython: build
	$(BIN)/python tests/cpython/cpython_run.py $(CPYTHON)

wheel: build
	rm -rf dist build/lib* build/bdist*
	$(BIN)/python -c "from setuptools import build_meta as build; build.build_sdist('dist'); build.build_wheel('dist')" >/dev/null
	$(BIN)/python tools/check_wheel.py dist

examples: build
	@$(BIN)/python -c "import fastapi, httpx, diffusers" 2>/dev/null || $(BIN)/python -m pip install $(PIP_FLAGS) --quiet fastapi httpx diffusers
	@mkdir -p docs/outputs
	@for example in $(filter-out timing,$(basename $(notdir $(wildcard examples/*.py)))); do \
	    echo "== $$example"; OMP_NUM_THREADS=1 $(BIN)/python examples/$$example.py > docs/outputs/$$example.txt || exit 1; \
	    cat docs/outputs/$$example.txt; done

docs: build
	@$(BIN)/python -c "import sphinx, myst_parser" 2>/dev/null || $(BIN)/python -m pip install $(PIP_FLAGS) --quiet sphinx myst-parser
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs build/docs
	@$(BIN)/python tools/check_links.py build/docs
	@echo "build/docs/index.html"

bench: build
	-$(BIN)/python benchmarks/overhead.py --save
	$(BIN)/python benchmarks/compile_time.py --save
	$(BIN)/python benchmarks/kernels_cpu.py --save
	-$(BIN)/python benchmarks/operators_speed.py --seconds 3000 --save
	-$(BIN)/python benchmarks/scaling.py --save
	-$(BIN)/python benchmarks/growth.py --save
	-$(BIN)/python benchmarks/limits.py --save
	$(BIN)/python benchmarks/demo.py --save

setup: $(READY)
build: $(BUILT)

$(READY): tools/setup_env.py
	$(PYTHON) tools/setup_env.py $(VENV) --torch "$(TORCH)" --pip-flags="$(PIP_FLAGS)"
	@touch $@

$(BUILT): $(READY) $(SOURCES)
	@echo "building the extension"
	$(BIN)/python setup.py --quiet egg_info build_ext --inplace
	@touch $@

clean:
	rm -rf build dist *.egg-info dynajit/*.so $(BUILT) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
