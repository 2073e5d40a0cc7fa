#!/usr/bin/env bash
# perf/peers/run skips a peer that is not built with one line, and prints rows of CSV for one that is.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
run=$TEST_SOURCE/perf/peers/run
failed=0

complain() {
    printf '%s:\n%s\n%s\n' "$1" "$rows" "$(cat "$folder/errors")" >&2
    failed=1
}

header=$(sed -n 's/^#define PERF_CSV_COLUMNS "\(.*\)"$/\1/p' "$TEST_SOURCE/perf/ferry_perf/perf.h")
rows=$("$run" "$folder" 8 2>"$folder/errors")
[ -n "$header" ] && [ "$rows" = "$header" ] || complain "not the header alone"
for peer in tensorpipe zeromq; do
    [ "$(grep -c "^skipped: $peer is not built; install lib" "$folder/errors")" = 1 ] || complain "$peer is not skipped"
done
[ "$(wc -l <"$folder/errors")" = 2 ] || complain "not one line a peer"

rows=$("$run" "$TEST_BUILD" 8 2>"$folder/errors")
for peer in tensorpipe zeromq; do
    [ -x "$TEST_BUILD/bin/peers/$peer" ] || continue
    [ "$(grep -cE "^${peer}_[a-z]+_lat,8,[0-9]+,[0-9.]+,,$" <<<"$rows")" = 2 ] || complain "no latency of $peer"
    [ "$(grep -cE "^${peer}_[a-z]+_bw,8,[0-9]+,,[0-9.]+,[0-9]+$" <<<"$rows")" = 2 ] || complain "no bandwidth of $peer"
done

rows=$("$run" 2>"$folder/errors") && complain "took no build folder"
grep -q "^usage: perf/peers/run BUILD" "$folder/errors" || complain "no usage"
for peer in tensorpipe zeromq; do
    [ -x "$TEST_BUILD/bin/peers/$peer" ] || continue
    rows=$("$run" "$TEST_BUILD" 8K 2>"$folder/errors") && complain "took a size of 8K"
    grep -q "^8K: a size is a number of bytes" "$folder/errors" || complain "no word on 8K"
done
exit $failed
