# What CI runs is `make check` followed by `make test`. CARGO_TARGET_DIR is honoured by every target.

SHELL := /bin/bash
CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

# The crash test: how often the server is killed, and the seed of everything random in it.
KILLS ?= 200
SMOKE_KILLS ?= 10
SEED ?= 1
# The chaos test: how many servers and workers; tasks and kills of servers; tasks and kills of the database; where the
# figures go (CHAOS_FIGURES-kills.json and CHAOS_FIGURES-faults.json).
CHAOS_NODES ?= 3
CHAOS_WORKERS ?= 50
CHAOS_TASKS ?= 100000
CHAOS_KILLS ?= 20
CHAOS_FAULT_TASKS ?= 20000
CHAOS_FAULTS ?= 5
CHAOS_FIGURES ?= $(TARGET_DIR)/chaos
# The soak: how many crash tests one after another, each with the next seed, and how many cases each property gets.
SOAK_RUNS ?= 5
SOAK_CASES ?= 20000
SOAK_OPERATIONS ?= 200000
# The benchmark: flags of `windlass bench`, such as BENCH="--only drain --repeat 5".
BENCH ?=
# Databases for the tests. Under a run that has started them already this only runs the command.
SERVERS := scripts/test-servers.sh run --

.DEFAULT_GOAL := help
.PHONY: help build release check fmt clippy doc docs docs-stores deps tree check-setup test test-all test-setup test-rust test-servers servers test-readme test-protocol test-examples faults crash crash-smoke chaos chaos-smoke soak bench bench-smoke scenarios scenarios-smoke measure-stores test-exec-root

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

build: ## debug build of every crate
	$(CARGO) build --workspace --all-targets

release: ## release build of the server and of the test programs
	$(CARGO) build --release --bin windlass --bin windlass-crash --bin windlass-chaos --bin windlass-scenarios

check: fmt clippy doc deps tree ## formatting, lints, documentation, dependencies, tree
	@echo "check: all passed"

fmt: ## formatting as rustfmt wants it
	$(CARGO) fmt --all -- --check

clippy: ## lints, warnings are errors
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc: ## documentation builds without warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

docs: test-setup ## write the documents and the schema dump that tests compare
	WINDLASS_WRITE_DOCS=1 $(SERVERS) $(CARGO) test -q -p windlass-core -p windlass-store-sqlite -p windlass-server

# What the suite showed, by store: the table of docs/stores.md is made of it.
SUITE_RESULTS := $(TARGET_DIR)/suite-results
docs-stores: test-setup ## run the store suite everywhere and write the table of docs/stores.md
	rm -rf "$(SUITE_RESULTS)"
	WINDLASS_SUITE_RESULTS="$(SUITE_RESULTS)" $(SERVERS) $(CARGO) test -p windlass-store-sqlite --test conformance \
		-p windlass-store-postgres --test conformance_pooled -p windlass-store-redis --test conformance_cluster --test conformance_valkey
	WINDLASS_WRITE_DOCS=1 WINDLASS_SUITE_RESULTS="$(SUITE_RESULTS)" $(CARGO) test -q -p windlass-testkit --test stores_document

deps: check-setup ## banned crates, licences, sources, advisories where cargo-deny is installed
	scripts/check-deps.sh

tree: check-setup ## the files themselves: no paths that only one machine has, scripts are sound
	scripts/check-tree.sh

test: test-setup ## every test CI runs
	$(SERVERS) $(MAKE) test-all
	@echo "test: all passed"

# The parts of `make test`, which starts the servers once for all of them.
test-all: test-servers test-rust test-readme test-protocol test-examples faults crash-smoke chaos-smoke scenarios-smoke bench-smoke

check-setup: ## the programs the checks need, installed where possible
	scripts/setup-tests.sh check

test-setup: ## the programs and servers the tests need, installed where possible
	scripts/setup-tests.sh

servers: test-setup ## databases for tests run by hand: says their addresses and how to stop them
	scripts/test-servers.sh start "$$(mktemp -d)"

test-servers: test-setup ## the databases of the tests: they answer, survive kill -9, fail over, leave nothing behind
	$(SERVERS) scripts/test-servers-check.sh

test-rust: test-setup ## the Rust tests
	$(SERVERS) $(CARGO) test --workspace --no-fail-fast

