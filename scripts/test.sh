#!/bin/bash
# Runs every test of the workspace and closes with what passed, failed and was skipped: each skip with its reason, and last of all, where
# the end of a long log is looked at first, each failure with what it said.
set -uo pipefail
cd "$(dirname "$0")/.."
log=target/test.log

# --show-output, so that a test that skips itself is heard.
cargo test --workspace --locked --no-fail-fast -- --show-output >"$log" 2>&1
status=$?

grep -E '^(     Running|test result:)' "$log" | awk '/Running/ { program = $0; next } !/ 0 passed; 0 failed/ { print program; print }'
skips() { { grep -hE '^SKIPPED ' "$log"; sed -nE 's/^test (.*) \.\.\. ignored(, (.*))?$/SKIPPED \1: \3/p' "$log"; } | sort -u; }
skips
if ((status)); then
    grep -E '^error' "$log" | sort -u | head -20
    # What a failed test printed stands below its name, up to the next test's. The way to it is in the log.
    failed=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | sort -u)
    while read -r name; do
        [[ -n $name ]] || continue
        echo "---- $name"
        awk -v head="---- $name stdout ----" '$0 == head { on = 1; next } /^---- |^failures:|^successes:/ { on = 0 } on' "$log" | grep -vE '^stack backtrace:|^ +[0-9]+: |^ +at ' | cut -c1-300 | tail -25
    done <<<"$failed"
    sed -n 's/^./FAILED &/p' <<<"$failed"
fi
sum() { awk -v word="$1" '/^test result:/ { for (i = 2; i <= NF; i++) if ($i ~ "^" word) total += $(i - 1) } END { print total + 0 }' "$log"; }
skipped=$(skips | wc -l)
echo "$(sum passed) passed, $(sum failed) failed, $skipped skipped"
exit "$status"
