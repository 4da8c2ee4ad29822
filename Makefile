# Everything happens in .venv, made once from the pinned packages in constraints.txt: no compiler, no root.
# PySpark alone comes as source: it is nothing but Python and jars, so that it needs no compiler either.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -qq --only-binary :all: --no-binary pyspark \
	--constraint constraints.txt

# The first Python that is new enough; `make PYTHON=/path/to/python3` overrides the choice.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# An environment contains the full path of its folder, so it is made again in a folder that was moved or copied.
ifneq "$(shell cat $(STAMP) 2>/dev/null)" "$(CURDIR)"
.PHONY: $(STAMP)
endif

.DEFAULT_GOAL := help
.PHONY: help demo test setup format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

demo: setup ## a whole market on this machine (options: make demo ARGS="--help")
	@$(BIN)/fairtape demo $(ARGS)

test: setup ## every check of the project: style, types, layers, then all tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(PYTEST) -n 2 --dist loadgroup -m "not alone"
	$(PYTEST) -m alone || [ $$? -eq 5 ] # 5: no test wants the machine for itself

setup: $(STAMP) ## make .venv, or bring it up to date

format: setup ## format all code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove .venv and everything else that was made here
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# The build backends come first and pinned, because building in isolation would fetch whichever is newest that day.
$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "fairtape needs Python 3.11 or newer and found none; install one, or name it: make PYTHON=/path/to/python3" >&2; \
		exit 2; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "fairtape needs Python 3.11 or newer and PYTHON=$(PYTHON) is not; name another: make PYTHON=/path/to/python3" >&2; \
		exit 2; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) lacks venv or ensurepip; install them (on Debian and Ubuntu: the package python3-venv)" >&2; \
		exit 2; }
	@echo "setting up $(VENV) (once, some minutes)…"
	@[ "$$(cat $(STAMP) 2>/dev/null)" = "$(CURDIR)" ] && $(BIN)/python -m pip --version >/dev/null 2>&1 \
		|| "$(PYTHON)" -m venv --clear $(VENV)
	@$(PIP) hatchling editables setuptools
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@echo "$(CURDIR)" >$(STAMP)
