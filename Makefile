# The only entry point: what people and CI call.

export PATH := $(HOME)/.cargo/bin:$(PATH)
# rustup fetches the toolchain that rust-toolchain.toml pins; not if `stable` is that very one.
PINNED := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
ifneq ($(shell PATH='$(PATH)'; exec 2> /dev/null; rustup toolchain list | grep '^$(PINNED)-' > /dev/null || \
	rustup run stable rustc --version | grep '^rustc $(PINNED) '),)
export RUSTUP_TOOLCHAIN ?= stable
endif
# Another PostgreSQL than Debian's: ONETRIP_POSTGRES_BIN=its folder of programs.
export ONETRIP_POSTGRES_BIN ?= /usr/lib/postgresql/15/bin
export PG_CONFIG ?= $(ONETRIP_POSTGRES_BIN)/pg_config
BUILD_DIR := $(or $(CARGO_TARGET_DIR),target)

SECONDS ?= 60

.PHONY: help setup setup-tests setup-bench setup-lint build demo test test-rust test-extension test-sanitizers test-cluster test-outcomes sim torture values poison fuzz audit lint lint-format lint-clippy lint-c lint-versions lint-product lint-libraries lint-scripts lint-docs bench bench-node bench-failover bench-return bench-rows clean

help:
	@echo "make demo    three regions on this machine, measured, then open to psql until Ctrl-C"
	@echo "             (ARGS='--once --seconds 5' and others; see ARGS=--help)"
	@echo "make build   the onetrip command, in $(BUILD_DIR)/release"
	@echo "make test    everything: Rust, the extension in C, clusters of real processes"
	@echo "make sim     simulated clusters under faults (SECONDS=60; SEED=n repeats one, TRACE=file tells what happened)"
	@echo "make fuzz    bytes from outside, led by coverage, in all targets (SECONDS=60 in all; TARGET=name for one, INPUT=file"
	@echo "             repeats one input, ARGS=--keep keeps what it found in testdata/fuzz; ARGS=--help)"
	@echo "make audit   licenses, sources and known vulnerabilities of the Rust libraries; needs the advisory database from GitHub"
	@echo "make torture real clusters under every kind of fault (SECONDS=60; SEED=n draws the same faults again; ARGS=--help)"
	@echo "make values  values of every type, made by functions, come out alike in three regions (SECONDS=60; SEED=n; ARGS=--help)"
	@echo "make poison  random DDL, rows, roles, functions and values of every type from three regions at once come out alike (SECONDS=60; SEED=n; ARGS=--help)"
	@echo "make lint    all that is checked without running anything: format, clippy and C warnings (PostgreSQL 15, 17 and 18),"
	@echo "             directions of includes and of dependencies, licenses and vulnerabilities of libraries, scripts, lines of pages"
	@echo "             (make -k lint shows all that is wrong, not only the first)"
	@echo "make lint-versions  the C warnings alone; fails when the headers of a PostgreSQL cannot be fetched"
	@echo "make bench   Onetrip beside PostgreSQL, alone and with synchronous standbys: latency, throughput, cost; writes a page in"
	@echo "             docs/measurements and the README's tables (20 minutes; ARGS='--only regions,rows --seconds 2'; ARGS=--help)"
	@echo "make bench-node  what the node costs without PostgreSQL"
	@echo "make bench-failover  a region dies at full load, 40 times: how long until commits go on"
	@echo "make bench-return  a member missed five minutes of full load and comes back: what the others notice"
	@echo "make bench-rows  CPU time per row, at its origin and applied elsewhere, beside heap"
	@echo "make setup   install what is missing (Debian 12; root or sudo); the others call it, or setup-tests, setup-bench, setup-lint"
	@echo "make clean   remove what was built"

setup:
	@scripts/setup.sh

# For tests that have PostgreSQL store values of every type there is.
setup-tests:
	@scripts/setup.sh tests

# For `make bench`: ss, which counts packets.
setup-bench:
	@scripts/setup.sh bench

# For `make lint`: clippy, rustfmt, cargo-deny, shellcheck.
setup-lint:
	@scripts/setup.sh lint

build: setup
	cargo build --release --locked -p onetrip-cli

# The lab's programs, and the command that their clusters run: like the product's, with what only tests ask for.
demo: setup
	cargo build --release --locked -p onetrip-lab --bin demo --bin onetrip-lab
	@$(BUILD_DIR)/release/demo $(ARGS)

# One profile for all of it, so that nothing is built twice; without link-time optimisation, which each of the many test
# programs would pay for.
test test-rust test-extension test-sanitizers test-cluster test-outcomes sim torture values poison fuzz: export CARGO_PROFILE_RELEASE_LTO = off
test: test-rust test-extension test-sanitizers test-cluster test-outcomes

test-rust: setup
	cargo test --release --locked --workspace --exclude onetrip-cli --exclude onetrip-lab
	cargo test --release --locked -p onetrip-cli --lib --bins
	cargo test --release --locked -p onetrip-lab --lib --bins

test-extension: setup
	$(MAKE) --no-print-directory -C extension PG_CONFIG=$(PG_CONFIG) check-all

