//! Commands that run side by side, each with its output in a file of its own.

use std::{
    collections::VecDeque,
    fs::{self, File},
    path::Path,
    process::Command,
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result, bail};

use crate::project;

/// A command and what it is called.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) command: Command,
}

/// Jobs of which so many run at a time.
#[derive(Debug)]
pub(crate) struct Queue {
    jobs: Mutex<VecDeque<Job>>,
    side_by_side: usize,
}

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) error: Option<Error>,
    pub(crate) output: String,
    pub(crate) took: Duration,
}

impl Queue {
    pub(crate) fn new(side_by_side: usize, jobs: impl IntoIterator<Item = Job>) -> Self {
        Self { jobs: Mutex::new(jobs.into_iter().collect()), side_by_side }
    }

    fn next(&self) -> Option<Job> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Runs all jobs of all queues to their ends, and reports each end at once. The files with their output are in `folder`.
pub(crate) fn run(queues: &[Queue], folder: &Path, mut ended: impl FnMut(Ended)) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for queue in queues {
            for _ in 0..queue.side_by_side {
                let sender = sender.clone();
                scope.spawn(move || {
                    while let Some(job) = queue.next() {
                        // The other side is there until all of these threads have ended.
                        let _ = sender.send(job.run(folder));
                    }
                });
            }
        }
        drop(sender);
        receiver.iter().for_each(&mut ended);
    });
    Ok(())
}

impl Job {
    fn run(mut self, folder: &Path) -> Ended {
        let start = Instant::now();
        let file = folder.join(format!("{}.log", self.name.replace([' ', ',', '/'], "-")));
        let error = self.run_into(&file).err();
        let output = fs::read(&file).map(|output| String::from_utf8_lossy(&output).into_owned());
        Ended { name: self.name, error, output: output.unwrap_or_default(), took: start.elapsed() }
    }

    fn run_into(&mut self, file: &Path) -> Result<()> {
        // A file and no pipe: one can look into it, and no process that is left behind keeps it from ending.
        let output = File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
        self.command.stdout(output.try_clone()?).stderr(output);
        let shown = project::shown(&self.command);
        let status = self.command.status().with_context(|| format!("cannot start {shown}"))?;
        if !status.success() {
            bail!("`{shown}`: {status}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { name: name.to_owned(), command }
    }

    fn run_all(queues: &[Queue]) -> Vec<Ended> {
        let (folder, mut all) = (tempfile::tempdir().unwrap(), Vec::new());
        run(queues, folder.path(), |ended| all.push(ended)).unwrap();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    #[test]
    fn output_is_in_one_piece_and_a_failure_is_told_with_it() {
        let jobs = [shell("a", "echo out; echo err >&2"), shell("b", "echo last words; exit 3")];
        let [a, b] = run_all(&[Queue::new(2, jobs)]).try_into().unwrap();
        assert_eq!((a.output.as_str(), a.error.is_none()), ("out\nerr\n", true));
        assert_eq!(b.output, "last words\n");
        let error = b.error.unwrap().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }

    /// Each opens a named pipe that only the other one opens too.
    #[test]
    fn jobs_of_one_queue_and_of_two_run_side_by_side() {
        let folder = tempfile::tempdir().unwrap();
        let meet = |name: &str, others: [&str; 2]| {
            let [writes, reads] = others.map(|pipe| folder.path().join(pipe).display().to_string());
            shell(name, &format!("mkfifo {writes} {reads} 2>/dev/null; echo x >{writes} & cat {reads}; wait"))
        };
        let ended = run_all(&[
            Queue::new(2, [meet("a", ["ab", "ba"]), meet("b", ["ba", "ab"])]),
            Queue::new(1, [meet("c", ["cd", "dc"])]),
            Queue::new(1, [meet("d", ["dc", "cd"])]),
        ]);
        assert_eq!(ended.iter().map(|job| job.output.as_str()).collect::<Vec<_>>(), ["x\n"; 4]);
    }

    #[test]
    fn a_queue_runs_as_many_as_it_may_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let alone = folder.path().join("alone").display().to_string();
        let jobs =
            (0..8).map(|number| shell(&number.to_string(), &format!("mkdir {alone} && rmdir {alone}")));
        let ended = run_all(&[Queue::new(1, jobs)]);
        assert_eq!(ended.iter().filter(|job| job.error.is_none()).count(), 8, "{ended:?}");
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error_of_its_job() {
        let job = Job { name: "a".to_owned(), command: Command::new("/nowhere/at/all") };
        let ended = run_all(&[Queue::new(3, [job, shell("b", "true")])]);
        assert!(ended[0].error.is_some() && ended[1].error.is_none(), "{ended:?}");
    }
}
