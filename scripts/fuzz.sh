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
# What cargo-fuzz has the compiler do, but in our own crates alone: in all that they build on it would take minutes.
# The address sanitizer's runtime is dynamic: the workspace's static linking must not apply.
export RUSTFLAGS="" CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
flags='"-Zsanitizer=address", "-Cpasses=sancov-module", "--cfg=fuzzing"'
for option in level=4 inline-8bit-counters pc-table trace-compares stack-depth; do
    flags+=", \"-Cllvm-args=-sanitizer-coverage-$option\""
done
instrumented=()
for crate in kaista-fuzz vport port gtpu pfcp slice upf; do
    instrumented+=(--config "profile.release.package.$crate.rustflags=[$flags]")
done
cargo +nightly build --release --bins --manifest-path fuzz/Cargo.toml --target-dir fuzz/target --target "$host" \
    -Zprofile-rustflags "${instrumented[@]}" >&2

run() {
    local target=$1 corpus=fuzz/corpus/$1 log=target/fuzz-$1.log
    mkdir -p "$corpus" target
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
