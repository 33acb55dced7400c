//! A client in a process of its own: the test program again, in another role, driven over its standard input and
//! output, so that it can be killed and stopped.

use std::{
    collections::HashMap,
    env,
    path::PathBuf,
    process::{ExitCode, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use lockkit_core::{ErrorKind, FencingToken, LockClient, LockGuard, LockName};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::{mpsc, oneshot},
};

use crate::Harness;

/// Set for a process in this role, to the address of the store.
const ROLE: &str = "LOCKKIT_CONFORMANCE_WORKER";

/// Longest time until a process that was sent SIGSTOP stands still.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Marks the lines of the protocol among whatever else a test program prints.
const MARK: &str = "lockkit-worker: ";

/// What a worker is told; each order gets one reply, and they are served side by side.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Open {
        ttl: Duration,
    },
    Acquire {
        slot: u64,
        lock: LockText,
    },
    /// Without I/O: what the guard in this slot believes.
    State {
        slot: u64,
    },
    Release {
        slot: u64,
    },
    /// Reads a number from the file, yields, and writes the next one, under the lock, so often, but begins no round
    /// after this time.
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
    Counted {
        rounds: usize,
    },
    /// The kind of the error as `Debug` shows it, and its text.
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

/// What a guard in a worker believes at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Belief {
    pub(crate) held: bool,
    pub(crate) remaining: Duration,
}

