# On a new machine, two commands are enough: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What `make demo` needs is installed, and what everything else needs, which includes the former.
SERVICE := $(VENV)/.installed-service
STAMP  := $(VENV)/.installed
PARITY := .parity
PEERS  := .peers
HARNESS := .harness
INTEGRATIONS := .integrations
LIBTPU := .libtpu
BROWSER := .browser
ZENSICAL := .zensical
SITE   := .site
DEBIAN := .debian
# Number of processes that run the tests. Each runs one file at a time, with services of its own. The default is one more than
# the cores of the smallest machine, because tests of real processes spend much of their time waiting.
WORKERS ?= 3
# The processes of the tests keep compiled Python beside the modules. Each of them would compile what all of them import.
unexport PYTHONDONTWRITEBYTECODE
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: install demo test slow matrix coverage faults monitoring proxy failed soak hostile network lint parity harness integrations browser page-pictures compile compile-full peers pins openapi docs bench image image-test clean

install: $(STAMP)

# Installs a list of packages, and the command.
define install
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "Scoreline needs Python 3.11 or later; name one with  make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
@echo "Installing $(2) into $(VENV): a minute or two, once."
@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(1)
@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
@touch $@
endef

$(STAMP): requirements.txt requirements-dev.txt pyproject.toml
	$(call install,requirements-dev.txt,the service and its tests)

$(SERVICE): requirements.txt pyproject.toml
	$(call install,requirements.txt,the service)

# Where the tests are installed already, the service is, too.
demo: $(or $(wildcard $(STAMP)),$(SERVICE))
	@$(BIN)/scoreline demo

test: install
	$(PYTEST)

# The tests that `make test` leaves out because they take long: other models, whole deployments, and a benchmark.
slow: install
	$(PYTEST) -m "slow and not matrix"

# The rest of what is tested in every combination: more checkpoints, number formats and algorithms, and faults that are planted to
# see the tests fail. Before a release, and after a change of a model's programs. It takes about as long as `make slow`.
matrix: install $(PARITY)/.installed $(LIBTPU)/.installed
	$(PYTEST) -m "matrix and not parity and not compile"
	PYTHONPATH=$(PARITY) $(BIN)/python -m pytest -m "matrix and parity" tests/parity
	PYTHONPATH=$(LIBTPU) $(BIN)/python -m pytest -m "matrix and compile" tests/tools/tpu

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

# The alert rules, the dashboard and the autoscaling of Kubernetes, with Debian's Prometheus. `make test` and `make slow` run these
# tests, too, where there is one, and skip them elsewhere. Here its absence is a failure.
monitoring: install $(DEBIAN)/prometheus.installed
	MONITORING=required $(BIN)/python -m pytest -m "slow or not slow" tests/telemetry tests/kubernetes tests/end_to_end/test_observability.py

# The configuration of nginx in docs/proxy.md, before two APIs that are restarted in turn, with Debian's nginx.
proxy: install $(DEBIAN)/nginx.installed
	NGINX=required $(BIN)/python -m pytest -m "slow or not slow" tests/end_to_end/test_proxy.py

# Unpacking a package takes no rights, and starts no server.
$(DEBIAN)/%.installed:
	@echo "Unpacking Debian's $* into $(DEBIAN), for tests only."
	@mkdir -p $(DEBIAN)
	@cd $(DEBIAN) && { apt-get download --quiet --quiet $* || { apt-get update --quiet --quiet && apt-get download $*; }; }
	@dpkg-deb --extract $(DEBIAN)/$*_*.deb $(DEBIAN) && rm $(DEBIAN)/$*_*.deb
	@touch $@

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

# The live comparison with HuggingFace. torch and what reads its checkpoints are installed into a folder of its own, which the service and `make test` do not use.
parity: install $(PARITY)/.installed
	PYTHONPATH=$(PARITY) $(BIN)/python -m pytest -m "parity and not matrix" tests/parity

$(PARITY)/.installed: requirements-parity.txt
	@echo "Installing torch into $(PARITY), for comparison only."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(PARITY) -r requirements-parity.txt
	@touch $@

# EleutherAI's evaluation harness against a server and against its own model for transformers, in a folder of its own.
harness: install $(HARNESS)/.installed
	PYTHONPATH=$(HARNESS) $(BIN)/python -m pytest -m parity tests/parity/test_evaluation_harness.py

$(HARNESS)/.installed: requirements-harness.txt requirements-parity.txt
	@echo "Installing the evaluation harness and torch into $(HARNESS), for comparison only."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(HARNESS) -r requirements-harness.txt
	@touch $@