# The extension's tests again, with sanitizers in the extension.
test-sanitizers: setup
	$(MAKE) --no-print-directory -C extension PG_CONFIG=$(PG_CONFIG) check-asan

# Each test runs three nodes and three PostgreSQL servers: one at a time.  First the command as it is shipped.
test-cluster: setup-tests
	cargo test --release --locked -p onetrip-cli --test '*' -- --test-threads=1
	cargo test --release --locked -p onetrip-lab --test '*' -- --test-threads=1

# Each fault at each point of a COMMIT, with a node and an extension built for that (docs/testing.md).
test-outcomes: setup
	@scripts/test-outcomes.sh $(BUILD_DIR)

# Loop mounts need root; without them the table says which faults were left out.
torture: setup
	cargo build --release --locked -p onetrip-lab --bins
	@$(BUILD_DIR)/release/torture --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

values: setup-tests
	cargo build --release --locked -p onetrip-lab --bins
	@$(BUILD_DIR)/release/values --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

poison: setup-tests
	cargo build --release --locked -p onetrip-lab --bins
	@$(BUILD_DIR)/release/poison --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

sim: setup
	cargo build --release --locked -p onetrip-sim
	@$(BUILD_DIR)/release/sim --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(TRACE),--trace $(TRACE)) $(if $(JOBS),--jobs $(JOBS))

# Nothing but bytes: no cluster is started.  The compiler counts which edges an input reaches, for libFuzzer; with --target
# it does not do so in what runs at build time.
FUZZ_FLAGS = -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-, \
	level=4 inline-8bit-counters pc-table trace-compares)
fuzz: setup
	RUSTFLAGS="$(FUZZ_FLAGS)" cargo run --profile fuzz --locked -p onetrip-lab --features libfuzzer --bin fuzz \
		--target-dir $(BUILD_DIR)/fuzz --target "$$(rustc -vV | sed -n 's/^host: //p')" -- \
		--seconds $(SECONDS) --work $(BUILD_DIR)/fuzz $(if $(TARGET),--target $(TARGET)) \
		$(if $(INPUT),--input $(INPUT)) $(if $(JOBS),--jobs $(JOBS)) $(ARGS)

# The list of known vulnerabilities is https://github.com/rustsec/advisory-db.
audit: setup-lint
	cargo deny --locked check --hide-inclusion-graph

# Each part stands alone; the quick ones come first.
lint: lint-format lint-docs lint-scripts lint-product lint-libraries lint-c lint-clippy

# rustfmt leaves comments as they are.
lint-format: setup-lint
	cargo fmt --all --check
	@! LC_ALL=C.UTF-8 grep -rnP --include='*.rs' '^(?=\s*//).{121,}' crates || { echo "comments: at most 120 columns"; false; }

lint-docs: setup-lint
	@scripts/lint-docs.sh

# Those in t/ are read by test/run.sh, whose variables they use.
lint-scripts: setup-lint
	shellcheck --severity=warning .ci/run scripts/*.sh extension/test/run.sh
	shellcheck --severity=warning --shell=bash --exclude=SC2154 extension/test/t/*.sh

lint-product: setup-lint
	@scripts/lint-product.sh

# Without a network connection, everything but the vulnerabilities is checked; `make audit` fails without them.
lint-libraries: setup-lint
	cargo deny --locked check --hide-inclusion-graph licenses bans sources
	@if timeout 120 cargo deny --locked fetch db; then \
		cargo deny --locked check --hide-inclusion-graph advisories; \
	else \
		echo "lint-libraries: advisories NOT CHECKED: the advisory database could not be fetched"; \
	fi

lint-c: setup-lint
	@scripts/include-direction.sh
	@scripts/compile-versions.sh $(BUILD_DIR)/headers

lint-versions: setup-lint
	@scripts/compile-versions.sh --strict $(BUILD_DIR)/headers

# The features of the command, of the whole workspace, and of the tests with stop points.
lint-clippy: setup-lint
	cargo clippy --locked -p onetrip-cli --all-targets -- -D warnings
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked -p onetrip-lab --features stop-points,libfuzzer --all-targets -- -D warnings

bench: setup-bench
	cargo bench --locked -p onetrip-lab --bench against_postgresql -- $(ARGS)

bench-node: setup
	cargo run --release --locked -p onetrip-node --example latency

# About five minutes on a quiet machine.
bench-failover: setup
	cargo bench --locked -p onetrip-lab --bench failover -- $(or $(ARGS),--out docs/measurements/2026-11-22-failover)

# About ten minutes.
bench-return: setup
	cargo bench --locked -p onetrip-lab --bench member_return -- $(or $(ARGS),--yields --out docs/measurements/2026-11-23-return)

# About five minutes.  Another build: ONETRIP_BIN and ONETRIP_POSTGRES_BIN (the head of crates/lab/benches/rows.rs).
bench-rows: setup
	cargo bench --locked -p onetrip-lab --bench rows -- $(or $(ARGS),--out docs/measurements/2026-11-22-rows)

clean:
	cargo clean
	$(MAKE) -C extension PG_CONFIG=$(PG_CONFIG) clean
