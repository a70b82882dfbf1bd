# The entry point for developers and CI. `make` alone lists the targets.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install run test test-slow test-gpu bench-gpu test-cluster test-cluster-alone test-cluster-together test-kubeflow pictures mutate lint format compile docs reference notebooks images audit fuzz bench lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1|/' | column -t -s '|'

$(INSTALLED): requirements.txt pyproject.toml
	@echo "installing into $(VENV) (5 GB with torch, once)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	@$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python requirements.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

install: $(INSTALLED) ## create the environment: the locked packages and ddpipe itself

run: $(INSTALLED) ## the whole pipeline on this machine: digits, two training processes, a report
	@$(BIN)/ddpipe run --source digits --processes 2

# The workers and the processes that tests start import the same modules: each is compiled once.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(BIN)/pytest --dist=loadfile --no-loadscope-reorder
# Tests wait for servers and processes, those of `make test` half of the time: also with few cores, several at once.
at_least = $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < $(1) ? $(1) : n)))
test: $(INSTALLED) ## the tests to run at every change: minutes, needs no cluster
	@$(PYTEST) --numprocesses=$(call at_least,4) -m "not slow and not installs"

# Each worker imports what it collects: the other files would take it as long as a training.
WITH_SLOW = $(shell grep -rl "mark\.slow" --include="test_*.py" tests/distributed tests/pipelines tests/unit | LC_ALL=C sort)
test-slow: $(INSTALLED) ## trainings by several processes, kills and resumes, notebooks, real data sets
	@$(PYTEST) --numprocesses=$(call at_least,4) -m slow $(WITH_SLOW)

test-gpu: $(INSTALLED) ## trainings on the GPUs of this machine; they have not run on one yet: please report the output
	@$(BIN)/python -c 'import sys, torch; sys.exit(torch.cuda.is_available())' \
		&& echo "skipped: these tests need a GPU, and torch finds none on this machine" || $(BIN)/pytest tests/gpu

bench-gpu: $(INSTALLED) ## time to an accuracy and throughput on a GPU; it has not run on one yet: please report the output
	@$(BIN)/python benchmarks/on_gpu.py

test-cluster: $(INSTALLED) ## the tests on a real cluster (KUBECONFIG)
	@$(MAKE) --no-print-directory test-cluster-alone; alone=$$?; \
	$(MAKE) --no-print-directory test-cluster-together && exit $$alone

test-cluster-alone: $(INSTALLED)
	@$(BIN)/pytest tests/cluster -m alone

test-cluster-together: $(INSTALLED)
	@$(BIN)/pytest tests/cluster -m "not alone" --numprocesses=3 --dist=loadfile --no-loadscope-reorder

test-kubeflow: $(INSTALLED) ## the tests that need Kubeflow's servers (Pipelines, Katib, KServe, Model Registry), which it builds and starts
	@.ci/kubeflow

pictures: $(INSTALLED) ## take the screenshots of the Kubeflow UI in docs/ (KUBECONFIG, KFP_ENDPOINT, KFP_UI, Chromium)
	@PICTURES=docs $(BIN)/pytest tests/cluster/test_ui.py

MODULES ?= kube jobs launching notebook prepare train data storage model
SAMPLE ?= 60
SEED ?= 1
mutate: $(INSTALLED) ## mutation testing, how many deliberate faults the tests notice: make mutate MODULES="data storage/s3.py" SAMPLE=60
	@$(BIN)/python tools/mutate.py $(MODULES) --sample $(SAMPLE) --seed $(SEED)

lint: $(INSTALLED) ## ruff, mypy --strict, import contracts, budget of the whole, links of the documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/structure.py
	@$(BIN)/zensical build --clean --strict

format: $(INSTALLED) ## format the code, and fix what ruff can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

compile: $(INSTALLED) ## write the compiled packages to pipelines/compiled; REGISTRY=… TAG=… for your own images
	@DDPIPE_REGISTRY=$(REGISTRY) DDPIPE_TAG=$(TAG) $(BIN)/ddpipe compile

docs: $(INSTALLED) ## build docs/ into build/site, strict about links; read it with search: .venv/bin/zensical serve
	@$(BIN)/zensical build --clean --strict

reference: $(INSTALLED) ## write the generated pages of docs/, after a change of parameters, commands, errors or results
	@$(BIN)/python tools/reference.py

notebooks: $(INSTALLED) ## execute the notebooks of pipelines/, and keep their outputs in them
	@$(BIN)/python tools/notebooks.py

# Builds the images: the first of these tools that responds.
BUILDER ?= $(shell for tool in docker podman buildah; do $$tool info >/dev/null 2>&1 && echo $$tool && break; done)
BUILD_FLAGS ?=
BASE ?= python:3.11-slim
REGISTRY ?= ghcr.io/ddpipe
TAG ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
COMMIT = $(shell git describe --always --dirty --abbrev=40)
images: ## build the images: make images REGISTRY=… TAG=…, with docker, podman or buildah
	@test -n "$(BUILDER)" || { echo "docker, podman or buildah is required: none is running; start or install one" >&2; exit 1; }
	@$(BUILDER) pull --quiet $(BASE) >/dev/null || echo "not pulled: the local image is used" >&2; \
	digest=$$($(BUILDER) images --digests --format '{{.Digest}}' $(BASE) | sed -n '/^sha256:/p;q'); \
	base=$(firstword $(subst @, ,$(BASE)))$${digest:+@$$digest}; \
	echo "base: $$base"; \
	for target in launcher predictor trainer; do \
		$(BUILDER) build --file images/Dockerfile --target $$target --tag $(REGISTRY)/ddpipe-$$target:$(TAG) \
			--build-arg BASE=$$base --build-arg VERSION=$(TAG) --build-arg COMMIT=$(COMMIT) \
			$(BUILD_FLAGS) . || exit 1; \
	done

SECONDS ?= 600
fuzz: $(INSTALLED) ## feed damaged files and requests to what reads them: make fuzz SECONDS=3600
	@$(BIN)/python tools/fuzz.py --seconds $(SECONDS)

audit: $(INSTALLED) ## licenses and known vulnerabilities of what the images carry, in docs/supply.md
	@$(BIN)/python tools/supply.py audit

bench: $(INSTALLED) ## run the benchmarks, each next to its alternatives; tables in benchmarks/results
	@for bench in benchmarks/bench_*.py; do $(BIN)/python $$bench || exit 1; done

UV_COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate
lock: $(INSTALLED) ## resolve the dependencies in pyproject.toml again into requirements*.txt
	@$(UV_COMPILE) pyproject.toml --upgrade --extra all --group dev --output-file requirements.txt
	@$(UV_COMPILE) pyproject.toml --extra pipelines --extra register --extra mlflow --constraint requirements.txt \
		--output-file requirements-launcher.txt
	@$(UV_COMPILE) pyproject.toml --extra train --extra register --extra pipelines --extra mlflow \
		--constraint requirements.txt --output-file requirements-trainer.txt
	@$(UV_COMPILE) pyproject.toml --extra serve --constraint requirements.txt --output-file requirements-predictor.txt
	@printf 'torch\ntorchvision\n' | $(UV_COMPILE) - --constraint requirements.txt --output-file requirements-torch.txt
	@echo hatchling | $(UV_COMPILE) - --upgrade --output-file requirements-build.txt
	@echo kfp==1.8.24 | $(UV_COMPILE) - --upgrade --output-file pipelines/requirements-v1.txt

clean: ## remove files left by tests and tools (keeps the environment and runs)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .grimp_cache .import_linter_cache build dist
