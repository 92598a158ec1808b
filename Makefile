# `make demo` and `make test` need Python 3.11 and make; they make their own virtual environment in .venv.
#
# PIP_OPTIONS goes to pip; where the registry offers only CUDA builds of torch, which are large and which nothing
# here needs:  make demo PIP_OPTIONS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_OPTIONS ?=
OUT ?= demo
MARK ?= not slow

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: demo test test-newest coverage lint site bench gate results pages clean

demo: $(STAMP)
	$(BIN)/python -m experiments.demo --out $(OUT) --results $(OUT)/results.md

# All tests but the slow ones, most of which take five seconds or more. MARK=slow: only these; MARK=: all.
# ROOM=problem: only the tests of one room, or of one folder or file below tests/.
# Two processes: one compiles or waits while the other works; a file's tests stay together, with what they share.
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "$(MARK)" $(PYTEST_OPTIONS) $(if $(ROOM),tests/$(ROOM) $(wildcard placeto/$(ROOM)))

# All tests with the newest release of every dependency, in an environment of their own.
test-newest:
	PIP_OPTIONS="$(PIP_OPTIONS)" PYTEST_OPTIONS="$(PYTEST_OPTIONS)" .ci/newest

# Which lines of the package the tests execute, of all or of one ROOM. Kernels, functions below @compiled, are left out:
# numba runs them as machine code. So is what tests run in processes of their own, such as torchrun.
coverage: $(STAMP)
	$(MAKE) test MARK= PYTEST_OPTIONS="--cov=placeto --cov=graphs $(PYTEST_OPTIONS)"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a website, in site/; any warning is an error.
site: $(STAMP)
	$(BIN)/python -m mkdocs build --strict --clean

bench: $(STAMP)
	$(BIN)/python -m experiments.bench_simulator
	$(BIN)/python -m experiments.bench

# Some minutes: are placements as good as they were?
gate: $(STAMP)
	$(BIN)/python -m experiments.gate

# Hours: runs all experiments that RESULTS shows with the present code, and says first how long that takes.
results: $(STAMP)
	$(BIN)/python -m experiments.reproduce

# Makes RESULTS and the history from their text and the results files.
pages: $(STAMP)
	$(BIN)/python -m experiments.result_pages

# Installs once, and again when the dependencies change. A half-made environment has no stamp: it is completed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_OPTIONS) -c constraints.txt -e '.[test,lint,docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis $(OUT)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
