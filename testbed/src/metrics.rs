//! A server's own counters.

/// etcd's gauge of registered watchers.
const WATCHERS: &str = "etcd_debugging_mvcc_watcher_total";

/// The counters and gauges of a server at one moment.
#[derive(Clone, Debug)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// Reads the text format of Prometheus, or the lines of ZooKeeper's `mntr`.
    pub(crate) fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            let (series, value) = line.rsplit_once([' ', '\t'])?;
            Some((series.to_owned(), value.parse().ok()?))
        };
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    /// Returns the sum over all series of `metric` whose labels contain each of `labels`, such as `grpc_method="Txn"`.
    /// A counter that was never incremented is 0.
    pub fn sum(&self, metric: &str, labels: &[&str]) -> u64 {
        let matches = |series: &str| {
            let (name, rest) = series.split_once('{').unwrap_or((series, ""));
            name == metric && labels.iter().all(|label| rest.contains(label))
        };
        self.0.iter().filter(|(series, _)| matches(series)).map(|(_, value)| *value as u64).sum()
    }

    /// etcd: whether no watcher is registered, and the server counts none that it never had.
    pub(crate) fn has_no_watchers(&self) -> bool {
        self.0.iter().all(|(series, value)| series != WATCHERS || *value == 0.0)
    }

    /// etcd: requests of one gRPC method (`Txn`, `Range`, `LeaseGrant`, ...) that were answered, successfully or not.
    pub fn grpc_handled(&self, method: &str) -> u64 {
        self.sum("grpc_server_handled_total", &[&format!("grpc_method=\"{method}\"")])
    }

    /// etcd: messages received on the streams of one gRPC method (`Watch`, `LeaseKeepAlive`).
    pub fn grpc_received(&self, method: &str) -> u64 {
        self.sum("grpc_server_msg_received_total", &[&format!("grpc_method=\"{method}\"")])
    }

    /// etcd: consensus proposals that were committed.
    pub fn proposals(&self) -> u64 {
        self.sum("etcd_server_proposals_committed_total", &[])
    }

    /// etcd: events that were sent to watchers.
    pub fn events(&self) -> u64 {
        self.sum("etcd_debugging_mvcc_events_total", &[])
    }

    /// etcd: registered watchers.
    pub fn watchers(&self) -> u64 {
        self.sum(WATCHERS, &[])
    }

    /// etcd: watchers that do not get events at once, because they began at an earlier revision or are too slow.
    pub fn unsynced_watchers(&self) -> u64 {
        self.sum("etcd_debugging_mvcc_slow_watcher_total", &[])
    }

    /// etcd: open streams, of watches and heartbeats.
    pub fn streams(&self) -> u64 {
        self.open_calls(&["grpc_type=\"bidi_stream\""])
    }

    /// etcd: open streams, and requests that are not answered yet, with these labels.
    pub(crate) fn open_calls(&self, labels: &[&str]) -> u64 {
        let started = self.sum("grpc_server_started_total", labels);
        started.saturating_sub(self.sum("grpc_server_handled_total", labels))
    }

    /// ZooKeeper: packets from clients, including pings and requests for these counters.
    pub fn packets_received(&self) -> u64 {
        self.sum("zk_packets_received", &[])
    }

    /// ZooKeeper: packets to clients.
    pub fn packets_sent(&self) -> u64 {
        self.sum("zk_packets_sent", &[])
    }

    /// ZooKeeper: nodes in the tree.
    pub fn nodes(&self) -> u64 {
        self.sum("zk_znode_count", &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_label() {
        let metrics = Metrics::parse(
            "# TYPE grpc_server_handled_total counter\n\
             grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\"} 3\n\
             grpc_server_handled_total{grpc_code=\"Internal\",grpc_method=\"Txn\"} 1\n\
             grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Range\"} 7\n\
             etcd_server_proposals_committed_total 1.2e+01\n",
        );
        assert_eq!(metrics.grpc_handled("Txn"), 4);
        assert_eq!(metrics.grpc_handled("Watch"), 0);
        assert_eq!(metrics.proposals(), 12);
    }

    #[test]
    fn counters_of_zookeeper_are_parsed() {
        let metrics =
            Metrics::parse("zk_version\t3.8.0, built on UTC\nzk_packets_received\t3\nzk_avg_latency\t6.0\n");
        assert_eq!(metrics.packets_received(), 3);
    }
}
