# make quickstart   install and run the main job: SFT, then GRPO, on a CPU
# make test         install and run the whole test suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c requirements/constraints.txt
# One torch thread: with tiny models more threads are slower.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
SEED ?= 0

.PHONY: quickstart quickstart-data test test-fast lint types format clean

quickstart: $(VENV)/core.stamp
	$(BIN)/python examples/quickstart.py --seed $(SEED)

quickstart-data: $(VENV)/core.stamp
	$(BIN)/python examples/quickstart.py --seed $(SEED) --only-data

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest

test-fast: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m "not slow and not gpu"

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp
	$(BIN)/mypy

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed; set PYTHON=..."'
	$(PYTHON) -m venv $(VENV)

$(VENV)/core.stamp: pyproject.toml requirements/constraints.txt | $(VENV)/bin/python
	@echo "Installing roll-lightning into $(VENV) (a few minutes the first time) ..."
	$(PIP) -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	$(PIP) -e '.[dev,deepspeed,gguf,qlora,reasoning-gym]'
	@touch $@
