//! Proxies of one client in front of servers that report each other's addresses: Sentinels and their nodes, or the
//! nodes of a cluster.
//!
//! Each proxy has the port of its server and a host of its own. In what the servers report, the proxies replace the
//! host of a server by that of its proxy, so a client that begins at a proxy never learns how to bypass them.

use std::net::{SocketAddrV4, TcpListener};

use anyhow::{Context, Result};

use super::{Protocol, Proxy};
use crate::{address::own_address, sync::lock};

/// How many hosts are tried until one has the port of the server free.
const HOSTS_MAX: usize = 5;

impl Proxy {
    /// As [`start_redis`](Self::start_redis), a proxy in front of each of these servers, in the same order. Clients of
    /// one of them never learn an address of the servers, but only those of the proxies.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and when a server has no address such as `127.3.9.1:40001`.
    pub fn start_redis_group(servers: &[String]) -> Result<Vec<Self>> {
        let mut hosts = Hosts::default();
        let mut proxies = Vec::new();
        for server in servers {
            let address: SocketAddrV4 = server.parse().with_context(|| format!("no address: {server}"))?;
            let listener = listener_at(address.port())?;
            hosts.0.push((address.ip().to_string(), listener.local_addr()?.ip().to_string()));
            proxies.push(Self::start_on(listener, server.clone(), Protocol::Redis)?);
        }
        for proxy in &proxies {
            lock(&proxy.shared.rules).hosts = hosts.clone();
        }
        Ok(proxies)
    }
}

/// Listens at this port of a host of its own.
fn listener_at(port: u16) -> Result<TcpListener> {
    let listeners = (0..HOSTS_MAX).map(|_| TcpListener::bind((own_address(), port)));
    listeners.flatten().next().context("the port of the server is free at no other host")
}

/// The hosts of servers, each with that of its proxy.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts(Vec<(String, String)>);

impl Hosts {
    /// Replaces the hosts of servers in a value of Redis, also in the values that it consists of.
    pub(super) fn replaced(&self, value: Vec<u8>) -> Vec<u8> {
        if self.0.is_empty() {
            return value;
        }
        let (mut left, mut replaced) = (&value[..], Vec::with_capacity(value.len()));
        while let Some(end) = left.windows(2).position(|window| window == b"\r\n") {
            let (line, rest) = left.split_at(end + 2);
            left = rest;
            let length = line.get(1..end).and_then(|length| std::str::from_utf8(length).ok()?.parse().ok());
            match (line[0], length) {
                (kind @ (b'$' | b'!' | b'='), Some(length)) => {
                    let (text, rest) = left.split_at(left.len().min(length));
                    let text = self.replaced_in(text);
                    replaced.push(kind);
                    replaced.extend(format!("{}\r\n", text.len()).bytes());
                    replaced.extend(text);
                    replaced.extend(b"\r\n");
                    left = rest.get(2..).unwrap_or_default();
                }
                // Errors that redirect to another node are lines.
                _ => replaced.extend(self.replaced_in(line)),
            }
        }
        replaced
    }

    fn replaced_in(&self, text: &[u8]) -> Vec<u8> {
        let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.');
        let (mut replaced, mut at) = (Vec::with_capacity(text.len()), 0);
        while at < text.len() {
            let starts = at == 0 || !is_part(text.get(at - 1));
            let found = self.0.iter().filter(|_| starts).find(|(server, _)| {
                text[at..].starts_with(server.as_bytes()) && !is_part(text.get(at + server.len()))
            });
            match found {
                Some((server, proxy)) => {
                    replaced.extend(proxy.bytes());
                    at += server.len();
                }
                None => {
                    replaced.push(text[at]);
                    at += 1;
                }
            }
        }
        replaced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(value: &str) -> String {
        let pair = |server: &str, proxy: &str| (server.to_owned(), proxy.to_owned());
        let hosts = Hosts(vec![pair("127.0.0.1", "127.0.0.200"), pair("127.0.0.200", "127.0.0.3")]);
        String::from_utf8(hosts.replaced(value.as_bytes().to_vec())).unwrap()
    }

    #[test]
    fn hosts_are_replaced_once_in_values_of_each_kind() {
        for (server, proxy) in [
            ("-MOVED 3999 127.0.0.1:6381\r\n", "-MOVED 3999 127.0.0.200:6381\r\n"),
            ("*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6381\r\n", "*2\r\n$11\r\n127.0.0.200\r\n$4\r\n6381\r\n"),
            ("*1\r\n*2\r\n:0\r\n$11\r\n127.0.0.200\r\n", "*1\r\n*2\r\n:0\r\n$9\r\n127.0.0.3\r\n"),
            (
                ">3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$36\r\nmain 127.0.0.1 6381 127.0.0.200 6382\r\n",
                ">3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$36\r\nmain 127.0.0.200 6381 127.0.0.3 6382\r\n",
            ),
        ] {
            assert_eq!(replaced(server), proxy);
        }
    }

    #[test]
    fn other_values_stay_as_they_are() {
        for value in [
            "$-1\r\n",
            "_\r\n",
            "$0\r\n\r\n",
            ":127\r\n",
            "$10\r\n127.0.0.12\r\n",
            "$10\r\n1127.0.0.1\r\n",
            "%1\r\n+a\r\n$4\r\na\r\nb\r\n",
        ] {
            assert_eq!(replaced(value), value);
        }
    }
}
