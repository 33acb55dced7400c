//! The statements of `docs/fencing.md`, with tokens of real grants, on PostgreSQL and SQLite.
//!
//! Most tests run a second time with a statement that lacks one part, and show what goes wrong without it.
#![cfg(test)]
#![allow(clippy::expect_used, reason = "helpers of tests are not recognised as tests")]

mod concurrent;
mod recipe;
mod store;

use self::{
    recipe::Recipe,
    store::{Reply, Store},
};

/// The tokens of so many grants of one lock, which two clients get in turn.
async fn grants(name: &str, count: usize) -> Vec<i64> {
    let one = lockkit::connect("memory:").await.expect("a client");
    let other = lockkit::connect("memory:").await.expect("a client");
    let mut tokens = Vec::new();
    for client in [one, other].iter().cycle().take(count) {
        let guard = client.lock(name).expect("a name").acquire().await.expect("a grant");
        tokens.push(i64::try_from(guard.token().get()).expect("tokens are below 2^63"));
        guard.release().await.expect("released");
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    tokens
}

/// Runs a statement of the recipe on the row `a`.
fn call(store: &Store, name: &str, token: i64, body: &str) -> Reply {
    store.run(&store.call(name, &["'a'", &token.to_string(), &format!("'{body}'")]))
}

/// Creates the row `a` as it is before the first grant.
fn create(store: &Store) {
    store.run("INSERT INTO resource (id, body) VALUES ('a', 'first');\n");
}

/// Token and content of the row `a`.
fn row(store: &Store) -> Vec<String> {
    store.run("SELECT token, body FROM resource WHERE id = 'a';\n").rows
}

#[test]
fn every_statement_of_the_document_is_tested() {
    let expected = [
        "fences (PostgreSQL, SQLite)",
        "outcome (PostgreSQL)",
        "outcome (SQLite)",
        "pass (PostgreSQL, SQLite)",
        "raise (PostgreSQL, SQLite)",
        "table (PostgreSQL, SQLite)",
        "upsert (PostgreSQL, SQLite)",
        "write (PostgreSQL, SQLite)",
    ];
    assert_eq!(Recipe::read().titles(), expected);
}

#[tokio::test]
async fn late_write_of_an_older_grant_is_refused() {
    let [old, new] = grants("late write", 2).await[..] else { unreachable!() };
    let recipe = Recipe::read();
    for store in Store::both(&recipe) {
        create(&store);
        for (token, body) in [(old, "x"), (new, "y"), (new, "z")] {
            assert_eq!(call(&store, "write", token, body).changed, 1, "{body} {store}");
        }
        assert_eq!(call(&store, "write", old, "late").changed, 0, "{store}");
        assert_eq!(row(&store), [format!("{new}|z")], "{store}");
    }
    for store in Store::both(&recipe.clone().with("write", " AND token <= $2", "")) {
        create(&store);
        call(&store, "write", new, "y");
        call(&store, "write", old, "late");
        assert_eq!(row(&store), [format!("{old}|late")], "without the condition: {store}");
    }
    for store in Store::both(&recipe.with("write", "<=", "<")) {
        create(&store);
        call(&store, "write", new, "y");
        assert_eq!(call(&store, "write", new, "z").changed, 0, "a second write: {store}");
    }
}

#[tokio::test]
async fn upsert_creates_the_row_and_refuses_older_grants() {
    let [old, new] = grants("upsert", 2).await[..] else { unreachable!() };
    let recipe = Recipe::read();
    for store in Store::both(&recipe) {
        for (token, body) in [(old, "x"), (new, "y"), (new, "z")] {
            assert_eq!(call(&store, "upsert", token, body).changed, 1, "{body} {store}");
        }
        assert_eq!(call(&store, "upsert", old, "late").changed, 0, "{store}");
        assert_eq!(row(&store), [format!("{new}|z")], "{store}");
        store.run("DELETE FROM resource;\n");
        assert_eq!(call(&store, "upsert", old, "late").changed, 1, "the fence went with the row: {store}");
    }
    for store in Store::both(&recipe.with("upsert", "WHERE resource.token <= EXCLUDED.token", "")) {
        call(&store, "upsert", new, "y");
        call(&store, "upsert", old, "late");
        assert_eq!(row(&store), [format!("{old}|late")], "without the condition: {store}");
    }
}

#[tokio::test]
async fn missing_row_is_distinguished_from_a_stale_token() {
    let [old, new] = grants("outcome", 2).await[..] else { unreachable!() };
    let recipe = Recipe::read();
    for store in Store::both(&recipe) {
        assert_eq!(call(&store, "outcome", new, "y").rows, ["missing|"], "{store}");
        create(&store);
        for (token, body) in [(old, "x"), (new, "y"), (new, "z")] {
            let written = [format!("written|{token}")];
            assert_eq!(call(&store, "outcome", token, body).rows, written, "{store}");
        }
        assert_eq!(call(&store, "outcome", old, "late").rows, [format!("stale|{new}")], "{store}");
        assert_eq!(row(&store), [format!("{new}|z")], "{store}");
    }
    for guard in [" AND resource.token <= $2", " AND token <= $2"] {
        let [postgres, sqlite] = [Store::postgres, Store::sqlite];
        let start = if guard.contains("resource") { postgres } else { sqlite };
        let store = start(&recipe.clone().with("outcome", guard, ""));
        create(&store);
        call(&store, "outcome", new, "y");
        let written = [format!("written|{old}")];
        assert_eq!(call(&store, "outcome", old, "late").rows, written, "without the condition: {store}");
    }
}

#[tokio::test]
async fn raised_fence_refuses_older_grants_before_the_first_write() {
    let [old, new] = grants("raise", 2).await[..] else { unreachable!() };
    let recipe = Recipe::read();
    for store in Store::both(&recipe) {
        create(&store);
        // The new grant is made, and the database does not know it yet.
        assert_eq!(call(&store, "write", old, "x").changed, 1, "{store}");
        assert_eq!(call(&store, "raise", new, "").rows, ["x"], "{store}");
        assert_eq!(call(&store, "write", old, "late").changed, 0, "{store}");
        assert_eq!(call(&store, "raise", old, "").rows, [""; 0], "{store}");
        assert_eq!(row(&store), [format!("{new}|x")], "{store}");
    }
    for store in Store::both(&recipe.clone().with("raise", "SET token = $2", "SET token = token")) {
        create(&store);
        call(&store, "raise", new, "");
        assert_eq!(call(&store, "write", old, "late").changed, 1, "only read: {store}");
    }
    for store in Store::both(&recipe.with("raise", " AND token <= $2", "")) {
        create(&store);
        call(&store, "raise", new, "");
        assert_eq!(call(&store, "raise", old, "").rows, ["first"], "without the condition: {store}");
    }
}

#[tokio::test]
async fn one_fence_guards_several_rows() {
    let [old, new] = grants("several rows", 2).await[..] else { unreachable!() };
    let recipe = Recipe::read();
    let transaction = |store: &Store, token: i64| {
        let mut session = store.session();
        let pass = store.call("pass", &["'the lock'", &token.to_string()]);
        let has_passed = !session.ask(&(store.begin() + &pass)).is_empty();
        let write = format!("UPDATE resource SET body = '{token}';\nCOMMIT;\n");
        session.send(if has_passed { &write } else { "ROLLBACK;\n" });
        session.reply().expect("the transaction ends");
        has_passed
    };
    for store in Store::both(&recipe) {
        store.run("INSERT INTO resource (id) VALUES ('a'), ('b');\n");
        let passed = [old, new, new, old].map(|token| transaction(&store, token));
        assert_eq!(passed, [true, true, true, false], "{store}");
        assert_eq!(store.run("SELECT body FROM resource;\n").rows, [new, new].map(|token| token.to_string()));
    }
    for store in Store::both(&recipe.with("pass", "WHERE fence.token <= EXCLUDED.token", "")) {
        let passed = [new, old].map(|token| transaction(&store, token));
        assert_eq!(passed, [true, true], "without the condition: {store}");
    }
}

#[test]
fn tokens_up_to_the_largest_are_compared_as_numbers() {
    for store in Store::both(&Recipe::read()) {
        create(&store);
        for (token, changed) in [(9, 1), (10, 1), (9, 0), (i64::MAX, 1), (i64::MAX - 1, 0)] {
            assert_eq!(call(&store, "write", token, "x").changed, changed, "{token} {store}");
        }
        assert_eq!(row(&store), [format!("{}|x", i64::MAX)], "{store}");
    }
}
