#!/usr/bin/env bash
# Two processes send each other tensors between every pair of {cpu, sim:0} and {cpu, sim:0}, bit by bit; the
# same program runs with a GPU as gpu.matrix.
# ctest: timeout 180
set -euo pipefail

# shellcheck disable=SC2086
unset ${!FERRY_@}
output=$("$TEST_BUILD/bin/tests/gpu/matrix" --device sim:0 --sizes 4,5,64K,3M,strided --rounds 1) ||
    { printf '%s\n' "$output" >&2; exit 1; }
grep -qx '60 passed, 0 failed' <<<"$output" || { printf '%s\n' "$output" >&2; exit 1; }
