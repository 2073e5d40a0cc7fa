# shellcheck shell=bash
# What the scripts share; sourced, with $root set.

fail() {
    echo "$(realpath --relative-to="$root" "$0"): $*" >&2
    exit 1
}

# Runs a command with its output kept back, and shows the end of it only where it fails.
quietly() {
    local output
    if ! output=$("$@" 2>&1 </dev/null); then
        printf '%s\n' "$output" | grep -v '^\[[0-9]*/[0-9]*\] ' | tail -n 40 >&2
        return 1
    fi
}

# build FOLDER TARGET CMAKE_ARGUMENTS...: configures and builds, saying nothing where all is well.
build() {
    local folder=$root/build/$1 target=$2
    shift 2
    quietly cmake -S "$root" -B "$folder" -G Ninja "$@" || fail "cmake could not configure build/${folder##*/}"
    quietly cmake --build "$folder" --target "$target" || fail "build/${folder##*/} does not build"
}
