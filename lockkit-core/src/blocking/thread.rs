//! Waiting for a future on the calling thread.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

/// Polls the future on the calling thread, which is parked while the future is pending.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let parked = Arc::new(ParkedThread { thread: thread::current(), is_woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&parked));
    let mut context = Context::from_waker(&waker);
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(output) = work.as_mut().poll(&mut context) {
            return output;
        }
        // A thread is also unparked without a reason. And code that a poll runs may park the thread itself, which would
        // consume the `unpark` of a waker that came meanwhile: only `is_woken` says whether to poll again.
        while !parked.is_woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

struct ParkedThread {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for ParkedThread {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Before the thread runs: it reads this when it has been unparked.
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::mpsc::{self, Receiver, Sender},
        time::Duration,
    };

    use super::*;

    /// Returns a future that is pending for its first poll, with what this poll does.
    fn pending_once(first: impl FnOnce(Waker)) -> impl Future<Output = &'static str> {
        let mut first = Some(first);
        poll_fn(move |context| match first.take() {
            Some(first) => {
                first(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready("done"),
        })
    }

    #[test]
    fn waker_from_another_thread_ends_the_wait() {
        let (wakers, received): (Sender<Waker>, Receiver<Waker>) = mpsc::channel();
        let other = thread::spawn(move || received.recv().unwrap().wake());
        assert_eq!(block_on(pending_once(|waker| wakers.send(waker).unwrap())), "done");
        other.join().unwrap();
    }

    #[test]
    fn waker_that_comes_during_a_poll_is_not_lost_when_the_poll_parks() {
        let poll = |waker: Waker| {
            waker.wake();
            // Consumes the `unpark`.
            thread::park();
        };
        assert_eq!(block_on(pending_once(poll)), "done");
    }

    /// A thread that polls without a wake-up needs a CPU of its own.
    #[test]
    fn thread_that_was_woken_once_waits_for_the_next_waker() {
        let (wakers, received): (Sender<Waker>, Receiver<Waker>) = mpsc::channel();
        let (polled, polls) = mpsc::channel();
        let other = thread::spawn(move || {
            let waker = received.recv().unwrap();
            let is_early = polls.recv_timeout(Duration::from_millis(200)).is_ok();
            waker.wake();
            is_early
        });
        let mut number = 0;
        block_on(poll_fn(|context| {
            number += 1;
            match number {
                1 => context.waker().wake_by_ref(),
                2 => wakers.send(context.waker().clone()).unwrap(),
                _ => {
                    // Fails if the other thread has ended.
                    let _ = polled.send(());
                }
            }
            if number < 3 { Poll::Pending } else { Poll::Ready(()) }
        }));
        assert!(!other.join().unwrap(), "polled although nobody has woken it");
    }
}
