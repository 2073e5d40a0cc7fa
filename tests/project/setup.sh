#!/usr/bin/env bash
# scripts/setup: installs what is missing and nothing else, says nothing where all is there, and fails with one line that
# names what failed. apt-get, pip and id are stand-ins that write down how they were called.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree" "$work/bin"
cp -r "$TEST_SOURCE/scripts" "$work/tree/scripts"
setup=$work/tree/scripts/setup

check() {
    local what=$1
    shift
    "$@" || { echo "not so: $what" >&2; tail -n 5 "$work"/calls "$work"/said >&2; exit 1; }
}

run_setup() {
    : >"$work/calls"
    PATH=$work/bin WORK=$work bash "$setup" >"$work/said" 2>&1
}

# A PATH that holds every tool but valgrind.
for tool in cc c++ make cmake ninja objcopy pkg-config flock clang clang++ clang-format clang-tidy ucx_perftest \
    bash sh env echo chmod dirname basename grep sed sort head tail tr xargs mkdir rm ln cp cat find realpath; do
    ln -s "$(type -P $tool)" "$work/bin/$tool"
done
cat >"$work/bin/apt-get" <<'SCRIPT'
#!/bin/sh
echo "apt-get $*" >>"$WORK/calls"
[ ! -e "$WORK/apt-fails" ] || exit 1
case "$*" in *valgrind*) printf '#!/bin/sh\n' >"$WORK/bin/valgrind"; chmod +x "$WORK/bin/valgrind" ;; esac
SCRIPT
cat >"$work/bin/python3" <<'SCRIPT'
#!/bin/bash
[ "$1" != -c ] || exit 0
echo "pip $*" >>"$WORK/calls"
[ ! -e "$WORK/pip-fails" ] || { echo "a long story from pip"; exit 1; }
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/libucx/lib" "$2/tvm_ffi/include/dlpack"
echo library >"$2/libucx/lib/libucp.so.0.0.0"
cp "$2/libucx/lib/libucp.so.0.0.0" "$2/libucx/lib/libucp.so.0"
: >"$2/tvm_ffi/include/dlpack/dlpack.h"
SCRIPT
printf '#!/bin/sh\necho 1000\n' >"$work/bin/id"
chmod +x "$work"/bin/{apt-get,python3,id}

check "without root and sudo it fails" eval '! run_setup'
check "it says what it cannot install" grep -qx "scripts/setup: cannot install valgrind: neither root nor sudo" "$work/said"

printf '#!/bin/sh\necho 0\n' >"$work/bin/id"
touch "$work/apt-fails"
check "it fails when apt-get does" eval '! run_setup'
check "its last line names apt-get" eval 'tail -n 1 "$work/said" | grep -q "^scripts/setup: apt-get update failed"'
rm "$work/apt-fails"

touch "$work/pip-fails"
check "it fails when pip does" eval '! run_setup'
check "its last line names the package" \
    eval 'tail -n 1 "$work/said" | grep -qx "scripts/setup: pip could not fetch libucx-cu13==1.22.0"'
check "it installed valgrind alone" grep -q "apt-get install .* valgrind$" "$work/calls"
rm "$work/pip-fails"

check "it goes on where it stopped" run_setup
check "it did not call apt-get again" eval '! grep -q apt-get "$work/calls"'
check "UCX lies in .deps/ucx" [ -s "$work/tree/.deps/ucx/lib/libucp.so.0" ]
check "a copy became a link" [ -L "$work/tree/.deps/ucx/lib/libucp.so.0" ]
check "DLPack's header lies in .deps/dlpack" [ -e "$work/tree/.deps/dlpack/include/dlpack/dlpack.h" ]

check "a second run succeeds" run_setup
check "a second run calls nothing" [ ! -s "$work/calls" ]
check "a second run says nothing" [ ! -s "$work/said" ]

echo "libucx-cu13==1.0.0" >"$work/tree/.deps/ucx.version"
check "another version is replaced" run_setup
check "only that is fetched" [ "$(grep -c pip "$work/calls")" = 1 ]
