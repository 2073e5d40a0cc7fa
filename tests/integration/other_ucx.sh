#!/usr/bin/env bash
# A binary built against one UCX starts with the other's libraries, named by LD_LIBRARY_PATH, and uses them.
set -euo pipefail

if [ -z "$TEST_UCX_OTHER_LIB" ]; then
    echo "only one UCX build is here"
    exit 77
fi
program=$TEST_BUILD/bin/ferry_info
[ -x "$program" ] || { echo "no $program"; exit 77; }

loaded=$(LD_LIBRARY_PATH=$TEST_UCX_OTHER_LIB ldd "$program")
grep -q "libucp.so.0 => $TEST_UCX_OTHER_LIB/" <<<"$loaded" || {
    echo "with LD_LIBRARY_PATH=$TEST_UCX_OTHER_LIB the loader takes: $(grep libucp <<<"$loaded")" >&2
    exit 1
}
own=$("$program" --version)
other=$(LD_LIBRARY_PATH=$TEST_UCX_OTHER_LIB "$program" --version)
if [ "$own" = "$other" ]; then
    echo "ferry_info --version says the same with both UCX builds: $own" >&2
    exit 1
fi

# It also works: two processes call each other over the other build.
said=$(LD_LIBRARY_PATH=$TEST_UCX_OTHER_LIB timeout 60 "$TEST_BUILD/bin/examples/two_workers" --device sim 2>&1) || {
    echo "two_workers with the other UCX failed: $said" >&2
    exit 1
}
grep -q 'worker1: first arrived on sim:1' <<<"$said" || { echo "two_workers with the other UCX said: $said" >&2; exit 1; }
