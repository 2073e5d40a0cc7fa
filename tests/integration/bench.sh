#!/usr/bin/env bash
# ferry_bench measures what it is asked for, over shared memory and over tcp, between cpu and a device.
set -euo pipefail

bench=$TEST_BUILD/bin/ferry_bench
# shellcheck disable=SC2086
unset ${!FERRY_@}
failed=0

# expect COUNT PATTERN: so many lines of $output.
expect() {
    [ "$(grep -cE -- "$2" <<<"$output")" = "$1" ] || {
        printf 'not %s lines with "%s":\n%s\n' "$1" "$2" "$output" >&2
        failed=1
    }
}

output=$("$bench" --time-ms 20 --sizes 4,64K --pairs cpu-cpu,sim:0-cpu,cpu-sim:0)
expect 1 '^empty call: round trip p50 [0-9.]+ us, p99 [0-9.]+ us; [0-9]+ calls/s with 64 in flight$'
expect 6 '^ +(4|65536)  (cpu|sim:0) +(cpu|sim:0)( +[0-9.]+){5}  (cpu|sim:0) -[a-z]+-> ucx.* -[a-z]+-> (cpu|sim:0)$'

output=$(UCX_TLS=tcp,self "$bench" --time-ms 20 --sizes 64K --empty no 2>&1)
expect 1 '^ +65536  cpu +cpu .*ucx.tcp'
expect 0 '^empty call'

output=$("$bench" --time-ms 20 --sizes 4 --pairs cuda:999-cpu 2>&1) && { echo "took cuda:999" >&2; failed=1; }
expect 1 'failed: FERRY_ERR_'
output=$("$bench" --sizes 2>&1) && { echo "took --sizes without a value" >&2; failed=1; }
expect 1 '^usage: '
exit $failed
