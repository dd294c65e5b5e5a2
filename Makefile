# `make demo` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
READY := $(VENV)/.ready

.PHONY: demo test check docs bench venv clean

demo: $(READY)
	$(VENV)/bin/python -m reproduction demo

test: $(READY)
	$(VENV)/bin/pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

check: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: $(READY)
	rm -rf site
	$(VENV)/bin/python -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees --fresh-env docs site
	$(VENV)/bin/python docs/links.py site

venv: $(READY)

bench: $(READY)
	$(VENV)/bin/python -m benchmarks losses

clean:
	rm -rf $(VENV) build demo site src/oaxe.egg-info src/oaxe/*/_*.so

$(READY): pyproject.toml setup.py constraints.txt $(wildcard src/oaxe/*/_*.c)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt setuptools
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@
