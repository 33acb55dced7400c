//! Small programs to copy from, in `examples/`. One test program, `tests/it/`, runs each of them on real stores.
