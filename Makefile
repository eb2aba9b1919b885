# Every target works from a bare clone: Debian, Python 3.11, pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOGS ?=
ARGS ?=
TORCH ?= torch
# Seven on two cores, because most tests wait for real programs. Each worker takes 2 s to collect the tests.
WORKERS ?= 7
PIP := install --quiet --disable-pip-version-check
# Installs the packages in locks/, each file by its hash, then this folder, built by the setuptools of the lock. UV: path of uv, which
# takes a fifth of pip's time (.ci/run).
UV ?=
INSTALL := $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/pip $(PIP))

.PHONY: all help install dev demo run test nightly slow fuzz test-live test-slurm mutants soak check lint types layers golden corpus readme docs image \
	licences versions lock sbom dist clean
all: check

help:  ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*##  *\(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | sort | awk -F '\t' '{printf "%-12s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml locks/run.txt locks/build.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r locks/build.txt -r locks/run.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.dev: $(VENV)/.installed locks/dev.txt
	$(INSTALL) --require-hashes -r locks/dev.txt
	touch $@

install: $(VENV)/.installed  ## install the program into .venv, from locks/
dev: $(VENV)/.dev  ## install also what tests and checks need

demo: install  ## start a monitor on a simulated run with a fault half way, and print the address of its page
	$(BIN)/megatron-monitor demo $(ARGS)

# `set -f`: the program expands the patterns repeatedly; the shell would do it once.
run: export PATTERNS = $(LOGS)
run: install  ## follow logs: make run LOGS='/logs/**/*.out /more/*.log'
	@test -n "$$PATTERNS" || { echo "LOGS is missing: make run LOGS='/logs/**/*.out /more/*.log'" >&2; exit 2; }
	@set -f; exec $(BIN)/megatron-monitor run $(ARGS) $$PATTERNS

# All tests of a file run in one worker, so that its servers start once. Files in the order of their names, so the slow ones come first.
test: dev  ## run all tests except the nightly ones: make test ARGS='tests/parsers -x'
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

nightly: slow fuzz test-slurm soak mutants  ## run what takes longer (`make -k nightly` continues after a failure)
	$(BIN)/python -m benchmarks.kafka

slow: dev  ## run the tests with the marker nightly, such as the worst lines of every regular expression
	$(BIN)/python -m pytest -n $(WORKERS) -m nightly $(ARGS)

fuzz: dev  ## run every property of hypothesis with twenty times the examples
	$(BIN)/python -m pytest -n $(WORKERS) -m hypothesis --hypothesis-profile=fuzz $(ARGS)

test-slurm: dev  ## test with a real Slurm, slurmdbd, MariaDB, munge and two users; as root, on a machine for tests
	MEGATRON_MONITOR_SLURM=1 $(BIN)/python -m pytest -v tests/slurm/test_accounting.py tests/slurm/test_night.py $(ARGS)

lint: dev  ## run ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: dev  ## run mypy --strict
	$(BIN)/mypy

layers: dev  ## check the import rules
	$(BIN)/lint-imports

check: lint types layers test  ## run lint, types, layers and test

$(VENV)-live/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-live
	$(VENV)-live/bin/pip install --quiet --disable-pip-version-check '$(TORCH)' ninja setuptools wheel
	$(VENV)-live/bin/pip install --quiet --disable-pip-version-check deepspeed transformers accelerate -e '.[dev]'
	touch $@

test-live: $(VENV)-live/.installed  ## follow a real DeepSpeed training on the CPU; downloads torch and deepspeed
	MEGATRON_MONITOR_LIVE=1 $(VENV)-live/bin/python -m pytest -s tests/live/test_real_training.py $(ARGS)

$(VENV)-mutants/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-mutants
	$(VENV)-mutants/bin/pip install --quiet --disable-pip-version-check 'cosmic-ray>=8.7,<9' -e '.[dev]'
	touch $@

