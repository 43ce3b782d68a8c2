# Every chore has its target here; CI calls the same ones.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

# So many test files at once. More servers of 4 GB than these leave SGLang less than its reserve
# of 10 GiB on a machine of 24.
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter that really is 3.11 or 3.12; a name on PATH alone proves nothing.
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null \
	&& { echo $$p; break; }; done)

.PHONY: help install tools demo test test-all test-unit test-core test-more test-monitoring test-pod \
	test-gpu test-stacks test-sglang-matrix soak check format boards metrics models results bench clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "HiQCache needs Python 3.11 or 3.12; found neither on PATH" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "Installing SGLang and what it needs into $(VENV): about 3 minutes and 11 GB"
	@$(BIN)/python -m pip install --progress-bar off --constraint constraints.txt \
		--editable '.[sglang,sidecar,pod,experiment,demo,mooncake,dev]' \
		| awk '/^Collecting/ && ++n % 50 == 0 { print n " packages found"; fflush() } \
			/^Installing collected/ { print "Installing"; fflush() }'
	touch $@

install: $(VENV)/installed ## Install everything into .venv

demo: install ## BF16 beside INT8 on a real SGLang server (DEMO_ARGS="--model ...")
	$(BIN)/hiqcache demo $(DEMO_ARGS)

test: test-unit test-core ## What takes no GPU and ten minutes: all without a server, one server of each kind

test-all: test test-more ## All tests that need no GPU and no Docker

TOOLS := prometheus chromium libibverbs1 librdmacm1 libnuma1
tools: ## Prometheus, Chromium and Mooncake's libraries, which tests run for real (Debian, as root)
	@missing=$$(for t in promtool prometheus chromium; do command -v $$t >/dev/null || echo $$t; done; \
		for l in ibverbs rdmacm numa; do ldconfig -p | grep -q lib$$l.so || echo lib$$l; done); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "The tests need what is missing here:" $$missing >&2; \
		echo "On Debian: sudo apt-get install $(TOOLS)" >&2; exit 1; fi; \
	apt-get update -qq; \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		$(TOOLS) >/dev/null

SERVERS := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 25

test-unit: install tools ## Tests without a server
	$(BIN)/python -m pytest tests/unit --numprocesses $(WORKERS)

test-core: install tools ## One real SGLang server of each kind, on the CPU
	$(BIN)/python -m pytest tests/engine -m core $(SERVERS)

test-more: install tools ## The other tests on real SGLang servers, on the CPU
	$(BIN)/python -m pytest tests/engine -m "not core" --ignore tests/engine/test_automatic_sizing.py \
		--ignore tests/engine/test_largest_l2.py $(SERVERS)
	@# By themselves: they size L2 by the memory that is free, which may not change meanwhile.
	$(BIN)/python -m pytest tests/engine/test_automatic_sizing.py tests/engine/test_largest_l2.py

test-monitoring: install tools ## Prometheus rules and Grafana boards alone
	$(BIN)/python -m pytest tests/unit/test_monitoring.py

test-pod: install ## Images, Compose and the pod with a real Docker (Debian, as root; 16 GB of disk)
	tests/pod/install_tools.sh
	$(BIN)/python -m pytest tests/pod

test-gpu: install ## Kernels and real SGLang on an NVIDIA GPU; the outcome goes to results/
	@# Compiling is what takes the time, so the kernels' tests share the cores.
	$(BIN)/python -m pytest tests/gpu --numprocesses 12 --record results/test-gpu.json
	$(BIN)/python -m pytest tests/engine --ignore tests/engine/test_fail_closed.py \
		--record results/test-gpu-engine.json

ARMS ?= off bf16 int8-compact
test-stacks: install ## Every kind of stack on an NVIDIA GPU, 5 minutes for each of ARMS="..."; the outcome goes to results/
	@mkdir -p results/stacks; failed=; for arm in $(ARMS); do \
		$(BIN)/python -m tests.engine.stacks results/stacks/$$arm.json --arms $$arm || failed="$$failed $$arm"; \
	done; test -z "$$failed" || { echo "did not hold:$$failed" >&2; exit 1; }

test-sglang-matrix: install ## SGLang 0.5.21 to 0.5.23, each in its own environment (11 GB each, in turn)
	$(BIN)/python -m tests.sglang_matrix

SOAK_MINUTES ?= 60
soak: install ## An hour of mixed traffic on the CPU, SOAK_MINUTES=60; the outcome goes to results/soak
	$(BIN)/python -m tests.engine.soak --minutes $(SOAK_MINUTES)

check: install ## Lint, format, layers and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/mypy --strict monitoring/grafana/generate.py monitoring/grafana/boards
	$(BIN)/python docs/generate_results.py --check
	$(BIN)/hadolint docker/*.Dockerfile
	$(BIN)/kubernetes-validate --strict --quiet --no-warn deploy/kubernetes/*.yaml
	$(BIN)/python -m pip check

format: install ## Rewrite the code in its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

models: install ## Write docs/models.md from the shipped geometries
	$(BIN)/python docs/generate_models.py

metrics: install ## Write the list of docs/metrics.md from the sidecar's figures
	$(BIN)/python docs/generate_metrics.py

results: install ## Write the figures of README and docs from the rows in results/
	$(BIN)/python docs/generate_results.py

boards: install ## Write the dashboards' JSON and docs/dashboard.md
	$(BIN)/python monitoring/grafana/generate.py

bench: install ## Encode and decode of Qwen3-8B rows on one CPU core
	$(BIN)/hiqcache bench codec

clean: ## Remove .venv and everything made by the targets
	rm -rf $(VENV) out .mypy_cache .pytest_cache .ruff_cache
