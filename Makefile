# Everything runs in .venv, which make builds by itself: it needs python3 (3.11 or newer, with venv), git and make, no root and no
# Java (PySpark runs on the Java runtime of a wheel where no Java 17 or newer is found). Another interpreter: make PYTHON=python3.13 ...

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
SPARK_CLASSES := $(VENV)/spark-classes.jsa
EXTRAS := spark,spark-jre,demo,metrics,archive,delta,iceberg,query,top,docs,dev
SOURCES := quiver_actors pyspark_quiver shm supervisor tests benchmarks examples
PYTEST := $(BIN)/python -m pytest -q
TESTS_AT_ONCE ?= 4
MINUTES ?= 30
SEED ?= 0
HOURS ?= 1
CRASH_STATES ?= 0

# The tests start a thousand processes, each of which would compile all of the package first.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Builds of the few source-only packages see the same pins.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo docs fresh-user test test-failed test-long test-demo test-cluster test-servers test-spark-versions test-spark-4.1 test-spark-4.2 check lint types unit torture soak mutation coverage bench bench-peers install clean

help:
	@echo 'make demo    flights and weather through Spark, workers and subscribers, with a killed worker on the way'
	@echo 'make test    lint, types and every test: about 15 minutes on 2 cores'
	@echo 'make test-failed          the tests that failed in the last run, one at a time'
	@echo 'make test-long            the tests that take ten seconds and more each: about 4 minutes'
	@echo 'make test-demo            the demo, and that its closing line says what it must'
	@echo 'make test-cluster         Spark on a standalone cluster of two hosts, with kills: about 3 GB of memory'
	@echo 'make test-servers         the archive against versitygw (S3) and azurite (Azure), as far as Go and npm are there to install them'
	@echo 'make test-spark-versions  the Spark tests on Spark 4.1 and 4.2: fetches about 500 MB for each'
	@echo 'make check   lint, types and the unit tests only'
	@echo 'make docs    the pages of docs/ as a site, in site/'
	@echo 'make fresh-user  builds the wheel and follows "Getting started" in an empty environment, Spark included: about 500 MB'
	@echo 'make torture crash sweeps, simulated nodes, kills, faults, limits, power cuts and fuzzing: MINUTES=30 SEED=0 CRASH_STATES=0 (at least so many)'
	@echo 'make soak    a node under load with a kill every 30 s: HOURS=1 SEED=0; CALM=1: no kills, memory must end flat'
	@echo 'make coverage branches of the log, segment, subscriber, retention and recovery code that no unit test takes; there must be none'
	@echo 'make mutation plants known-bad edits one at a time: the tests must notice (about an hour)'
	@echo 'make bench   every benchmark, then docs/benchmarks.md: over an hour; MINUTES=20, ONLY="ingest peers", QUICK=1'
	@echo 'make bench-peers          installs other stores (LMDB, RocksDB, Redis, NATS ...) and measures against them: about 10 minutes'
	@echo 'make clean   remove .venv, caches and demo output'

demo: $(STAMP)
	@$(BIN)/python -m quiver_actors.demo

# Several at a time: many of them wait for processes and disks. A file's tests stay together, those of a Spark session too (tests/conftest.py).
# In the order of the tree, so that the longest files, which have few tests, do not come last.
# One process compiles the tests beside mypy; else each of the processes that run them would.
test: lint
	@$(PYTEST) --collect-only tests >/dev/null 2>&1 & $(MAKE) --no-print-directory types; types=$$?; wait; exit $$types
	@$(MAKE) --no-print-directory $(SPARK_CLASSES)
	$(PYTEST) -n $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder tests

# Once for an environment: the JVMs of the tests start sooner from it.
$(SPARK_CLASSES): $(STAMP)
	@$(BIN)/python -m tests.support.spark_classes $@

# The tests that failed in the run before, one at a time. Without a run before there is nothing to do, which is a failure.
test-failed: $(STAMP)
	$(PYTEST) --last-failed --last-failed-no-failures none tests

test-long: $(STAMP) $(SPARK_CLASSES)
	$(PYTEST) -m long -n 2 --dist load tests

test-demo: $(STAMP)
	$(PYTEST) -m demo tests/integration/test_demo.py

test-cluster: $(STAMP) $(SPARK_CLASSES)
	$(PYTEST) -m cluster tests/cluster

