# Every target works from a bare clone: Debian, Python 3.11, pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOGS ?=
ARGS ?=
TORCH ?= torch
# Five wait for real programs, two compute meanwhile, on two cores. Each takes 2 s to collect the tests.
WORKERS ?= 7
PIP := install --quiet --disable-pip-version-check
# What is in locks/ and nothing else, each file by its hash; then this folder, built by the setuptools of the lock.
# By pip, or by UV, where that says which program it is: a fifth of the time (.ci/run).
UV ?=
INSTALL := $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/pip $(PIP))

.PHONY: all help install dev demo run test nightly slow fuzz test-live test-slurm mutants soak check lint types layers golden corpus readme docs image \
	licences versions lock sbom dist clean
all: check

help:  ## the targets
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*##  *\(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | sort | awk -F '\t' '{printf "%-12s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml locks/run.txt locks/build.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r locks/build.txt -r locks/run.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: $(VENV)/.installed locks/dev.txt
	$(INSTALL) --require-hashes -r locks/dev.txt
	touch $@

install: $(VENV)/.installed  ## the program, in .venv, from locks/ alone
dev: $(VENV)/.dev  ## the same with what tests and checks need

demo: install  ## a simulated run with a fault half way, the daemon on it, and the page to open
	$(BIN)/megatron-monitor demo $(ARGS)

# `set -f`: the program expands the patterns, again and again; the shell would do it once.
run: export PATTERNS = $(LOGS)
run: install  ## follow real logs: make run LOGS='/logs/**/*.out /more/*.log'
	@test -n "$$PATTERNS" || { echo "say which logs: make run LOGS='/logs/**/*.out /more/*.log'" >&2; exit 2; }
	@set -f; exec $(BIN)/megatron-monitor run $(ARGS) $$PATTERNS

# A file is one worker's, so that its servers are started once; in the order of the names, so what waits comes first.
test: dev  ## all tests but the nightly ones: make test ARGS='tests/parsers -x'
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

nightly: slow fuzz test-slurm soak mutants  ## what takes longer; `make -k nightly` goes on behind what fails
	$(BIN)/python -m benchmarks.kafka

slow: dev  ## the worst lines of every regular expression, and whatever else carries the marker nightly
	$(BIN)/python -m pytest -n $(WORKERS) -m nightly $(ARGS)

fuzz: dev  ## every property of hypothesis with twenty times the examples, other ones each time
	$(BIN)/python -m pytest -n $(WORKERS) -m hypothesis --hypothesis-profile=fuzz $(ARGS)

test-slurm: dev  ## a real Slurm with slurmdbd, MariaDB, munge and two users; as root, on a machine for tests
	MEGATRON_MONITOR_SLURM=1 $(BIN)/python -m pytest -v tests/slurm/test_accounting.py tests/slurm/test_night.py $(ARGS)

lint: dev  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: dev  ## mypy --strict
	$(BIN)/mypy

layers: dev  ## the import rules
	$(BIN)/lint-imports

check: lint types layers test  ## everything that must hold

$(VENV)-live/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-live
	$(VENV)-live/bin/pip install --quiet --disable-pip-version-check '$(TORCH)' ninja setuptools wheel
	$(VENV)-live/bin/pip install --quiet --disable-pip-version-check deepspeed transformers accelerate -e '.[dev]'
	touch $@

test-live: $(VENV)-live/.installed  ## a real DeepSpeed training on the CPU, watched: downloads torch and deepspeed
	MEGATRON_MONITOR_LIVE=1 $(VENV)-live/bin/python -m pytest -s tests/live/test_real_training.py $(ARGS)

$(VENV)-mutants/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-mutants
	$(VENV)-mutants/bin/pip install --quiet --disable-pip-version-check 'cosmic-ray>=8.7,<9' -e '.[dev]'
	touch $@

