# What CI runs is `make check` followed by `make test`. CARGO_TARGET_DIR is honoured by every target.

SHELL := /bin/bash
CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

# The crash test: how often the server is killed, and the seed of everything random in it.
KILLS ?= 200
SMOKE_KILLS ?= 10
SEED ?= 1
# The soak: how many crash tests one after another, each with the next seed, and how many cases each property gets.
SOAK_RUNS ?= 5
SOAK_CASES ?= 20000
SOAK_OPERATIONS ?= 200000
# The benchmark: flags of `windlass bench`, such as BENCH="--only drain --repeat 5".
BENCH ?=

.DEFAULT_GOAL := help
.PHONY: help build release check fmt clippy doc docs deps tree test test-setup test-rust test-readme test-protocol test-examples faults crash crash-smoke soak bench bench-smoke scenarios scenarios-smoke test-exec-root

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

build: ## debug build of every crate
	$(CARGO) build --workspace --all-targets

release: ## release build of the server and of the test programs
	$(CARGO) build --release --bin windlass --bin windlass-crash --bin windlass-scenarios

check: fmt clippy doc deps tree ## formatting, lints, documentation, dependencies, tree
	@echo "check: all passed"

fmt: ## formatting as rustfmt wants it
	$(CARGO) fmt --all -- --check

clippy: ## lints, warnings are errors
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc: ## documentation builds without warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

docs: ## write the documents and the schema dump that tests compare
	WINDLASS_WRITE_DOCS=1 $(CARGO) test -q -p windlass-core -p windlass-store-sqlite -p windlass-server

deps: test-setup ## banned crates, licences, sources, advisories where cargo-deny is installed
	scripts/check-deps.sh

tree: test-setup ## the files themselves: no paths that only one machine has, scripts are sound
	scripts/check-tree.sh

test: test-setup test-rust test-readme test-protocol test-examples faults crash-smoke scenarios-smoke bench-smoke ## every test CI runs
	@echo "test: all passed"

test-setup: ## the programs the tests need, installed where possible
	scripts/setup-tests.sh

test-rust: test-setup ## the Rust tests
	$(CARGO) test --workspace

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

soak: release ## longer properties and several crash tests with different seeds
	PROPTEST_CASES=$(SOAK_CASES) WINDLASS_MODEL_OPERATIONS=$(SOAK_OPERATIONS) $(CARGO) test --workspace
	@for run in $$(seq 1 $(SOAK_RUNS)); do \
		seed=$$(( $(SEED) + run - 1 )); \
		echo "soak: crash test $$run of $(SOAK_RUNS), seed $$seed"; \
		"$(TARGET_DIR)/release/windlass-crash" --binary "$(TARGET_DIR)/release/windlass" --kills $(KILLS) --seed "$$seed" || exit 1; \
	done

bench: release ## what this machine gives: make bench BENCH="--repeat 5"
	"$(TARGET_DIR)/release/windlass" bench $(BENCH)

bench-smoke: test-setup release ## a benchmark of a few seconds: every figure is there
	scripts/test-bench.sh "$(TARGET_DIR)/release/windlass"
