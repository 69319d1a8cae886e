# retool_env: what a developer or a curious visitor does most. `make help` lists it.
#
# PYTHON=/path/to/python3.12 picks the interpreter; VENV=folder puts the virtual environment elsewhere.
# PYTEST_ARGS="-k reward" is handed to pytest; DEMO_ARGS="-n 8 --protocol tool_calls" to `retool demo`;
# BENCH_ARGS="--only latency" to benchmarks/sandbox.py. A small real model in the demo, after `make test-engines`:
#   make demo VENV=.venv-engines DEMO_ARGS="-n 8 --engine transformers --model .venv-engines/smollm2 --few-shot \
#     --temperature 0 --max-tokens 128"

SHELL := /bin/bash
VENV ?= .venv
VENV_ENGINES ?= .venv-engines
VENV_VERL ?= .venv-verl
VENV_OPENRLHF ?= .venv-openrlhf
SMOLLM2 ?= $(VENV_ENGINES)/smollm2
PYTHON ?=
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
SETUP := scripts/setup.sh "$(VENV)"

.DEFAULT_GOAL := help
.PHONY: help demo doctor test test-engines test-verl test-openrlhf bench lint format clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

demo:  ## run 64 built-in problems through a policy and the sandbox, and print a table
	@$(SETUP) data,rollout "$(PYTHON)"
	@"$(VENV)/bin/retool" demo -n 64 $(DEMO_ARGS)

doctor:  ## say which sandbox tier this machine can run, and what a better one needs
	@$(SETUP) data,rollout "$(PYTHON)"
	@"$(VENV)/bin/retool" doctor

# The pytest script and not `python -m pytest`: the latter puts the repository, and with it `tests`, on sys.path.
test:  ## run the whole core test suite
	@$(SETUP) test "$(PYTHON)"
	@"$(VENV)/bin/pytest" $(PYTEST_ARGS)

# In a folder of its own (VENV_ENGINES): vLLM pins torch, transformers and most of what they need.
test-engines:  ## run the tests against real engines: vLLM on the CPU and a small model (Python 3.11; 3 GB, minutes)
	@scripts/setup_vllm.sh "$(VENV_ENGINES)" "$(PYTHON)"
	@scripts/fetch_smollm2.sh "$(SMOLLM2)" "$(VENV_ENGINES)/bin/python"
	@RETOOL_TOKENIZERS="$(dir $(SMOLLM2))" "$(VENV_ENGINES)/bin/pytest" tests/test_tokens.py tests/test_tokens_template.py -k smollm2
	@RETOOL_SMOLLM2="$(SMOLLM2)" "$(VENV_ENGINES)/bin/pytest" tests/vllm tests/rollout/test_transformers.py \
		--require-engines $(PYTEST_ARGS)

# In a folder of its own (VENV_VERL): verl's pins exclude those of vLLM and of the other trainers. Nothing is downloaded
# while the tests run. RETOOL_TOKENIZERS (scripts/fetch_tokenizers.sh) adds those of Qwen and Llama.
test-verl:  ## run the verl adapter's tests in the real verl, on the CPU (Python 3.11; 2 GB, minutes)
	@scripts/setup_verl.sh "$(VENV_VERL)" "$(PYTHON)"
	@HF_HUB_OFFLINE=1 "$(VENV_VERL)/bin/pytest" tests/verl --require-verl $(PYTEST_ARGS)

# In a folder of its own (VENV_OPENRLHF), as for verl: OpenRLHF pins vLLM, Ray and transformers.
test-openrlhf:  ## run the OpenRLHF adapter's tests in the real OpenRLHF, on the CPU (Python 3.11; 3 GB, minutes)
	@scripts/setup_openrlhf.sh "$(VENV_OPENRLHF)" "$(PYTHON)"
	@HF_HUB_OFFLINE=1 "$(VENV_OPENRLHF)/bin/pytest" tests/openrlhf --require-openrlhf $(PYTEST_ARGS)

bench:  ## measure the sandbox beside its targets: tables, runs/bench/sandbox.json and .png (five minutes, all cores)
	@$(SETUP) bench "$(PYTHON)"
	@"$(VENV)/bin/python" benchmarks/sandbox.py $(BENCH_ARGS)

lint:  ## ruff (lint and format) and mypy, as CI runs them
	@$(SETUP) dev "$(PYTHON)"
	@status=0; \
	"$(VENV)/bin/ruff" check . || status=1; \
	"$(VENV)/bin/ruff" format --check . || status=1; \
	"$(VENV)/bin/mypy" || status=1; \
	exit $$status

format:  ## let ruff mend what it can
	@$(SETUP) dev "$(PYTHON)"
	@"$(VENV)/bin/ruff" check --fix .
	@"$(VENV)/bin/ruff" format .

clean:  ## remove the virtual environment, caches and build outputs; runs/ stays
	@if [ -e "$(VENV)/pyvenv.cfg" ]; then rm -rf -- "$(VENV)"; fi
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find retool_env adapters benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
