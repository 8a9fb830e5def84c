#!/bin/bash
# Runs the tests of the ports under the address, thread and realtime sanitizers: sanitize.sh [SANITIZER...]
# Needs a nightly compiler (the sanitizers' runtimes come with it); names what it skips where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
(($#)) || set -- address thread realtime

if ! cargo +nightly --version >/dev/null 2>&1 && ! rustup toolchain install nightly --profile minimal >/dev/null 2>&1; then
    echo "SKIPPED sanitize $*: no nightly compiler (rustup toolchain install nightly)"
    exit 0
fi

host=$(rustc -vV | sed -n 's/^host: //p')
runtimes=$(rustc +nightly --print sysroot)/lib/rustlib/$host/lib
export CARGO_TARGET_DIR=target/sanitize
export ASAN_OPTIONS=detect_stack_use_after_return=1
# What DPDK's driver for XDP sockets does not free.
leaks=$PWD/target/leaks
export LSAN_OPTIONS=suppressions=$leaks:print_suppressions=0

# Static linking (see .cargo/config.toml) must not apply: RUSTFLAGS takes its place. rustix calls the C library, not the
# kernel, so that the sanitizers see what is mapped, read and written. For the thread sanitizer the standard library is built
# anew: as it comes, its locks and channels order nothing that this sanitizer could see.
flags() {
    echo "-Zsanitizer=$1 --cfg rustix_use_libc"
    case $1 in
        thread) echo "--cfg tsan -Cunsafe-allow-abi-mismatch=sanitizer" ;;
        realtime) echo "--cfg realtime" ;;
    esac
}

# The thread sanitizer is slow: tests that run beside each other would take each other's time. Campaigns of the UPF are not about ports.
tests() {
    case $1 in
        address) echo "-p vport -p port -p dpdk -p soak --tests -- --show-output --skip a_upf_" ;;
        thread) echo "-p vport -p port -p soak --tests -- --show-output --skip a_upf_ --test-threads=1" ;;
        realtime) echo "-p vport --test realtime -- --show-output" ;;
    esac
}

# The source of the standard library, for those who build it.
have_source() {
    [[ -e $(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock ]] ||
        rustup component add rust-src --toolchain nightly >/dev/null 2>&1
}

run() {
    local log=target/sanitize-$1.log short
    case $1 in address) short=asan ;; thread) short=tsan ;; realtime) short=rtsan ;; esac
    if ! compgen -G "$runtimes/*_rt.$short.a" >/dev/null; then
        echo "SKIPPED sanitize $1: the nightly compiler has no runtime for it here"
        return
    fi
    local std=()
    if [[ $1 == thread ]]; then
        if ! have_source; then
            echo "SKIPPED sanitize $1: no source of the standard library (rustup component add rust-src --toolchain nightly)"
            return
        fi
        std=(-Zbuild-std)
    fi
    # shellcheck disable=SC2046
    if RUSTFLAGS=$(flags "$1" | tr '\n' ' ') cargo +nightly test --locked --no-fail-fast "${std[@]}" --target "$host" $(tests "$1") >"$log" 2>&1; then
        grep -hE '^SKIPPED ' "$log" | sort -u || true
        awk -v name="$1" '/^test result:/ { passed += $4 } END { print "sanitize " name ": " passed + 0 " tests, nothing found" }' "$log"
    else
        grep -E '^(error|SUMMARY|test .*FAILED|WARNING: ThreadSanitizer|==[0-9]+==ERROR)' "$log" | sort | uniq -c | head -40
        tail -60 "$log"
        echo "sanitize $1: FAILED, see $log"
        return 1
    fi
}
mkdir -p target
echo "leak:xsk_umem__create" >"$leaks"
failed=0
for sanitizer in "$@"; do
    # One that fails keeps no other from running.
    run "$sanitizer" || failed=1
done
exit "$failed"
