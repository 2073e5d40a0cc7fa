#!/usr/bin/env bash
# Each public header compiles alone, as C11 and as C++17, with DLPack 1.x and with Debian's 0.6.
set -euo pipefail

failed=0
warnings="-pedantic -Wall -Wextra -Wshadow -Wconversion -Werror"

# compile HEADER DLPACK_INCLUDE COMPILER...
compile() {
    local header=$1 dlpack=$2
    shift 2
    # Twice, so that a missing guard shows too.
    if ! printf '#include <%s>\n#include <%s>\nint unused;\n' "$header" "$header" |
        "$@" $warnings -fsyntax-only -I"$TEST_SOURCE/include" -isystem "$dlpack" -; then
        echo "$header does not compile alone: $* with $dlpack" >&2
        failed=1
    fi
}

[ -e /usr/include/dlpack/dlpack.h ] || { echo "no /usr/include/dlpack/dlpack.h: run scripts/setup" >&2; exit 1; }
system=$(mktemp -d)
trap 'rm -rf "$system"' EXIT
ln -s /usr/include/dlpack "$system/dlpack"

for path in "$TEST_SOURCE"/include/ferry/*.h; do
    for dlpack in "$TEST_DLPACK_INCLUDE" "$system"; do
        compile "ferry/$(basename "$path")" "$dlpack" "$CC" -x c -std=c11
        compile "ferry/$(basename "$path")" "$dlpack" "$CXX" -x c++ -std=c++17
    done
done
exit $failed
