#!/bin/bash
# Runs every test of the workspace, which Clippy compiles and looks at, and beside them, in the time in which they wait, what is named
# of the Makefile's: test.sh TARGET... Closes with what passed, failed and was skipped: each skip with its reason, and last of all, where
# the end of a long log is looked at first, each failure with what it said.
set -uo pipefail
cd "$(dirname "$0")/.."
log=target/test.log
beside_log=target/test-beside.log

# Twice what they take on two cores: a test that hangs is to be named, not waited for.
limit_seconds=1500

# In a process group of its own, which ends with this script. --show-output, so that a test that skips itself is heard.
: >"$log"
set -m
RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings cargo test --workspace --locked --no-fail-fast -- --show-output </dev/null >"$log" 2>&1 &
tests=$!
set +m
beside=
trap 'kill -KILL -- -"$tests" ${beside:+-"$beside"} 2>/dev/null' EXIT
trap 'exit 130' INT TERM

# Cargo compiles one thing at a time: whoever waits for no lock goes first, and that are to be the tests.
start_beside() {
    set -m
    chrt --idle 0 make --no-print-directory "$@" </dev/null >"$beside_log" 2>&1 &
    beside=$!
    set +m
}

# Results as they come, of programs that have tests.
tail -n +1 -s 0.2 --pid "$tests" -f "$log" |
    awk '/^     Running/ { program = $0; next } /^test result:/ && !/ 0 passed; 0 failed/ { print program; print; fflush() }' &
results=$!

# What still runs, thread by thread, and what each waits for in the kernel. A test's thread bears the beginning of its name.
unfinished() {
    local pid task
    for pid in $(pgrep -g "$tests"); do
        for task in "/proc/$pid/task/"*; do
            echo "UNFINISHED $(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c1-200): thread $(<"$task/comm"), $(<"$task/wchan")"
        done
    done 2>/dev/null
}
overdue=
for ((second = 0; second < limit_seconds; second++)); do
    kill -0 "$tests" 2>/dev/null || break
    [[ -n $beside ]] || ! grep -q '^     Running' "$log" || start_beside "$@"
    sleep 1
done
if kill -0 "$tests" 2>/dev/null; then
    overdue=$(unfinished)
    kill -KILL -- -"$tests"
fi
wait "$tests" 2>/dev/null
status=$?
wait "$results"
[[ -n $beside ]] || start_beside "$@"
wait "$beside"
beside_status=$?
grep -vE '^ *(Compiling|Downloaded) ' "$beside_log"

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
if [[ -n $overdue ]]; then
    grep 'has been running for over' "$log"
    echo "$overdue"
    echo "FAILED to end within $limit_seconds s"
fi
((beside_status == 0)) || echo "FAILED make $*: see above"
sum() { awk -v word="$1" '/^test result:/ { for (i = 2; i <= NF; i++) if ($i ~ "^" word) total += $(i - 1) } END { print total + 0 }' "$log"; }
skipped=$(skips | wc -l)
echo "$(sum passed) passed, $(sum failed) failed, $skipped skipped"
exit $((status ? status : beside_status))
