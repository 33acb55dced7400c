#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lockkit::fuzzing::run("etcd_handoff", bytes));