/// A client in another process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    process: Child,
    orders: mpsc::UnboundedSender<String>,
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
            // In a group of its own: when the suite is killed while the worker is stopped, the system lets an orphaned
            // group go on, and the worker finds the end of its input.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a worker")?;
        let input = process.stdin.take().context("the worker has no input")?;
        let output = process.stdout.take().context("the worker has no output")?;
        let (orders, queue) = mpsc::unbounded_channel();
        tokio::spawn(send(queue, input));
        let replies = Arc::<Mutex<HashMap<_, oneshot::Sender<Reply>>>>::default();
        let waiting = Arc::clone(&replies);
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let reply = line.strip_prefix(MARK).and_then(|json| serde_json::from_str(json).ok());
                let Some(Numbered { number, what }) = reply else { continue };
                if let Some(waiting) = locked(&waiting).remove(&number) {
                    // Whoever asked may have been dropped.
                    let _ = waiting.send(what);
                }
            }
            // Whoever still waits is told by the drop of its sender.
            locked(&waiting).clear();
        });
        let worker = Self { process, orders, replies, next: AtomicU64::new(0) };
        worker.done(Order::Open { ttl }).await?;
        Ok(worker)
    }

    /// Takes the lock and keeps it in this slot.
    pub(crate) async fn acquire(&self, slot: u64, name: &LockName) -> Result<FencingToken> {
        match self.ask(Order::Acquire { slot, lock: name.to_string() })?.await? {
            Reply::Granted { token } => Ok(FencingToken::new(token)),
            other => bail!("the worker was not granted the lock: {other:?}"),
        }
    }

    /// Sends the order to take the lock; the reply comes when it is granted.
    pub(crate) fn begin_acquire(&self, slot: u64, name: &LockName) -> Result<Acquiring> {
        Ok(Acquiring(self.ask(Order::Acquire { slot, lock: name.to_string() })?))
    }

    pub(crate) async fn state(&self, slot: u64) -> Result<Belief> {
        match self.ask(Order::State { slot })?.await? {
            Reply::State { held, remaining } => Ok(Belief { held, remaining }),
            other => bail!("no state but {other:?}"),
        }
    }

    pub(crate) async fn release(&self, slot: u64) -> Result<()> {
        self.done(Order::Release { slot }).await
    }

    /// The kind of the error that the release of this slot ends with, as `Debug` shows it.
    pub(crate) async fn failed_release(&self, slot: u64) -> Result<String> {
        match self.ask(Order::Release { slot })?.await? {
            Reply::Failed { kind, .. } => Ok(kind),
            other => bail!("an error was due, not {other:?}"),
        }
    }

    /// Counts in this file; how often it did.
    pub(crate) async fn count(
        &self,
        name: &LockName,
        file: PathBuf,
        rounds: usize,
        longest: Duration,
    ) -> Result<usize> {
        match self.ask(Order::Count { lock: name.to_string(), file, rounds, longest })?.await? {
            Reply::Counted { rounds } => Ok(rounds),
            other => bail!("the worker has not counted: {other:?}"),
        }
    }

    /// Ends the process as `kill -9` does.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Stops the process where it stands (SIGSTOP), and returns when it has come to a stand.
    pub(crate) async fn stop(&self) -> Result<()> {
        kill_process(self.pid()?, Signal::STOP)?;
        let start = Instant::now();
        while !self.stands_still()? {
            ensure!(start.elapsed() < STOP_MAX, "the worker does not stop");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Lets a stopped process go on.
    pub(crate) fn resume(&self) -> Result<()> {
        Ok(kill_process(self.pid()?, Signal::CONT)?)
    }

    fn pid(&self) -> Result<Pid> {
        let pid = self.process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        pid.context("the worker has ended")
    }

    /// Whether every thread has stopped: the signal reaches them one by one. Linux only, as proc(5) is.
    fn stands_still(&self) -> Result<bool> {
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

    async fn done(&self, order: Order) -> Result<()> {
        match self.ask(order)?.await? {
            Reply::Done => Ok(()),
            other => bail!("the worker answered {other:?}"),
        }
    }

    fn ask(&self, what: Order) -> Result<oneshot::Receiver<Reply>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        locked(&self.replies).insert(number, sender);
        self.orders.send(serde_json::to_string(&Numbered { number, what })? + "\n")?;
        Ok(reply)
    }
}

/// An acquire in another process that is not answered yet.
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

async fn send(mut orders: mpsc::UnboundedReceiver<String>, mut input: ChildStdin) {
    while let Some(order) = orders.recv().await {
        if input.write_all(order.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Plays the worker when this process was started as one.
pub(crate) fn serve_if_asked(harness: &dyn Harness) -> Option<ExitCode> {
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

/// Serves orders until the input ends, which it also does when the suite is killed.
async fn serve(harness: &dyn Harness, address: &str) -> Result<()> {
    let backend = harness.connect(address)?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let first = lines.next_line().await?.context("no order")?;
    let Numbered { number, what: Order::Open { ttl } } = serde_json::from_str(&first)? else {
        bail!("the first order opens a client")
    };
    let client = LockClient::builder(backend).ttl(ttl).build().await?;
    answer(number, &Reply::Done)?;
    let guards = Arc::<Guards>::default();
    while let Some(line) = lines.next_line().await? {
        let Numbered { number, what } = serde_json::from_str(&line)?;
        let (client, guards) = (client.clone(), Arc::clone(&guards));
        tokio::spawn(async move {
            let reply = match obey(&client, &guards, what).await {
                Ok(reply) => reply,
                Err(error) => {
                    let kind = error.downcast_ref::<lockkit_core::Error>().map(lockkit_core::Error::kind);
                    let kind = kind.map_or_else(String::new, |kind: ErrorKind| format!("{kind:?}"));
                    Reply::Failed { kind, text: format!("{error:#}") }
                }
            };
            // Nobody listens any more: the input has ended too.
            let _ = answer(number, &reply);
        });
    }
    Ok(())
}

type Guards = Mutex<HashMap<u64, LockGuard>>;

async fn obey(client: &LockClient, guards: &Guards, order: Order) -> Result<Reply> {
    match order {
        Order::Open { .. } => bail!("the client is open"),
        Order::Acquire { slot, lock } => {
            let guard = client.lock(lock)?.acquire().await?;
            let token = guard.token().get();
            locked(guards).insert(slot, guard);
            Ok(Reply::Granted { token })
        }
        Order::State { slot } => {
            let guards = locked(guards);
            let guard = guards.get(&slot).context("an empty slot")?;
            Ok(Reply::State { held: guard.is_held(), remaining: guard.remaining() })
        }
        Order::Release { slot } => {
            let guard = locked(guards).remove(&slot).context("an empty slot")?;
            guard.release().await?;
            Ok(Reply::Done)
        }
        Order::Count { lock, file, rounds, longest } => {
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

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
