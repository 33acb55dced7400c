//! 500 buyers ask two processes of the service for 300 items.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use rustix::process::Signal;

use crate::{
    processes::Processes,
    stores::{self, NO_LOCK, Store},
};

const ITEMS: u32 = 300;
const BUYERS: u32 = 500;

/// How many of the buyers ask at the same time.
const AT_A_TIME: u32 = 50;

/// How many buyers got which answer.
#[derive(Debug, PartialEq, Eq)]
struct Answers {
    sold: u32,
    sold_out: u32,
}

fn sale(url: &str, argument: Option<&str>) -> Answers {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("shop.db");
    let mut services = Processes::of(url);
    let arguments: Vec<&str> =
        ["127.0.0.1:0", database.to_str().unwrap()].into_iter().chain(argument).collect();
    let addresses: Vec<String> = (0..2)
        .map(|_| {
            services.start("sale_service", &arguments);
            services.line("LISTENING")
        })
        .collect();
    let (sold, sold_out) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for buyers in 0..AT_A_TIME {
            let (address, sold, sold_out) = (&addresses[buyers as usize % 2], &sold, &sold_out);
            scope.spawn(move || {
                for _ in 0..BUYERS / AT_A_TIME {
                    match buy(address) {
                        200 => sold.fetch_add(1, Ordering::Relaxed),
                        410 => sold_out.fetch_add(1, Ordering::Relaxed),
                        other => panic!("status {other}"),
                    };
                }
            });
        }
    });
    for number in 0..2 {
        services.signal(number, Signal::TERM);
    }
    services.finish();
    Answers { sold: sold.into_inner(), sold_out: sold_out.into_inner() }
}

/// Returns the status of the answer.
fn buy(address: &str) -> u16 {
    let request = ureq::post(format!("http://{address}/items/teapot/sale"));
    let answer = request.config().http_status_as_error(false).build().send_empty().unwrap();
    answer.status().as_u16()
}

#[test]
fn two_services_sell_exactly_what_there_is() {
    stores::on_each(|Store { name, url, .. }| {
        let expected = Answers { sold: ITEMS, sold_out: BUYERS - ITEMS };
        assert_eq!(sale(url, None), expected, "{name}");
    });
}

#[test]
fn two_services_without_a_lock_sell_too_much() {
    let answers = sale(NO_LOCK, Some("--without-lock"));
    assert!(answers.sold > ITEMS, "{answers:?}");
}
