#!/bin/bash
# Runs fuzz targets, all of them beside each other: fuzz.sh SECONDS TARGET...
# Needs a nightly compiler (the sanitizers' runtimes come with it); names what it skips where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift

if ! cargo +nightly --version >/dev/null 2>&1 && ! rustup toolchain install nightly --profile minimal >/dev/null 2>&1; then
    echo "SKIPPED fuzz $*: no nightly compiler (rustup toolchain install nightly)"
    exit 0
fi

host=$(rustc -vV | sed -n 's/^host: //p')
export PATH="$PWD/target/tools/bin:$PATH"
# The address sanitizer's runtime is dynamic: the workspace's static linking must not apply.
export RUSTFLAGS="" CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
cargo +nightly fuzz build --target "$host" >&2

run() {
    local target=$1 corpus=fuzz/corpus/$1 log=target/fuzz-$1.log
    mkdir -p "$corpus"
    if "fuzz/target/$host/release/$target" "$corpus" $( [[ -d fuzz/seeds/$target ]] && echo "fuzz/seeds/$target" ) \
        -artifact_prefix="target/fuzz-$target-" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 >"$log" 2>&1; then
        echo "fuzz $target: $(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$log") runs in $seconds s, nothing found"
    else
        tail -40 "$log"
        echo "fuzz $target: FAILED, see $log"
        return 1
    fi
}
export -f run
export seconds host
printf '%s\n' "$@" | xargs -P "$#" -I{} bash -c 'run {}'
