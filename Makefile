# `make demo` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
READY := $(VENV)/.ready

.PHONY: demo test check bench venv clean

demo: $(READY)
	$(VENV)/bin/python -m reproduction demo

test: $(READY)
	$(VENV)/bin/pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

check: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

venv: $(READY)

bench: $(READY)
	$(VENV)/bin/python -m benchmarks losses

clean:
	rm -rf $(VENV) build demo src/oaxe.egg-info src/oaxe/*/_*.so

$(READY): pyproject.toml setup.py constraints.txt $(wildcard src/oaxe/*/_*.c)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt setuptools
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@
