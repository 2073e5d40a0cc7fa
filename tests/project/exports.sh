#!/usr/bin/env bash
# The shared library gives away names that begin with ferry_ and no others, the static one too; and both
# ask for libucp by its SONAME, through a search path that LD_LIBRARY_PATH overrides.
set -euo pipefail

shared=$TEST_BUILD/lib/libferry.so
static=$TEST_BUILD/lib/libferry.a
failed=0

complain() {
    echo "$*" >&2
    failed=1
}

others=$(nm -D --defined-only "$shared" | awk '$3 !~ /^ferry_/ {print $3}')
[ -z "$others" ] || complain "libferry.so exports" $others
others=$(nm -g --defined-only "$static" | awk 'NF == 3 && $3 !~ /^ferry_/ {print $3}')
[ -z "$others" ] || complain "libferry.a exports" $others

in_shared=$(nm -D --defined-only "$shared" | awk '{print $3}' | sort)
in_static=$(nm -g --defined-only "$static" | awk 'NF == 3 {print $3}' | sort)
[ "$in_shared" = "$in_static" ] || complain "libferry.so and libferry.a export different names"
grep -q '^ferry_version$' <<<"$in_shared" || complain "libferry.so lacks ferry_version"

# Every function that a header promises is there.
cd "$TEST_SOURCE/include/ferry"
for name in $(ls | grep -vx testing.h | xargs cat | tr '\n' ' ' |
    grep -oE 'FERRY_API [^;(]*\(' | grep -oE 'ferry_[a-z0-9_]+\($' | tr -d '(' | sort -u); do
    grep -qx "$name" <<<"$in_shared" || complain "libferry.so lacks $name, which a public header declares"
done

dynamic=$(readelf -d "$shared")
grep -q 'SONAME.*\[libferry.so.0\]' <<<"$dynamic" || complain "libferry.so's SONAME is not libferry.so.0"
grep -q 'NEEDED.*\[libucp.so.0\]' <<<"$dynamic" || complain "libferry.so does not ask for libucp.so.0"
if grep -q '(RPATH)' <<<"$dynamic"; then
    complain "libferry.so has an RPATH, which LD_LIBRARY_PATH cannot override"
fi
exit $failed
