#!/bin/bash
# Explores every model, each in a process of its own: as threads of one process they would wait for each other in the kernel, since
# each of their many executions maps memory and opens files.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/modelled-rustc \
    cargo test --locked -p vport --lib --no-run --message-format=json-render-diagnostics | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
models=$("$program" --list models:: | sed -n 's/: test$//p')
[[ -n $models ]] || { echo "there are no models" >&2; exit 1; }

run() {
    local said
    if said=$("$program" --exact --test-threads=1 --show-output "$1" 2>&1) && grep -q '^test result: ok. 1 passed' <<<"$said"; then
        echo "model ${1#models::}: ok $(sed -n 's/ executions$//p' <<<"$said" | paste -sd' ')"
    else
        tail -60 <<<"$said"
        echo "model ${1#models::}: FAILED"
        return 1
    fi
}
export -f run
export program
xargs -P "$(nproc)" -I{} bash -c 'run {}' <<<"$models"