# Real object stores that no Python package brings. moto, which one does, is in `make test`. A server that cannot be installed is skipped, visibly.
SERVERS := $(CURDIR)/.servers
AZURITE := 3.35.0
VERSITYGW := v1.8.0

test-servers: $(STAMP) $(SERVERS)/installed
	QUIVER_TEST_SERVERS=$(SERVERS)/bin:$(SERVERS)/node_modules/.bin $(PYTEST) -rs tests/contract/test_object_store.py -k 'versitygw or azurite'

$(SERVERS)/installed: Makefile
	@mkdir -p $(SERVERS)/bin
	@if command -v go >/dev/null; then GOBIN=$(SERVERS)/bin go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW); fi || \
		echo 'make: versitygw could not be installed: see its message above' >&2
	@if command -v npm >/dev/null; then npm install --silent --no-fund --no-audit --prefix $(SERVERS) azurite@$(AZURITE); fi || \
		echo 'make: azurite could not be installed: see its message above' >&2
	@touch $@

# Everything with a Spark session of its own, on versions before the pinned one: a second installation of 500 MB for each.
SPARK_TESTS := tests/unit/spark tests/examples tests/integration/test_spark_*.py $(addprefix tests/integration/test_,flight.py object_store.py demo.py)

test-spark-versions: test-spark-4.1 test-spark-4.2

test-spark-4.1 test-spark-4.2: test-spark-4.%: .venv-spark-4.%/installed
	.venv-spark-4.$*/bin/python -m pytest -q -m 'not cluster' $(SPARK_TESTS)

.venv-spark-4.%/installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(@D)
	@grep -v '^pyspark==' constraints.txt > $(@D)/constraints.txt
	@PIP_CONSTRAINT=$(CURDIR)/$(@D)/constraints.txt $(@D)/bin/python -m pip install --quiet --use-pep517 \
		-e '.[$(EXTRAS)]' 'pyspark==4.$*.*'
	@touch $@

# The types are checked beside the tests, which wait for disks and processes now and then.
check: lint
	@$(MAKE) -j2 --no-print-directory types unit

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(STAMP)
	$(BIN)/mypy

# Unit tests wait less than others, and each process imports all of them first.
unit: $(STAMP)
	$(PYTEST) -n 3 --dist loadfile tests/unit

docs: $(STAMP)
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo 'site/index.html'

fresh-user: $(STAMP)
	@$(BIN)/python -m tests.fresh_user

torture: $(STAMP)
	@$(BIN)/python -m tests.torture --minutes $(MINUTES) --seed $(SEED) --crash-states $(CRASH_STATES)

soak: $(STAMP)
	@$(BIN)/python -m tests.soak --hours $(HOURS) --seed $(SEED) $(if $(CALM),--calm)

coverage: $(STAMP)
	@$(BIN)/python -m tests.coverage_check

mutation: $(STAMP)
	@$(BIN)/python -m tests.mutation

bench: $(STAMP)
	@$(BIN)/python -m benchmarks.suite $(if $(filter command environment,$(firstword $(origin MINUTES))),--minutes $(MINUTES)) \
		$(if $(QUICK),--quick --page '') $(if $(ONLY),--only $(ONLY))

# Debian's redis-server would start a server of its own when it is installed; RUNLEVEL=1 says not to.
bench-peers: $(STAMP)
	@$(BIN)/python -m pip install --quiet --use-pep517 -c constraints.txt -e '.[$(EXTRAS),peers]'
	@command -v redis-server >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends redis-server; } \
		|| echo 'make: no redis-server: install it (Debian, Ubuntu: apt install redis-server) or it is skipped' >&2
	$(BIN)/python -m benchmarks.peers

install: $(STAMP)

# The stamp is touched only after a complete install, so an interrupted one is taken up again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'make: $(PYTHON) is missing or older than 3.11: install Python 3.11 or newer, or say which: make PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo 'make: $(PYTHON) cannot create virtual environments: install its venv package (Debian, Ubuntu: apt install python3-venv)' >&2; exit 1; }
	@echo 'make: installing into $(VENV); the first time this fetches about 650 MB and takes a minute or two'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --use-pep517 -c constraints.txt -e '.[$(EXTRAS)]' || \
		{ echo 'make: pip could not install the packages: see its message above. A package without a wheel for this Python needs a C compiler and python3-dev; Python 3.11, 3.12 and 3.13 have wheels for all' >&2; exit 1; }
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .venv-spark-* .servers .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site demo_output bench_results spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
