//! The link of one client to etcd: a proxy.

use std::sync::Arc;

use anyhow::Result;
use lockkit_conformance::ClientLink;
use lockkit_testbed::{Proxy, ProxyLink};

use crate::{connect, forms::Form};

/// Starts a proxy in front of one server or member. `login` is `USER:PASSWORD@` or empty.
pub(crate) fn to(endpoint: &str, login: &str, form: &Form) -> Result<Arc<dyn ClientLink>> {
    let proxy = Proxy::start_grpc(endpoint)?;
    // Short, so that lost requests cost little time.
    let url = format!("etcd://{login}{}{}", proxy.endpoint(), form.tail("500ms"));
    Ok(Arc::new(ProxyLink::new(vec![proxy], url, connect)))
}
