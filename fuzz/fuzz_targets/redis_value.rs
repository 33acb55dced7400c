#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lockkit::fuzzing::run("redis_value", bytes));
