#!/usr/bin/env bash
# The programs of docs/examples and the demo run as their readers run them, and print what they promise.
set -uo pipefail

examples=$TEST_BUILD/bin/examples
failed=0
[ -x "$examples/hello" ] || { echo "no programs in $examples" >&2; exit 1; }

# shellcheck disable=SC2086
unset ${!FERRY_@} # the examples set what they need

# run COMMAND...: its output goes to $output; it must end by itself and well.
run() {
    output=$(timeout 60 "$@" 2>&1 </dev/null)
    local rc=$?
    if [ $rc != 0 ]; then
        complain "ended with $rc" "$@"
    fi
}

complain() {
    local what=$1
    shift
    printf '%s: %s; it printed:\n%s\n' "$*" "$what" "$output" >&2
    failed=1
}

# expect COMMAND-NAME LINE...: whole lines of $output, as extended patterns.
expect() {
    local name=$1 line
    shift
    for line in "$@"; do
        grep -qxE -- "$line" <<<"$output" || complain "no line '$line'" "$name"
    done
}

# lines COMMAND-NAME COUNT PATTERN
lines() {
    local count
    count=$(grep -cE -- "$3" <<<"$output")
    [ "$count" = "$2" ] || complain "$count lines with '$3', wanted $2" "$1"
}

# What the README shows is this file, and what it links to is there.
output=$(diff <(sed -n '/^```c$/,/^```$/p' "$TEST_SOURCE/README.md" | sed '1d;$d') "$TEST_SOURCE/docs/examples/hello.c") ||
    complain "its program is not docs/examples/hello.c" README.md
output=$(for page in README.md docs/architecture.md; do
    grep -oE '\]\([a-z][^):#]*' "$TEST_SOURCE/$page" | cut -c3- | while read -r target; do
        [ -e "$(dirname "$TEST_SOURCE/$page")/$target" ] || echo "$page links to $target, which is not there"
    done
done)
[ -z "$output" ] || complain "dead links" documentation

run "$examples/hello"
expect hello 42

# two_workers: each tensor arrives on the device that the map names and its result comes home.
two_workers() { # DEVICE FIRST SECOND FIRST-ARRIVES SECOND-ARRIVES
    run "$examples/two_workers" --device "$1"
    expect "two_workers --device $1" "worker1: first arrived on $4" "worker1: second arrived on $5" \
        "worker0: first went $2 -.*-> ucx.* -.*-> $4" "worker0: second went $3 -.*-> ucx.* -.*-> $5" \
        "worker0: first came back to $2: 2 4 6 8" "worker0: second came back to $3: 20 22 24 26"
}
two_workers sim sim:0 sim:1 sim:1 sim:0
two_workers cpu cpu cpu cpu cpu
run "$examples/two_workers"
expect two_workers 'two_workers: [0-9]+ CUDA devices? here, so the tensors are on (cuda:0 and cuda:1|simulated devices) .*'
case $output in
*"cuda:0 and cuda:1"*) two_workers cuda cuda:0 cuda:1 cuda:1 cuda:0 ;;
*" 1 CUDA device here"*) two_workers cuda cuda:0 cuda:0 cuda:0 cuda:0 ;;
esac

output=$("$examples/two_workers" --device tpu 2>&1) && complain "took an unknown device" two_workers
expect two_workers 'usage: .*'

# The caller of the pair alone: worker1 never comes, which is an error and no hang.
output=$(timeout 30 "$examples/two_workers" --device cpu worker0 2>&1)
[ $? = 1 ] || complain "did not fail without worker1" "two_workers worker0"
expect "two_workers worker0" 'worker0: .*worker1.*'

for arguments in "--device sim" "--device cpu 3" ""; do
    # shellcheck disable=SC2086
    run "$examples/parameter_server" $arguments
    workers=$([ "${arguments##* }" = 3 ] && echo 3 || echo 2)
    lines "parameter_server $arguments" "$workers" \
        '^worker[0-9]: 5 gradients went from ([a-z:0-9]+) to ps.s cpu, the parameters came back to \1; all are right$'
done
run "$examples/parameter_server" --device sim
lines parameter_server 5 '^worker0: push: gradient sim:0 -.*-> ucx.* -.*-> cpu$'
lines parameter_server 5 '^worker0: pull: parameters cpu -.*-> ucx.* -.*-> sim:0$'

run "$examples/epoll_server"
lines epoll_server 5 '^server: client asked for'
expect epoll_server 'client: 4 \+ 40 = 44' 'server: 5 calls served, .*'

run "$TEST_BUILD/bin/ferry_demo"
lines ferry_demo 19 '^ *[0-9]+ [KM]iB  worker[01] [a-z:0-9]+ +worker[01] [a-z:0-9]+ +[0-9.]+ [um]s  [ 0-9.]{7}  .+->.+$'
lines ferry_demo 1 'FERRY_ERR_UNMAPPED_DEVICE: argument .x. is on (sim|cuda):0 and no rule for worker1'
lines ferry_demo 1 '^The same call with the rule "worker1: (sim|cuda):0->cpu":$'

case $output in
*" sim:0 "*)
    shown=$(sed -n 's/^ *\(FERRY_ERR_UNMAPPED_DEVICE: .*\)/\1/p' "$TEST_SOURCE/README.md")
    grep -qF -- "${shown:-nothing}" <<<"$output" || complain "the README shows another error" ferry_demo
    ;;
esac
exit $failed
