//! Servers that tests use in turn.

use std::{
    any::Any,
    cell::RefCell,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex},
};

use anyhow::Result;

use crate::sync::lock;

/// Servers that tests use in turn, each test one for itself: starting one takes more computing than most tests.
///
/// ```no_run
/// use lockkit_testbed::{Pool, ZooKeeper};
///
/// static SERVERS: Pool<ZooKeeper> = Pool::new();
/// let server = SERVERS.take(ZooKeeper::clear, ZooKeeper::start)?;
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct Pool<S>(Mutex<Vec<S>>);

/// A server of a [`Pool`], which goes back when this is dropped. If a panic drops it, the server ends instead: it may be in
/// any state.
#[derive(Debug)]
pub struct Taken<S: 'static> {
    /// Always there, until the value is dropped.
    server: Option<S>,
    /// Of a server that only one test uses: none.
    pool: Option<&'static Pool<S>>,
}

impl<S> From<S> for Taken<S> {
    /// A server of no pool, which ends when this is dropped.
    fn from(server: S) -> Self {
        Self { server: Some(server), pool: None }
    }
}

impl<S> Pool<S> {
    /// Returns a pool without servers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Takes a server that no test uses, and clears it; starts one if there is none. A server that cannot be cleared
    /// ends.
    ///
    /// # Errors
    ///
    /// When the server does not start.
    pub fn take(
        &'static self,
        clear: impl FnOnce(&S) -> Result<()>,
        start: impl FnOnce() -> Result<S>,
    ) -> Result<Taken<S>> {
        // A statement of its own: the other tests must not wait for the clearing.
        let idle = lock(&self.0).pop();
        let server = match idle.filter(|server| clear(server).is_ok()) {
            Some(server) => server,
            None => start()?,
        };
        Ok(Taken { server: Some(server), pool: Some(self) })
    }
}

impl<S> Taken<S> {
    /// Keeps the server until this thread ends, which is after the runtime of its test: until then, clients may go on
    /// with what the test has left, and would disturb the next one. A panic of the test does not end the server then.
    #[must_use]
    pub fn until_the_thread_ends(self) -> Arc<Self> {
        thread_local! {
            static KEPT: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
        }
        let taken = Arc::new(self);
        KEPT.with_borrow_mut(|kept| kept.push(Box::new(Arc::clone(&taken))));
        taken
    }
}

impl<S> Default for Pool<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Deref for Taken<S> {
    type Target = S;

    fn deref(&self) -> &S {
        self.server.as_ref().unwrap_or_else(|| unreachable!("only a drop takes it"))
    }
}

impl<S> DerefMut for Taken<S> {
    fn deref_mut(&mut self) -> &mut S {
        self.server.as_mut().unwrap_or_else(|| unreachable!("only a drop takes it"))
    }
}

impl<S> Drop for Taken<S> {
    fn drop(&mut self) {
        if let (Some(server), Some(pool)) = (self.server.take(), self.pool)
            && !std::thread::panicking()
        {
            lock(&pool.0).push(server);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::bail;

    use super::*;

    #[test]
    fn server_is_used_again_after_it_was_cleared() {
        static POOL: Pool<u32> = Pool::new();
        let cleared = Cell::new(0);
        let take = |number| {
            let clear = |_: &u32| {
                cleared.set(cleared.get() + 1);
                Ok(())
            };
            POOL.take(clear, || Ok(number)).unwrap()
        };
        let (one, other) = (take(1), take(2));
        assert_eq!((*one, *other, cleared.get()), (1, 2, 0));
        drop(one);
        assert_eq!((*take(3), cleared.get()), (1, 1));
    }

    #[test]
    fn server_of_a_failed_test_and_one_that_cannot_be_cleared_end() {
        static POOL: Pool<u32> = Pool::new();
        let failed = std::panic::catch_unwind(|| {
            let _taken = POOL.take(|_| Ok(()), || Ok(1)).unwrap();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(failed.is_err());
        drop(POOL.take(|_| Ok(()), || Ok(2)).unwrap());
        assert_eq!(*POOL.take(|_| bail!("in use"), || Ok(3)).unwrap(), 3);
        assert_eq!(*POOL.take(|_| Ok(()), || Ok(4)).unwrap(), 3);
    }
}
