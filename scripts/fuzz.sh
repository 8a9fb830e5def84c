#!/bin/bash
# Runs fuzz targets, all of them beside each other: fuzz.sh SECONDS TIMEOUT_SECONDS TARGET...
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1 timeout_seconds=$2
shift 2

# Targets that are optimised run two to three times as fast, but to compile what the sanitizer checks takes three times as long.
((seconds <= 300)) || export CARGO_PROFILE_DEV_OPT_LEVEL=1

RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/instrumented-rustc cargo build --locked --workspace "${@/#/--bin=}" >&2
host=$(rustc -vV | sed -n 's/^host: //p')

run() {
    local target=$1 corpus=fuzz/corpus/$1 log=target/fuzz-$1.log
    mkdir -p "$corpus" target
    if "${CARGO_TARGET_DIR:-target}/$host/debug/$target" "$corpus" $( [[ -d fuzz/seeds/$target ]] && echo "fuzz/seeds/$target" ) \
        -artifact_prefix="target/fuzz-$target-" -max_total_time="$seconds" -timeout="$timeout_seconds" -rss_limit_mb=4096 >"$log" 2>&1; then
        echo "fuzz $target: $(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$log") runs in $seconds s, nothing found"
    else
        tail -40 "$log"
        echo "fuzz $target: FAILED, see $log"
        return 1
    fi
}
export -f run
export seconds timeout_seconds host
printf '%s\n' "$@" | xargs -P "$#" -I{} bash -c 'run {}'
