# The only entry point: what people and CI call.

export PATH := $(HOME)/.cargo/bin:$(PATH)
# rustup downloads the toolchain that rust-toolchain.toml pins, if it is missing; `stable` is used instead if it is the same.
PINNED := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
ifneq ($(shell PATH='$(PATH)'; exec 2> /dev/null; rustup toolchain list | grep '^$(PINNED)-' > /dev/null || \
	rustup run stable rustc --version | grep '^rustc $(PINNED) '),)
export RUSTUP_TOOLCHAIN ?= stable
endif
# To use a PostgreSQL other than Debian's, set ONETRIP_POSTGRES_BIN to its folder of programs.
export ONETRIP_POSTGRES_BIN ?= /usr/lib/postgresql/15/bin
export PG_CONFIG ?= $(ONETRIP_POSTGRES_BIN)/pg_config
BUILD_DIR := $(or $(CARGO_TARGET_DIR),target)

SECONDS ?= 60

# Two tests at a time would be in each other's way.
.NOTPARALLEL:
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*/\1/p' Makefile)

# The lines with ## above a target are its help.
help:
	@awk '/^## /{text = text (text ? "\n" sprintf("%22s", "") : "") substr($$0, 4); next} \
		/^[a-z0-9-]+:/ && text {sub(/:.*/, ""); printf "make %-17s%s\n", $$0, text} {text = ""}' Makefile

# Where the output of quiet builds goes.
export ONETRIP_LOGS := $(BUILD_DIR)/log

## install what is missing (Debian 12; root or sudo); the other targets call it, or setup-tests,
## setup-bench, ...
setup:
	@scripts/setup.sh

# For tests that store values of every type.
setup-tests:
	@scripts/setup.sh tests

# For `make bench`: ss, which counts packets.
setup-bench:
	@scripts/setup.sh bench

# For `make lint`: clippy, rustfmt, cargo-deny, shellcheck.
setup-lint:
	@scripts/setup.sh lint

# For `make docs`: mdBook.
setup-docs:
	@scripts/setup.sh docs

# The example writes the manual pages and the completions.
## the onetrip command, in target/release
build: setup
	@scripts/quiet.pl $(ONETRIP_LOGS)/build.log "building onetrip" \
		cargo build --release --locked -p onetrip-cli --bin onetrip --example pages

install: export DESTDIR := $(DESTDIR)
install: export PREFIX := $(or $(PREFIX),/usr/local)
## what was built: the command, manual pages, completions, systemd's unit, the extension (DESTDIR=,
## PREFIX=/usr/local)
install:
	@scripts/install.sh command $(BUILD_DIR)
	@scripts/install.sh extension

## Debian packages of the checked-out commit, in target/debian: onetrip, postgresql-15-onetrip
deb: setup
	@scripts/deb.sh $(BUILD_DIR)/debian $(BUILD_DIR)/packages

## an OCI image from these packages, in target/image (packaging/Containerfile; needs buildah)
image:
	@scripts/setup.sh image
	@BASE=$(BASE) scripts/image.sh $(BUILD_DIR)

## the pages in docs as a site, in target/book
docs: setup-docs
	@scripts/docs.sh $(BUILD_DIR)

# The lab's programs, and the command that their clusters run: the product's, plus what only tests need.  The demo measures,
# so it is built as the benches are, but without link-time optimization, which would take a minute more; these files are in
# release/ too.
demo: export CARGO_PROFILE_BENCH_LTO = off
## three regions on this machine, measured, then open to psql until Ctrl-C (ARGS='--once --seconds 5' and
## others; see ARGS=--help)
demo: setup
	@scripts/quiet.pl $(ONETRIP_LOGS)/demo.log "building the demo" \
		cargo build --profile bench --locked -p onetrip-lab --bin demo --bin onetrip-lab
	@$(BUILD_DIR)/release/demo $(ARGS)

# All of these use one profile, so that nothing is built twice.  It has no link-time optimization, which would make the build
# of each of the many test programs slower.  An overflow panics, and debug assertions are checked, also those of libraries.
TESTS = test test-long test-18 test-rust test-extension test-sanitizers test-cluster test-cluster-long test-ddl-pairs test-quickstart test-outcomes test-contrib test-upgrade test-clients test-console sim torture values poison pairs pg-regress test-ecosystem fuzz lint-clippy
$(TESTS): export CARGO_PROFILE_RELEASE_LTO = off
$(TESTS): export CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS = true
$(TESTS): export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS = true
## Rust, the extension in C, clusters of real processes (30 minutes on two cores)
test: test-rust test-extension test-cluster test-quickstart test-contrib

