//! FUSE file systems that answer requests, or hang.

use std::{
    ffi::CString,
    fs::File,
    io::{Read, Write},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    thread,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A FUSE file system, mounted on a folder. Dropping it unmounts it and fails the pending requests.
pub(crate) struct Fuse {
    folder: PathBuf,
    _device: File,
}

impl Fuse {
    /// Mounts a file system that never answers a request.
    pub(crate) fn hanging(folder: &Path) -> Self {
        Self::mount(folder)
    }

    /// Mounts an empty file system.
    pub(crate) fn answering(folder: &Path) -> Self {
        let fuse = Self::mount(folder);
        let mut device = fuse._device.try_clone().unwrap();
        // The thread ends with the file system.
        thread::spawn(move || while answer(&mut device).is_ok() {});
        fuse
    }

    fn mount(folder: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        mount("lockkit-test", folder, "fuse", MountFlags::empty(), options.as_c_str()).unwrap();
        Self { folder: folder.to_owned(), _device: device }
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        unmount(&self.folder, UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
    }
}

/// Bytes of the header of a request: length, opcode, unique, node, user, group, process, padding.
const REQUEST_HEADER: usize = 40;

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const ACCESS: u32 = 34;

/// Answers one request (`linux/fuse.h`). The root is an empty folder.
fn answer(device: &mut File) -> std::io::Result<()> {
    let mut request = vec![0; 1 << 17];
    let length = device.read(&mut request)?;
    assert!(length >= REQUEST_HEADER);
    let opcode = u32::from_le_bytes(request[4..8].try_into().unwrap());
    let unique = &request[8..16];
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let (error, body) = match opcode {
        // Version 7.31, and nothing special.
        INIT => (0, words(&[7, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        // How long it is valid; inode 1; size, blocks and times; then a folder that everybody may write to.
        GETATTR => {
            let folder = [0o40777, 2, 0, 0, 0, 4096, 0];
            (0, words(&[&[0; 4][..], &[1, 0], &[0; 13], &folder].concat()))
        }
        STATFS => (0, words(&[0; 20])),
        ACCESS => (0, Vec::new()),
        LOOKUP => (-rustix::io::Errno::NOENT.raw_os_error(), Vec::new()),
        _ => (-rustix::io::Errno::NOSYS.raw_os_error(), Vec::new()),
    };
    let mut reply = u32::try_from(16 + body.len()).unwrap().to_le_bytes().to_vec();
    reply.extend(error.to_le_bytes());
    reply.extend(unique);
    reply.extend(body);
    device.write_all(&reply)
}
