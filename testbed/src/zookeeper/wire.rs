//! A minimal client for ZooKeeper's protocol: how a test acts on a server without a client crate.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

/// Longest time until a reply: generous, because most tests take a failure for the end.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Requested session timeout, in milliseconds.
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
        ensure!(wire.is_session_granted()?, "ZooKeeper grants no session");
        Ok(wire)
    }

    /// Ends this session, which may belong to another client.
    pub(super) fn end(address: SocketAddr, session: i64) -> Result<()> {
        let mut wire = Self::greet(address, session, &password_of(session))?;
        ensure!(wire.is_session_granted()?, "ZooKeeper has no session {session:#x}");
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

    /// Whether the reply to the greeting grants the session.
    fn is_session_granted(&mut self) -> Result<bool> {
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
        // `CreateMode.PERSISTENT`.
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
        // Any version.
        body.extend((-1_i32).to_be_bytes());
        let (error, _) = self.call(SET_DATA, &body)?;
        ensure!(error == OK, "cannot write {path}: error {error}");
        Ok(())
    }

    /// Deletes a node. Returns whether it existed.
    pub(super) fn delete(&mut self, path: &str) -> Result<bool> {
        let mut body = Vec::new();
        write_bytes(&mut body, path.as_bytes());
        // Any version.
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

    /// Returns the children of a node; none if the server replies with one of the errors in `empty`.
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

    /// Returns all nodes below this one, parents before their children. Nodes below one that this client may not list
    /// are left out.
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

    /// Sends a request; returns error code and body of the reply.
    fn call(&mut self, kind: i32, body: &[u8]) -> Result<(i32, Vec<u8>)> {
        self.xid += 1;
        self.send(&[&self.xid.to_be_bytes()[..], &kind.to_be_bytes(), body].concat())?;
        let answer = self.receive()?;
        let mut rest = &answer[..];
        let xid = read_i32(&mut rest)?;
        // This client sets no watch and sends no ping, so every packet is the reply to the last request.
        ensure!(xid == self.xid, "a reply to request {xid} instead of {}", self.xid);
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
        // An unclosed session would remain until it expires. The call fails if the session is closed already.
        let _ = self.call(CLOSE, &[]);
    }
}

/// The password of a session, computed as the server does (`ZooKeeperServer.generatePasswd`): sixteen bytes of
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

/// Appends the length of `bytes`, then `bytes`.
pub(super) fn write_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u32).to_be_bytes());
    to.extend(bytes);
}

fn take<'a>(from: &mut &'a [u8], count: usize) -> Result<&'a [u8]> {
    from.split_off(..count).context("the reply is too short")
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
    fn session_is_ended_with_its_computed_password() {
        let server = ZooKeeper::start().unwrap();
        let mut wire = Wire::open(server.plain()).unwrap();
        let session = server.connections().unwrap()[0].session;
        assert_eq!(wire.children("/").unwrap(), ["zookeeper"]);
        server.end_session(session).unwrap();
        assert!(wire.children("/").is_err());
        assert!(server.end_session(session).is_err(), "the session still exists");
    }
}
