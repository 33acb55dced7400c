//! Notifications that are dropped, or come late.

use anyhow::{Result, ensure};
use tokio::time::{Instant, sleep};

use super::{
    super::{promptness::waiter_watches, takeover},
    linked,
};
use crate::{
    LinkFault,
    context::{Cx, within},
};

pub(super) async fn no_wake_up_is_lost_without_notifications(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.long_ttl()).await?;
    let bounds = cx.bounds_of(&client);
    let look = async || {
        let name = cx.name();
        let held = cx.lock(&name).await?.acquire().await?;
        let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
        // Until then, the release may be found by a request that belongs to the start of the wait.
        waiter_watches(&cx).await?;
        sleep(bounds.recheck / 10).await;
        link.inflict(LinkFault::DropNotifications).await?;
        held.release().await?;
        let start = Instant::now();
        let granted = within(bounds.recheck + bounds.slack, "the waiter looks again", waiter).await;
        let took = start.elapsed();
        link.heal().await?;
        granted???.release().await?;
        Ok((took, bounds.quickest_look()))
    };
    takeover::quickest("the waiter looks late", look).await.map(drop)
}

pub(super) async fn a_loss_is_found_without_notifications(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.steady_ttl() * 2).await?;
    let name = cx.name();
    let guard = client.lock(name.as_str())?.acquire().await?;
    link.inflict(LinkFault::DropNotifications).await?;
    cx.inflict(crate::StoreFault::EndSessionOfHolder(name)).await?;
    let bounds = cx.bounds_of(&client);
    let lost = within(bounds.notice(2)?, "the loss is found", guard.lost()).await;
    link.heal().await?;
    lost.map(drop)
}

pub(super) async fn late_notification_grants_nothing(cx: Cx) -> Result<()> {
    let (link, client) = linked(&cx, cx.short_ttl()).await?;
    let name = cx.name();
    let (first, bounds) = (cx.lock(&name).await?.acquire().await?, cx.bounds_of(&client));
    let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
    link.inflict(LinkFault::HoldNotifications).await?;
    first.release().await?;
    let looked = within(bounds.recheck + bounds.slack, "the waiter looks again", waiter).await???;
    looked.release().await?;
    let second = cx.lock(&name).await?.acquire().await?;
    let waiter = cx.enqueue(&client.lock(name.as_str())?, 0).await?;
    // Now the notification of the first release arrives.
    link.heal().await?;
    sleep(bounds.heartbeat).await;
    ensure!(!waiter.is_finished(), "granted while another holds: {:?}", waiter.await?);
    ensure!(second.is_held(), "lost: {:?}", second.check().err());
    second.release().await?;
    let next = within(bounds.takeover(), "the waiter is granted", waiter).await???;
    Ok(next.release().await?)
}
