# Everything that is needed is set up by the targets themselves, in .venv.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: all setup check test demo bench soak clean

all: check test

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Penstock needs \
	Python 3.11 or newer, and $(PYTHON) is %d.%d: say make PYTHON=/path/to/another" % v[:2] or 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: $(STAMP)
	$(BIN)/python -m pytest -q

demo: $(STAMP)
	$(BIN)/python examples/demo.py

bench: $(STAMP)
	$(BIN)/python -m bench wordcount
	$(BIN)/python -m bench latency
	$(BIN)/python -m bench checkpoint
	$(BIN)/python -m bench recovery

soak: $(STAMP)
	$(BIN)/python -m tests.soak

clean:
	rm -rf .venv build dist *.egg-info demo-output .hypothesis .mypy_cache .ruff_cache \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