# cosmic-ray changes the files themselves, so it works in a clone. It tries MUTANTS random changes.
MUTANTS ?= 60
mutants: $(VENV)-mutants/.installed  ## print random changes of the code (cosmic-ray.toml) that the corpus does not notice: make mutants MUTANTS=200
	rm -rf build/mutants && git clone --quiet . build/mutants && ln -sfn $(abspath ../shared) build/shared
	ln -sfn $(abspath $(VENV)-mutants) build/mutants/.venv
	cd build/mutants && .venv/bin/cosmic-ray init cosmic-ray.toml session.sqlite && .venv/bin/python -c "import sqlite3; \
		db = sqlite3.connect('session.sqlite'); keep = 'SELECT job_id FROM mutation_specs ORDER BY random() LIMIT $(MUTANTS)'; \
		db.execute('CREATE TABLE kept AS ' + keep); \
		[db.execute(f'DELETE FROM {table} WHERE job_id NOT IN (SELECT job_id FROM kept)') for table in ('mutation_specs', 'work_items')]; \
		db.commit()"
	cd build/mutants && .venv/bin/cosmic-ray exec cosmic-ray.toml session.sqlite && .venv/bin/cr-report session.sqlite --surviving-only

soak: dev  ## play half an hour of random faults against a real daemon (docs/development/reliability.md)
	$(BIN)/python -m benchmarks.soak $(ARGS)

golden: dev  ## rewrite the golden files; review the diff
	$(BIN)/python -m pytest tests/test_golden.py --golden -q

corpus: dev  ## compare the judgements of tests/corpus and all logs of ../shared with the recorded ones; make corpus ARGS=--record
	$(BIN)/python -m tests.corpus.record $(ARGS)

readme: dev  ## rewrite the generated tables of ARCHITECTURE.md and docs/, and the schema of the chart
	$(BIN)/python -m tests.test_docs

$(VENV)-release/.installed: pyproject.toml locks/run.txt locks/build.txt locks/release.txt
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/pip $(PIP) --require-hashes -r locks/release.txt
	$(VENV)-release/bin/uv venv --quiet --clear --python $(PYTHON) $(VENV)-release/alone
	$(VENV)-release/bin/uv pip install --quiet --python $(VENV)-release/alone --require-hashes -r locks/run.txt
	$(VENV)-release/bin/uv pip install --quiet --python $(VENV)-release/alone --no-deps --build-constraints locks/build.txt .
	touch $@

licences: $(VENV)-release/.installed  ## list the licences of all dependencies for docs/development/licences.md; fails at one that is not in locks/licences.txt
	$(VENV)-release/bin/pip-licenses --python=$(VENV)-release/alone/bin/python --from=mixed --format=markdown --with-urls --order=name \
		--ignore-packages megatron-monitor --allow-only="$$(paste -sd';' locks/licences.txt)"

sbom: $(VENV)-release/.installed  ## write dist/sbom.json (CycloneDX): all dependencies with their licences
	mkdir -p dist
	$(VENV)-release/bin/cyclonedx-py environment $(VENV)-release/alone/bin/python --pyproject pyproject.toml --mc-type application \
		--output-reproducible -o dist/sbom.json

lock: $(VENV)-release/.installed  ## write the newest versions that pyproject.toml allows into locks/, for all systems and Pythons from 3.11 on
	.ci/lock $(VENV)-release/bin/uv

dist:  ## build a release of the committed files: wheel, sdist, chart, the image's context, SBOM, checksums
	.ci/dist

image:  ## build the image of the committed files twice by buildah, compare and try it: make image ARGS="--build-arg BASE=..."
	.ci/image $(ARGS)

$(VENV)-docs/.installed:
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.6,<10'
	touch $@

docs: $(VENV)-docs/.installed  ## build the documents as a site with offline search: build/docs/site/index.html
	rm -rf build/docs
	mkdir -p build/docs/pages
	git ls-files README.md CHANGELOG.md ARCHITECTURE.md CONTRIBUTING.md LICENSE config.yaml docs deploy grafana \
		monitor/serve/static/icon.svg tests/e2e/axe-core/README.md | tar -c -T - | tar -x -C build/docs/pages
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build

versions:  ## test the oldest and the newest versions that pyproject.toml allows, on each installed Python
	.ci/versions

clean:  ## remove everything that was built
	rm -rf $(VENV) $(VENV)-release $(VENV)-mutants $(VENV)-docs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
