# isthmus: `make demo` shows it, `make test` checks it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Extra index for torch, e.g. TORCH_INDEX=https://download.pytorch.org/whl/cpu for the small CPU build.
TORCH_INDEX ?=
# How many storms `make soak` runs.
STORMS ?= 10000
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: demo test check format soak clean

demo: $(VENV)/.installed
	$(BIN)/isthmus demo $(DEMO_ARGS)

test: check
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Many more storms over whole runs, and schedules of the edge table; for an hour of the night, not part of CI.
soak: $(VENV)/.installed-dev
	$(BIN)/python tests/storm.py --schedules $(STORMS)
	SOAK_SCHEDULES=20000 $(BIN)/python -m pytest tests/property/test_edge_table.py --timeout=3600

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "isthmus needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 demo"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "Python's venv module is missing. Try: sudo apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV); torch is large, this can take some minutes the first time"
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV); torch is large, this can take some minutes the first time"
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.installed
