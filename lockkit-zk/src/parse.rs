//! Servers and paths, as a configuration names them.

use std::borrow::Cow;

use lockkit_core::{Error, ErrorKind, Result};

use crate::keys;

/// Port of a server that names none.
const PORT_DEFAULT: u16 = 2181;

/// `HOST:PORT` of `HOST[:PORT]`.
pub(crate) fn parse_server(text: &str) -> Result<String> {
    // The text itself is not repeated in the error: it may hold a password in a place where none belongs.
    let malformed = || invalid("a server is HOST or HOST:PORT");
    if text.is_empty() || text.starts_with(':') || text.contains(['/', '@', '?', '#', ',', ' ']) {
        return Err(malformed());
    }
    let host_end = text.rfind(']').map_or(0, |bracket| bracket + 1);
    match text[host_end..].split_once(':') {
        Some((_, port)) => match port.parse::<u16>() {
            Ok(1..) => Ok(text.to_owned()),
            _ => Err(malformed()),
        },
        None => Ok(format!("{text}:{PORT_DEFAULT}")),
    }
}

/// A path without a slash at its end; empty for the root.
pub(crate) fn parse_path(text: &str) -> Result<String> {
    let path = text.trim_matches('/');
    if path.is_empty() {
        return Ok(String::new());
    }
    // A comma would begin another server in the client crate's connect string.
    if path.split('/').any(|name| !keys::is_node_name(name) || name.contains(',')) {
        return Err(invalid(format!("{text:?} is no path of zookeeper")));
    }
    Ok(format!("/{path}"))
}

pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidConfig, "configure zookeeper").with_message(message)
}
