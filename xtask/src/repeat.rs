//! `cargo xtask test --runs N`: the test programs several times in a row, to see how often something fails.

use std::{
    env, fs, hint, io,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    attached::Attached,
    jobs::{self, Job, Width},
    processors::{Processors, cpu_time},
    report::Report,
};

/// The chore that [`keep_busy`] is.
const BUSY: &str = "busy";

/// How often the test programs run, and what else does meanwhile.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Repetition {
    /// Runs only the test programs, this many times in a row, and counts the runs in which something fails.
    #[arg(long, value_name = "COUNT")]
    pub(crate) runs: Option<usize>,
    /// Meanwhile keeps this many threads busy.
    #[arg(long, value_name = "THREADS", requires = "runs", default_value_t = 0)]
    pub(crate) busy: usize,
}

impl Repetition {
    /// Runs serial and other jobs `runs` times, and prints what each run took and what failed. The outputs are in a
    /// folder per run. An error if something failed.
    pub(crate) fn run(
        self,
        runs: usize,
        jobs: impl Fn() -> Result<(Vec<Job>, Vec<Job>)>,
        width: Width,
        logs: &Path,
    ) -> Result<()> {
        let busy = |threads: usize| {
            Attached::start(Command::new(env::current_exe()?).args([BUSY, &threads.to_string()]))
        };
        let _busy = (self.busy > 0).then(|| busy(self.busy)).transpose()?;
        let mut red = 0;
        for number in 1..=runs {
            let (start, before, mut report) = (Instant::now(), cpu_time("self")?, Report::default());
            let folder = logs.join(format!("run-{number}"));
            let (serial, queue) = jobs()?;
            let mut processors = Processors::default();
            let is_idle = || processors.were_idle();
            jobs::run([serial], queue, width, &folder, is_idle, |ended| report.record_job(ended))?;
            let (took, cpu) = (start.elapsed().as_secs_f64(), (cpu_time("self")? - before).as_secs_f64());
            let load = fs::read_to_string("/proc/loadavg")?;
            let load = load.split(' ').next().unwrap_or_default();
            println!(
                "run {number} of {runs}: {}; {took:.0} s, {cpu:.0} s of CPU, load {load}",
                report.tests()
            );
            print!("{}", report.failures());
            red += usize::from(report.has_failed());
        }
        println!("{red} of {runs} runs are red");
        ensure!(red == 0, "{red} of {runs} runs are red, see {}", logs.display());
        Ok(())
    }
}

/// Keeps threads busy until the end of the input.
pub(crate) fn keep_busy(threads: usize, mut input: impl io::Read) -> Result<()> {
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let spin = || {
            while !has_ended.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
        };
        (0..threads).for_each(|_| drop(scope.spawn(spin)));
        let end = io::copy(&mut input, &mut io::sink());
        has_ended.store(true, Ordering::Relaxed);
        end.map(drop).context("cannot wait for the end of the input")
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn red_runs_are_counted_and_keep_their_output() {
        let folder = tempfile::tempdir().unwrap();
        let job = || {
            let mut command = Command::new("sh");
            command.current_dir(folder.path()).args(["-c", "echo words; mkdir first || mkdir second"]);
            Ok((vec![], vec![Job { name: "a".to_owned(), command }]))
        };
        let (width, logs) =
            (Width { min: 1, max: 1, look_every: Duration::from_secs(1) }, folder.path().join("logs"));
        let three = Repetition { runs: Some(3), busy: 0 };
        let error = three.run(3, job, width, &logs).unwrap_err().to_string();
        assert!(error.starts_with("1 of 3 runs are red"), "{error}");
        assert!(fs::read_to_string(logs.join("run-3/a.log")).unwrap().starts_with("words\n"));
    }

    #[test]
    fn busy_threads_end_with_the_input() {
        keep_busy(2, &b"words"[..]).unwrap();
    }
}
