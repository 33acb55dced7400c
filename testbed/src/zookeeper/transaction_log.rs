//! ZooKeeper's transaction log: how much a server has written, and a prepared log that it reads when it starts.
//!
//! The prepared log contains a directory that has had so many children that it would take days to create them.

use std::fs;

use anyhow::Result;

use super::{
    ZooKeeper,
    wire::{ALL, CREATE, DELETE, write_bytes},
};

/// Magic number, version, and the id of the database.
const HEADER: [u8; 16] = *b"ZKLG\0\0\0\x02\0\0\0\0\0\0\0\0";

/// The last byte of each record.
const END_OF_RECORD: u8 = b'B';

impl ZooKeeper {
    /// Returns how many bytes the server has written to its transaction logs so far.
    ///
    /// # Errors
    ///
    /// When a log cannot be read.
    pub fn log_bytes(&self) -> Result<u64> {
        let mut written = 0;
        for file in fs::read_dir(self.daemon.data().join("version-2"))? {
            let file = file?;
            if file.file_name().to_string_lossy().starts_with("log.") {
                // The server fills files with zeros in advance. The last byte of a record is not zero.
                let bytes = fs::read(file.path())?;
                let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                written += u64::try_from(end)?;
            }
        }
        Ok(written)
    }
}

/// Returns a log that creates this directory and its parents. The directory's next sequential child gets the number
/// `next`.
pub(super) fn bytes(directory: &str, next: i32) -> Vec<u8> {
    let ends = directory.match_indices('/').map(|(at, _)| at).skip(1).chain([directory.len()]);
    let mut transactions: Vec<(i32, Vec<u8>)> =
        ends.map(|end| (CREATE, created(&directory[..end], 1))).collect();
    let child = format!("{directory}/child");
    transactions.push((CREATE, created(&child, next)));
    let mut deleted = Vec::new();
    write_bytes(&mut deleted, child.as_bytes());
    transactions.push((DELETE, deleted));
    let records = (1_i64..).zip(transactions).flat_map(|(id, (kind, body))| record(id, kind, &body));
    HEADER.into_iter().chain(records).collect()
}

/// The body of a transaction that creates a persistent node, whose directory has had `children` children.
fn created(path: &str, children: i32) -> Vec<u8> {
    let mut body = Vec::new();
    write_bytes(&mut body, path.as_bytes());
    write_bytes(&mut body, b"");
    body.extend([1, ALL].map(i32::to_be_bytes).as_flattened());
    write_bytes(&mut body, b"world");
    write_bytes(&mut body, b"anyone");
    // Not ephemeral.
    body.push(0);
    body.extend(children.to_be_bytes());
    body
}

fn record(id: i64, kind: i32, body: &[u8]) -> Vec<u8> {
    // Session, request number, transaction, time.
    let header = [[0; 8].as_slice(), &[0; 4], &id.to_be_bytes(), &[0; 8], &kind.to_be_bytes()].concat();
    let entry = [&header[..], body].concat();
    let mut record = u64::from(adler32(&entry)).to_be_bytes().to_vec();
    write_bytes(&mut record, &entry);
    record.push(END_OF_RECORD);
    record
}

fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), &byte| {
        let a = (a + u32::from(byte)) % MODULUS;
        (a, (a + b) % MODULUS)
    });
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_matches_the_published_example() {
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    }
}