## what takes longer: the other cluster tests, faults at each point of a COMMIT, sanitizers (25 minutes);
## CI runs both
test-long: test-sanitizers test-cluster-long test-outcomes

# Only what has tests is built for them: examples, programs and documentation have none (the first line sees to the
# programs, which take long to link).
test-rust: setup
	@! grep -rnE '#\[(cfg\(test|(tokio::)?test\b)' crates/cli/src/main.rs crates/lab/src/bin || \
		{ echo "tests in these programs would not run: move them to the library"; false; }
	cargo test --release --locked --workspace --exclude onetrip-cli --exclude onetrip-lab --lib --bins --tests
	cargo test --release --locked -p onetrip-cli --lib
	cargo test --release --locked -p onetrip-lab --lib

test-extension: setup
	$(MAKE) --no-print-directory -C extension PG_CONFIG=$(PG_CONFIG) check-all

# The extension's tests again, with sanitizers in the extension.
test-sanitizers: setup
	$(MAKE) --no-print-directory -C extension PG_CONFIG=$(PG_CONFIG) check-asan

# Each test runs three nodes and three PostgreSQL servers, so only two run at a time.  The command as it is shipped comes first.
test-cluster: setup-tests
	cargo test --release --locked -p onetrip-cli --test '*' -- --test-threads=1
	cargo test --release --locked -p onetrip-lab --test '*' -- --test-threads=2

# Those marked as long; outcomes need another extension (test-outcomes).
test-cluster-long: setup-tests
	scripts/cargo-test.sh --release --locked -p onetrip-lab --test cluster -- --test-threads=2 --ignored --skip outcomes:: --skip each_kind_of_ddl

# Part of neither: it takes several minutes.
## each kind of DDL that may run beside other DDL, beside each other one
test-ddl-pairs: setup-tests
	scripts/cargo-test.sh --release --locked -p onetrip-lab --test cluster -- --ignored each_kind_of_ddl

## the commands of docs/quickstart.md
test-quickstart:
	@scripts/test-quickstart.sh

# Each fault at each point of a COMMIT, with an extension built for that (docs/testing.md).
test-outcomes: setup
	@scripts/test-outcomes.sh $(BUILD_DIR)

# The tests of PostgreSQL's contrib modules, in a region and on a plain server.
test-contrib:
	@$(MAKE) --no-print-directory pg-regress ARGS=contrib

# Part of neither `make test` nor `make test-long`: it builds PostgreSQL.  The server's user has to reach the folder.
POSTGRES_18 = /var/tmp/onetrip-postgres-18
test-18: export ONETRIP_POSTGRES_BIN = $(POSTGRES_18)/usr/lib/postgresql/18/bin
test-18: export PG_CONFIG = $(ONETRIP_POSTGRES_BIN)/pg_config
## the tests of the extension and of clusters on PostgreSQL 18, which it builds from Debian's source package
## (an hour)
test-18:
	@env -u PG_CONFIG scripts/setup.sh postgres18
	@scripts/postgres-build.sh 18 $(POSTGRES_18)
	$(MAKE) --no-print-directory test-extension
	scripts/cargo-test.sh --release --locked -p onetrip-lab --test cluster -- --test-threads=2 --include-ignored --skip outcomes:: \
		--skip census:: --skip detach:: --skip check_finds_every_kind_of_definition

# Part of neither `make test` nor `make test-long`: it builds the release before this one, too.
## the release before this one (scripts/previous-release) and this one in one cluster, there and back under
## load; PostgreSQL replaced region by region (5 minutes, and a build of that release the first time)
test-upgrade: setup
	@scripts/test-upgrade.sh $(BUILD_DIR)

# The programs in docs/clients, in five languages, against three regions of which one is killed, also through pools.
## drivers of five languages: the programs in docs/clients against three regions, one of which is killed;
## the same through pgbouncer and HAProxy, with the files in docs/clients
test-clients:
	@scripts/setup.sh clients
	cargo build --release --locked -p onetrip-lab --bin onetrip-lab --example retry
	@scripts/test-clients.sh $(BUILD_DIR)

