//! `lockkit who`: shows who holds a lock, and who waits for it.

use std::{fmt::Write as _, io::Write as _};

use lockkit::{LockName, backend::Inspection};

use crate::{
    args::WhoArguments,
    connection::Connection,
    describe::{as_json, describe, describe_holder},
    exit::Failure,
    store::Store,
};

/// Prints the answer on stdout.
pub(crate) async fn who(arguments: WhoArguments) -> Result<u8, Failure> {
    let name = LockName::new(&arguments.name)?;
    let store = Store::from(&arguments.store)?;
    let client = Connection::to(&store, None, None)?.open().await?;
    let found = client.inspect(name.as_str()).await;
    let _ = client.close().await;
    let found = found?;
    let answer = if arguments.json { as_json(&name, &found).to_string() } else { as_text(&name, &found) };
    writeln!(std::io::stdout(), "{}", answer.trim_end())
        .map_err(|cause| Failure::system("write the answer", cause))?;
    Ok(0)
}

/// One line for the holder, one for each waiter.
fn as_text(name: &LockName, found: &Inspection) -> String {
    let mut text = match describe_holder(found) {
        Some(holder) => format!("{:?} is held by {holder}\n", name.as_str()),
        None => format!("{:?} is free\n", name.as_str()),
    };
    for (place, waiter) in found.waiters.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}. waits: {}", place + 1, describe(waiter));
    }
    text
}
