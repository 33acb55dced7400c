//! Inspections, lists and breaks of a broken backend.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use async_trait::async_trait;
use lockkit_core::{
    LockName, Result,
    backend::{Admin, Contender, Inspection, ListedLock, Page},
};

use super::{Defect, wrapper::BrokenBackend};

/// The longest name that [`Defect::ShortNamesOnly`] lists, in bytes.
const SHORT_NAME: usize = 255;

/// What was shown to operators before.
#[derive(Default)]
pub(super) struct AdminState {
    holders: HashMap<LockName, Contender>,
    listed: BTreeSet<ListedLock>,
}

#[async_trait]
impl Admin for BrokenBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let mut found = self.inner.inspect(name).await?;
        match (self.defect, &mut found.holder) {
            (Defect::UnseenToken, Some(holder)) => holder.token = None,
            (Defect::EscapedLabel, Some(holder)) => {
                let labels = holder.metadata.iter_mut().filter_map(|metadata| metadata.label.as_mut());
                labels.for_each(|label| *label = format!("{label:?}"));
            }
            (Defect::EndlessEntry, Some(holder)) => holder.remaining = Some(Duration::from_secs(1 << 20)),
            (Defect::MixedWaiters, _) => found.waiters.reverse(),
            (Defect::GhostHolder, Some(holder)) => {
                self.shared.state().admin.holders.insert(name.clone(), holder.clone());
            }
            (Defect::GhostHolder, nobody) => {
                *nobody = self.shared.state().admin.holders.get(name).cloned();
            }
            _ => {}
        }
        Ok(found)
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let named = |lock: &ListedLock| lock.name.as_ref().map_or("", LockName::as_str).to_owned();
        match self.defect {
            Defect::IgnoredPrefix => self.inner.list("", after, limit).await,
            Defect::PrefixIsPath => {
                let mut page = self.inner.list(prefix, after, limit).await?;
                let is_below = |rest: &str| prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/');
                page.locks.retain(|lock| is_below(&named(lock)[prefix.len()..]));
                Ok(page)
            }
            Defect::SkippedPage => {
                let mut page = self.inner.list(prefix, after, limit).await?;
                if let Some(next) = &page.next {
                    page.next = self.inner.list(prefix, Some(next), limit).await?.next;
                }
                Ok(page)
            }
            Defect::CountingCursor => {
                let seen = after.and_then(|after| after.parse().ok()).unwrap_or(0);
                let all = self.inner.list(prefix, None, usize::MAX).await?.locks;
                let next = (seen + limit < all.len()).then(|| (seen + limit).to_string());
                Ok(Page::new(all.into_iter().skip(seen).take(limit).collect(), next))
            }
            Defect::ListedForEver => {
                let page = self.inner.list(prefix, after, limit).await?;
                let mut state = self.shared.state();
                state.admin.listed.extend(page.locks);
                let listed = state.admin.listed.iter().filter(|lock| named(lock).starts_with(prefix));
                Ok(Page::new(listed.cloned().collect(), page.next))
            }
            Defect::ShortNamesOnly => {
                let mut page = self.inner.list(prefix, after, limit).await?;
                page.locks.retain(|lock| named(lock).len() <= SHORT_NAME);
                Ok(page)
            }
            _ => self.inner.list(prefix, after, limit).await,
        }
    }

    async fn break_lock(&self, name: &LockName, holder: &Contender) -> Result<bool> {
        match self.defect {
            Defect::EmptyBreak => Ok(true),
            Defect::BreakOfAnybody => match self.inner.inspect(name).await?.holder {
                Some(current) => self.inner.break_lock(name, &current).await,
                None => Ok(false),
            },
            Defect::SilentBreak => {
                self.server.drop_notifications(true);
                let broken = self.inner.break_lock(name, holder).await;
                self.server.drop_notifications(false);
                broken
            }
            Defect::BreakOfSession => {
                let current = self.inner.inspect(name).await?.holder;
                let is_current = current
                    .is_some_and(|current| current.entry == holder.entry && current.token == holder.token);
                Ok(is_current && self.server.expire_holder(name))
            }
            _ => self.inner.break_lock(name, holder).await,
        }
    }
}