# The console in Debian's Chromium.
## the console in a real browser: three regions with load, one of which is killed (PICTURES=folder keeps
## screenshots)
test-console:
	@scripts/setup.sh console
	cargo build --release --locked -p onetrip-lab --bin demo --bin onetrip-lab
	@scripts/test-console.sh $(BUILD_DIR) $(PICTURES)

# Part of neither `make test` nor `make test-long`: it fetches a Debian system and builds everything twice, for use.
## builds the packages twice, which must give the same files, and runs three regions from them in a fresh
## Debian 12 (root; 10 minutes)
test-packages: setup
	@scripts/setup.sh packages
	@scripts/test-packages.sh $(BUILD_DIR)

# Loop mounts need root; without them, the table says which faults were skipped.
## real clusters under every kind of fault (SECONDS=60; SEED=n draws the same faults again; ARGS=--help)
torture: setup
	cargo build --release --locked -p onetrip-lab --bins
	@$(BUILD_DIR)/release/torture --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

## checks that values of every type, made by functions, end up the same in three regions (SECONDS=60;
## SEED=n; ARGS=--help)
values: setup-tests
	cargo build --release --locked -p onetrip-lab --bins
	@$(BUILD_DIR)/release/values --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

## checks that random DDL, rows, roles, functions and values of every type from three regions at once end up
## the same (SECONDS=60; SEED=n; ARGS=--help)
poison: setup-tests
	cargo build --release --locked -p onetrip-lab --bins
	@$(BUILD_DIR)/release/poison --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

## has every feature of PostgreSQL meet every other, in one transaction, in two, and at once in two regions,
## and compares what comes of it with PostgreSQL (SECONDS=60; SEED=n; ARGS=--help)
pairs: setup
	cargo build --release --locked -p onetrip-lab --bins
	@$(BUILD_DIR)/release/pairs --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Fetches the suites from Debian's source package.
## PostgreSQL's own regression, isolation and contrib suites, in a region and on a plain server; what
## differs must be listed in docs/census/pg-regress.tsv (15 minutes; ARGS=isolation for one suite;
## ARGS=--write writes the list)
pg-regress: setup
	$(if $(ONETRIP),,cargo build --release --locked -p onetrip-cli)
	@ONETRIP=$(or $(ONETRIP),$(BUILD_DIR)/release/onetrip) scripts/pg-regress.sh $(ARGS)

# The registries are PyPI, Maven Central, npm and the proxy of Go modules.
## other people's programs and their tests (Django, Hibernate, Liquibase, psycopg2, Alembic, SQLAlchemy,
## asyncpg, pgx, Rails, Knex, TypeORM), in a region and on a plain server; what differs must be listed in
## docs/census/ecosystem.tsv (an hour; ARGS=django)
test-ecosystem:
	@scripts/setup.sh ecosystem
	$(if $(ONETRIP),,cargo build --release --locked -p onetrip-cli)
	@ONETRIP=$(or $(ONETRIP),$(BUILD_DIR)/release/onetrip) scripts/test-ecosystem.sh $(ARGS)

## simulated clusters under faults (SECONDS=60; SEED=n repeats one, TRACE=file records what happened)
sim: setup
	cargo build --release --locked -p onetrip-sim
	@$(BUILD_DIR)/release/sim --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(TRACE),--trace $(TRACE)) $(if $(JOBS),--jobs $(JOBS))

# This only feeds bytes to code; no cluster is started.  The compiler adds counters of the edges that an input reaches, for
# libFuzzer; because of --target, programs that run at build time get no counters.
FUZZ_FLAGS = -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-, \
	level=4 inline-8bit-counters pc-table trace-compares)
## coverage-guided fuzzing of all readers of bytes from outside (SECONDS=60 for all together; TARGET=name
## for one reader, INPUT=file repeats one input, ARGS=--keep keeps what it found in testdata/fuzz;
## ARGS=--help)
fuzz: setup
	RUSTFLAGS="$(FUZZ_FLAGS)" cargo run --profile fuzz --locked -p onetrip-lab --features libfuzzer --bin fuzz \
		--target-dir $(BUILD_DIR)/fuzz --target "$$(rustc -vV | sed -n 's/^host: //p')" -- \
		--seconds $(SECONDS) --work $(BUILD_DIR)/fuzz $(if $(TARGET),--target $(TARGET)) \
		$(if $(INPUT),--input $(INPUT)) $(if $(JOBS),--jobs $(JOBS)) $(ARGS)

