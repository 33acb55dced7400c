//! A Redis server that speaks TLS.

use std::process::Command;

use lockkit_testbed::{Certificates, Redis, ServerCertificate};

/// Returns the output of `redis-cli PING` over TLS.
fn ping(redis: &Redis, authority: &Certificates, more: &[&str]) -> String {
    let endpoint = redis.endpoint();
    let (host, port) = endpoint.split_once(':').unwrap();
    let ca = authority.ca();
    let output = Command::new("redis-cli")
        .args(["-h", host, "-p", port, "--tls", "--cacert", ca.to_str().unwrap()])
        .args(more)
        .arg("PING")
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn clients_that_trust_the_authority_are_served() {
    let (ours, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let redis = Redis::start_tls(&ours, ServerCertificate::Good, false).unwrap();
    assert!(redis.url().starts_with("rediss://"));
    assert_eq!(ping(&redis, &ours, &[]), "PONG");
    assert_eq!(ping(&redis, &other, &[]), "", "another authority is trusted");
    assert_eq!(redis.cli(&["PING"]).unwrap().text(), "PONG");
}

#[test]
fn clients_that_are_asked_must_show_a_certificate() {
    let ours = Certificates::new().unwrap();
    let redis = Redis::start_tls(&ours, ServerCertificate::Good, true).unwrap();
    assert_ne!(ping(&redis, &ours, &[]), "PONG");
    let client = ours.client().unwrap();
    let (certificate, key) = (client.certificate.to_str().unwrap(), client.key.to_str().unwrap());
    assert_eq!(ping(&redis, &ours, &["--cert", certificate, "--key", key]), "PONG");
}
