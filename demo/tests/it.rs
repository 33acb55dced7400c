//! The program as the chores start it. They run the whole sale on each store.

use std::process::Command;

#[test]
fn backend_within_one_process_is_refused() {
    let sale =
        Command::new(env!("CARGO_BIN_EXE_flash_sale")).args(["--backend", "memory:"]).output().unwrap();
    let message = String::from_utf8_lossy(&sale.stderr);
    assert_eq!(sale.status.code(), Some(1), "{message}");
    assert!(message.contains("there are two services"), "{message}");
}
