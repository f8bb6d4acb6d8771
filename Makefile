# Two commands on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PARITY := .parity
PEERS  := .peers
# Processes that run the tests, each a file at a time and with services of its own: one more than the cores that the
# smallest machine has, since tests of real processes often wait for them.
WORKERS ?= 3
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: install demo test slow coverage faults soak lint parity peers bench clean

install: $(STAMP)

$(STAMP): requirements.txt requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Scoreline needs Python 3.11 or later; name one with  make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): a minute or two, once."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: install
	@$(BIN)/scoreline demo

test: install
	$(PYTEST)

# What it leaves out for the time it takes: the same of other models and of whole deployments, and a benchmark.
slow: install
	$(PYTEST) -m slow

# The same as `make test`, a quarter slower, with the lines that no test has run.
coverage: install
	$(PYTEST) --cov --cov-report=term:skip-covered

# Every fault there is a test of; `make test` runs the quick ones among them.
faults: install
	HISTORIES=1000 $(PYTEST) -m "not parity" tests/faults tests/soak tests/jobs/test_any_history.py

# Random faults for so many minutes; the last line says what was lost, and the status is 1 unless that is nothing.
MINUTES ?= 10
soak: install
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The live comparison with HuggingFace. torch goes into a folder of its own, so that serving and `make test` never see it.
parity: install $(PARITY)/.installed
	PYTHONPATH=$(PARITY) $(BIN)/python -m pytest -m parity tests/parity

$(PARITY)/.installed: requirements-parity.txt
	@echo "Installing torch into $(PARITY), for comparison only."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(PARITY) -r requirements-parity.txt
	@touch $@

# What else benchmarks compare with; llama.cpp is compiled for this machine, which takes several minutes.
peers: install $(PEERS)/.installed

$(PEERS)/.installed: requirements-peers.txt
	@echo "Compiling llama.cpp into $(PEERS), for comparison only."
	@CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-binary llama-cpp-python --target $(PEERS) -r requirements-peers.txt
	@touch $@

bench: install
	$(BIN)/python -m benchmarks.engine --shape demonstration --workload 300x100x20

clean:
	rm -rf $(VENV) $(PARITY) $(PEERS) .scoreline .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
