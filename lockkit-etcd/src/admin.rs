//! Looking into a queue without being in it.

use async_trait::async_trait;
use etcd_client::{GetOptions, GetResponse, KeyValue, SortOrder, SortTarget};
use lockkit_core::{
    LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection},
};

use crate::{EtcdBackend, call::Server, error::Fault, keys::Queue};

/// Contenders that an inspection shows; a longer queue is cut off behind them.
pub const INSPECTED_CONTENDERS_MAX: i64 = 500;

#[async_trait]
impl Admin for EtcdBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let queue = self.config.layout().queue(name)?;
        // A connection of its own: a kept one would belong to the runtime that first asked.
        let look = async { contenders(&Server::connect(&self.config).await?, &queue).await };
        let answer = look.await.map_err(|fault| fault.into_error("inspect").with_lock(name))?;
        let mut contenders = answer.kvs().iter().map(|kv| contender(&queue, kv));
        Ok(Inspection::new(contenders.next(), contenders.collect()))
    }
}

async fn contenders(server: &Server, queue: &Queue) -> Result<GetResponse, Fault> {
    let options = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(INSPECTED_CONTENDERS_MAX);
    match server.range(queue.as_str(), options.clone()).await {
        // Foreign values that are longer than one message can be.
        Err(fault) if !fault.may_pass() => server.range(queue.as_str(), options.with_keys_only()).await,
        answer => answer,
    }
}

fn contender(queue: &Queue, kv: &KeyValue) -> Contender {
    let key = String::from_utf8_lossy(kv.key());
    let entry = key.strip_prefix(queue.as_str()).unwrap_or(&key);
    // The revision of the grant is stored nowhere; the key's own may be lower.
    Contender::new(entry, None, Metadata::from_json(kv.value()))
}