# The list of known vulnerabilities is https://github.com/rustsec/advisory-db.
## licenses, sources and known vulnerabilities of the Rust libraries; needs the advisory database from
## GitHub
audit: setup-lint
	cargo deny --locked check --hide-inclusion-graph

# Each part can be run alone; the quick ones come first.
## every check that runs no test: format, clippy and C warnings (PostgreSQL 15, 17 and 18), directions of
## includes and of dependencies, licenses and vulnerabilities of libraries, scripts, pages and their links,
## the alarms and the dashboard, by Prometheus's promtool (make -k lint shows everything that is wrong, not
## only the first failure)
lint: lint-format lint-docs lint-monitoring lint-scripts lint-product lint-libraries lint-c lint-clippy

# rustfmt leaves comments as they are.
lint-format: setup-lint
	cargo fmt --all --check
	@LC_ALL=C.UTF-8 grep -rnP --include='*.rs' '^(?=\s*//).{121,}' crates; \
		[ $$? = 1 ] || { echo "comments: at most 120 columns"; false; }

lint-docs: setup-docs
	@scripts/lint-docs.sh
	@scripts/docs.sh $(BUILD_DIR)

lint-monitoring: setup-lint
	@scripts/lint-monitoring.sh $(BUILD_DIR)/prometheus

# The scripts in t/ are sourced by test/run.sh, whose variables they use.
lint-scripts: setup-lint
	shellcheck --severity=warning .ci/run scripts/*.sh extension/test/run.sh packaging/preinst packaging/postinst packaging/postrm
	@scripts/test-quiet.sh
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
	@scripts/users-code.sh
	@scripts/compile-versions.sh $(BUILD_DIR)/headers

## the C warnings alone; fails when the headers of a PostgreSQL cannot be fetched
lint-versions: setup-lint
	@scripts/compile-versions.sh --strict $(BUILD_DIR)/headers

# Once with the features of the command, and once with all features.
lint-clippy: setup-lint
	cargo clippy --release --locked -p onetrip-cli --all-targets -- -D warnings
	cargo clippy --release --locked --workspace --all-targets --all-features -- -D warnings

## Onetrip compared with PostgreSQL, alone and with synchronous standbys: latency, throughput, cost; writes
## a page in docs/measurements, and the tables of README.md and docs/comparison.md (20 minutes; ARGS='--only
## regions,rows --seconds 2'; ARGS=--help)
bench: setup-bench
	cargo bench --locked -p onetrip-lab --bench against_postgresql -- $(ARGS)

## what the node costs without PostgreSQL
bench-node: setup
	cargo run --release --locked -p onetrip-node --example latency

# About five minutes on a quiet machine.
## how long commits stop when a region fails under full load, measured 40 times
bench-failover: setup
	cargo bench --locked -p onetrip-lab --bench failover -- $(or $(ARGS),--out docs/measurements/2026-11-22-failover)

# About 25 minutes.
bench-clients: export CARGO_PROFILE_RELEASE_LTO = off
## how long a client is without a server when its region fails: drivers, HAProxy, pgbouncer (25 minutes)
bench-clients: setup
	@scripts/setup.sh clients
	cargo build --release --locked -p onetrip-cli
	cargo build --profile bench --locked -p onetrip-lab --example retry
	@scripts/bench-clients.sh $(BUILD_DIR) $(or $(ARGS),docs/measurements/2026-11-27-failover-clients)

# About ten minutes.
## what clients elsewhere notice when a member returns that missed five minutes of full load
bench-return: setup
	cargo bench --locked -p onetrip-lab --bench member_return -- $(or $(ARGS),--yields --out docs/measurements/2026-11-23-return)

# About five minutes.  ONETRIP_BIN and ONETRIP_POSTGRES_BIN measure another build (see the head of crates/lab/benches/rows.rs).
## CPU time per row, at its origin and applied elsewhere, compared with heap
bench-rows: setup
	cargo bench --locked -p onetrip-lab --bench rows -- $(or $(ARGS),--out docs/measurements/2026-11-22-rows)

# About ten minutes.
## tpcb-like transactions and COPY in one region without others, compared with heap (ARGS=folder for its
## page)
bench-heap: setup
	$(if $(ONETRIP),,cargo build --release --locked -p onetrip-cli)
	@ONETRIP=$(or $(ONETRIP),$(BUILD_DIR)/release/onetrip) scripts/bench-heap.sh $(ARGS)

## remove what was built
clean:
	cargo clean
	$(MAKE) -C extension PG_CONFIG=$(PG_CONFIG) clean
