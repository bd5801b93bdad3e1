# `make run` and `make test` are all one needs; the first of either sets up .venv, once.

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
ROOT := $(CURDIR)
PYTEST := $(VENV)/bin/python -m pytest

# The stages call `python -m evopipe`: PATH and PYTHONPATH make that this folder's python and this folder's code. The
# path is relative so that DVC's experiments, which run in copies of the tree, run the copies' code.
USER_PATH := $(PATH)
export PATH := $(ROOT)/$(VENV)/bin:$(PATH)
export PYTHONPATH := src
# Stages and many tests are processes of their own, and each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Two makes at once must not set up twice.
FLOCK := $(shell command -v flock 2>/dev/null)
LOCKED := $(if $(FLOCK),$(FLOCK) .venv.lock,)

# An environment made elsewhere (a copied folder) points there: make it anew.
ifneq ($(shell cat $(READY) 2>/dev/null),$(ROOT))
$(shell rm -f $(READY))
endif

.DEFAULT_GOAL := help
.PHONY: help run test test-slow sanitize lint check docs bench bench-search zoo setup clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: setup ## set up, then run the pipeline (dvc repro)
	dvc repro

test: setup ## set up, then run the tests
	$(PYTEST) -n 2
	$(PYTEST) -n 2 -m numerical --native tests/contract

test-slow: setup sanitize ## run the tests that take minutes too
	$(PYTEST) --slow

# Of the kernels alone: what others allocate is not looked at. They are compiled for this, and kept apart.
CC_FILE = $(shell $(CC) -print-file-name=$(1))
sanitize: setup ## look for faults of memory in the kernels (gcc)
	XDG_CACHE_HOME="$(ROOT)/build/sanitize" LD_PRELOAD="$(call CC_FILE,libasan.so) $(call CC_FILE,libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  CC="$(CC)" $(PYTEST) -x -s --sanitize --native tests/contract/test_native_health.py tests/contract/test_native_updates.py \
	  tests/contract/test_rollouts_in_c.py tests/contract/test_ticks.py tests/contract/test_episodes_in_c.py \
	  tests/unit/native/test_native_bits.py tests/unit/native/test_native_explore.py tests/unit/native/test_native_policy.py \
	  tests/unit/native/test_native_replay.py tests/unit/native/test_native_statistics.py \
	  tests/unit/native/test_native_value.py tests/unit/native/test_native_steps.py tests/unit/native/test_native_header.py \
	  tests/contract/test_team_targets.py tests/contract/test_minatar_twins.py tests/unit/envs/test_compiled.py tests/unit/envs/test_own_in_c.py

lint: setup ## format, lint, spelling, types, import contract
	ruff format --check
	ruff check
	codespell *.md *.py docs src examples benchmarks zoo pipelines
	mypy
	lint-imports

check: lint ## what `make lint` looks at, then the tests
	$(PYTEST)

docs: setup ## build the pages as a site, build/site/index.html (OLDER_SITES=FOLDER: beside those of other versions)
	sphinx-build -q -W --keep-going docs build/site
	@echo "build/site/index.html"

bench: setup ## compare with the peers (an hour; BENCH_ARGS="--lanes 2")
	cd benchmarks && BENCH_ARGS="$(BENCH_ARGS)" dvc repro --force --keep-going

bench-search: setup ## search strategies against tuners, by real runs (hours; goes on where it was; SEARCH_SEEDS=20, SEARCH_CONFIRM=full)
	for task in cartpole pendulum acrobot; do for space in narrow hard; do \
	  python benchmarks/search.py $$task --space $$space --seeds $(or $(SEARCH_SEEDS),20) --confirm $(or $(SEARCH_CONFIRM),full) || exit 1; \
	done; done
	for task in mountaincar cartpole_dqn mountaincar_continuous acrobot_dqn mountaincar_dqn; do for space in hard narrow; do \
	  python benchmarks/search.py $$task --space $$space --seeds $(or $(SEARCH_SEEDS),20) --confirm $(or $(SEARCH_CONFIRM),sequential) || exit 1; \
	done; done
	python benchmarks/make_page.py

zoo: setup ## train what is missing of the zoo, the cheapest rows first (hours; goes on where it was; ZOO_SEEDS=1-5)
	python -m evopipe zoo train --seeds $(or $(ZOO_SEEDS),1-5)
	python docs/make_zoo.py

setup: $(READY) ## set up only
	@# An unpacked archive has no git, and each DVC project must be told.
	@for project in . pipelines/*/; do \
	  cd "$(ROOT)/$$project" || exit 1; \
	  if [ -e "$(ROOT)/.git" ]; then \
	    ! grep -qs no_scm .dvc/config.local || dvc config --local --unset core.no_scm; \
	  else \
	    grep -qs no_scm .dvc/config.local || { mkdir -p .dvc && dvc config --local core.no_scm true; }; \
	  fi; \
	done

$(READY): pyproject.toml constraints.txt
	@PATH="$(USER_PATH)" $(LOCKED) sh .ci/setup "$(PYTHON)" "$(VENV)" "$(ROOT)"

clean: ## remove the environment and caches; data, models and reports stay
	rm -rf $(VENV) .venv.lock .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
