//! What an operator asks of an etcd server, and what tests read from it.

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;

use super::{Etcd, gateway::range_of};
use crate::Metrics;

impl Etcd {
    /// Turns authentication on. `user` may read and write all keys; the administrator `root` gets the same password.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub fn enable_auth(&mut self, user: &str, password: &str) -> Result<()> {
        self.enable_auth_within(user, password, "")
    }

    /// As [`enable_auth`](Self::enable_auth), but `user` may read and write only the keys with this prefix.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub fn enable_auth_within(&mut self, user: &str, password: &str, prefix: &str) -> Result<()> {
        self.gateway.post("/v3/auth/role/add", &json!({ "name": "root" }))?;
        self.gateway.post("/v3/auth/user/add", &json!({ "name": "root", "password": password }))?;
        self.gateway.post("/v3/auth/user/grant", &json!({ "user": "root", "role": "root" }))?;
        if user != "root" {
            let (start, end) = range_of(prefix);
            let (start, end) = (STANDARD.encode(start), STANDARD.encode(end));
            let permission = json!({ "permType": "READWRITE", "key": start, "range_end": end });
            self.gateway.post("/v3/auth/role/add", &json!({ "name": "keys" }))?;
            self.gateway.post("/v3/auth/role/grant", &json!({ "name": "keys", "perm": permission }))?;
            self.gateway.post("/v3/auth/user/add", &json!({ "name": user, "password": password }))?;
            self.gateway.post("/v3/auth/user/grant", &json!({ "user": user, "role": "keys" }))?;
        }
        self.gateway.post("/v3/auth/enable", &json!({}))?;
        self.gateway.login = Some(("root".to_owned(), password.to_owned()));
        Ok(())
    }

    /// Does what `etcdctl` does with these words, as `root` once [authentication](Self::enable_auth) is on. Only
    /// `user add`, `user grant-role`, `role add`, and `role grant-permission` with `--prefix`.
    ///
    /// # Errors
    ///
    /// For other words, and when the server refuses.
    pub fn etcdctl(&self, words: &[&str]) -> Result<()> {
        let (path, body) = match words {
            ["role", "add", role] => ("/v3/auth/role/add", json!({ "name": role })),
            ["role", "grant-permission", role, rights, prefix, "--prefix"] => {
                let (start, end) = range_of(prefix);
                let (start, end) = (STANDARD.encode(start), STANDARD.encode(end));
                let permission = json!({ "permType": rights.to_uppercase(), "key": start, "range_end": end });
                ("/v3/auth/role/grant", json!({ "name": role, "perm": permission }))
            }
            ["user", "add", user] => {
                let (name, password) = user.split_once(':').context("USER:PASSWORD")?;
                ("/v3/auth/user/add", json!({ "name": name, "password": password }))
            }
            ["user", "grant-role", user, role] => {
                ("/v3/auth/user/grant", json!({ "user": user, "role": role }))
            }
            _ => bail!("not known here: etcdctl {}", words.join(" ")),
        };
        self.gateway.post(path, &body).map(drop)
    }

    /// Invalidates all logins of `user`, whose password is `password`.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub fn expire_logins(&self, user: &str, password: &str) -> Result<()> {
        // This invalidates them even though the password stays the same.
        self.gateway.post("/v3/auth/user/changepw", &json!({ "name": user, "password": password })).map(drop)
    }

    /// Compacts all history up to now.
    ///
    /// # Errors
    ///
    /// When the server refuses, for example a second compaction at the same revision.
    pub fn compact(&self) -> Result<()> {
        let now = self.gateway.post("/v3/maintenance/status", &json!({}))?["header"]["revision"].take();
        self.gateway.post("/v3/kv/compaction", &json!({ "revision": now, "physical": true })).map(drop)
    }

    /// Raises (`true`) or clears the NOSPACE alarm: while it is raised, the server refuses writes as a full store does.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub fn set_no_space(&self, is_full: bool) -> Result<()> {
        let action = if is_full { "ACTIVATE" } else { "DEACTIVATE" };
        let member = self.gateway.status()?.member.to_string();
        let alarm = json!({ "action": action, "memberID": member, "alarm": "NOSPACE" });
        self.gateway.post("/v3/maintenance/alarm", &alarm).map(drop)
    }

    /// Returns the server's counters now.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics::parse(&self.gateway.get("/metrics")?))
    }

    /// Returns all keys that start with `prefix` (ASCII, may be empty), oldest first.
    ///
    /// # Errors
    ///
    /// When the server does not answer, or a key is not UTF-8.
    pub fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        let (start, end) = range_of(prefix);
        let answer = self.gateway.post(
            "/v3/kv/range",
            &json!({
                "key": STANDARD.encode(start),
                "range_end": STANDARD.encode(end),
                "keys_only": true,
                "sort_target": "CREATE",
                "sort_order": "ASCEND",
            }),
        )?;
        let keys = answer["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
        keys.iter()
            .map(|kv| {
                let bytes = STANDARD.decode(kv["key"].as_str().unwrap_or_default())?;
                Ok(String::from_utf8(bytes)?)
            })
            .collect()
    }

    /// Returns all keys, each with whether it is attached to a lease.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn leased(&self) -> Result<Vec<(String, bool)>> {
        let leased = |key: String| {
            // One read per key: a reply with keys only may leave the lease out.
            let answer = self.gateway.post("/v3/kv/range", &json!({ "key": STANDARD.encode(&key) }))?;
            let found = answer["kvs"].as_array().and_then(|found| found.first());
            Ok(found.map(|found| (key, found["lease"].as_str().is_some_and(|lease| lease != "0"))))
        };
        self.keys("")?.into_iter().filter_map(|key| leased(key).transpose()).collect()
    }

    /// Returns how many leases there are.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn leases(&self) -> Result<usize> {
        Ok(self.gateway.lease_ids()?.len())
    }

    /// Writes a key, without a lease.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn put(&self, key: &str, value: &str) -> Result<()> {
        let pair = json!({ "key": STANDARD.encode(key), "value": STANDARD.encode(value) });
        self.gateway.post("/v3/kv/put", &pair).map(drop)
    }

    /// Deletes a key as an administrator would. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn delete(&self, key: &str) -> Result<bool> {
        let answer = self.gateway.post("/v3/kv/deleterange", &json!({ "key": STANDARD.encode(key) }))?;
        // 64 bit numbers are strings in this JSON, and a zero is left out.
        Ok(answer["deleted"].as_str().is_some_and(|count| count != "0"))
    }
}
