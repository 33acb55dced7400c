//! etcd over HTTP and JSON: how a test acts on a server without a client crate.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// Longest time for one request to the gateway: generous, because most tests take a failure for the end.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The JSON gateway of one etcd server.
#[derive(Debug)]
pub(super) struct Gateway {
    agent: ureq::Agent,
    endpoint: String,
    /// User and password, once authentication is on.
    pub(super) login: Option<(String, String)>,
}

/// What a member reports of its cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberStatus {
    /// Its own id.
    pub(super) member: u64,
    /// The id of the leader; 0 for none.
    pub(super) leader: u64,
    /// The term of this report.
    pub(super) term: u64,
}

impl Gateway {
    pub(super) fn new(endpoint: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(REQUEST_TIMEOUT))
            // One connection per request: an idle one would not survive a restart of the server.
            .max_idle_connections(0)
            .http_status_as_error(false);
        Self { agent: config.build().into(), endpoint: endpoint.to_owned(), login: None }
    }

    /// Whether the server serves clients, and its cluster has a version. That is a proposal of its own, which on a busy
    /// machine may come seconds later.
    pub(super) fn is_healthy(&self) -> bool {
        let shows = |path: &str, text: &str| self.get(path).is_ok_and(|body| body.contains(text));
        shows("/health", r#""health":"true""#) && shows("/version", r#""etcdcluster":"3."#)
    }

    /// Returns what this member reports of its cluster.
    pub(super) fn status(&self) -> Result<MemberStatus> {
        let answer = self.post("/v3/maintenance/status", &json!({}))?;
        // 64 bit numbers are strings in this JSON, and a zero is left out.
        let number = |value: &Value| value.as_str().unwrap_or("0").parse::<u64>();
        Ok(MemberStatus {
            member: number(&answer["header"]["member_id"])?,
            leader: number(&answer["leader"])?,
            term: number(&answer["raftTerm"])?,
        })
    }

    pub(super) fn get(&self, path: &str) -> Result<String> {
        let mut response = self.agent.get(format!("{}{path}", self.endpoint)).call()?;
        Ok(response.body_mut().read_to_string()?)
    }

    /// Adds a member without a vote, which other members reach at this URL.
    pub(super) fn add_learner(&self, peer_url: &str) -> Result<()> {
        let learner = json!({ "peerURLs": [peer_url], "isLearner": true });
        self.post("/v3/cluster/member/add", &learner).map(drop)
    }

    /// Makes another member the leader. Must be sent to the current leader.
    pub(super) fn move_leader(&self, to: u64) -> Result<()> {
        let target = json!({ "targetID": to.to_string() });
        self.post("/v3/maintenance/transfer-leadership", &target).map(drop)
    }

    pub(super) fn delete_all(&self) -> Result<()> {
        let (start, end) = range_of("");
        let all = json!({ "key": STANDARD.encode(start), "range_end": STANDARD.encode(end) });
        self.post("/v3/kv/deleterange", &all).map(drop)
    }

    /// Ends all leases. Returns how many there were.
    pub(super) fn revoke_all(&self) -> Result<usize> {
        let leases = self.lease_ids()?;
        // One that has ended meanwhile is not found.
        leases.iter().for_each(|id| drop(self.post("/v3/lease/revoke", &json!({ "ID": id }))));
        Ok(leases.len())
    }

    pub(super) fn lease_ids(&self) -> Result<Vec<Value>> {
        let mut answer = self.post("/v3/lease/leases", &json!({}))?;
        let leases = answer["leases"].as_array_mut().map(std::mem::take).unwrap_or_default();
        Ok(leases.into_iter().map(|mut lease| lease["ID"].take()).collect())
    }

    /// Sends a request, as `root` once authentication is on.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let mut request = self.agent.post(format!("{}{path}", self.endpoint));
        if let Some((name, password)) = &self.login {
            let login = self.call(
                self.agent.post(format!("{}/v3/auth/authenticate", self.endpoint)),
                &json!({ "name": name, "password": password }),
            )?;
            request = request.header("Authorization", login["token"].as_str().unwrap_or_default());
        }
        self.call(request, body).with_context(|| format!("etcd {path}"))
    }

    fn call(&self, request: ureq::RequestBuilder<ureq::typestate::WithBody>, body: &Value) -> Result<Value> {
        let mut response = request.send(body.to_string())?;
        let answer: Value = serde_json::from_str(&response.body_mut().read_to_string()?)?;
        if !response.status().is_success() {
            bail!("{}", answer["error"].as_str().unwrap_or("no reason given"));
        }
        Ok(answer)
    }
}

/// Returns start and end of the range of all keys that begin with this text, which is ASCII in every test.
pub(super) fn range_of(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let start = prefix.as_bytes().to_vec();
    let mut end = start.clone();
    match end.last_mut() {
        Some(last) => *last += 1,
        // etcd's way to say "all keys".
        None => return (vec![0], vec![0]),
    }
    (start, end)
}
