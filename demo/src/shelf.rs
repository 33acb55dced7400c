//! Where the stock is: in the stock keeper's memory, or in the Redis that also has the locks.
//!
//! Either way it can be read and written, with the token of the lock if there is one. The store remembers the highest
//! token of a read or write, and refuses both with a lower one. Nothing counts down.

use std::sync::Mutex;

use anyhow::Result;
#[cfg(feature = "redis")]
use lockkit::backend::BackendUrl;
use lockkit::{Fence, FencingToken};

#[cfg(feature = "redis")]
use crate::redis_shelf::RedisShelf;
use crate::{
    ITEMS,
    stock::{Books, Sale},
};

/// Where the stock is.
#[derive(Debug)]
pub(crate) enum Shelf {
    Memory {
        stock: Mutex<u32>,
        fence: Fence,
    },
    #[cfg(feature = "redis")]
    Redis(RedisShelf),
}

impl Shelf {
    /// Returns a full shelf, in the store at `backend` if that is a single Redis server.
    pub(crate) async fn fill(backend: Option<&str>) -> Result<Self> {
        #[cfg(feature = "redis")]
        if let Some(url) = backend.map(BackendUrl::parse).transpose()?.filter(|url| url.scheme() == "redis") {
            return Ok(Self::Redis(RedisShelf::fill(&url).await?));
        }
        #[cfg(not(feature = "redis"))]
        let _ = backend;
        Ok(Self::Memory { stock: Mutex::new(ITEMS), fence: Fence::new() })
    }

    /// Returns the stock, or `None` if the token is stale.
    ///
    /// A read must raise the fence. Otherwise a late holder could write between the read and the write of the next one,
    /// and both would sell the same item.
    pub(crate) async fn read(&self, token: Option<FencingToken>) -> Result<Option<u32>> {
        match self {
            Self::Memory { stock, fence } => {
                let stock = lock(stock);
                Ok(is_admitted(fence, token).then_some(*stock))
            }
            #[cfg(feature = "redis")]
            Self::Redis(shelf) => shelf.read(token).await,
        }
    }

    /// Whether the write was accepted.
    pub(crate) async fn write(&self, sale: Sale) -> Result<bool> {
        match self {
            Self::Memory { stock, fence } => {
                // The token is admitted under the mutex under which the write is applied.
                let mut stock = lock(stock);
                let is_admitted = is_admitted(fence, sale.token);
                if is_admitted {
                    *stock = sale.stock;
                }
                Ok(is_admitted)
            }
            #[cfg(feature = "redis")]
            Self::Redis(shelf) => shelf.write(sale).await,
        }
    }

    /// Deletes the stock; fails when it differs from the books.
    #[cfg_attr(
        not(feature = "redis"),
        allow(unused_variables, reason = "without Redis there is only one stock")
    )]
    pub(crate) async fn clear(&self, books: &Books) -> Result<()> {
        match self {
            Self::Memory { .. } => Ok(()),
            #[cfg(feature = "redis")]
            Self::Redis(shelf) => shelf.clear(books).await,
        }
    }
}

/// Raises the fence; false if it is higher already. Without a lock there is no token, and everything is admitted.
fn is_admitted(fence: &Fence, token: Option<FencingToken>) -> bool {
    token.is_none_or(|token| fence.admit(token))
}

/// Locks the mutex, also after a panic of a thread that held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