# DuckDB, Ray and Spark with the tables of this package, Airflow with its operator, and frameworks that rank by it. Each kind is
# installed into a folder of its own, 3.6 GB in all. Spark needs Java.
integrations: install $(foreach kind,tables airflow dagster frameworks deepeval promptfoo,$(INTEGRATIONS)/$(kind)/.installed)
	INTEGRATIONS=$(INTEGRATIONS) PYTHONPATH=$(INTEGRATIONS)/tables $(BIN)/python -m pytest -m integrations tests/integrations

$(INTEGRATIONS)/%/.installed: requirements-%.txt
	@echo "Installing $* into $(INTEGRATIONS)/$*, for tests only."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(INTEGRATIONS)/$* -r $<
	@touch $@

# promptfoo comes from npm, with the version of Node that it needs.
$(INTEGRATIONS)/promptfoo/.installed:
	@echo "Installing promptfoo into $(@D), for tests only."
	@npm install --silent --no-audit --no-fund --prefix $(@D) promptfoo@0.123.1 node@22.23.3
	@touch $@

# The page, /docs and the search of the site of `make docs` in headless Chromium, which is Debian's package chromium. Its driver is
# installed into a folder of its own.
browser: install docs $(BROWSER)/.installed
	@command -v "$${CHROMIUM:-chromium}" >/dev/null || { echo "Installing Chromium."; apt-get install --yes --quiet chromium >/dev/null; } \
	  || { echo "There is no Chromium: install it, or name the program in CHROMIUM."; exit 1; }
	PYTHONPATH=$(BROWSER) $(BIN)/python -m pytest -m browser tests/api/page/browser tests/documentation tests/scoreline/judging

# The pictures of docs/page.md.
page-pictures: install $(BROWSER)/.installed
	PYTHONPATH=$(BROWSER) $(BIN)/python -m docs.page_pictures

$(BROWSER)/.installed: requirements-browser.txt
	@echo "Installing the driver of browsers into $(BROWSER), for tests only."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(BROWSER) -r $<
	@touch $@

# What the TPU compiler says, on a machine without a TPU. It is installed into a folder of its own. Where it can't be installed, its
# tests are skipped, and in CI they fail.
compile: install
	@$(MAKE) --no-print-directory $(LIBTPU)/.installed || echo "The TPU compiler could not be installed: nothing is tested with it."
	PYTHONPATH=$(LIBTPU) $(BIN)/python -m pytest -m "compile and not matrix" tests/tools/tpu

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

# The documentation as a site: $(SITE)/html/index.html, which needs no server and no internet. Broken links are errors.
docs: install $(ZENSICAL)/.installed
	@$(BIN)/python -m docs.site $(SITE)
	@PYTHONPATH=$(ZENSICAL) $(BIN)/python -m zensical build --strict --clean --config-file $(SITE)/zensical.toml
	@$(BIN)/python -m docs.site.built $(SITE)/html
	@echo "Open $(SITE)/html/index.html"

$(ZENSICAL)/.installed: requirements-docs.txt
	@echo "Installing the builder of the site into $(ZENSICAL)."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(ZENSICAL) -r $<
	@touch $@

bench: install
	$(BIN)/python -m benchmarks.engine --shape demonstration --workload 300x100x20

# The image for ACCELERATOR (cpu, cuda, tpu), built by the first of docker, podman and buildah that works here. BUILD_OPTIONS are passed
# on to it. Where packages come from another index than PyPI: BUILD_OPTIONS="--secret id=pip,src=$$HOME/.config/pip/pip.conf"
ACCELERATOR ?= cpu
IMAGE ?= scoreline:$(ACCELERATOR)
BUILDER ?= $(shell for one in docker podman buildah; do $$one info > /dev/null 2>&1 && echo $$one && break; done)
image:
	@test -n "$(BUILDER)" || { echo "No builder works here: install docker, podman or buildah, or name one: make image BUILDER=..."; exit 1; }
	$(BUILDER) build --build-arg ACCELERATOR=$(ACCELERATOR) --tag $(IMAGE) $(BUILD_OPTIONS) .

# Builds the image with buildah, in a store of its own, starts every role of the composition out of it, and prints its size. It takes
# Linux, root, buildah, PostgreSQL, Redis, and debootstrap where no registry can be reached. ACCELERATORS="cpu cuda tpu" builds all.
ACCELERATORS ?= cpu
image-test: install
	ACCELERATORS="$(ACCELERATORS)" $(BIN)/python -m pytest -m image -s tests/composition

clean:
	rm -rf .image $(VENV) $(PARITY) $(INTEGRATIONS) $(LIBTPU) $(BROWSER) $(ZENSICAL) $(SITE) $(PEERS) $(PROMETHEUS) .scoreline .pytest_cache .mypy_cache .ruff_cache .hypothesis .compiled-programs .import_linter_cache .coverage*
