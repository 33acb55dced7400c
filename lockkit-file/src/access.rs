//! Permissions of lock files: only users who may write to the folder may take its locks.
//!
//! Read permission is enough to lock a file, so users who may only read a lock file could keep it locked. A class of
//! users (owner, group, others, and the entries of an access list) therefore gets read and write permission for a file
//! if it may write to the folder, and none otherwise.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt, fchown},
    path::Path,
};

use rustix::process::geteuid;

/// The permissions that the owner of a file always has.
const OWNER_RIGHTS: u32 = 0o600;

/// The owner and permissions of the files of one folder.
#[derive(Debug)]
pub(crate) struct Access {
    user: u32,
    group: u32,
    mode: u32,
    /// The folder's access list, if it has one.
    list: Option<Vec<u8>>,
}

impl Access {
    /// Reads the permissions that files of `folder` should have.
    pub(crate) fn of_files_in(folder: &Path) -> io::Result<Self> {
        let found = fs::metadata(folder)?;
        Ok(Self {
            user: found.uid(),
            group: found.gid(),
            mode: mode_of_files(found.mode()),
            list: list::of_folder(folder)?,
        })
    }

    /// Applies these permissions to a file. Returns false if the members of the folder's group do not get theirs.
    pub(crate) fn apply(&self, file: &File) -> io::Result<bool> {
        let found = file.metadata()?;
        // Otherwise the owner of the folder could not open a file that root has created.
        let user = (!self.is_of_its_user(&found)).then_some(self.user);
        let group = (!self.group_is_right(&found)).then_some(self.group);
        let mut has_group = found.gid() == self.group;
        if user.is_some() || group.is_some() {
            // Fails if this user is not a member of the group.
            has_group |= fchown(file, user, group).is_ok() && group.is_some();
        }
        match &self.list {
            Some(list) => list::apply(file, list, has_group)?,
            None => {
                // An inherited list would give permissions to others.
                list::remove(file)?;
                file.set_permissions(Permissions::from_mode(self.mode(has_group)))?;
            }
        }
        Ok(has_group || !self.needs_group())
    }

    /// Applies these permissions to a file of this user that has other ones: those of the folder have changed, or an
    /// older version of this library has set too many, or was killed before it set enough.
    ///
    /// Must not be called for a file without a record of this library, which may be a private file that another user
    /// has moved into the folder.
    pub(crate) fn repair(&self, file: &File, found: &fs::Metadata) -> io::Result<()> {
        if found.uid() != geteuid().as_raw() || self.is_applied(file, found)? {
            return Ok(());
        }
        self.apply(file).map(drop)
    }

    fn is_applied(&self, file: &File, found: &fs::Metadata) -> io::Result<bool> {
        let has_group = found.gid() == self.group;
        let is_applied = self.is_of_its_user(found)
            && self.group_is_right(found)
            && found.mode() & 0o777 == self.mode(has_group)
            && list::is_applied(file, self.list.as_deref(), has_group)?;
        Ok(is_applied)
    }

    fn is_of_its_user(&self, found: &fs::Metadata) -> bool {
        found.uid() == self.user || !geteuid().is_root()
    }

    fn group_is_right(&self, found: &fs::Metadata) -> bool {
        found.gid() == self.group || !self.needs_group()
    }

    /// Returns whether members of the folder's group have permissions that others do not have.
    fn needs_group(&self) -> bool {
        self.list.is_some() || self.mode & 0o060 != (self.mode & 0o006) << 3
    }

    /// Returns the mode. A group that is not the folder's has the permissions of others.
    fn mode(&self, has_group: bool) -> u32 {
        if has_group { self.mode } else { self.mode & !0o060 | (self.mode & 0o006) << 3 }
    }
}

/// Returns the mode of a file from the mode of its folder. With an access list, the group bits of both are its mask.
fn mode_of_files(folder: u32) -> u32 {
    let write = folder & 0o022;
    OWNER_RIGHTS | write | write << 1
}

/// POSIX access lists, as Linux stores them (`linux/posix_acl_xattr.h`).
#[cfg(any(target_os = "linux", target_os = "android"))]
mod list {
    use std::{fs::File, io, path::Path};

