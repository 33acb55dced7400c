//! Servers that tests use in turn.

use std::{
    ops::{Deref, DerefMut},
    sync::Mutex,
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

/// A server of a [`Pool`], which goes back when this is dropped. If the test has panicked, the server ends instead: it
/// may be in any state.
#[derive(Debug)]
pub struct Taken<S: 'static> {
    /// Always there, until the value is dropped.
    server: Option<S>,
    pool: &'static Pool<S>,
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
        Ok(Taken { server: Some(server), pool: self })
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
        if let Some(server) = self.server.take().filter(|_| !std::thread::panicking()) {
            lock(&self.pool.0).push(server);
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
