//! The locks of a store, page by page.

use std::{fmt, sync::Arc};

use crate::{Result, backend::ListedLock, client::Handle, limits::LISTED_PER_PAGE};

/// The locks that are held or waited for, page by page; made by [`LockClient::list`](crate::LockClient::list).
pub struct Listing {
    handle: Arc<Handle>,
    prefix: Arc<str>,
    /// Where the next page begins; `None` for the first page.
    after: Option<String>,
    is_over: bool,
}

impl Listing {
    pub(crate) fn new(handle: Arc<Handle>, prefix: &str) -> Self {
        Self { handle, prefix: prefix.into(), after: None, is_over: false }
    }

    /// Returns the next page, of about [`LISTED_PER_PAGE`] locks and perhaps none; `None` after the last one.
    ///
    /// A lock that exists through the whole listing is on at least one page, and may be on two. The store may have
    /// changed since.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the store cannot list its locks (`info().powers.list`), or cannot tell them from other data in
    /// this layout of names; `Unavailable` and `Denied` from the store; `Closed` if the runtime has ended. After an
    /// error the same page is asked for again.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads, and the next call asks for the same page.
    pub async fn next_page(&mut self) -> Result<Option<Vec<ListedLock>>> {
        if self.is_over {
            return Ok(None);
        }
        let (prefix, after) = (Arc::clone(&self.prefix), self.after.clone());
        let page = self.handle.keeper().list(prefix, after, LISTED_PER_PAGE).await?;
        self.is_over = page.next.is_none();
        self.after = page.next;
        Ok(Some(page.locks))
    }
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing")
            .field("prefix", &self.prefix)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}
