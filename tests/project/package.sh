#!/usr/bin/env bash
# An outside program builds and runs against the installed package: by find_package and by pkg-config, as C and as
# C++, shared and static; also after the installation was moved.
# ctest: serial
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$TEST_CMAKE" --install "$TEST_BUILD" --prefix "$work/first" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
mv "$work/first" "$work/moved"
prefix=$work/moved
libdir=$(dirname "$(find "$prefix" -name libferry.so)")
version=$(sed -n 's/^Version: //p' "$libdir/pkgconfig/ferry.pc")
export LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

quietly() {
    "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; echo "failed: $*" >&2; exit 1; }
}

# A program that Ferry's installed form built must say what Ferry's version is.
expect_runs() {
    local said
    said=$("$1") || { echo "$1 failed: $said" >&2; exit 1; }
    grep -q "^ferry $version; worker1: cuda:0->cuda:1" <<<"$said" || { echo "$1 said: $said" >&2; exit 1; }
}

quietly "$TEST_CMAKE" -S "$TEST_SOURCE/tests/package" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_BUILD_TYPE=Debug
quietly "$TEST_CMAKE" --build "$work/build"
for program in shared_c shared_cxx; do
    expect_runs "$work/build/$program"
done
LD_LIBRARY_PATH=${LD_LIBRARY_PATH#"$libdir"} expect_runs "$work/build/static_c"
if [ -x "$work/build/testing_c" ]; then
    quietly "$work/build/testing_c"
    quietly "$work/build/transport_c"
fi

for tool in ferry_info ferry_perf; do
    [ -x "$TEST_BUILD/bin/$tool" ] || continue
    LD_LIBRARY_PATH='' "$prefix/bin/$tool" --version >"$work/log" || { cat "$work/log" >&2; exit 1; }
    LD_LIBRARY_PATH='' "$TEST_BUILD/bin/$tool" --version | diff - "$work/log" >&2 || {
        echo "the installed $tool runs with another UCX than the one it was built with" >&2
        exit 1
    }
done

export PKG_CONFIG_PATH=$libdir/pkgconfig
flags=$(pkg-config --cflags ferry)
quietly $CC -std=c11 $flags "$TEST_SOURCE/tests/package/outside.c" -o "$work/pc_c" $(pkg-config --libs ferry)
quietly $CXX -std=c++17 $flags "$TEST_SOURCE/tests/package/outside.cc" -o "$work/pc_cxx" $(pkg-config --libs ferry)
static=$(pkg-config --static --libs ferry)
quietly $CC -std=c11 $flags "$TEST_SOURCE/tests/package/outside.c" -o "$work/pc_static" ${static/-lferry/-l:libferry.a}
expect_runs "$work/pc_c"
expect_runs "$work/pc_cxx"
expect_runs "$work/pc_static"
[ "$(pkg-config --modversion ferry)" = "$version" ]

# The program asks for what it uses by SONAME: a newer libferry of the same ABI takes its place.
readelf -d "$work/pc_c" | grep -q 'NEEDED.*\[libferry.so.0\]'
