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
if [ -x "$TEST_PROGRAMS/self_call" ]; then
    LD_LIBRARY_PATH=$TEST_UCX_OTHER_LIB "$TEST_PROGRAMS/self_call"
fi
