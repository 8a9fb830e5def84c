# Kaista: `make demo` and `make test` do all set-up themselves, as root on Debian 12.

PREFIX  ?= /usr
DESTDIR ?=
CARGO   ?= cargo

# An explicit target (see .cargo/config.toml) puts artefacts below its name; they are put where people look, with kaista's line
# tables beside it.
host    := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
built   := target/$(host)/release
tools   := target/tools
# The last is the functions with ports over DPDK: one file, which acts as the one by whose name it is called.
programs := kaista kaistad kaista-upf kaista-ran kaista-traffic kaista-dpdk
dpdk_names := kaista-upf-dpdk kaista-ran-dpdk kaista-traffic-dpdk
fuzz_targets := gtpu packets pfcp descriptor handshake records descriptors
FUZZ_SECONDS ?= 60
FUZZ_TIMEOUT_SECONDS ?= 10
SECONDS_EACH ?= 600
SESSIONS ?= 100000

# Built without optimisation and debug information, and with the system's libzstd: they run for seconds, compiling them well would take
# minutes.
install_tool := CARGO_PROFILE_DEV_DEBUG=false ZSTD_SYS_USE_PKG_CONFIG=1 $(CARGO) install --locked --debug --root $(tools) --target $(host)

.DELETE_ON_ERROR:
.PHONY: help demo test setup build images bench lint tidy models sanitize soak fuzz install uninstall clean

help:
	@sed -n 's/^#: //p' $(MAKEFILE_LIST)

#: make demo       set up, build, run the first slice with real traffic, show figures, tear down (KEEP=1 leaves it up)
demo: setup build images
	examples/first-slice/demo.sh

# Nothing is built twice here that an incremental build would make quicker, each crate takes least in one piece, and nobody looks at it
# with a debugger. Clippy compiles the tests and the fuzzers, which takes less than to look at everything beforehand. The fuzzers run
# for longer than by themselves, and may take longer for an input, since they get what the tests leave.
#: make test       set up, build, run every test, the lints, the models and the fuzzers
test: export CARGO_INCREMENTAL := 0
test: export CARGO_PROFILE_DEV_CODEGEN_UNITS := 1
test: export CARGO_PROFILE_DEV_DEBUG := false
test: setup build images
	scripts/test.sh tidy fuzz models FUZZ_SECONDS=120 FUZZ_TIMEOUT_SECONDS=100

setup:
	scripts/setup.sh test

#: make build      target/release/kaista and its companions
build:
	scripts/setup.sh build
	$(CARGO) build --release --locked $(addprefix --bin ,$(programs))
	@mkdir -p target/release
	@for program in $(programs); do \
		strip --strip-debug -o target/release/$$program.new $(built)/$$program || exit 1; \
		mv target/release/$$program.new target/release/$$program; \
	done
	@cd target/release && for name in $(dpdk_names); do ln -f kaista-dpdk $$name || exit 1; done
	@objcopy --only-keep-debug $(built)/kaista target/release/kaista.debug
	@cd target/release && objcopy --add-gnu-debuglink=kaista.debug kaista kaista.new && mv kaista.new kaista
	@$(MAKE) --no-print-directory capi

include crates/capi/capi.mk

#: make images     root filesystems of the demo's functions, under target/images
images: build
	examples/images/build.sh

# One that fails keeps no other from being measured.
#: make bench      all benchmarks, interleaved with their references; JSON under target/bench
bench: setup build
	mkdir -p target/bench
	failed=0; \
	target/release/kaista bench link --json target/bench/link.json || failed=1; \
	target/release/kaista bench upf --json target/bench/upf.json --plots target/bench/upf || failed=1; \
	target/release/kaista bench n4 --json target/bench/n4.json || failed=1; \
	exit $$failed

#: make lint       formatting, licences, clippy
lint: setup tidy
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

tidy: $(tools)/bin/cargo-deny
	$(CARGO) fmt --check
	$(tools)/bin/cargo-deny --log-level error check licenses bans sources

#: make models     explores executions of the ring, the doorbell, changes of the bucket table and take-overs of ports (loom); says how many of each
models:
	scripts/models.sh

#: make sanitize   tests of the ports under the address, thread and realtime sanitizers
sanitize:
	scripts/sanitize.sh

#: make soak       kills, restarts, steers, pools and deceives ports, for SECONDS_EACH (600) seconds each or longer; kills a UPF with
#:                 SESSIONS (100000) sessions a hundred times, and replaces one twenty times; one line each
soak:
	$(CARGO) build --release --locked -p soak
	$(built)/kaista-soak --seconds-each $(SECONDS_EACH) --sessions $(SESSIONS)

#: make fuzz       every fuzz target for FUZZ_SECONDS (60) seconds; an input that takes FUZZ_TIMEOUT_SECONDS (10) fails
fuzz:
	scripts/fuzz.sh $(FUZZ_SECONDS) $(FUZZ_TIMEOUT_SECONDS) $(fuzz_targets)

$(tools)/bin/cargo-deny:
	$(install_tool) cargo-deny@0.20.2

#: make install    binaries, the C library, man pages, completions and the systemd unit, below DESTDIR and PREFIX
install: build install-capi
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/libexec/kaista
	install -m 755 target/release/kaista $(DESTDIR)$(PREFIX)/bin/
	install -m 755 $(addprefix target/release/,$(filter-out kaista,$(programs))) $(DESTDIR)$(PREFIX)/libexec/kaista/
	cd $(DESTDIR)$(PREFIX)/libexec/kaista && for name in $(dpdk_names); do ln -f kaista-dpdk $$name || exit 1; done
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	install -d $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(built)/kaista man $(DESTDIR)$(PREFIX)/share/man/man1
	$(built)/kaista completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/kaista
	$(built)/kaista completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_kaista
	$(built)/kaista completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/kaista.fish
	install -d $(DESTDIR)/lib/systemd/system
	sed 's|@PREFIX@|$(PREFIX)|' deploy/kaistad.service > $(DESTDIR)/lib/systemd/system/kaistad.service

#: make uninstall  takes away what install put there
uninstall: uninstall-capi
	rm -f $(DESTDIR)$(PREFIX)/bin/kaista $(DESTDIR)/lib/systemd/system/kaistad.service
	rm -rf $(DESTDIR)$(PREFIX)/libexec/kaista
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/kaista.1 $(DESTDIR)$(PREFIX)/share/man/man1/kaista-*.1
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/kaista
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_kaista
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/kaista.fish

#: make clean      removes everything built
clean:
	rm -rf target
