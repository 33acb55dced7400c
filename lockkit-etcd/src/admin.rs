//! Inspection of a lock without a session.

use async_trait::async_trait;
use lockkit_core::{
    LockName, Metadata, Result,
    backend::{Admin, Contender, Inspection},
};

use crate::{
    EtcdBackend, Form,
    call::Server,
    client::{GetOptions, GetResponse, KeyValue, SortOrder, SortTarget},
    error::RequestError,
    keys::Queue,
    registry::token,
};

/// Maximum number of contenders that an inspection returns; a longer queue is cut off.
pub const INSPECTED_CONTENDERS_MAX: i64 = 500;

#[async_trait]
impl Admin for EtcdBackend {
    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let layout = self.config.layout();
        // A new connection each time: a kept one would belong to the runtime of the first caller.
        let connect = Server::connect(&self.config);
        let into_error = |fault: RequestError| fault.into_error("inspect").with_lock(name);
        if self.config.form == Form::Single {
            let key = layout.single(name)?;
            let look = async { holder_of(&connect.await?, key.as_str()).await };
            let found = look.await.map_err(into_error)?;
            return Ok(Inspection::new(found.as_ref().map(key_holder), Vec::new()));
        }
        let queue = layout.queue(name)?;
        let guard = layout.guard(name, &queue)?;
        let look = async {
            let server = connect.await?;
            let guarded = match &guard {
                Some(key) => holder_of(&server, key).await?,
                None => None,
            };
            Ok((guarded, contenders(&server, &queue).await?))
        };
        let (guarded, answer) = look.await.map_err(into_error)?;
        let mut queued = answer.kvs().iter().map(|kv| contender(&queue, kv));
        let first_lease = answer.kvs().first().map(KeyValue::lease);
        let decides = match (&guard, &guarded) {
            (None, _) => answer.kvs().first(),
            // Another program's: our first waits for it. Without a guard key, our first is about to create it.
            (Some(_), Some(kv)) if Some(kv.lease()) != first_lease => {
                return Ok(Inspection::new(Some(key_holder(kv)), queued.collect()));
            }
            (Some(_), found) => found.as_ref(),
        };
        let holder = queued.next().map(|mut holder| {
            holder.token = decides.map(|kv| token(kv.create_revision()));
            holder
        });
        Ok(Inspection::new(holder, queued.collect()))
    }
}

/// Reads a key that excludes by its existence.
async fn holder_of(server: &Server, key: &str) -> Result<Option<KeyValue>, RequestError> {
    let answer = with_values_if_possible(server, key, GetOptions::new()).await?;
    Ok(answer.kvs().first().cloned())
}

async fn contenders(server: &Server, queue: &Queue) -> Result<GetResponse, RequestError> {
    let options = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(INSPECTED_CONTENDERS_MAX);
    with_values_if_possible(server, queue.as_str(), options).await
}

async fn with_values_if_possible(
    server: &Server,
    key: &str,
    options: GetOptions,
) -> Result<GetResponse, RequestError> {
    match server.range(key, options.clone()).await {
        // Foreign values may be longer than a message may be; read the keys only.
        Err(fault) if !fault.is_transient() => server.range(key, options.with_keys_only()).await,
        answer => answer,
    }
}

fn contender(queue: &Queue, kv: &KeyValue) -> Contender {
    let key = String::from_utf8_lossy(kv.key());
    let entry = key.strip_prefix(queue.as_str()).unwrap_or(&key);
    Contender::new(entry, None, Metadata::from_json(kv.value()))
}

/// The holder of a lock that is one key, which the grant has created.
fn key_holder(kv: &KeyValue) -> Contender {
    Contender::new(
        String::from_utf8_lossy(kv.key()),
        Some(token(kv.create_revision())),
        Metadata::from_json(kv.value()),
    )
}
