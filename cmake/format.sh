#!/bin/sh
# Runs clang-format, given with its arguments, over every C, C++ and CUDA file of this tree.
find include lib transports tests perf docs -name '*.[ch]' -o -name '*.cu' -o -name '*.cc' |
    xargs -r "$@"
