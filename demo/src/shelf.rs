//! Where the stock is: in the stock keeper's memory, or in the Redis that also has the locks.
//!
//! Either way it can be read and written, and a write with a lower token than an earlier one is refused by the store
//! itself. Nothing counts down.

use std::sync::Mutex;

use anyhow::Result;
use lockkit::Fence;
#[cfg(feature = "redis")]
use lockkit::backend::BackendUrl;

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

    pub(crate) async fn read(&self) -> Result<u32> {
        match self {
            Self::Memory { stock, .. } => Ok(*lock(stock)),
            #[cfg(feature = "redis")]
            Self::Redis(shelf) => shelf.read().await,
        }
    }

    /// Whether the write was accepted.
    pub(crate) async fn write(&self, sale: Sale) -> Result<bool> {
        match self {
            Self::Memory { stock, fence } => {
                // The token is admitted under the mutex under which the write is applied.
                let mut stock = lock(stock);
                let is_admitted = sale.token.is_none_or(|token| fence.admit(token));
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

/// Locks the mutex, also after a panic of a thread that held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
