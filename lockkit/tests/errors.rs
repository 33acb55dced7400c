//! Errors in the hands of a program that uses anyhow.

use std::error::Error as _;

#[tokio::test]
async fn a_report_of_an_error_names_its_cause_once() {
    let error = lockkit::connect("memory:?ttl=soon").await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    for report in [format!("{error:#}"), format!("{:#}", anyhow::Error::from(error))] {
        assert_eq!(report.matches(&cause).count(), 1, "{report}");
    }
}
