//! A client in a process of its own, which cases can kill and stop. The process is the test program in another role,
//! controlled over its standard input and output.

use std::{
    collections::HashMap,
    env,
    path::PathBuf,
    process::{ExitCode, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use lockkit_core::{ErrorKind, FencingToken, LockClient, LockGuard, LockName, support::lock};
use rustix::{
    process::{Pid, Signal, kill_process},
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::{mpsc, oneshot},
};

use crate::{Harness, direct::HANG};

/// Starts the test program in this role; the value is the address of the store.
const ROLE: &str = "LOCKKIT_CONFORMANCE_WORKER";

/// How long a process may take to stop after SIGSTOP.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Marks the lines of the protocol among the other output of a test program.
const MARK: &str = "lockkit-worker: ";

/// A request to a worker. Each gets one reply; a worker serves requests concurrently.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Open {
        ttl: Duration,
    },
    Acquire {
        slot: u64,
        lock: LockText,
    },
    /// Returns what the guard in this slot reports, without I/O.
    State {
        slot: u64,
    },
    Release {
        slot: u64,
    },
    /// Returns how much processor time the process has used.
    ProcessorTime,
    /// Increments the number in the file under the lock, in this many rounds, but starts none after `longest`.
    Count {
        lock: LockText,
        file: PathBuf,
        rounds: usize,
        longest: Duration,
    },
}

type LockText = String;

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Done,
    Granted {
        token: u64,
    },
    State {
        held: bool,
        remaining: Duration,
    },
    Used {
        processor: Duration,
    },
    Counted {
        rounds: usize,
    },
    /// The error: its kind in `Debug` form, and its text.
    Failed {
        kind: String,
        text: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Numbered<T> {
    number: u64,
    what: T,
}

/// What a guard in a worker reports at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardState {
    pub(crate) held: bool,
    pub(crate) remaining: Duration,
}

/// A client in another process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    process: Child,
    requests: mpsc::UnboundedSender<String>,
    replies: Arc<Mutex<HashMap<u64, oneshot::Sender<Reply>>>>,
    next: AtomicU64,
}

impl Worker {
    pub(crate) async fn start(
        address: &str,
        ttl: Duration,
        environment: &[(String, String)],
    ) -> Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .env(ROLE, address)
            .envs(environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // In its own process group: when the suite is killed while the worker is stopped, the kernel continues the
            // orphaned group, and the worker sees the end of its input and exits.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a worker")?;
        let input = process.stdin.take().context("the worker has no input")?;
        let output = process.stdout.take().context("the worker has no output")?;
        let (requests, queue) = mpsc::unbounded_channel();
        tokio::spawn(send(queue, input));
        let replies = Arc::<Mutex<HashMap<_, oneshot::Sender<Reply>>>>::default();
        let waiting = Arc::clone(&replies);
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let reply = line.strip_prefix(MARK).and_then(|json| serde_json::from_str(json).ok());
                let Some(Numbered { number, what }) = reply else { continue };
                if let Some(waiting) = lock(&waiting).remove(&number) {
                    // The caller may have been dropped.
                    let _ = waiting.send(what);
                }
            }
            // Dropping the senders fails the calls that still wait.
            lock(&waiting).clear();
        });
        let worker = Self { process, requests, replies, next: AtomicU64::new(0) };
        worker.done(Request::Open { ttl }).await?;
        Ok(worker)
    }

    /// Acquires the lock, and keeps the guard in this slot.
    pub(crate) async fn acquire(&self, slot: u64, name: &LockName) -> Result<FencingToken> {
        match self.ask(Request::Acquire { slot, lock: name.to_string() })?.await? {
            Reply::Granted { token } => Ok(FencingToken::new(token)),
            other => bail!("the worker was not granted the lock: {other:?}"),
        }
    }

    /// Sends the request to acquire the lock; the reply arrives when it is granted.
    pub(crate) fn begin_acquire(&self, slot: u64, name: &LockName) -> Result<Acquiring> {
        Ok(Acquiring(self.ask(Request::Acquire { slot, lock: name.to_string() })?))
    }

    pub(crate) async fn state(&self, slot: u64) -> Result<GuardState> {
        match self.ask(Request::State { slot })?.await? {
            Reply::State { held, remaining } => Ok(GuardState { held, remaining }),
            other => bail!("no state but {other:?}"),
        }
    }

    pub(crate) async fn release(&self, slot: u64) -> Result<()> {
        self.done(Request::Release { slot }).await
    }

    /// Returns how much processor time the process has used so far.
    pub(crate) async fn processor_time(&self) -> Result<Duration> {
        match self.ask(Request::ProcessorTime)?.await? {
            Reply::Used { processor } => Ok(processor),
            other => bail!("no processor time but {other:?}"),
        }
    }

    /// Releases this slot, and returns the kind of its error in `Debug` form.
    pub(crate) async fn failed_release(&self, slot: u64) -> Result<String> {
        match self.ask(Request::Release { slot })?.await? {
            Reply::Failed { kind, .. } => Ok(kind),
            other => bail!("expected an error, got {other:?}"),
        }
    }

    /// Increments the number in this file, and returns how often.
    pub(crate) async fn count(
        &self,
        name: &LockName,
        file: PathBuf,
        rounds: usize,
        longest: Duration,
    ) -> Result<usize> {
        match self.ask(Request::Count { lock: name.to_string(), file, rounds, longest })?.await? {
            Reply::Counted { rounds } => Ok(rounds),
            other => bail!("the worker failed to count: {other:?}"),
        }
    }

    /// Kills the process with SIGKILL.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Stops the process with SIGSTOP, and returns when every thread has stopped.
    pub(crate) async fn stop(&self) -> Result<()> {
        kill_process(self.pid()?, Signal::STOP)?;
        let start = Instant::now();
        while !self.is_stopped()? {
            ensure!(start.elapsed() < STOP_MAX, "the worker does not stop within {STOP_MAX:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Continues a stopped process.
    pub(crate) fn resume(&self) -> Result<()> {
        Ok(kill_process(self.pid()?, Signal::CONT)?)
    }

    fn pid(&self) -> Result<Pid> {
        let pid = self.process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        pid.context("the worker has ended")
    }

    /// Whether every thread has stopped: the signal reaches them one by one. Reads proc(5), so Linux only.
    fn is_stopped(&self) -> Result<bool> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid()?.as_raw_nonzero()))?;
        for thread in threads {
            // A thread may end between the two reads.
            let stat = std::fs::read_to_string(thread?.path().join("stat")).unwrap_or_default();
            if stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('T')) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn done(&self, request: Request) -> Result<()> {
        match self.ask(request)?.await? {
            Reply::Done => Ok(()),
            other => bail!("the worker answered {other:?}"),
        }
    }

    fn ask(&self, what: Request) -> Result<oneshot::Receiver<Reply>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        lock(&self.replies).insert(number, sender);
        self.requests.send(serde_json::to_string(&Numbered { number, what })? + "\n")?;
        Ok(reply)
    }
}