test-readme: test-setup release ## the commands of the README, run as written
	CARGO_TARGET_DIR="$(TARGET_DIR)" scripts/test-readme.sh

test-protocol: test-setup release ## the workers of docs/protocol.md, with the real binary
	scripts/test-protocol.sh "$(TARGET_DIR)/release/windlass"

test-examples: test-setup release ## the programs of examples/, run as they say
	$(CARGO) build -p windlass-examples
	scripts/test-examples.sh "$(TARGET_DIR)/release/windlass" "$(TARGET_DIR)/debug"

faults: test-setup release ## a full disk and a failing fsync, with the real binary
	scripts/test-faults.sh "$(TARGET_DIR)/release/windlass"

test-exec-root: ## a kill by the kernel and the cost of a run: needs root and the memory control group (version 1)
	$(CARGO) test --release -p windlass-exec --test hostile -- --ignored --nocapture

scenarios-smoke: test-setup release ## scheduling under load, small: shares, order, rates, breakers
	"$(TARGET_DIR)/release/windlass-scenarios" smoke

scenarios: release ## scheduling under load, at full size (about half an hour)
	for scenario in simulate blocked lanes ordering rate outage cost; do \
		"$(TARGET_DIR)/release/windlass-scenarios" $$scenario || exit 1; \
	done

crash-smoke: test-setup release ## a short crash test
	"$(TARGET_DIR)/release/windlass-crash" --binary "$(TARGET_DIR)/release/windlass" --kills $(SMOKE_KILLS) --seed $(SEED)

crash: release ## the crash test: make crash KILLS=200 SEED=1
	"$(TARGET_DIR)/release/windlass-crash" --binary "$(TARGET_DIR)/release/windlass" --kills $(KILLS) --seed $(SEED)

CHAOS := "$(TARGET_DIR)/release/windlass-chaos" --binary "$(TARGET_DIR)/release/windlass" --seed $(SEED)

chaos-smoke: test-setup release ## a short chaos test: three servers on PostgreSQL and on a Redis Cluster
	$(SERVERS) $(CHAOS) --store postgres --store cluster --nodes 3 --workers 20 --tasks 3000 --kills 2 --breaks 1

chaos: test-setup release ## many servers on one database, killed under load; then the databases: make chaos CHAOS_KILLS=50
	$(SERVERS) $(CHAOS) --store postgres --store cluster --nodes $(CHAOS_NODES) --workers $(CHAOS_WORKERS) \
		--tasks $(CHAOS_TASKS) --kills $(CHAOS_KILLS) --json "$(CHAOS_FIGURES)-kills.json"
	$(SERVERS) $(CHAOS) --store postgres --store redis --store cluster --store sentinel --nodes $(CHAOS_NODES) \
		--workers $(CHAOS_WORKERS) --tasks $(CHAOS_FAULT_TASKS) --kills 0 --breaks $(CHAOS_FAULTS) \
		--json "$(CHAOS_FIGURES)-faults.json"

measure-stores: test-setup ## plans of PostgreSQL at a million rows, and how fast commits are and following is (minutes)
	$(SERVERS) $(CARGO) test --release -p windlass-store-postgres --lib --test measure -- --ignored --nocapture --test-threads 1
	$(CARGO) test --release -p windlass-testkit --test following -- --ignored --nocapture

soak: test-setup release ## longer properties and several crash tests with different seeds
	PROPTEST_CASES=$(SOAK_CASES) WINDLASS_MODEL_OPERATIONS=$(SOAK_OPERATIONS) $(SERVERS) $(CARGO) test --workspace
	@for run in $$(seq 1 $(SOAK_RUNS)); do \
		seed=$$(( $(SEED) + run - 1 )); \
		echo "soak: crash test $$run of $(SOAK_RUNS), seed $$seed"; \
		"$(TARGET_DIR)/release/windlass-crash" --binary "$(TARGET_DIR)/release/windlass" --kills $(KILLS) --seed "$$seed" || exit 1; \
	done

bench: release ## what this machine gives: make bench BENCH="--repeat 5"
	"$(TARGET_DIR)/release/windlass" bench $(BENCH)

bench-smoke: test-setup release ## a benchmark of a few seconds: every figure is there
	scripts/test-bench.sh "$(TARGET_DIR)/release/windlass"
