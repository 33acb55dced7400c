//! Tests of what Sentinels with different epochs show.

use futures_util::future::join_all;
use lockkit_conformance::direct::HANG;

use super::*;
use crate::{tests::scripted::scripted_sentinel, topology::Login};

fn master(epoch: u64, port: u16) -> Master {
    Master { epoch, address: Address::Tcp("h".to_owned(), port) }
}

fn listener(addresses: Vec<Address>) -> SentinelListener {
    SentinelListener {
        sentinels: Sentinels { addresses, master: String::new() },
        dialer: Dialer { login: Login::default(), tls: None, timeout: 2 * HANG },
        address: master(0, 9).address,
        current: master(5, 1),
    }
}

#[tokio::test]
async fn master_of_the_same_epoch_replaces_another_if_most_sentinels_name_it() {
    for (ports, is_replaced) in [([1, 2, 2], true), ([1, 1, 2], false)] {
        let sentinels = ports.map(|port| scripted_sentinel(5, "h", port));
        let listener = listener(join_all(sentinels).await);
        assert_eq!(listener.is_replaced_by(&master(5, 2)).await, is_replaced, "{ports:?}");
    }
}

#[tokio::test]
async fn failover_after_all_sentinels_lost_their_state_replaces_the_master() {
    for (named, is_replaced) in [
        ([(1, 2), (1, 2), (1, 2)], true),
        ([(1, 2), (1, 2), (5, 1)], false),
        ([(1, 2), (0, 1), (0, 1)], false),
    ] {
        let listener =
            listener(join_all(named.map(|(epoch, port)| scripted_sentinel(epoch, "h", port))).await);
        assert_eq!(listener.is_replaced_by(&master(1, 2)).await, is_replaced, "{named:?}");
    }
}

/// A Sentinel that was cut off names the master of its time.
#[tokio::test]
async fn only_a_later_epoch_replaces_a_master() {
    let listener = listener(Vec::new());
    for (epoch, port, is_replaced) in [(4, 2, false), (5, 1, false), (6, 1, false), (6, 2, true)] {
        assert_eq!(listener.is_replaced_by(&master(epoch, port)).await, is_replaced, "{epoch} {port}");
    }
}

#[test]
fn answer_with_the_highest_epoch_counts() {
    let newest = |named: &[(u64, u16)]| {
        newest(named.iter().map(|&(epoch, port)| master(epoch, port)).collect()).map(|master| master.address)
    };
    let at = |port| Address::Tcp("h".to_owned(), port);
    assert_eq!(newest(&[(1, 1), (1, 1), (2, 2)]).unwrap(), at(2));
    assert_eq!(newest(&[(2, 1), (2, 2), (2, 2)]).unwrap(), at(2));
    assert_eq!(newest(&[(2, 2), (2, 1), (2, 2), (3, 3)]).unwrap(), at(3));
    for disagreement in [&[(2, 1), (2, 2)][..], &[(2, 2), (2, 1), (1, 1)]] {
        let fault = newest(disagreement).unwrap_err();
        assert!(fault.is_transient() && fault.message().contains("h:1"), "{fault:?}");
    }
}
