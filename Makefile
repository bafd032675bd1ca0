# Every target does its own set-up: a fresh clone and `make demo` or `make test` is enough.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
# spark-submit, airflow and uv are found as in an activated environment.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
PYTHON ?=
PYTEST_ARGS ?=
# Some machines set it for everybody. Each of hundreds of Python programs would then compile Airflow, Spark and the
# tests anew, which takes longer than what it does.
unexport PYTHONDONTWRITEBYTECODE
# One has the tests that wait much (tests/scheduling.py), and what the others wait for between them leaves room for a third
# that computes. Each may hold a Spark and oracles, about 3 GB, so there is one less where the memory is small.
PYTEST_WORKERS ?= $(shell awk '/^MemAvailable/ {print ($$2 > 14e6) ? 4 : 3; known = 1} END {if (!known) print 3}' /proc/meminfo 2>/dev/null || echo 3)
# JAVA_HOME for whatever starts a JVM; installs a Temurin 17 into .java/ where the machine has no Java 17 or newer.
export_java = JAVA_HOME="$$($(PY) -m airflow_paimon.spark.java .java)"; export JAVA_HOME

.PHONY: help venv demo demo-ui classes test landing screenshots dist soak product thorough stream-kills reach compose-test options functions check docs format bench oracles versions spark-versions clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## create .venv with everything that the other targets need

