//! A full disk. The tests are ignored, with the reason, if this process may not mount a file system.

use std::{fs, io::ErrorKind, process::ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use lockkit_testbed::{Etcd, SmallDisk, until};

/// etcd reserves 64 MB for its log, and as much for the next one.
const ETCD_BYTES: u64 = 192 << 20;

fn main() -> ExitCode {
    let reason = SmallDisk::unavailable_reason();
    let trial = |name: &str, test: fn() -> Result<(), Failed>| match &reason {
        None => Trial::test(name, test),
        Some(reason) => Trial::test(format!("{name} ({reason})"), test).with_ignored_flag(true),
    };
    let trials = vec![
        trial("full_disk_refuses_writes_until_there_is_room", refuses_writes),
        trial("etcd_on_a_full_disk_stops_and_recovers", etcd_stops),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn refuses_writes() -> Result<(), Failed> {
    let disk = SmallDisk::mount(1 << 20)?;
    let file = disk.path().join("file");
    fs::write(&file, "before")?;
    disk.fill()?;
    let error = fs::write(disk.path().join("other"), "after").err();
    if error.map(|error| error.kind()) != Some(ErrorKind::StorageFull) {
        return Err("the disk is not full".into());
    }
    disk.make_room()?;
    fs::write(&file, "after")?;
    let folder = disk.path().to_owned();
    drop(disk);
    if folder.exists() { Err("the folder is still there".into()) } else { Ok(()) }
}

fn etcd_stops() -> Result<(), Failed> {
    let disk = SmallDisk::mount(ETCD_BYTES)?;
    let mut etcd = Etcd::start_in(disk.path())?;
    etcd.put("before", "")?;
    disk.fill()?;
    // The space of its log was reserved in advance; the database file cannot grow.
    let value = "x".repeat(512 << 10);
    until("etcd takes no writes", || etcd.put("big", &value).is_err());
    disk.make_room()?;
    etcd.restart()?;
    if etcd.keys("before")? == ["before"] { Ok(()) } else { Err("the data is lost".into()) }
}
