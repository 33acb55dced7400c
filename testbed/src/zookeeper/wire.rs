//! ZooKeeper's protocol, as far as it takes to do something behind a client's back without a client crate.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

/// Longest time for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Session timeout asked for, in milliseconds.
const SESSION_MILLIS: i32 = 10_000;

// Kinds of requests.
pub(super) const CREATE: i32 = 1;
pub(super) const DELETE: i32 = 2;
const SET_DATA: i32 = 5;
const GET_CHILDREN: i32 = 8;
const CLOSE: i32 = -11;

// Errors.
const OK: i32 = 0;
const NO_NODE: i32 = -101;
const NO_AUTH: i32 = -102;

/// `Perms.ALL`.
pub(super) const ALL: i32 = 31;

/// A connection with a session.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    xid: i32,
}

impl Wire {
    /// Connects with a new session.
    pub(super) fn open(address: SocketAddr) -> Result<Self> {
        let mut wire = Self::greet(address, 0, &[0; 16])?;
        ensure!(wire.is_welcome()?, "ZooKeeper gives no session");
        Ok(wire)
    }

    /// Ends this session, whosever it is.
    pub(super) fn end(address: SocketAddr, session: i64) -> Result<()> {
        let mut wire = Self::greet(address, session, &password_of(session))?;
        ensure!(wire.is_welcome()?, "ZooKeeper has no session {session:#x}");
        let (error, _) = wire.call(CLOSE, &[])?;
        ensure!(error == OK, "cannot close session {session:#x}: error {error}");
        Ok(())
    }

    fn greet(address: SocketAddr, session: i64, password: &[u8; 16]) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let mut wire = Self { stream, xid: 0 };
        let mut greeting = Vec::new();
        // Protocol version, last transaction seen.
        greeting.extend([0; 12]);
        greeting.extend(SESSION_MILLIS.to_be_bytes());
        greeting.extend(session.to_be_bytes());
        write_bytes(&mut greeting, password);
        wire.send(&greeting)?;
        Ok(wire)
    }

    /// Whether the answer to the greeting is a session.
    fn is_welcome(&mut self) -> Result<bool> {
        let mut answer = &self.receive()?[..];
        let _version = read_i32(&mut answer)?;
        Ok(read_i32(&mut answer)? > 0)
    }

    pub(super) fn create(&mut self, path: &str, data: &str) -> Result<()> {
        let mut body = Vec::new();
        write_bytes(&mut body, path.as_bytes());
        write_bytes(&mut body, data.as_bytes());
        // Everybody may do everything.
        body.extend([1, ALL].map(i32::to_be_bytes).as_flattened());
        write_bytes(&mut body, b"world");
        write_bytes(&mut body, b"anyone");
        body.extend(0_i32.to_be_bytes());
        match self.call(CREATE, &body)? {
            (OK, _) => Ok(()),
            (error, _) => bail!("cannot create {path}: error {error}"),
        }
    }

    pub(super) fn write(&mut self, path: &str, data: &[u8]) -> Result<()> {
        let mut body = Vec::new();
        write_bytes(&mut body, path.as_bytes());
        write_bytes(&mut body, data);
        // Of whichever version.
        body.extend((-1_i32).to_be_bytes());
        let (error, _) = self.call(SET_DATA, &body)?;
        ensure!(error == OK, "cannot write {path}: error {error}");
        Ok(())
    }

    /// Whether the node was there.
    pub(super) fn delete(&mut self, path: &str) -> Result<bool> {
        let mut body = Vec::new();
        write_bytes(&mut body, path.as_bytes());
        // Of whichever version.
        body.extend((-1_i32).to_be_bytes());
        match self.call(DELETE, &body)? {
            (OK, _) => Ok(true),
            (NO_NODE, _) => Ok(false),
            (error, _) => bail!("cannot delete {path}: error {error}"),
        }
    }

    pub(super) fn children(&mut self, path: &str) -> Result<Vec<String>> {
        self.list(path, &[NO_NODE])
    }

    /// The children of a node; none where the server answers with one of these errors.
    fn list(&mut self, path: &str, empty: &[i32]) -> Result<Vec<String>> {
        let mut body = Vec::new();
        write_bytes(&mut body, path.as_bytes());
        // No watch.
        body.push(0);
        let (error, answer) = self.call(GET_CHILDREN, &body)?;
        if empty.contains(&error) {
            return Ok(Vec::new());
        }
        ensure!(error == OK, "cannot list {path}: error {error}");
        let mut answer = &answer[..];
        let count = read_i32(&mut answer)?;
        (0..count).map(|_| Ok(String::from_utf8(read_bytes(&mut answer)?.to_vec())?)).collect()
    }

    /// All nodes below this one, parents before their children. What lies below one that only others may list is
    /// left out.
    pub(super) fn tree(&mut self, root: &str) -> Result<Vec<String>> {
        let (mut paths, mut unread) = (Vec::new(), vec![root.trim_end_matches('/').to_owned()]);
        while let Some(parent) = unread.pop() {
            let parent_path = if parent.is_empty() { "/" } else { &parent };
            let children = self.list(parent_path, &[NO_NODE, NO_AUTH])?;
            let below: Vec<String> = children.iter().map(|child| format!("{parent}/{child}")).collect();
            paths.extend_from_slice(&below);
            unread.extend(below);
        }
        Ok(paths)
    }

    /// Error and body of the answer.
    fn call(&mut self, kind: i32, body: &[u8]) -> Result<(i32, Vec<u8>)> {
        self.xid += 1;
        self.send(&[&self.xid.to_be_bytes()[..], &kind.to_be_bytes(), body].concat())?;
        let answer = self.receive()?;
        let mut rest = &answer[..];
        let xid = read_i32(&mut rest)?;
        // No watch is set and no ping sent, so nothing else comes.
        ensure!(xid == self.xid, "an answer to {xid} instead of {}", self.xid);
        let _transaction = take(&mut rest, 8)?;
        Ok((read_i32(&mut rest)?, rest.to_vec()))
    }

    fn send(&mut self, packet: &[u8]) -> Result<()> {
        let mut bytes = Vec::new();
        write_bytes(&mut bytes, packet);
        Ok(self.stream.write_all(&bytes)?)
    }

    fn receive(&mut self) -> Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut packet = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut packet)?;
        Ok(packet)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // A session that nobody closed would stay until it times out; one that is closed already is none the worse.
        let _ = self.call(CLOSE, &[]);
    }
}