# An environment that can fetch what else is needed: packages, by uv in a third of pip's time, and a Java.
$(PY):
	@uv="$$(command -v uv || true)"
	if [ -n "$$uv" ]; then
	  "$$uv" venv --quiet --python "$${UV_PYTHON:-$(or $(PYTHON),>=3.11)}" $(VENV) \
	    || { echo "make venv: no Python 3.11 or newer found; install one, or name it: UV_PYTHON=/path/to/python3.11 make venv" >&2; exit 1; }
	  "$$uv" pip install --quiet --python $(PY) -c constraints.txt install-jdk || true
	else
	  python=""
	  for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3; do
	    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
	    python="$$candidate"; break
	  done
	  [ -n "$$python" ] \
	    || { echo "make venv: no Python 3.11 or newer found; install one, or name it: make venv PYTHON=/path/to/python3.11" >&2; exit 1; }
	  "$$python" -m venv $(VENV) \
	    || { rm -rf $(VENV); echo "make venv: $$python can't make environments; install its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	  $(PY) -m pip install --quiet -c constraints.txt uv install-jdk 2>/dev/null || true
	fi

$(STAMP): pyproject.toml constraints.txt | $(PY)
	@echo "make venv: installing the locked dependencies into $(VENV) (about a minute)"
	if uv="$$(command -v uv)"; then install="$$uv pip install --quiet --python $(PY)"; else install="$(PY) -m pip install --quiet"; fi
	# PySpark comes as sources only. Compressing the wheel that is made of them, to unpack it at once, takes half a minute.
	$$install --config-settings=--build-option=--compression=stored -c constraints.txt -e '.[test]' \
	  || { echo "make venv: the installation failed; the lines above say why (is the package registry within reach?)" >&2; exit 1; }
	touch $@

demo: venv ## correct three days of real flights on a branch, publish, print what changed
	@$(export_java)
	$(PY) dags/demo_flights.py
	exec $(PY) -m tests.strict_metadata $${AIRFLOW_PAIMON_DEMO:-.demo}/flights

demo-ui: venv ## the same DAG in `airflow standalone` on loopback, for clicking
	@$(export_java)
	exec $(PY) dags/demo_ui.py

# What Spark's JVMs have loaded before they do anything; each of the tests' JVMs starts from it.
CLASSES := $(VENV)/spark-classes.jsa
classes: $(CLASSES)
$(CLASSES): $(STAMP) tests/class_archive.py
	@$(export_java)
	$(PY) -m tests.class_archive $@

# tests/tiers.py tells which tests each of the three has.
PYTEST = $(PY) -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder
test: $(CLASSES) ## the tests: the same ones each time (PYTEST_ARGS='-k branch' for a part)
	@$(export_java)
	$(PYTEST) -m 'not landing and not thorough' $(PYTEST_ARGS)

landing: $(CLASSES) ## what a change must pass besides: other engines, servers, a browser, whole Airflows (`make oracles` first)
	@$(export_java)
	$(PYTEST) -m 'landing and not thorough' $(PYTEST_ARGS)

thorough: $(CLASSES) ## all tests with all their cases, and a new seed for the random ones (an hour on 2 cores)
	@$(export_java)
	$(PY) tests/oracles/prepare.py --only flink120
	export AIRFLOW_PAIMON_THOROUGH=1
	exec $(PYTEST) $(PYTEST_ARGS)

screenshots: venv ## take the pictures of docs/ of one story, in light and dark (needs chromium; 5 minutes)
	@$(export_java)
	exec $(PY) -m tests.dags.screenshots docs/_static

SOAK_SECONDS ?= 3600
soak: venv ## the random tests with new seeds, for an hour (SOAK_SECONDS=600 for less)
	@$(export_java)
	exec $(PY) -m tests.soak $(SOAK_SECONDS) $(PYTEST_ARGS)

product: venv ## all combinations of merge engine, buckets, vectors, changelog and format, both ways with Paimon's Java engine
	@$(export_java)
	export AIRFLOW_PAIMON_PRODUCT=1
	exec $(PY) -m pytest -q -n $(PYTEST_WORKERS) tests/oracles/test_engine_product.py $(PYTEST_ARGS)

KILLS ?= 50
REPLAY_KILLS ?= 10
stream-kills: venv ## kill streams 50 times and replays 10 times (KILLS=10 REPLAY_KILLS=0 for fewer): every row arrives once
	@$(export_java)
	$(PY) -m tests.stream_kills $(KILLS)
	exec $(PY) -m tests.replay_kills $(REPLAY_KILLS)

reach: venv ## tests of storages, catalogs and deployments that `make test` leaves out: MariaDB, YARN, Kubernetes, Celery with Redis, the correction on each storage
	@$(export_java)
	$(PY) tests/oracles/prepare.py --only o3,rest,jdbc,hdfs,yarn,kubernetes
	$(PY) -m uv pip install --quiet --python $(PY) -c constraints.txt -e '.[reach]'
	$(PY) -m uv pip check --quiet --python $(PY)
	AIRFLOW_PAIMON_REQUIRE_ALL=1 AIRFLOW_PAIMON_REACH=1 $(PY) -m pytest -n 2 --dist loadfile tests/core/store tests/core/catalogs tests/spark/test_remote_stores.py tests/dags/test_places.py tests/reach $(PYTEST_ARGS)

compose-test: venv ## build the image, start docker/compose.yaml and correct the flights there (needs a Docker engine)
	@AIRFLOW_PAIMON_CONTAINERS=1 $(PY) -m pytest -q -s tests/containers $(PYTEST_ARGS)

options: venv ## renew the list of table options by Paimon's sources (FILE=a folder, a jar of sources, or one *Options.java)
	@$(PY) -m tests.paimon_options $(FILE)

functions: venv ## renew the Python functions, the operators and the scripts of the jobs by the table of operations
	@$(PY) -m tests.python_functions

check: venv ## ruff, format, mypy
	@failed=0
	$(PY) -m ruff check . || failed=1
	$(PY) -m ruff format --check . || failed=1
	$(PY) -m mypy || failed=1
	exit $$failed

docs: venv ## the documentation site, in build/docs/index.html
	@$(PY) -m sphinx --quiet --fail-on-warning --keep-going -b html docs build/docs
	echo "make docs: build/docs/index.html"

dist: venv ## wheel and sdist of the commit HEAD in dist/, built twice to the same bytes and checked; uploads nothing
	@$(PY) -m tests.distributions dist

format: venv ## let ruff fix and format
	@$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: venv ## print the figures of benchmarks/, and draw the plots of docs/
	@$(export_java)
	$(PY) -m uv pip install --quiet --python $(PY) -c constraints.txt -e '.[bench]'
	$(PY) -m benchmarks

# Not in .ci/run: three environments are 5 GB to download and unpack on a fresh machine, and a build of PySpark from source.
versions: venv ## tests without Spark on the lowest and newest versions that pyproject.toml allows, and beside other providers
	@$(PY) -m tests.versions lowest $(PYTEST_ARGS)
	$(PY) -m tests.versions newest $(PYTEST_ARGS)
	$(PY) -m tests.versions beside $(PYTEST_ARGS)

spark-versions: venv ## Spark tests on the other versions of Spark (PYTEST_ARGS='3.5 -k sql' for some of them)
	@$(export_java)
	exec $(PY) -m tests.spark_versions $(PYTEST_ARGS)

oracles: | $(PY) ## prepare the engines that the interoperability tests compare with, under .oracles/
	@$(export_java)
	$(PY) tests/oracles/prepare.py

clean: ## remove what the targets made, but .venv, .java and .oracles
	@rm -rf .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
