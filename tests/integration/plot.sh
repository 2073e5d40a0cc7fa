#!/usr/bin/env bash
# perf/plot draws what ferry_perf -v and perf/peers/run print, and says in one line what it cannot use.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
plot=$TEST_SOURCE/perf/plot
failed=0
header=$(sed -n 's/^#define PERF_CSV_COLUMNS "\(.*\)"$/\1/p' "$TEST_SOURCE/perf/ferry_perf/perf.h")
{
    echo "$header,client_memory,server_memory"
    echo "rpc_lat,8,100,1.5,,,cpu,cpu"
    echo "raw_tag_lat,8,100,0.2,,,cpu,cpu"
    echo "tag_bw,32768,100,,9000,,cuda:0,cuda:0"
    echo "zeromq_tcp_bw,32768,100,,2000,,,"
} >"$folder/good.csv"

# refuses WORDS ARGUMENTS...: one line with the words, and no picture.
refuses() {
    local words=$1
    shift
    if PATH=$search "$python" "$plot" -o "$folder/bad.svg" "$@" 2>"$folder/errors" || [ -e "$folder/bad.svg" ] ||
        [ "$(wc -l <"$folder/errors")" != 1 ] || ! grep -qF -- "$words" "$folder/errors"; then
        printf 'not refused with "%s":\n%s\n' "$words" "$(cat "$folder/errors")" >&2
        failed=1
    fi
}

python=$(python3 -c 'import sys; print(sys.executable)')
search=$PATH
refuses "No such file" "$folder/none.csv"
echo "a,b" >"$folder/other.csv"
refuses "has no column test, bytes, latency_us, mb_per_s" "$folder/other.csv"
printf '%s\nrpc_lat,8,1,fast,,\n' "$header" >"$folder/bad.csv"
refuses "row 2 is no row of ferry_perf -v" "$folder/bad.csv"
printf '%s\n' "$header" >"$folder/empty.csv"
refuses "no row is of a test" "$folder/empty.csv"
search=$folder refuses "gnuplot was not found" "$folder/good.csv"
refuses "ends neither in .svg nor in .png" -o "$folder/sheet.pdf" "$folder/good.csv"

if command -v gnuplot >/dev/null; then
    "$plot" -o "$folder/sheet.svg" -t "A title" "shm=$folder/good.csv"
    for words in "A title" "rpc_lat (shm)" "raw_tag_lat (shm)" "tag_bw cuda:0 (shm)" "zeromq_tcp_bw (shm)" "32K"; do
        grep -qF "$words" "$folder/sheet.svg" || {
            echo "the sheet does not say '$words'" >&2
            failed=1
        }
    done
fi
exit $failed
