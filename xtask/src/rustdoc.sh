#!/bin/sh
# Runs in place of rustdoc in doc tests: documents the library, with warnings as errors, then tests it.
#
# `cargo doc` would compile the metadata of every dependency once more; the arguments of doc tests name the libraries
# that are built already.
set -eu

document() {
    left=$#
    while [ "$left" -gt 0 ]; do
        argument=$1
        shift
        left=$((left - 1))
        case $argument in
        --test) ;;
        --test-*) # with a value
            shift
            left=$((left - 1))
            ;;
        *) set -- "$@" "$argument" ;;
        esac
    done
    rustdoc "$@" -D warnings --out-dir "$DOCUMENTATION"
}

case " $* " in
*" --test "*) document "$@" ;;
esac
exec rustdoc "$@"
