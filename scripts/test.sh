#!/bin/bash
# Runs every test of the workspace and closes with what passed, failed and was skipped, each skip with its reason.
set -uo pipefail
cd "$(dirname "$0")/.."
log=target/test.log

# --show-output, so that a test that skips itself is heard.
cargo test --workspace --locked --no-fail-fast -- --show-output >"$log" 2>&1
status=$?

if ((status)); then
    grep -nE '^(error|failures:|---- .* stdout|thread .* panicked|    [a-z_:]+$)' "$log" | tail -60
    tail -400 "$log" | sed -n '/^failures:/,$p' | head -200
fi
grep -E '^(     Running|test result:)' "$log"
grep -hE '^SKIPPED ' "$log" | sort -u
sum() { awk -v word="$1" '/^test result:/ { for (i = 2; i <= NF; i++) if ($i ~ "^" word) total += $(i - 1) } END { print total + 0 }' "$log"; }
skipped=$(grep -hE '^SKIPPED ' "$log" | sort -u | wc -l)
echo "$(sum passed) passed, $(sum failed) failed, $skipped skipped"
exit "$status"
