//! The example `prometheus` is run and scraped: it shows the metrics of the documentation, and every query of the
//! dashboard finds data.
//!
//! `LOCKKIT_PICTURE=SECONDS` runs it for so long on a Redis that is stopped twice, and draws
//! `docs/dashboards/lockkit.svg` from what was scraped.
#![allow(clippy::unwrap_used, reason = "helpers of tests are not seen as tests")]

mod picture;
#[path = "../../examples/prometheus.rs"]
#[allow(dead_code, reason = "the test starts it at `run`")]
mod prometheus;
mod query;
mod scrape;

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use lockkit_testbed::Redis;
use picture::Panel;
use query::Query;
use scrape::Scrape;
use serde_json::Value;
use tokio::sync::oneshot;

/// The pause between two scrapes.
const PAUSE: Duration = Duration::from_millis(500);

/// Bound of what takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(60);

fn path(in_project: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(in_project)
}

fn read(in_project: &str) -> String {
    fs::read_to_string(path(in_project)).unwrap()
}

/// Returns the names of the table in the documentation, as Prometheus shows them.
fn documented() -> BTreeSet<String> {
    let source = read("lockkit-core/src/metrics.rs");
    let rows = source.lines().filter_map(|line| line.strip_prefix("//! | `lockkit."));
    let names = rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let suffix = match (cells[1], cells[2]) {
            ("histogram", unit) => format!("_{unit}"),
            ("counter", _) => "_total".into(),
            _ => String::new(),
        };
        format!("lockkit_{}{suffix}", cells[0].trim_matches('`').replace('.', "_"))
    });
    names.collect()
}

/// Returns the names of metrics in a text, without the suffixes of the parts of a histogram.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    // A target of logs looks alike.
    let names = words.filter(|word| word.starts_with("lockkit_") && *word != "lockkit_core");
    names.map(|name| scrape::metric_of(name).to_owned()).collect()
}

fn panels() -> Vec<Panel> {
    let dashboard: Value = serde_json::from_str(&read("docs/dashboards/lockkit.json")).unwrap();
    dashboard["panels"].as_array().unwrap().iter().map(Panel::new).collect()
}

/// Scrapes the example until `enough`, at a regular pace.
async fn scrape_example(url: &str, mut enough: impl FnMut(&[Scrape]) -> bool) -> Vec<Scrape> {
    let address = free_address();
    let (stop, stopped) = oneshot::channel();
    let url = url.to_owned();
    let service = tokio::spawn(async move {
        let stop = async { Ok(stopped.await?) };
        prometheus::run(&url, address, stop).await
    });
    let (start, mut scrapes) = (Instant::now(), Vec::new());
    let mut ticks = tokio::time::interval(PAUSE);
    while !enough(&scrapes) {
        assert!(!service.is_finished(), "{:?}", service.await);
        ticks.tick().await;
        let text = tokio::task::spawn_blocking(move || get(address)).await.unwrap();
        scrapes.extend(text.map(|text| Scrape::parse(start.elapsed(), &text)));
    }
    stop.send(()).unwrap();
    tokio::time::timeout(PATIENCE, service).await.unwrap().unwrap().unwrap();
    scrapes
}