/// The password of a session, as the server makes it (`ZooKeeperServer.generatePasswd`): sixteen bytes of
/// `java.util.Random`, a linear congruential generator, seeded with the id and a constant.
fn password_of(session: i64) -> [u8; 16] {
    const SECRET: i64 = 0xB341_5C00;
    const MULTIPLIER: i64 = 0x5_DEEC_E66D;
    const MASK: i64 = (1 << 48) - 1;
    let mut state = ((session ^ SECRET) ^ MULTIPLIER) & MASK;
    let mut password = [0; 16];
    for word in password.chunks_exact_mut(4) {
        state = (state.wrapping_mul(MULTIPLIER).wrapping_add(0xB)) & MASK;
        word.copy_from_slice(&((state >> 16) as i32).to_le_bytes());
    }
    password
}

/// Its length, and it.
pub(super) fn write_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u32).to_be_bytes());
    to.extend(bytes);
}

fn take<'a>(from: &mut &'a [u8], count: usize) -> Result<&'a [u8]> {
    from.split_off(..count).context("a short answer")
}

fn read_i32(from: &mut &[u8]) -> Result<i32> {
    Ok(i32::from_be_bytes(take(from, 4)?.try_into()?))
}

fn read_bytes<'a>(from: &mut &'a [u8]) -> Result<&'a [u8]> {
    let length = read_i32(from)?;
    take(from, length.try_into()?)
}

#[cfg(test)]
mod tests {
    use crate::ZooKeeper;

    use super::*;

    #[test]
    fn a_session_is_ended_with_the_password_that_the_server_made() {
        let server = ZooKeeper::start().unwrap();
        let mut wire = Wire::open(server.plain()).unwrap();
        let session = server.connections().unwrap()[0].session;
        assert_eq!(wire.children("/").unwrap(), ["zookeeper"]);
        server.end_session(session).unwrap();
        assert!(wire.children("/").is_err());
        assert!(server.end_session(session).is_err(), "it is gone");
    }
}
