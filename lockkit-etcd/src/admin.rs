//! Inspection of a queue without a session.

use async_trait::async_trait;
use etcd_client::{GetOptions, GetResponse, KeyValue, SortOrder, SortTarget};
use lockkit_core::{
    LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection},
};

use crate::{EtcdBackend, call::Server, error::RequestError, keys::Queue, registry::token};

/// Maximum number of contenders that an inspection returns; a longer queue is cut off.
pub const INSPECTED_CONTENDERS_MAX: i64 = 500;

#[async_trait]
impl Admin for EtcdBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let queue = self.config.layout().queue(name)?;
        // A new connection each time: a kept one would belong to the runtime of the first caller.
        let look = async { contenders(&Server::connect(&self.config).await?, &queue).await };
        let answer = look.await.map_err(|fault| fault.into_error("inspect").with_lock(name))?;
        let mut contenders = answer.kvs().iter().map(|kv| contender(&queue, kv));
        let holder = contenders.next().map(|mut holder| {
            holder.token = answer.kvs().first().map(|kv| token(kv.create_revision()));
            holder
        });
        Ok(Inspection::new(holder, contenders.collect()))
    }
}

async fn contenders(server: &Server, queue: &Queue) -> Result<GetResponse, RequestError> {
    let options = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(INSPECTED_CONTENDERS_MAX);
    match server.range(queue.as_str(), options.clone()).await {
        // Foreign values may be longer than a message may be; read the keys only.
        Err(fault) if !fault.is_transient() => server.range(queue.as_str(), options.with_keys_only()).await,
        answer => answer,
    }
}

fn contender(queue: &Queue, kv: &KeyValue) -> Contender {
    let key = String::from_utf8_lossy(kv.key());
    let entry = key.strip_prefix(queue.as_str()).unwrap_or(&key);
    Contender::new(entry, None, Metadata::from_json(kv.value()))
}
