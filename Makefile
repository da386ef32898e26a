# Everything starts from a bare clone with Python 3.11 and make; all of it lives in .venv.
#
#   make demo      the main job in a minute (installs the core only)
#   make check     lint, types, import rules, unit tests: a few minutes
#   make test      lint, types, import rules, all tests but for older servers; what CI runs
#   make test-all  the same with all PostgreSQL servers and more bounds checks
#   make install   .venv with every extra, for work on all of Penstock
#   make peers     .venv-peers with the loaders that benchmarks compare with (2 GB)
#   make lint | bench | docs | clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

# Only what the tests touch: installing all extras would cost more time than all the tests. Add an extra here with the
# first test that needs it.
TEST_EXTRAS := dev,remote,torch,images,hf,ray,sql,postgres

# A stamp for each set of packages; each set contains the one above it. They age with pyproject.toml.
CORE := $(VENV)/.installed-core
TEST := $(VENV)/.installed-test
ALL  := $(VENV)/.installed-all

.DEFAULT_GOAL := help
.PHONY: help install demo check test test-all headers lint fix bench peers docs clean

help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Penstock needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(CORE): pyproject.toml | $(BIN)/python
	@echo "installing penstock into $(VENV) ..."
	@$(PIP) install -e .
	@touch $(CORE)

# torch first, by itself: the version we test with, its CPU build where the index offers one.
$(TEST): pyproject.toml | $(BIN)/python
	@echo "installing penstock[$(TEST_EXTRAS)] into $(VENV); torch is large ..."
	@$(PIP) install torch==2.13.0
	@$(PIP) install -e '.[$(TEST_EXTRAS)]'
	@touch $(CORE) $(TEST)

$(ALL): pyproject.toml | $(BIN)/python
	@echo "installing penstock[all,dev] into $(VENV); torch and ray are large ..."
	@$(PIP) install torch==2.13.0
	@$(PIP) install -e '.[all,dev]'
	@touch $(CORE) $(TEST) $(ALL)

install: $(ALL)

demo: $(CORE)
	@$(BIN)/penstock demo

lint: $(TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fix: $(TEST)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What an edit is most likely to break, without what takes long: database servers, Ray, worker processes.
PYTEST := $(BIN)/pytest -q -n 2 --dist worksteal

check: lint
	$(PYTEST) -m "not slow and not servers" tests/unit tests/property src/penstock

# An index out of range in compiled code reads foreign memory without a word, so the tests that compare kernels with their
# twins run again with bounds checked. Numba's cache does not tell the two builds apart: the checked one has a folder of its own.
KERNEL_TESTS = $(shell grep -lE '[a-z]_reference([^a-z_]|$$)' tests/*/test_*.py)
CHECKED := NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/.cache/numba-checked

test: lint
	$(CHECKED) $(PYTEST) -m kernels $(KERNEL_TESTS)
	$(PYTEST) -m "not other_servers"

test-all: lint headers
	$(CHECKED) $(PYTEST) $(KERNEL_TESTS)
	$(PYTEST)

# The wheel of the test extra has the headers of two servers. CI on a Debian-like machine, as root, tests the extension on
# the distribution's own as well; elsewhere make installs nothing outside of this folder.
headers:
	@if [ -n "$$CI" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then .ci/postgres-headers; fi

bench: $(TEST)
	@$(PIP) install -e '.[bench]'
	$(BIN)/python -m benchmarks --results benchmarks/results; missed=$$?; $(BIN)/python -m benchmarks.figures && exit $$missed

# The loaders we are measured against pin what they like, so they have an environment of their own, and ours runs in
# theirs: one interpreter for all. torch goes in first, and peers.txt pins it too, so that no peer can replace its build.
PEERS     := .venv-peers
PEERS_PIP := $(PEERS)/bin/python -m pip --quiet --disable-pip-version-check

peers: $(PEERS)/.installed

$(PEERS)/.installed: benchmarks/peers.txt pyproject.toml
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@echo "installing the peers into $(PEERS); they are large ..."
	@$(PEERS_PIP) install torch==2.13.0
	@$(PEERS_PIP) install -e . -r benchmarks/peers.txt
	@sed -n 's/^# no-deps: //p' benchmarks/peers.txt | xargs $(PEERS_PIP) install --no-deps
	@$(PEERS)/bin/python -c 'import torch; print("torch", torch.__version__); assert torch.__version__.split("+")[0] == "2.13.0"'
	@touch $@

docs: $(TEST)
	$(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html is ready"

clean:
	rm -rf .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis site dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