    use rustix::{
        fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, getxattr},
        io::Errno,
    };

    /// The attribute that holds a file's access list.
    const NAME: &str = "system.posix_acl_access";

    /// Size of the largest attribute, in bytes (`XATTR_SIZE_MAX`).
    const BYTES_MAX: usize = 1 << 16;

    /// The version of the format, in 4 bytes. Entries follow: tag and permissions in 2 bytes each, an id in 4.
    const HEADER: [u8; 4] = 2_u32.to_le_bytes();
    const ENTRY_BYTES: usize = 8;

    const OWNER: u16 = 0x01;
    const GROUP: u16 = 0x04;
    const MASK: u16 = 0x10;
    const OTHERS: u16 = 0x20;

    const WRITE: u16 = 0o2;
    const READ_WRITE: u16 = 0o6;

    /// Returns the folder's list; `None` if it has only a mode.
    pub(super) fn of_folder(folder: &Path) -> io::Result<Option<Vec<u8>>> {
        // Without a buffer at first, because most folders have no list.
        match getxattr(folder, NAME, &mut [0; 0][..]) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno.into()),
            Ok(_) => read(|buffer| getxattr(folder, NAME, buffer)),
        }
    }

    /// Gives a file the list that follows from its folder's list.
    pub(super) fn apply(file: &File, folder: &[u8], has_group: bool) -> io::Result<()> {
        let list = of_files(folder, has_group).ok_or(io::ErrorKind::InvalidData)?;
        Ok(fsetxattr(file, NAME, &list, XattrFlags::empty())?)
    }

    pub(super) fn remove(file: &File) -> io::Result<()> {
        match fremovexattr(file, NAME) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns whether a file has the list that follows from its folder's list.
    pub(super) fn is_applied(file: &File, folder: Option<&[u8]>, has_group: bool) -> io::Result<bool> {
        let found = match fgetxattr(file, NAME, &mut [0; 0][..]) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
            Err(errno) => return Err(errno.into()),
            Ok(_) => read(|buffer| fgetxattr(file, NAME, buffer))?,
        };
        Ok(found == folder.and_then(|folder| of_files(folder, has_group)))
    }

    fn read(get: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; BYTES_MAX];
        match get(&mut bytes) {
            Ok(length) => {
                bytes.truncate(length);
                Ok(Some(bytes))
            }
            Err(Errno::NODATA) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the list of a file from that of its folder. Entries with write permission get read and write, all others
    /// nothing. Entries without permissions stay, because they exclude a user or group. `None` for bytes that are not a
    /// list.
    pub(super) fn of_files(folder: &[u8], has_group: bool) -> Option<Vec<u8>> {
        let entries = folder.strip_prefix(&HEADER)?;
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        let fields = |entry: &[u8; ENTRY_BYTES]| {
            let [t0, t1, r0, r1, ..] = *entry;
            (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([r0, r1]))
        };
        let of =
            |wanted| entries.iter().map(fields).find(|(tag, _)| *tag == wanted).map(|(_, rights)| rights);
        let (mask, others) = (of(MASK).unwrap_or(u16::MAX), of(OTHERS).unwrap_or(0));
        let mut list = HEADER.to_vec();
        for entry in entries {
            let (tag, rights) = fields(entry);
            let granted = match tag {
                OWNER => READ_WRITE,
                OTHERS => others,
                // A group that is not the folder's has the permissions of others.
                GROUP if !has_group => others,
                MASK if !has_group => mask | others,
                _ => rights & mask,
            };
            let rights = if granted & WRITE == 0 { 0 } else { READ_WRITE };
            let [t0, t1, _, _, id @ ..] = *entry;
            let [r0, r1] = rights.to_le_bytes();
            list.extend([t0, t1, r0, r1]);
            list.extend(id);
        }
        Some(list)
    }
}

/// Access lists are ignored on other systems.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod list {
    use std::{fs::File, io, path::Path};

    pub(super) fn of_folder(_: &Path) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    pub(super) fn apply(_: &File, _: &[u8], _: bool) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn remove(_: &File) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn is_applied(_: &File, _: Option<&[u8]>, _: bool) -> io::Result<bool> {
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_who_may_write_to_the_folder_get_both_permissions() {
        for (folder, file) in
            [(0o700, 0o600), (0o2770, 0o660), (0o1777, 0o666), (0o755, 0o600), (0o775, 0o660), (0o500, 0o600)]
        {
            assert_eq!(mode_of_files(folder), file, "{folder:o}");
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn access_list_of_files_follows_that_of_the_folder() {
        const ONE_USER: u16 = 0x02;
        let list = |entries: &[(u16, u16, u32)]| {
            let mut bytes = vec![2, 0, 0, 0];
            for (tag, rights, id) in entries {
                bytes.extend(tag.to_le_bytes());
                bytes.extend(rights.to_le_bytes());
                bytes.extend(id.to_le_bytes());
            }
            bytes
        };
        let folder = list(&[
            (0x01, 5, 0),
            (ONE_USER, 7, 8),
            (ONE_USER, 5, 9),
            (ONE_USER, 0, 10),
            (0x04, 7, 0),
            (0x10, 7, 0),
            (0x20, 5, 0),
        ]);
        let files = |group| {
            list(&[
                (0x01, 6, 0),
                (ONE_USER, 6, 8),
                (ONE_USER, 0, 9),
                (ONE_USER, 0, 10),
                (0x04, group, 0),
                (0x10, 6, 0),
                (0x20, 0, 0),
            ])
        };
        assert_eq!(list::of_files(&folder, true).unwrap(), files(6));
        assert_eq!(list::of_files(&folder, false).unwrap(), files(0));
        // The mask removes permissions of the entries.
        let masked = list(&[(0x01, 7, 0), (ONE_USER, 7, 8), (0x04, 5, 0), (0x10, 5, 0), (0x20, 2, 0)]);
        let expected = list(&[(0x01, 6, 0), (ONE_USER, 0, 8), (0x04, 0, 0), (0x10, 0, 0), (0x20, 6, 0)]);
        assert_eq!(list::of_files(&masked, true).unwrap(), expected);
        for foreign in [&b""[..], b"\x01\0\0\0", b"\x02\0\0\0\0"] {
            assert_eq!(list::of_files(foreign, true), None, "{foreign:?}");
        }
    }
}
