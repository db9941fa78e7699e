# Everything runs in .venv, which is made on first use with the exact versions of constraints.txt.
PYTHON ?= python3
SEED ?= 42
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
METHODS := sinkflex-rl eager-attention no-sink
# One BLAS thread a test process: the tests run side by side, and thread count changes numbers.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPLBACKEND=Agg
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install test lint types imports pytest smoke reproduce bench format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(READY) ## Make .venv with the pinned versions

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 11) else "Python 3.11 or newer is needed; $(PYTHON) is %d.%d. Try: make PYTHON=python3.11 install" % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

test: lint types imports pytest ## Lint, types, import rules and every test

lint: $(READY) ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy (strict on harness/)
	$(BIN)/mypy

imports: $(READY) ## import-linter: arrows between the rooms point one way
	$(BIN)/lint-imports

pytest: $(READY) ## The tests alone
	$(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

smoke: $(READY) ## The main command, end to end, at a tiny budget (under 90 s)
	$(BIN)/auto-research agent-eval --plugin examples/quick.py --method sinkflex-quick \
	  --benchmark scalemcp-mini --episodes 8 --updates 2 --seed $(SEED) --force \
	  --metrics-dir build/smoke/metrics --runs-dir build/smoke/runs \
	  --tracking-uri sqlite:///build/smoke/mlflow.db

reproduce: $(READY) ## The main command for every method at seed 42 (SEED=43 for another)
	@set -e; for method in $(METHODS); do \
	  $(BIN)/auto-research agent-eval --method $$method --benchmark scalemcp-mini --seed $(SEED); \
	done

bench: $(READY) ## Speed and memory, as ratios against a peer in the same run
	$(BIN)/python -m pytest tests/perf --benchmark-enable --benchmark-only -n 0 -s -m bench

format: $(READY) ## Let ruff rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove build outputs and caches (keeps .venv, runs/, metrics/)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .benchmarks .import_linter_cache
