# On a new machine, two commands are enough: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PARITY := .parity
PEERS  := .peers
LIBTPU := .libtpu
# Number of processes that run the tests. Each runs one file at a time, with services of its own. The default is one more than
# the cores of the smallest machine, because tests of real processes spend much of their time waiting.
WORKERS ?= 3
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: install demo test slow coverage faults failed soak hostile network lint parity compile compile-full peers pins openapi bench clean

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

# The tests that `make test` leaves out because they take long: other models, whole deployments, and a benchmark.
slow: install
	$(PYTEST) -m slow

# The same as `make test`, a quarter slower; also prints the lines that no test has run.
coverage: install
	$(PYTEST) --cov --cov-report=term:skip-covered

# All tests of faults, and so many random histories of the queue. `make test` runs only the quick tests and a dozen histories.
HISTORIES ?= 150
faults: install
	HISTORIES=$(HISTORIES) $(PYTEST) -m "not parity" tests/faults tests/soak tests/jobs/test_any_history.py

# The tests that failed in the last run, one after another. It stops at the first that fails again.
failed: install
	HISTORIES=$(HISTORIES) $(BIN)/python -m pytest --last-failed --last-failed-no-failures none --maxfail 1 -v -m "not parity"

# Random faults for MINUTES minutes. The last line says what was lost. The exit status is 0 if nothing was lost, and 1 otherwise.
MINUTES ?= 10
soak: install
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK)

# API, workers, PostgreSQL and Redis as hosts of their own, whose links are cut, delayed and lossy under load, and servers that are
# frozen, each for SILENCE seconds. The last lines say what clients saw and what was lost. It takes Linux, root and iproute2.
SILENCE ?= 120
network: install
	@$(BIN)/python -m tests.network --seconds $(SILENCE) $(NETWORK)

# A client that sends REQUESTS requests to attack every field, header and route of a deployment. The last lines say which marks were
# missed. The exit status is 0 if all were reached, and 1 otherwise. HOSTILE=--judge-times judges times, too: on a quiet machine.
REQUESTS ?= 100000
hostile: install
	@$(BIN)/python -m tests.hostile --requests $(REQUESTS) $(HOSTILE)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The live comparison with HuggingFace. torch is installed into a folder of its own, which the service and `make test` do not use.
parity: install $(PARITY)/.installed
	PYTHONPATH=$(PARITY) $(BIN)/python -m pytest -m parity tests/parity

$(PARITY)/.installed: requirements-parity.txt
	@echo "Installing torch into $(PARITY), for comparison only."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(PARITY) -r requirements-parity.txt
	@touch $@

# What the TPU compiler says, on a machine without a TPU. It is installed into a folder of its own. Where it can't be installed, its
# tests are skipped, and in CI they fail.
compile: install
	@$(MAKE) --no-print-directory $(LIBTPU)/.installed || echo "The TPU compiler could not be installed: nothing is tested with it."
	PYTHONPATH=$(LIBTPU) $(BIN)/python -m pytest -m compile tests/model/compiling

$(LIBTPU)/.installed: requirements-tpu.txt
	@echo "Installing libtpu into $(LIBTPU): 210 MB, once."
	@grep '^libtpu==' $< > $(VENV)/libtpu.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(LIBTPU) -r $(VENV)/libtpu.txt
	@touch $@

# All programs of whole models at full size, and the estimates of workloads: the tables of docs/accelerators.md. It takes half an hour.
compile-full: install $(LIBTPU)/.installed
	PYTHONPATH=$(LIBTPU) $(BIN)/scoreline compile --target v6e:1x1 --model qwen3-0.6b
	PYTHONPATH=$(LIBTPU) $(BIN)/scoreline compile --target v5e --model qwen3-0.6b
	PYTHONPATH=$(LIBTPU) $(BIN)/scoreline compile --target v6e:1x1 --model qwen3-8b

# Other systems that benchmarks compare with. llama.cpp is compiled on this machine, which takes several minutes.
peers: install $(PEERS)/.installed

$(PEERS)/.installed: requirements-peers.txt
	@echo "Compiling llama.cpp into $(PEERS), for comparison only."
	@CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-binary llama-cpp-python --target $(PEERS) -r requirements-peers.txt
	@touch $@

UV_VERSION := 0.13.9
# The packages of the image, with the hashes of their files, from the same lists that people install from.
UV := $(BIN)/python -m uv pip compile --generate-hashes --no-deps --no-emit-index-url --no-annotate --python-version 3.11 \
  --only-binary :all: --quiet --custom-compile-command "make pins"
pins: install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(UV) requirements.txt --output-file pins/cpu.txt
	grep -v '^-r ' requirements-cuda.txt | $(UV) - --output-file pins/cuda.txt
	grep -v '^-r ' requirements-tpu.txt | $(UV) - --output-file pins/tpu.txt

# The document that /openapi.json gives, as docs/openapi.json.
openapi: install
	$(BIN)/python docs/openapi.py

bench: install
	$(BIN)/python -m benchmarks.engine --shape demonstration --workload 300x100x20

clean:
	rm -rf $(VENV) $(PARITY) $(LIBTPU) $(PEERS) .scoreline .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
