//! Which file systems are local, so that all clients of a lock are on this host: decision 0017.
//!
//! A network file system may keep locks per machine, lose them, or take seconds for them. A file system that is not
//! known to be local is refused, because nobody would notice a lock that does not exclude.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::{refuse_remote, refuse_remote_file};

/// Other systems are not checked.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn refuse_remote(_: &'static str, _: &std::path::Path) -> lockkit_core::Result<()> {
    Ok(())
}

/// Other systems are not checked.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn refuse_remote_file(
    _: &'static str,
    _: &std::fs::File,
    _: &std::fs::Metadata,
    _: &std::path::Path,
) -> lockkit_core::Result<()> {
    Ok(())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::{
        fs::{self, File, Metadata},
        os::unix::fs::MetadataExt,
        path::Path,
    };

    use lockkit_core::{ErrorKind, Result};
    use rustix::fs::{StatFs, fstatfs, major, statfs};

    use crate::error::{failed, refused};

    const FUSE: u32 = 0x6573_5546;

    /// Local file systems without a block device, from the kernel's `linux/magic.h`, OpenZFS and bcachefs.
    const LOCAL: [u32; 7] = [
        0x0102_1994, // tmpfs
        0x8584_58f6, // ramfs
        0x9123_683e, // btrfs
        0x2fc1_2fc1, // zfs
        0xca45_1a4e, // bcachefs
        0x2405_1905, // ubifs
        // overlayfs: the kernel accepts no remote upper layer.
        0x794c_7630,
    ];

    /// Known shared file systems, some of which have a block device. From `linux/magic.h`, and for those outside of the
    /// kernel from coreutils' `stat` and their own headers.
    const SHARED: [(u32, &str); 25] = [
        (0x0000_6969, "NFS"),
        (0x0000_517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x0102_1997, "9P"),
        (0x5346_414f, "AFS"),
        (0x6b41_4653, "kAFS"),
        (0x7375_7245, "Coda"),
        (0x0000_564c, "NCP"),
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
        (0x4750_4653, "GPFS"),
        (0x0116_1970, "GFS2"),
        (0x7461_636f, "OCFS2"),
        (0x1983_0326, "BeeGFS"),
        (0xaad7_aaea, "PanFS"),
        (0x2003_0528, "OrangeFS"),
        (0x1803_1977, "WekaFS"),
        (0x6163_6673, "ACFS"),
        (0x0131_11a8, "IBRIX"),
        (0xbeef_dead, "StorNext"),
        (0xa501_fcf5, "VxFS"),
        (0xbacb_acbc, "vmhgfs"),
        (0x786f_4256, "vboxsf"),
        (0x7c7c_6673, "Parallels"),
    ];

    /// Refuses a folder on a file system that may be shared with other hosts.
    pub(crate) fn refuse_remote(operation: &'static str, folder: &Path) -> Result<()> {
        let failed = |cause| failed(operation, folder, cause);
        let found = statfs(folder).map_err(|errno| failed(errno.into()))?;
        refuse_if_remote(operation, folder, &found, || Ok(fs::metadata(folder).map_err(failed)?.dev()))
    }

    /// Refuses a file on such a file system, which may have been mounted on the folder or on this file.
    pub(crate) fn refuse_remote_file(
        operation: &'static str,
        file: &File,
        metadata: &Metadata,
        path: &Path,
    ) -> Result<()> {
        let found = fstatfs(file).map_err(|errno| failed(operation, path, errno.into()))?;
        refuse_if_remote(operation, path, &found, || Ok(metadata.dev()))
    }

    fn refuse_if_remote(
        operation: &'static str,
        path: &Path,
        found: &StatFs,
        device: impl FnOnce() -> Result<u64>,
    ) -> Result<()> {
        // The width and sign of the field differ between architectures; the number itself has 32 bits.
        let magic = found.f_type as u32;
        let kind = match kind(magic) {
            Kind::Local => return Ok(()),
            Kind::Unknown if major(device()?) != 0 => return Ok(()),
            Kind::Unknown => format!("a file system of unknown kind ({magic:#010x})"),
            Kind::Fuse => "a FUSE file system, which may be remote,".to_owned(),
            Kind::Shared(name) => format!("a file system that other hosts may share ({name})"),
        };
        let what = format!(
            "is on {kind} and lock files are for one host: use a folder on a local disk, or in /run or /dev/shm"
        );
        Err(refused(operation, ErrorKind::Unsupported, path, &what))
    }

    #[derive(Debug, PartialEq, Eq)]
    enum Kind {
        Local,
        Shared(&'static str),
        /// Served by a program, which may keep the files anywhere.
        Fuse,
        /// Local if it has a block device: all known shared ones with a block device are listed above.
        Unknown,
    }

    fn kind(magic: u32) -> Kind {
        if magic == FUSE {
            return Kind::Fuse;
        }
        if LOCAL.contains(&magic) {
            return Kind::Local;
        }
        let shared = SHARED.iter().find(|(number, _)| *number == magic);
        shared.map_or(Kind::Unknown, |(_, name)| Kind::Shared(name))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn file_systems_that_other_hosts_may_share_are_not_local() {
            for (magic, name) in [
                (rustix::fs::NFS_SUPER_MAGIC as u32, "NFS"),
                (0xfe53_4d42, "SMB2"),
                (0x1983_0326, "BeeGFS"),
                (0xaad7_aaea, "PanFS"),
                (0x2003_0528, "OrangeFS"),
                (0xbacb_acbc, "vmhgfs"),
                // With a block device, they would be taken for local if they were not known.
                (0x0116_1970, "GFS2"),
                (0x7461_636f, "OCFS2"),
            ] {
                assert_eq!(kind(magic), Kind::Shared(name));
            }
            assert_eq!(kind(FUSE), Kind::Fuse);
            const TMPFS: u32 = 0x0102_1994;
            assert_eq!(kind(TMPFS), Kind::Local);
            for (_, name) in SHARED {
                assert_eq!(SHARED.iter().filter(|(_, other)| *other == name).count(), 1, "{name}");
            }
        }

        #[test]
        fn a_file_system_of_unknown_kind_is_local_if_it_has_a_block_device() {
            const EXT4: u32 = 0xef53;
            assert_eq!(kind(EXT4), Kind::Unknown, "it has one");
            let proc = refuse_remote("open lock folder", Path::new("/proc")).unwrap_err();
            assert_eq!(proc.kind(), ErrorKind::Unsupported);
            assert!(proc.to_string().contains("0x00009fa0") && proc.to_string().contains("/proc"), "{proc}");
        }
    }
}