/// A running acquire in another process.
#[derive(Debug)]
pub(crate) struct Acquiring(oneshot::Receiver<Reply>);

impl Acquiring {
    pub(crate) async fn granted(self) -> Result<FencingToken> {
        match self.0.await? {
            Reply::Granted { token } => Ok(FencingToken::new(token)),
            other => bail!("the worker was not granted the lock: {other:?}"),
        }
    }
}

async fn send(mut requests: mpsc::UnboundedReceiver<String>, mut input: ChildStdin) {
    while let Some(request) = requests.recv().await {
        if input.write_all(request.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Serves as a worker when this process was started as one.
pub(crate) fn serve_if_worker(harness: &dyn Harness) -> Option<ExitCode> {
    let address = env::var(ROLE).ok()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let served = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(serve(harness, &address)));
    Some(match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("worker: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Serves requests until the input ends, which also happens when the suite is killed.
async fn serve(harness: &dyn Harness, address: &str) -> Result<()> {
    let backend = harness.connect(address)?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let first = lines.next_line().await?.context("no request")?;
    let Numbered { number, what: Request::Open { ttl } } = serde_json::from_str(&first)? else {
        bail!("the first request must open a client")
    };
    // On a loaded machine, opening a session may take most of a short ttl. Then another one is opened.
    let client = LockClient::builder(backend).ttl(ttl).connect_timeout(HANG).build().await?;
    answer(number, &Reply::Done)?;
    let guards = Arc::<Guards>::default();
    while let Some(line) = lines.next_line().await? {
        let Numbered { number, what } = serde_json::from_str(&line)?;
        let (client, guards) = (client.clone(), Arc::clone(&guards));
        tokio::spawn(async move {
            let reply = match carry_out(&client, &guards, what).await {
                Ok(reply) => reply,
                Err(error) => {
                    let kind = error.downcast_ref::<lockkit_core::Error>().map(lockkit_core::Error::kind);
                    let kind = kind.map_or_else(String::new, |kind: ErrorKind| format!("{kind:?}"));
                    Reply::Failed { kind, text: format!("{error:#}") }
                }
            };
            // A failure means that the suite has ended; then the input ends too.
            let _ = answer(number, &reply);
        });
    }
    Ok(())
}

type Guards = Mutex<HashMap<u64, LockGuard>>;

async fn carry_out(client: &LockClient, guards: &Guards, request: Request) -> Result<Reply> {
    match request {
        Request::Open { .. } => bail!("the client is open"),
        Request::Acquire { slot, lock: name } => {
            let guard = client.lock(name)?.acquire().await?;
            let token = guard.token().get();
            lock(guards).insert(slot, guard);
            Ok(Reply::Granted { token })
        }
        Request::State { slot } => {
            let guards = lock(guards);
            let guard = guards.get(&slot).context("an empty slot")?;
            Ok(Reply::State { held: guard.is_held(), remaining: guard.remaining() })
        }
        Request::Release { slot } => {
            let guard = lock(guards).remove(&slot).context("an empty slot")?;
            guard.release().await?;
            Ok(Reply::Done)
        }
        Request::ProcessorTime => {
            let used = clock_gettime(ClockId::ProcessCPUTime);
            let (seconds, nanoseconds) = (used.tv_sec.try_into()?, used.tv_nsec.try_into()?);
            Ok(Reply::Used { processor: Duration::new(seconds, nanoseconds) })
        }
        Request::Count { lock, file, rounds, longest } => {
            let (lock, start, mut counted) = (client.lock(lock)?, Instant::now(), 0);
            while counted < rounds && start.elapsed() <= longest {
                let guard = lock.acquire().await?;
                let seen: u64 = tokio::fs::read_to_string(&file).await?.trim().parse()?;
                tokio::task::yield_now().await;
                tokio::fs::write(&file, (seen + 1).to_string()).await?;
                guard.release().await?;
                counted += 1;
            }
            Ok(Reply::Counted { rounds: counted })
        }
    }
}

fn answer(number: u64, what: &Reply) -> Result<()> {
    use std::io::Write;

    let line = format!("{MARK}{}\n", serde_json::to_string(&Numbered { number, what })?);
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    Ok(stdout.flush()?)
}
