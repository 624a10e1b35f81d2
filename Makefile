# Every target makes the virtual environment and installs what it needs; a second run finds it there.
#
#   make quickstart ARGS="--seed 3 --steps 40"
#   make test ARGS="tests/test_semantics.py -x"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt

# A stamp per set of dependencies, renewed when these change.
STAMPS := $(VENV)/.installed
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help quickstart test lint types bench docs clean

help:
	@echo "make quickstart   train a tiny policy on four environments, in about three minutes"
	@echo "make test         run the tests"
	@echo "make lint         check style and spelling"
	@echo "make types        check types"
	@echo "make bench        run the benchmarks and write benchmarks/results/"
	@echo "make docs         build the documentation into site/"
	@echo "make clean        remove everything that these made, the virtual environment too"

quickstart: $(STAMPS)/quickstart
	HF_HUB_OFFLINE=1 $(BIN)/multiors quickstart $(ARGS)

test: $(STAMPS)/test
	$(BIN)/pytest --numprocesses=logical --maxprocesses=4 --dist=loadfile $(ARGS)

lint: $(STAMPS)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(STAMPS)/typing
	$(BIN)/mypy

bench: $(STAMPS)/bench
	@for script in benchmarks/[!_]*.py; do \
	  echo "$$script"; \
	  $(BIN)/python $$script --json benchmarks/results/$$(basename $$script .py).json || exit 1; \
	done

docs: $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Dependency groups need pip 25.1, which is newer than what Python 3.11 brings along.
$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "multiors needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade "pip>=25.1"
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/quickstart: $(STAMPS)/venv $(INPUTS)
	@echo "Installing multiors and what it needs into $(VENV), once; torch alone is several hundred megabytes."
	$(INSTALL) --editable ".[quickstart]"
	@touch $@

$(STAMPS)/test $(STAMPS)/bench: $(STAMPS)/%: $(STAMPS)/quickstart
	$(INSTALL) --group $*
	@touch $@

$(STAMPS)/typing: $(STAMPS)/test
	$(INSTALL) --group typing
	@touch $@

$(STAMPS)/lint $(STAMPS)/docs: $(STAMPS)/%: $(STAMPS)/venv $(INPUTS)
	$(INSTALL) --group $*
	@touch $@
