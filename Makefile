# Everything runs in the project's own .venv; the first call of a target sets it up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EMBEDDED := random length constant lexical embedding aspect-match

.PHONY: help demo test test-slow check baselines training study bench clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

demo: $(VENV)/.core  ## train a light head, evaluate it and the embedded models on the embedded benchmark, write a page
	@rm -rf runs/demo runs/demo-head
	$(BIN)/prb train light --out runs/demo-head
	$(BIN)/prb evaluate $(addprefix --model ,$(EMBEDDED)) --model 'personal?path=runs/demo-head' --out runs/demo
	@$(BIN)/prb report runs/demo

test: $(VENV)/.dev chromium  ## all tests
	$(BIN)/python -m pytest -n auto -m "not slow and not gpu and not api"

test-slow: $(VENV)/.dev  ## long loads and soaks
	$(BIN)/python -m pytest -m slow || [ $$? -eq 5 ]  # 5: there are none yet

check: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

baselines: $(VENV)/.dev  ## the table of embedded models in README.md and docs/mirror.md
	$(BIN)/python benchmarks/baselines.py

training: $(VENV)/.dev  ## all methods on simulate, mirror and prefeval, into docs/training.md (hours)
	$(BIN)/python benchmarks/training.py

study: $(VENV)/.dev  ## over 30 reward models: does mirror predict best-of-N? (hours)
	$(BIN)/python benchmarks/study.py

bench: $(VENV)/.dev  ## speed, as ratios measured in one run, into docs/benchmarks.md
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/judging.py
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/studying.py

clean:  ## remove the environment and the demo run
	rm -rf $(VENV) runs/demo runs/demo-head

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# torch is pinned for development; the package itself allows a range
$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[dev,torch]'
	-$(BIN)/prb models pull minilm
	-$(BIN)/prb models pull smollm2
	@touch $@ $(VENV)/.core

.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	|| echo "chromium is not installed: browser tests will be skipped"
