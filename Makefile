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
.PHONY: help quickstart test test-wheel test-oldest test-newest lint types bench docs build check-extras clean

help:
	@echo "make quickstart   train a tiny policy on four environments, in about three minutes"
	@echo "make test         run the tests"
	@echo "make test-wheel   run the tests on the built wheel, in a folder without its source"
	@echo "make test-oldest  run the tests with the oldest versions that pyproject.toml allows"
	@echo "make test-newest  run the tests with the newest versions that there are"
	@echo "make lint         check style and spelling"
	@echo "make types        check types"
	@echo "make bench        run the benchmarks and write benchmarks/results/"
	@echo "make docs         build the documentation into site/"
	@echo "make build        build the wheel and the sdist into dist/"
	@echo "make check-extras see that each extra can be installed into an empty environment"
	@echo "make clean        remove everything that these made, the virtual environment too"

quickstart: $(STAMPS)/quickstart
	HF_HUB_OFFLINE=1 $(BIN)/multiors quickstart $(ARGS)

# One process more than there are cores, for they wait for servers; files in their order, for those with few tests are slow.
PYTEST := -m pytest --numprocesses=$(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)') --maxprocesses=4 \
  --dist=loadfile --no-loadscope-reorder

test: $(STAMPS)/test
	$(BIN)/python $(PYTEST) $(ARGS)

# The sdist without its source, and a virtual environment that has the wheel, and everything else from that of `make test`.
test-wheel: build
	rm -rf build/wheel && mkdir -p build/wheel
	tar -xzf dist/multiors-*.tar.gz -C build/wheel --strip-components=1
	rm -r build/wheel/multiors
	$(BIN)/python -m venv --without-pip build/wheel/.venv
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
	  > $$(build/wheel/.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/others.pth
	$(PIP) --python build/wheel/.venv/bin/python install --quiet --no-deps --no-index dist/multiors-*.whl
	cd build/wheel && .venv/bin/python $(PYTEST) $(ARGS)

# The newest versions are those that the index has today. Without DeepSpeed, whose tests are skipped.
CONSTRAINTS_oldest := --constraint constraints-oldest.txt

test-oldest test-newest: test-%:
	$(PYTHON) -m venv build/$*
	build/$*/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	build/$*/bin/python -m pip install --quiet $(CONSTRAINTS_$*) \
	  --editable ".[quickstart,reasoning-gym,peft]" --group test
	build/$*/bin/python $(PYTEST) $(ARGS)

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

build: $(STAMPS)/test
	rm -rf dist
	$(BIN)/python -m build --no-isolation

# Asks the index for metadata only: pip would download all that vLLM needs. Without constraints.txt, as users do.
check-extras: $(STAMPS)/resolve
	@mkdir -p build && rm -f build/*.txt
	@for extra in $$($(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"])'); do \
	  $(BIN)/uv pip compile --quiet --extra $$extra --output-file build/$$extra.txt pyproject.toml || exit 1; \
	  echo "$$extra: $$(grep -c == build/$$extra.txt) packages"; \
	done

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

# DeepSpeed is built with the torch that is there, and its kernels when they are needed.
$(STAMPS)/test: $(STAMPS)/quickstart
	$(INSTALL) --group test
	DS_BUILD_OPS=0 $(INSTALL) --no-build-isolation --group engines
	@touch $@

$(STAMPS)/bench: $(STAMPS)/quickstart
	$(INSTALL) --group bench
	@touch $@

$(STAMPS)/typing: $(STAMPS)/test
	$(INSTALL) --group typing
	@touch $@

$(STAMPS)/lint $(STAMPS)/docs $(STAMPS)/resolve: $(STAMPS)/%: $(STAMPS)/venv $(INPUTS)
	$(INSTALL) --group $*
	@touch $@
