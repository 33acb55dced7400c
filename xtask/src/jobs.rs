//! Commands that run side by side, each with its output in a file of its own.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result, ensure};

use crate::project;

/// A command and its name.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) command: Command,
    /// How much of the [width](Width) of a queue it takes; the serial jobs take nothing.
    pub(crate) weight: usize,
}

/// How much of a queue runs at a time: the sum of the weights of its jobs. A job that is heavier runs alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    /// While one of the other jobs runs.
    pub(crate) beside: usize,
    /// When the other jobs have ended.
    pub(crate) alone: usize,
}

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) error: Option<Error>,
    pub(crate) output: String,
    pub(crate) took: Duration,
}

/// What the jobs report to the thread that starts them.
enum Event {
    /// One of the queue has ended.
    Queued(Ended, usize),
    /// A serial one has ended.
    Serial(Ended),
    /// All serial ones have.
    SerialOver,
}

/// Runs the jobs of `serial` one after the other, and meanwhile those of `queue`: always the first that the width has
/// room for. Reports each end at once. The output of each job is in a file in `folder`.
pub(crate) fn run(
    serial: Vec<Job>,
    queue: Vec<Job>,
    width: Width,
    folder: &Path,
    mut ended: impl FnMut(Ended),
) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (sender, events) = mpsc::channel();
    // The receiver lives until all of these threads have ended.
    let send = |sender: &mpsc::Sender<Event>, event| drop(sender.send(event));
    thread::scope(|scope| {
        let serial_sender = sender.clone();
        scope.spawn(move || {
            for job in serial {
                send(&serial_sender, Event::Serial(job.run(folder)));
            }
            send(&serial_sender, Event::SerialOver);
        });
        let (mut queue, mut total, mut used, mut is_serial_over) = (queue, width.beside, 0, false);
        loop {
            while let Some(job) = next(&mut queue, total, used) {
                used += job.weight;
                let sender = sender.clone();
                scope.spawn(move || {
                    let weight = job.weight;
                    send(&sender, Event::Queued(job.run(folder), weight));
                });
            }
            if is_serial_over && used == 0 {
                break;
            }
            let Ok(event) = events.recv() else { break };
            match event {
                Event::Queued(job, weight) => {
                    used -= weight;
                    ended(job);
                }
                Event::Serial(job) => ended(job),
                Event::SerialOver => (total, is_serial_over) = (width.alone, true),
            }
        }
    });
    Ok(())
}

/// Removes the first job of the queue that there is room for.
fn next(queue: &mut Vec<Job>, total: usize, used: usize) -> Option<Job> {
    let fits = |job: &Job| used == 0 || used + job.weight <= total;
    Some(queue.remove(queue.iter().position(fits)?))
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
        // A file instead of a pipe: it can be read meanwhile, and a process that the job leaves behind does not keep it
        // open.
        let output = File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
        self.command.stdout(output.try_clone()?).stderr(output);
        let shown = project::shown(&self.command);
        let status = self.command.status().with_context(|| format!("cannot start {shown}"))?;
        ensure!(status.success(), "`{shown}`: {status}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { name: name.to_owned(), command, weight: 1 }
    }

    fn run_all(serial: Vec<Job>, queue: Vec<Job>, width: Width) -> Vec<Ended> {
        let (folder, mut all) = (tempfile::tempdir().unwrap(), Vec::new());
        run(serial, queue, width, folder.path(), |ended| all.push(ended)).unwrap();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn same(width: usize) -> Width {
        Width { beside: width, alone: width }
    }

    #[test]
    fn output_is_in_one_piece_and_a_failure_is_reported_with_it() {
        let jobs = vec![shell("a", "echo out; echo err >&2"), shell("b", "echo last words; exit 3")];
        let [a, b] = run_all(vec![], jobs, same(2)).try_into().unwrap();
        assert_eq!((a.output.as_str(), a.error.is_none()), ("out\nerr\n", true));
        assert_eq!(b.output, "last words\n");
        let error = b.error.unwrap().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
    }

    /// Each job opens a named pipe that only the other one opens too.
    fn meet(folder: &Path, name: &str, others: [&str; 2]) -> Job {
        let [writes, reads] = others.map(|pipe| folder.join(pipe).display().to_string());
        shell(name, &format!("mkfifo {writes} {reads} 2>/dev/null; echo x >{writes} & cat {reads}; wait"))
    }

    #[test]
    fn jobs_of_the_queue_run_beside_each_other_and_beside_serial_ones() {
        let folder = tempfile::tempdir().unwrap();
        let meet = |name, others| meet(folder.path(), name, others);
        let queue = vec![meet("a", ["ab", "ba"]), meet("b", ["ba", "ab"]), meet("c", ["cd", "dc"])];
        let ended = run_all(vec![meet("d", ["dc", "cd"])], queue, same(2));
        assert_eq!(ended.iter().map(|job| job.output.as_str()).collect::<Vec<_>>(), ["x\n"; 4]);
    }

    #[test]
    fn more_jobs_of_the_queue_run_when_the_serial_ones_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let meet = |name, others| meet(folder.path(), name, others);
        let queue = vec![meet("a", ["ab", "ba"]), meet("b", ["ba", "ab"])];
        let ended = run_all(vec![shell("first", "echo x")], queue, Width { beside: 1, alone: 2 });
        assert_eq!(ended.iter().map(|job| job.output.as_str()).collect::<Vec<_>>(), ["x\n"; 3]);
    }

    #[test]
    fn no_more_jobs_run_than_the_width_allows() {
        let folder = tempfile::tempdir().unwrap();
        let alone = folder.path().join("alone").display().to_string();
        let jobs =
            (0..8).map(|number| shell(&number.to_string(), &format!("mkdir {alone} && rmdir {alone}")));
        for serial in [true, false] {
            let (jobs, none) = (jobs.clone().collect(), vec![]);
            let (serial, queue) = if serial { (jobs, none) } else { (none, jobs) };
            let ended = run_all(serial, queue, same(1));
            assert_eq!(ended.iter().filter(|job| job.error.is_none()).count(), 8, "{ended:?}");
        }
    }

    #[test]
    fn heavy_jobs_do_not_run_beside_others_that_exceed_the_width() {
        let folder = tempfile::tempdir().unwrap();
        let alone = folder.path().join("alone").display().to_string();
        let script = format!("mkdir {alone} && rmdir {alone}");
        let job = |(number, weight): (usize, usize)| Job { weight, ..shell(&number.to_string(), &script) };
        // Any two together are more than three, and one is so by itself.
        let jobs = [2, 3, 2, 4, 3].into_iter().enumerate().map(job).collect();
        let ended = run_all(vec![], jobs, same(3));
        assert_eq!(ended.iter().filter(|job| job.error.is_none()).count(), 5, "{ended:?}");
    }

    #[test]
    fn first_job_with_room_is_next() {
        let job = |weight| Job { weight, ..shell(&weight.to_string(), "true") };
        let mut queue = vec![job(2), job(3), job(1)];
        let mut weight = |total, used| next(&mut queue, total, used).map(|job| job.weight);
        assert_eq!(
            [weight(3, 2), weight(3, 2), weight(3, 1), weight(2, 0)],
            [Some(1), None, Some(2), Some(3)]
        );
    }

    #[test]
    fn missing_program_is_an_error_of_its_job() {
        let job = Job { name: "a".to_owned(), command: Command::new("/nowhere/at/all"), weight: 1 };
        let ended = run_all(vec![], vec![job, shell("b", "true")], same(3));
        assert!(ended[0].error.is_some() && ended[1].error.is_none(), "{ended:?}");
    }
}
