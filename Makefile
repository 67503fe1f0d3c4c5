# Everything that is needed is set up by the targets themselves, in .venv.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: all setup servers check quick test test-deep test-pythons test-wheel test-long test-connectors docs demo demo-operate demo-kafka demo-spark examples bench \
  bench-compare bench-guard soak soak-regions soak-cycles soak-api soak-time soak-spark soak-connectors fuzz-http random-cycles simulate simulate-mutants clean

all: check test

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Penstock needs \
	Python 3.11 or newer, and $(PYTHON) is %d.%d: say make PYTHON=/path/to/another" % v[:2] or 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,spark]'
	@touch $@

# The servers that tests of connectors need, and Chromium for those of the page, from Debian's packages.
# Without them, these tests are left out, and say so.
servers:
	.ci/install-servers

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m bench.counts

# Before each commit: the checks, and the tests of tests/quick.txt, which take a minute together. They
# touch each part of the package: small graphs under each protocol, the API, state, storage, jobs in
# one process, and a few seeds of the simulated cluster.
quick: check
	$(BIN)/python -m pytest -q -n 2 @tests/quick.txt

# More processes than the two cores, because much of what the tests do is waiting. More than five are
# slower, because they share the caches of the cores. Who has none left takes tests from the others,
# since some take a hundred times as long as most.
test: $(STAMP) servers
	$(BIN)/python -m pytest -q -n 5 --dist worksteal -m "not deep"

# The other half: services with many jobs, Spark clusters, servers that are killed, every interleaving
# of small graphs, and more seeds of the simulated cluster.
test-deep: $(STAMP) servers
	$(BIN)/python -m pytest -q -n 5 --dist worksteal -m deep

# The quick tests on the other versions of Python that are installed.
test-pythons: $(STAMP)
	.ci/test-pythons

# The wheel, as `pip install penstock` gets it: the README's first screen on each Python.
test-wheel: $(STAMP)
	.ci/test-wheel

# What tests connectors at length: jobs and servers that are killed again and again.
test-connectors: $(STAMP) servers
	PENSTOCK_CONNECTORS=1 $(BIN)/python -m pytest -q -n 3 -m connectors

# The same with more of everything that is drawn at random, and other examples each time.
test-long: $(STAMP)
	PENSTOCK_LONG=1 $(BIN)/python -m pytest -q -n 6

# The documentation site, in build/site. Warnings are errors.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# A job of the service is looked at, rescaled, upgraded and killed.
demo-operate: $(STAMP)
	$(BIN)/python examples/demo_operate.py

# Orders from Kafka, through windows, to Kafka and PostgreSQL, with 20 faults.
demo-kafka: $(STAMP) servers
	$(BIN)/python examples/demo_kafka.py

demo-spark: $(STAMP)
	$(BIN)/python examples/demo_spark.py

examples: $(STAMP)
	$(BIN)/python examples/shortest_paths.py --kill-worker-after 0
	$(BIN)/python examples/connected_components.py --kill-worker-after 0
	$(BIN)/python examples/page_rank.py --kill-worker-after 0
	$(BIN)/python examples/connectors/sqlite_source.py
	$(BIN)/python examples/connectors/sqlite_sink.py
	$(BIN)/python examples/time/web_sessions.py
	$(BIN)/python examples/time/hourly_counts.py
	$(BIN)/python examples/time/deduplication.py
	$(BIN)/python examples/time/fraud_rule.py
	$(BIN)/python examples/time/broadcast_rules.py
	$(BIN)/python examples/live_top.py
	$(BIN)/python examples/async_enrichment.py
	$(BIN)/python examples/async_embeddings.py
	$(BIN)/python examples/async_postgres_lookup.py

# Half an hour. With PAPER= the paper's evaluation is at all intervals, which alone takes an hour.
PAPER ?= --quick --part figure6 --part figure7 --part cyclic

bench: $(STAMP)
	$(BIN)/python -m bench wordcount
	$(BIN)/python -m bench latency
	$(BIN)/python -m bench checkpoint
	$(BIN)/python -m bench recovery
	$(BIN)/python -m bench cycles
	$(BIN)/python -m bench windows
	$(BIN)/python -m bench state
	$(BIN)/python -m bench scaling
	$(BIN)/python -m bench nexmark
	$(BIN)/python -m bench latency --loads --results bench/results
	$(BIN)/python -m bench paper $(PAPER) --results bench/results
	$(BIN)/python -m bench checkmate --results bench/results

# Is this tree's engine faster? make bench-compare BASE=HEAD~1 BENCH=latency ROUNDS=5 ARGS="--load 0.5"
BENCH ?= wordcount
ROUNDS ?= 5

bench-compare: $(STAMP)
	@test -n "$(BASE)" || { echo "say with which revision: make bench-compare BASE=HEAD~1"; exit 2; }
	$(BIN)/python -m bench.compare $(BASE) --bench $(BENCH) --rounds $(ROUNDS) -- $(ARGS)

# Does this tree's engine do more for a record than that of a release? Counts, so on a busy machine, too.
# It fails if a count has grown by more than 10 %. Without RELEASE, the newest tag is the release.
RELEASE ?= $(shell git describe --tags --abbrev=0 2>/dev/null)

bench-guard: $(STAMP)
	@test -n "$(RELEASE)" || { echo "no release has a tag here: make bench-guard RELEASE=REVISION"; exit 2; }
	$(BIN)/python -m bench.counts --against $(RELEASE)

# Jobs that are killed a hundred times each. SCOPE=task makes all of them restart single tasks; without it,
# the scope of restarts is drawn.
SCOPED = $(if $(SCOPE),--scope $(SCOPE))

soak: $(STAMP)
	$(BIN)/python -m tests.soak.soak $(SCOPED)

soak-regions: $(STAMP)
	$(BIN)/python -m tests.soak.regions

soak-cycles: $(STAMP)
	$(BIN)/python -m tests.soak.cycles $(SCOPED)

soak-api: $(STAMP)
	$(BIN)/python -m tests.soak.api $(SCOPED)

soak-time: $(STAMP)
	$(BIN)/python -m tests.soak.event_time $(SCOPED)

soak-spark: $(STAMP)
	$(BIN)/python -m tests.soak.spark

# Each transactional sink and each rewindable source, killed a hundred times. SYSTEMS="kafka redis" runs some.
KILLS ?= 100

soak-connectors: $(STAMP) servers
	$(BIN)/python -m tests.soak.connectors --kills $(KILLS) $(SYSTEMS)

# Requests that follow from the OpenAPI document of the HTTP API, with each token and without.
REQUESTS ?= 5000

fuzz-http: $(STAMP)
	$(BIN)/python -m tests.rest.fuzz --requests $(REQUESTS)

# A hundred thousand random loops; those of `make test-deep` are the first 1,500.
random-cycles: $(STAMP)
	PENSTOCK_CASES=100000 $(BIN)/python -m pytest -q tests/snapshot/protocols/test_cycle_random.py

# Ten thousand random jobs with all faults, on all cores; those of `make test` and `make test-deep` are the first 90.
SEEDS ?= 10000

simulate: $(STAMP)
	$(BIN)/python -m tests.simulation.random_jobs --seeds $(SEEDS)

# Engines with a broken protocol: each must be found out within 200 seeds.
simulate-mutants: $(STAMP)
	$(BIN)/python -m tests.simulation.engine_mutants

clean:
	rm -rf .venv .venv-3.1* build dist *.egg-info demo-output demo-operate-output .hypothesis .mypy_cache .ruff_cache \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
