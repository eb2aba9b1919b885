# Every target works from a bare clone: Debian, Python 3.11, pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOGS ?=
ARGS ?=
TORCH ?= torch
# More than two cores have: the tests that take long wait for real programs.
WORKERS ?= 5

.PHONY: all install dev demo run test test-live test-ray mutants soak check lint types layers golden readme dashboards rules licences versions clean
all: check

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

install: $(VENV)/.installed
dev: $(VENV)/.dev

demo: install  ## a simulated run with a fault half way, the daemon on it, and the page to open
	$(BIN)/megatron-monitor demo $(ARGS)

run: install  ## follow real logs: make run LOGS='/logs/**/*.out'
	@test -n "$(LOGS)" || { echo "say which logs: make run LOGS='/logs/**/*.out'" >&2; exit 2; }
	$(BIN)/megatron-monitor run $(ARGS) '$(LOGS)'

# A file is one worker's, so that its servers are started once; deploy/ and e2e/, which take longest, come first.
test: dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: dev
	$(BIN)/mypy

layers: dev
	$(BIN)/lint-imports

check: lint types layers test

$(VENV)-live/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-live
	$(VENV)-live/bin/pip install --quiet --disable-pip-version-check '$(TORCH)' ninja setuptools wheel
	$(VENV)-live/bin/pip install --quiet --disable-pip-version-check deepspeed transformers accelerate -e '.[dev]'
	touch $@

test-live: $(VENV)-live/.installed  ## a real DeepSpeed training on the CPU, watched: downloads torch and deepspeed
	MEGATRON_MONITOR_LIVE=1 $(VENV)-live/bin/python -m pytest -s tests/live/test_real_training.py $(ARGS)

$(VENV)-ray/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-ray
	$(VENV)-ray/bin/pip install --quiet --disable-pip-version-check -e '.[dev,ray]'
	touch $@

test-ray: $(VENV)-ray/.installed  ## report over a Ray cluster of two nodes on this machine, a worker killed in the middle
	MEGATRON_MONITOR_LIVE=1 $(VENV)-ray/bin/python -m pytest -n 0 tests/live/test_ray.py $(ARGS)

$(VENV)-mutants/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-mutants
	$(VENV)-mutants/bin/pip install --quiet --disable-pip-version-check 'cosmic-ray>=8.7,<9' -e '.[dev]'
	touch $@

mutants: $(VENV)-mutants/.installed  ## which changed conditions no test notices (docs/mutants.md); make mutants ARGS=outbox
	$(VENV)-mutants/bin/python -m benchmarks.mutants $(ARGS)

soak: dev  ## half an hour of faults at random against a real daemon; figures in docs/reliability.md
	$(BIN)/python -m benchmarks.soak $(ARGS)

rules: dev  ## write the relay in deploy/prometheus/rules/runs.yml anew from deploy/source/incidents.yml
	$(BIN)/python -m deploy.source

golden: dev  ## write the golden files anew; review them as a diff
	$(BIN)/python -m pytest tests/test_golden.py --golden -q

dashboards: dev  ## write Grafana's dashboards anew from grafana/source
	$(BIN)/python -m grafana.source

readme: dev  ## write the generated tables of README.md and docs/ again
	$(BIN)/python -m tests.test_trainers
	$(BIN)/python -m tests.test_docs

licences:  ## lists the licences of all that is installed with it, for docs/licences.md
	$(PYTHON) -m venv $(VENV)-licences
	$(VENV)-licences/bin/pip install --quiet --disable-pip-version-check . pip-licenses
	$(VENV)-licences/bin/pip-licenses --from=mixed --format=markdown --with-urls --order=name \
		--ignore-packages megatron-monitor pip-licenses prettytable wcwidth

versions:  ## the least and the newest versions that pyproject.toml allows, on each Python that is here
	.ci/versions

clean:
	rm -rf $(VENV) $(VENV)-licences $(VENV)-mutants build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
