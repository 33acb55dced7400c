//! Stores with TLS.

use lockkit_testbed::{Certificates, Redis, ServerCertificate};

use crate::harness::{Home, done};

#[test]
#[cfg_attr(not(all(feature = "redis", feature = "tls")), ignore = "built without the features redis and tls")]
fn store_with_trusted_certificate_is_used() {
    let (home, authority, other) = (Home::new(), Certificates::new().unwrap(), Certificates::new().unwrap());
    let redis = Redis::start_tls(&authority, ServerCertificate::Good, false).unwrap();

    let url = authority.trusted_in(&redis.url());
    let trusted = done(home.run(&["--backend", &url, "a"], "echo \"$LOCKKIT_NAME\""));
    assert_eq!((trusted.status, &*trusted.stdout), (0, "a\n"), "{}", trusted.stderr);

    for url in [redis.url(), other.trusted_in(&redis.url())] {
        let refused = done(home.run(&["--backend", &url, "a"], "echo ran"));
        assert_eq!((refused.status, &*refused.stdout), (77, ""), "{}", refused.stderr);
        assert!(refused.message().contains("UnknownIssuer"), "{}", refused.stderr);
    }
}
