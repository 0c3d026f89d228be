# Each target does its own set-up: python3, pip and make are enough.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SHELL  := /bin/sh

.DEFAULT_GOAL := help
.PHONY: help demo test soak bench check lint types contracts tests format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## train, kill a rank, restart, sync to MLflow, TensorBoard and W&B
	$(BIN)/rleventlog demo

test: check tests  ## lint, types, contracts and all tests, quickest first

soak: $(READY)  ## the tests with their longer variants
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -m "soak or not soak"

bench: $(READY)  ## measure, on an idle machine, into tests/benchmarks/RESULTS.md
	$(BIN)/python -m tests.benchmarks

check: lint types contracts

lint: $(READY)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## mypy strict over code and tests
	$(BIN)/mypy

contracts: $(READY)  ## import-linter: who may import whom
	$(BIN)/lint-imports

tests: $(READY)  ## pytest alone, in two processes
	$(BIN)/python -m pytest -n 2

format: $(READY)  ## let ruff format and fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The stamp comes last, so an interrupted set-up starts over. Debian's python3 without python3-venv has no ensurepip:
# there the outer pip fills the environment.
$(READY): pyproject.toml
	@echo "setting up $(VENV) (once; a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "rl-eventlog needs Python 3.10 or newer")'
	@$(PYTHON) -m venv $(VENV) >/dev/null || { \
	    $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

clean:  ## remove the environment, caches and what the demo wrote
	rm -rf $(VENV) demo dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -exec rm -rf {} +
