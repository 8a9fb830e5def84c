# The C library: libkaista-port, shared and static, with its header, pkg-config file and manual.
# Included by the Makefile of the repository; needs its PREFIX, DESTDIR, CARGO, host and tools.

# Debian: /usr/lib/x86_64-linux-gnu.
LIBDIR  ?= $(PREFIX)/lib/$(shell $(CC) -print-multiarch)

capi         := crates/capi
# The version of the interface, said once: in abi.rs.
capi_number   = $(shell sed -n 's/^pub const KAISTA_ABI_$(1): c_uint = \([0-9]*\);/\1/p' $(capi)/src/abi.rs)
capi_soname  := libkaista-port.so.$(call capi_number,MAJOR)
capi_file    := $(capi_soname).$(call capi_number,MINOR)
# Programs are static (.cargo/config.toml), a shared library cannot be: other flags, so a target directory of its own. Link-time
# optimisation keeps out of the static library what it has no use for, some of which cannot be linked. It takes longer with fewer units.
capi_built   := target/capi/$(host)/release
capi_header  := target/capi/include/kaista/port.h
# Every exported function has a manual page of its own name.
capi_names    = $(shell sed -n 's/^\.Nm \(kaista_[a-z_]*\).*/\1/p' $(capi)/kaista_port.3 | sort -u | grep -vx kaista_port)

.PHONY: capi install-capi uninstall-capi

#: make capi       libkaista-port and its header, under target/capi
capi: $(capi_header)
	CARGO_PROFILE_RELEASE_LTO=thin CARGO_PROFILE_RELEASE_CODEGEN_UNITS=4 RUSTFLAGS='-C target-feature=-crt-static' \
		$(CARGO) rustc --release --locked --package capi --lib --crate-type cdylib,staticlib --target $(host) --target-dir target/capi \
		-- -C link-arg=-Wl,-soname,$(capi_soname)

$(capi_header): $(wildcard $(capi)/src/*.rs) $(capi)/cbindgen.toml $(tools)/bin/cbindgen
	@mkdir -p $(@D)
	$(tools)/bin/cbindgen --quiet --config $(capi)/cbindgen.toml --output $@ $(capi)

$(tools)/bin/cbindgen:
	$(install_tool) cbindgen@0.29.4

install-capi: capi
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/include/kaista $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 644 $(capi_built)/libkaista_port.so $(DESTDIR)$(LIBDIR)/$(capi_file)
	ln -sf $(capi_file) $(DESTDIR)$(LIBDIR)/$(capi_soname)
	ln -sf $(capi_soname) $(DESTDIR)$(LIBDIR)/libkaista-port.so
	install -m 644 $(capi_built)/libkaista_port.a $(DESTDIR)$(LIBDIR)/libkaista-port.a
	strip --strip-unneeded $(DESTDIR)$(LIBDIR)/$(capi_file)
	strip --strip-debug $(DESTDIR)$(LIBDIR)/libkaista-port.a
	install -m 644 $(capi_header) $(DESTDIR)$(PREFIX)/include/kaista/port.h
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(call capi_number,MAJOR).$(call capi_number,MINOR)|' \
		$(capi)/kaista-port.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/kaista-port.pc
	install -m 644 $(capi)/kaista_port.3 $(DESTDIR)$(PREFIX)/share/man/man3/
	for name in $(capi_names); do ln -sf kaista_port.3 $(DESTDIR)$(PREFIX)/share/man/man3/$$name.3; done
	[ -n "$(DESTDIR)" ] || ldconfig

uninstall-capi:
	rm -f $(DESTDIR)$(LIBDIR)/libkaista-port.a $(DESTDIR)$(LIBDIR)/libkaista-port.so $(DESTDIR)$(LIBDIR)/$(capi_soname)
	rm -f $(DESTDIR)$(LIBDIR)/$(capi_file) $(DESTDIR)$(LIBDIR)/pkgconfig/kaista-port.pc
	rm -f $(DESTDIR)$(PREFIX)/include/kaista/port.h $(DESTDIR)$(PREFIX)/share/man/man3/kaista_port.3
	rm -f $(capi_names:%=$(DESTDIR)$(PREFIX)/share/man/man3/%.3)
	rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/include/kaista 2>/dev/null || true
	[ -n "$(DESTDIR)" ] || ldconfig