/// Returns `None` while nobody listens.
fn get(address: SocketAddr) -> Option<String> {
    let response = ureq::get(format!("http://{address}/metrics")).call();
    response.ok().map(|mut response| response.body_mut().read_to_string().unwrap())
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn example_shows_the_documented_metrics_and_every_panel_has_data() {
    let documented = documented();
    assert_eq!(documented.len(), 11, "{documented:?}");
    let panels = panels();
    let scrapes = match std::env::var("LOCKKIT_PICTURE") {
        Ok(seconds) => scrape_through_outages(seconds.parse().unwrap()).await,
        Err(_) => {
            let start = Instant::now();
            let enough = |scrapes: &[Scrape]| {
                assert!(start.elapsed() < PATIENCE, "{documented:?} are not all in {:?}", scrapes.last());
                // The queries look back over several scrapes, so the last metric must have come before these.
                let before = scrapes.iter().rev().nth(query::WINDOW);
                scrapes.len() > 2 * query::WINDOW && before.is_some_and(|one| one.metrics == documented)
            };
            scrape_example("memory:prometheus?ttl=2s", enough).await
        }
    };
    let shown = &scrapes.last().unwrap().metrics;
    assert_eq!(shown, &documented, "metrics that lockkit shows, and those of the table");
    for panel in &panels {
        for query in &panel.queries {
            let points: usize = query.evaluate(&scrapes).values().map(Vec::len).sum();
            assert!(points > 0, "{}: no data for {query:?}", panel.title);
        }
    }
    let picture = picture::draw(&panels, &scrapes);
    assert!(panels.iter().all(|panel| picture.contains(&panel.title.replace('&', "&amp;"))));
    if std::env::var("LOCKKIT_PICTURE").is_ok() {
        fs::write(path("docs/dashboards/lockkit.svg"), picture).unwrap();
    }
}

/// Scrapes for so many seconds, in which the store is stopped for less and then for more than a ttl.
async fn scrape_through_outages(seconds: u64) -> Vec<Scrape> {
    let redis = Redis::start().unwrap();
    let (start, time) = (Instant::now(), Duration::from_secs(seconds));
    let outages =
        [(time / 4, time / 4 + picture::OUTAGES[0]), (time * 5 / 8, time * 5 / 8 + picture::OUTAGES[1])];
    let mut is_stopped = false;
    scrape_example(&format!("{}?ttl={}s", redis.url(), picture::TTL.as_secs()), |_| {
        let now = start.elapsed();
        if is_stopped != outages.iter().any(|(from, until)| (*from..*until).contains(&now)) {
            is_stopped = !is_stopped;
            if is_stopped { redis.pause().unwrap() } else { redis.resume().unwrap() }
        }
        now >= time
    })
    .await
}

/// A metric that was renamed would leave an empty panel, or an alert that never fires.
#[test]
fn dashboard_and_alerts_name_only_metrics_that_exist() {
    let documented = documented();
    for file in ["docs/dashboards/lockkit.json", "docs/observability.md", "README.md"] {
        let named = names_in(&read(file));
        assert!(named.is_subset(&documented), "{file}: {:?}", named.difference(&documented));
    }
    let in_dashboard = names_in(&read("docs/dashboards/lockkit.json"));
    let not_shown = documented.difference(&in_dashboard).map(String::as_str).collect::<Vec<_>>();
    assert_eq!(not_shown, ["lockkit_hold_duration_seconds", "lockkit_sessions_opened_total"]);
}

#[test]
fn quantiles_are_those_of_prometheus() {
    let scrape = |at, counts: [u32; 3]| {
        let [one, two, all] = counts;
        let text = format!(
            "# TYPE lockkit_x_seconds histogram\n\
             lockkit_x_seconds_bucket{{scheme=\"memory\",le=\"1\"}} {one}\n\
             lockkit_x_seconds_bucket{{scheme=\"memory\",le=\"2\"}} {two}\n\
             lockkit_x_seconds_bucket{{scheme=\"memory\",le=\"+Inf\"}} {all}\n"
        );
        Scrape::parse(Duration::from_secs(at), &text)
    };
    let scrapes: Vec<_> = (0..=query::WINDOW as u64).map(|at| scrape(at, [10, 10, 10])).collect();
    let scrapes = [&scrapes[..], &[scrape(query::WINDOW as u64 + 1, [12, 20, 20])]].concat();
    let quantile = |quantile: f64| {
        let text =
            format!("histogram_quantile({quantile}, sum by (le) (rate(lockkit_x_seconds_bucket{{}}[1m])))");
        Query::new(&text, "").evaluate(&scrapes).values().flatten().map(|point| point.1).next_back()
    };
    // Two of the ten are in the first bucket, eight in the second.
    for (asked, expected) in [(0.1, 0.5), (0.6, 1.5)] {
        let found = quantile(asked).unwrap();
        assert!((found - expected).abs() < 1e-9, "{asked}: {found}");
    }
}
