//! A full disk. The tests are ignored, with the reason, where nothing may be mounted.

use std::{
    fs,
    io::ErrorKind,
    process::ExitCode,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Failed, Trial};
use lockkit_testbed::{Etcd, SmallDisk};

/// Generous bound against hangs.
const HANG: Duration = Duration::from_secs(30);

/// etcd reserves 64 MB for its log, and as much ahead for the next one.
const ETCD_BYTES: u64 = 192 << 20;

fn main() -> ExitCode {
    let reason = SmallDisk::why_not();
    let trial = |name: &str, test: fn() -> Result<(), Failed>| match &reason {
        None => Trial::test(name, test),
        Some(reason) => Trial::test(format!("{name} ({reason})"), test).with_ignored_flag(true),
    };
    let trials = vec![
        trial("a_full_disk_takes_nothing_until_there_is_room", takes_nothing),
        trial("an_etcd_on_a_full_disk_stops_and_comes_back", etcd_stops),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn takes_nothing() -> Result<(), Failed> {
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
    let started = Instant::now();
    // Its log was reserved in advance; what is full is the store beside it.
    let value = "x".repeat(512 << 10);
    while etcd.put("big", &value).is_ok() {
        if started.elapsed() > HANG {
            return Err("it goes on without a disk".into());
        }
    }
    disk.make_room()?;
    etcd.restart()?;
    if etcd.keys("before")? == ["before"] { Ok(()) } else { Err("the data is gone".into()) }
}
