//! Commands that run side by side, each with its output in a file of its own.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result, ensure};
use rustix::{
    io::retry_on_intr,
    process::{Pid, WaitId, WaitIdOptions, waitid},
};

use crate::{processors::cpu_time, project};

/// A command and its name.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) command: Command,
}

/// How many jobs of a queue run at a time: always `min`, and up to `max` as long as the processors idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    pub(crate) min: usize,
    pub(crate) max: usize,
    /// Pause between two looks at the processors.
    pub(crate) look_every: Duration,
}

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) error: Option<Error>,
    pub(crate) output: String,
    pub(crate) took: Duration,
    /// The CPU time of its processes, if it could be read.
    pub(crate) cpu: Option<Duration>,
}

/// What the jobs report to the thread that starts them.
enum Event {
    /// One of the queue has ended.
    Queued(Ended),
    /// One of a series has ended.
    Serial(Ended),
    /// All of a series have.
    SeriesOver,
}

/// Runs the jobs of each series one after the other, and meanwhile those of `queue`, in their order. Reports each end at
/// once. The output of each job is in a file in `folder`.
///
/// `is_idle` says whether the processors had room since it was asked last. If so, one more job runs, and from then on a job
/// that ends is replaced at once; if not, only the last ones are, see [`Width::min`]. The first answer after the start of a
/// job does not count: the job has not computed all that time.
pub(crate) fn run(
    series: impl IntoIterator<Item = Vec<Job>>,
    queue: Vec<Job>,
    width: Width,
    folder: &Path,
    mut is_idle: impl FnMut() -> bool,
    mut ended: impl FnMut(Ended),
) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (sender, events) = mpsc::channel();
    // The receiver lives until all of these threads have ended.
    let send = |sender: &mpsc::Sender<Event>, event| drop(sender.send(event));
    thread::scope(|scope| {
        let (mut queue, mut running, mut series_left) = (queue.into_iter(), 0, 0);
        for jobs in series {
            series_left += 1;
            let sender = sender.clone();
            scope.spawn(move || {
                for job in jobs {
                    send(&sender, Event::Serial(job.run(folder)));
                }
                send(&sender, Event::SeriesOver);
            });
        }
        let (mut looked, mut wanted, mut has_started) = (Instant::now(), width.min, false);
        loop {
            while running < wanted
                && let Some(job) = queue.next()
            {
                (running, has_started) = (running + 1, true);
                let sender = sender.clone();
                scope.spawn(move || send(&sender, Event::Queued(job.run(folder))));
            }
            if series_left == 0 && running == 0 {
                break;
            }
            match events.recv_timeout(width.look_every.saturating_sub(looked.elapsed())) {
                Ok(Event::Queued(job)) => {
                    running -= 1;
                    ended(job);
                }
                Ok(Event::Serial(job)) => ended(job),
                Ok(Event::SeriesOver) => series_left -= 1,
                Err(RecvTimeoutError::Timeout) => {
                    let is_idle = is_idle();
                    if !has_started {
                        wanted = if is_idle { (running + 1).min(width.max) } else { width.min };
                    }
                    (looked, has_started) = (Instant::now(), false);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    Ok(())
}

impl Job {
    /// The same job, which only gets the time that others leave: clients of servers that do not reply in time lose their
    /// locks.
    pub(crate) fn at_lowest_priority(self) -> Self {
        let mut nice = Command::new("nice");
        nice.args(["-n", "19"]);
        Self { command: project::wrapped(nice, &self.command), ..self }
    }

    fn run(mut self, folder: &Path) -> Ended {
        let start = Instant::now();
        let file = folder.join(format!("{}.log", self.name.replace([' ', ',', '/'], "-")));
        let mut cpu = None;
        let error = self.run_into(&file, &mut cpu).err();
        let output = fs::read(&file).map(|output| String::from_utf8_lossy(&output).into_owned());
        Ended { name: self.name, error, output: output.unwrap_or_default(), took: start.elapsed(), cpu }
    }

    fn run_into(&mut self, file: &Path, cpu: &mut Option<Duration>) -> Result<()> {
        // A file instead of a pipe: it can be read meanwhile, and a process that the job leaves behind does not keep it
        // open.
        let output = File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
        self.command.stdout(output.try_clone()?).stderr(output);
        let shown = project::shown(&self.command);
        let mut child = self.command.spawn().with_context(|| format!("cannot start {shown}"))?;
        // Not reaped yet: then nobody knows its CPU time any more.
        retry_on_intr(|| {
            waitid(WaitId::Pid(Pid::from_child(&child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        })?;
        *cpu = cpu_time(child.id()).ok();
        let status = child.wait()?;
        ensure!(status.success(), "`{shown}`: {status}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(100);

    fn shell(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { name: name.to_owned(), command }
    }

    fn run_all(serial: Vec<Job>, queue: Vec<Job>, width: Width, is_idle: impl FnMut() -> bool) -> Vec<Ended> {
        let (folder, mut all) = (tempfile::tempdir().unwrap(), Vec::new());
        run([serial], queue, width, folder.path(), is_idle, |ended| all.push(ended)).unwrap();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// As many as this run at a time.
    fn run_at_a_time(count: usize, serial: Vec<Job>, queue: Vec<Job>) -> Vec<Ended> {
        run_all(serial, queue, Width { min: count, max: count, look_every: LOOK }, || true)
    }

    #[test]
    fn output_is_in_one_piece_and_a_failure_is_reported_with_it() {
        let jobs = vec![shell("a", "echo out; echo err >&2"), shell("b", "echo last words; exit 3")];
        let [a, b] = run_at_a_time(2, vec![], jobs).try_into().unwrap();
        assert_eq!((a.output.as_str(), a.error.is_none()), ("out\nerr\n", true));
        assert_eq!(b.output, "last words\n");
        assert!(a.cpu.is_some() && b.cpu.is_some(), "{:?} {:?}", a.cpu, b.cpu);
        let error = b.error.unwrap().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }

    /// Returns the script that waits for a file.
    fn until_exists(file: &str) -> String {
        format!("timeout 60 sh -c 'until test -e {file}; do sleep 0.02; done'")
    }

    /// Each job opens a named pipe that only the other one opens too. Alone, it fails after a minute.
    fn meet(folder: &Path, name: &str, others: [&str; 2]) -> Job {
        let [writes, reads] = others.map(|pipe| folder.join(pipe).display().to_string());
        let meet = format!("echo x >{writes} & timeout 60 cat {reads}; wait");
        shell(name, &format!("mkfifo {writes} {reads} 2>/dev/null; {meet}"))
    }

    #[test]
    fn jobs_of_the_queue_run_while_others_and_serial_ones_do() {
        let folder = tempfile::tempdir().unwrap();
        let meet = |name, others| meet(folder.path(), name, others);
        let queue = vec![meet("a", ["ab", "ba"]), meet("b", ["ba", "ab"]), meet("c", ["cd", "dc"])];
        let ended = run_at_a_time(2, vec![meet("d", ["dc", "cd"])], queue);
        assert_eq!(ended.iter().map(|job| job.output.as_str()).collect::<Vec<_>>(), ["x\n"; 4]);
    }

    /// The last job fails if it starts before the other ones have ended, as it does if one look starts two jobs. The
    /// second one ends after a look at busy processors, so that it is not replaced.
    #[test]
    fn one_more_job_runs_after_a_look_at_idle_processors() {
        let folder = tempfile::tempdir().unwrap();
        let [first, over, busy] =
            ["first", "over", "busy"].map(|file| folder.path().join(file).display().to_string());
        let queue = vec![
            shell("a", &format!("mkfifo {first}; timeout 60 cat {first} && touch {over}")),
            shell("b", &format!("{}; echo x > {first}", until_exists(&busy))),
            shell("c", &format!("test -e {over}")),
        ];
        let mut looks = 0;
        let is_idle = || {
            looks += 1;
            // The third one comes first after a start, and does not count.
            if looks == 4 {
                fs::write(&busy, "").unwrap();
            }
            looks == 2
        };
        let ended = run_all(vec![], queue, Width { min: 1, max: 9, look_every: LOOK }, is_idle);
        assert!(ended.iter().all(|job| job.error.is_none()), "{ended:?}");
    }

    /// The first job fails if the last one does not replace the second one.
    #[test]
    fn job_that_ends_is_replaced_at_once_after_a_look_at_idle_processors() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe").display().to_string();
        let queue = vec![
            shell("a", &format!("mkfifo {pipe}; timeout 60 cat {pipe}")),
            shell("b", "true"),
            shell("c", &format!("echo x > {pipe}")),
        ];
        let mut looks = 0;
        let is_idle = || {
            looks += 1;
            looks == 2
        };
        // The second job ends before the next look that counts, also on a busy machine.
        let width = Width { min: 1, max: 2, look_every: Duration::from_secs(2) };
        let ended = run_all(vec![], queue, width, is_idle);
        assert_eq!(ended[0].output, "x\n", "{ended:?}");
    }

    #[test]
    fn first_look_after_a_start_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let second = folder.path().join("second").display().to_string();
        let jobs = vec![shell("a", &until_exists(&second)), shell("b", &format!("test -e {second}"))];
        let mut looks = 0;
        let is_idle = || {
            looks += 1;
            if looks == 2 {
                fs::write(&second, "").unwrap();
            }
            true
        };
        let ended = run_all(vec![], jobs, Width { min: 1, max: 9, look_every: LOOK }, is_idle);
        assert!(ended.iter().all(|job| job.error.is_none()), "{ended:?}");
    }

    #[test]
    fn no_more_jobs_run_than_the_width_allows() {
        let folder = tempfile::tempdir().unwrap();
        let alone = folder.path().join("alone").display().to_string();
        // Longer than several looks.
        let script = format!("mkdir {alone} && sleep 0.5 && rmdir {alone}");
        for (min, max, is_idle) in [(1, 1, true), (1, 9, false)] {
            let jobs = ["a", "b"].map(|name| shell(name, &script)).into();
            let ended = run_all(vec![], jobs, Width { min, max, look_every: LOOK }, || is_idle);
            assert!(ended.iter().all(|job| job.error.is_none()), "{ended:?}");
        }
    }

    #[test]
    fn serial_jobs_run_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let alone = folder.path().join("alone").display().to_string();
        let jobs = ["a", "b", "c"].map(|name| shell(name, &format!("mkdir {alone} && rmdir {alone}")));
        let ended = run_at_a_time(1, jobs.into(), vec![]);
        assert_eq!(ended.iter().filter(|job| job.error.is_none()).count(), 3, "{ended:?}");
    }

    #[test]
    fn missing_program_is_an_error_of_its_job() {
        let job = Job { name: "a".to_owned(), command: Command::new("/nowhere/at/all") };
        let ended = run_at_a_time(3, vec![], vec![job, shell("b", "true")]);
        assert!(ended[0].error.is_some() && ended[1].error.is_none(), "{ended:?}");
    }
}
