# Everything runs in .venv, which is made on first use with the exact versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One BLAS thread a test process: the tests run side by side, and thread count changes numbers.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPLBACKEND=Agg
JOBS ?= 2

# A failed cell (1) must not hide the others' results: they are rendered all the same.
define reproduce_and_report
@$(BIN)/auto-research reproduce --suite $(1); status=$$?; \
if [ $$status -gt 1 ]; then exit $$status; fi; \
$(BIN)/auto-research report && exit $$status
endef

.DEFAULT_GOAL := help
.PHONY: help install test lint types imports pytest smoke reproduce reproduce-full ui bench format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

smoke: $(READY) ## A small suite, end to end, into build/ (about 2 minutes)
	$(BIN)/auto-research reproduce --suite smoke --metrics-dir build/metrics --runs-dir build/runs --no-track

reproduce: $(READY) ## Every cell of suites/default.toml, then reports/ (under 40 minutes on 2 cores)
	$(call reproduce_and_report,default)

reproduce-full: $(READY) ## Every benchmark, five seeds, the ablations, several bases (hours)
	$(call reproduce_and_report,full)

ui: $(READY) ## MLflow's own page on the default store
	$(BIN)/mlflow ui --backend-store-uri sqlite:///mlflow.db --host 127.0.0.1

bench: $(READY) ## Speed and memory, as ratios against a peer in the same run
	$(BIN)/python -m pytest tests/perf --benchmark-enable --benchmark-only -n 0 -s -m bench

format: $(READY) ## Let ruff rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove build outputs and caches (keeps .venv, runs/, metrics/)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .benchmarks .import_linter_cache