# cosmic-ray changes the files themselves, so it works in a clone; of all changes it tries so many, by chance.
MUTANTS ?= 60
mutants: $(VENV)-mutants/.installed  ## which changes of the code (cosmic-ray.toml) the corpus does not notice: make mutants MUTANTS=200
	rm -rf build/mutants && git clone --quiet . build/mutants && ln -sfn $(abspath ../shared) build/shared
	ln -sfn $(abspath $(VENV)-mutants) build/mutants/.venv
	cd build/mutants && .venv/bin/cosmic-ray init cosmic-ray.toml session.sqlite && .venv/bin/python -c "import sqlite3; \
		db = sqlite3.connect('session.sqlite'); keep = 'SELECT job_id FROM mutation_specs ORDER BY random() LIMIT $(MUTANTS)'; \
		db.execute('CREATE TABLE kept AS ' + keep); \
		[db.execute(f'DELETE FROM {table} WHERE job_id NOT IN (SELECT job_id FROM kept)') for table in ('mutation_specs', 'work_items')]; \
		db.commit()"
	cd build/mutants && .venv/bin/cosmic-ray exec cosmic-ray.toml session.sqlite && .venv/bin/cr-report session.sqlite --surviving-only

soak: dev  ## half an hour of faults at random against a real daemon; figures in docs/development/reliability.md
	$(BIN)/python -m benchmarks.soak $(ARGS)

golden: dev  ## write the golden files anew; review them as a diff
	$(BIN)/python -m pytest tests/test_golden.py --golden -q

corpus: dev  ## what the product judges of tests/corpus and of all logs of ../shared, against what is recorded; make corpus ARGS=--record
	$(BIN)/python -m tests.corpus.record $(ARGS)

readme: dev  ## write the generated tables of README.md and docs/ again
	$(BIN)/python -m tests.test_docs

$(VENV)-release/.installed: pyproject.toml locks/run.txt locks/build.txt locks/release.txt
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/pip $(PIP) --require-hashes -r locks/release.txt
	$(VENV)-release/bin/uv venv --quiet --clear --python $(PYTHON) $(VENV)-release/alone
	$(VENV)-release/bin/uv pip install --quiet --python $(VENV)-release/alone --require-hashes -r locks/run.txt
	$(VENV)-release/bin/uv pip install --quiet --python $(VENV)-release/alone --no-deps --build-constraints locks/build.txt .
	touch $@

licences: $(VENV)-release/.installed  ## those of all that is installed with it, for docs/development/licences.md; fails at one that is not in locks/licences.txt
	$(VENV)-release/bin/pip-licenses --python=$(VENV)-release/alone/bin/python --from=mixed --format=markdown --with-urls --order=name \
		--ignore-packages megatron-monitor --allow-only="$$(paste -sd';' locks/licences.txt)"

sbom: $(VENV)-release/.installed  ## dist/sbom.json (CycloneDX): all that is installed with it, with licences
	mkdir -p dist
	$(VENV)-release/bin/cyclonedx-py environment $(VENV)-release/alone/bin/python --pyproject pyproject.toml --mc-type application \
		--output-reproducible -o dist/sbom.json

lock: $(VENV)-release/.installed  ## the newest versions that pyproject.toml allows, into locks/; for all systems and Pythons from 3.11 on
	.ci/lock $(VENV)-release/bin/uv

dist:  ## a release of what is committed, built in empty environments: wheel, sdist, chart, the image's context, SBOM, checksums
	.ci/dist

image:  ## the image of what is committed, built twice by buildah and compared, and tried: make image ARGS="--build-arg BASE=..."
	.ci/image $(ARGS)

$(VENV)-docs/.installed:
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.6,<10'
	touch $@

docs: $(VENV)-docs/.installed  ## the documents as a site, searched without a network: build/docs/site/index.html
	rm -rf build/docs
	mkdir -p build/docs/pages
	git ls-files README.md CHANGELOG.md ARCHITECTURE.md CONTRIBUTING.md LICENSE config.yaml docs deploy grafana \
		monitor/serve/static/icon.svg tests/e2e/axe-core/README.md | tar -c -T - | tar -x -C build/docs/pages
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build

versions:  ## the least and the newest versions that pyproject.toml allows, on each Python that is here
	.ci/versions

clean:  ## remove what was made
	rm -rf $(VENV) $(VENV)-release $(VENV)-mutants $(VENV)-docs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
