//! Statements that meet others at the same row.

use crate::{
    create, grants,
    recipe::Recipe,
    row,
    store::{Session, Store},
};

/// Writers at a time.
const WRITERS: usize = 20;

/// Attempts to see what writers without a fence do.
const ATTEMPTS_MAX: usize = 5;

/// Starts a statement of the recipe on the row `a`.
fn start(store: &Store, name: &str, token: i64) -> Session {
    store.start(&store.call(name, &["'a'", &token.to_string(), &format!("'by {token}'")]))
}

/// Starts the statement with the token `old` while a transaction that has raised the fence to `new` is open. Then that
/// one ends with `end`. Returns the rows of the statement, and how many it has changed.
fn while_raised(store: &Store, [old, new]: [i64; 2], name: &str, end: &str) -> (Vec<String>, u32) {
    create(store);
    let mut newer = store.session();
    let raise = store.call("raise", &["'a'", &new.to_string()]);
    assert_eq!(newer.ask(&(store.begin() + &raise)), ["first"]);
    let older = start(store, name, old);
    store.wait_until_blocked(1);
    newer.ask(end);
    let reply = older.reply().expect("it runs");
    store.run("DELETE FROM resource;\n");
    (reply.rows, reply.changed)
}

#[tokio::test]
async fn statement_that_waited_for_a_newer_grant_sees_its_token() {
    let [old, new] = grants("waited", 2).await[..] else { unreachable!() };
    let recipe = Recipe::read();
    let store = Store::postgres(&recipe);
    for (end, outcome, changed) in [
        ("COMMIT;\n", format!("stale|{new}"), 0),
        ("ROLLBACK;\n", format!("written|{old}"), 1),
        ("DELETE FROM resource;\nCOMMIT;\n", "missing|".to_owned(), 0),
    ] {
        assert_eq!(while_raised(&store, [old, new], "outcome", end).0, [outcome], "{end}");
        assert_eq!(while_raised(&store, [old, new], "write", end).1, changed, "{end}");
    }
    for (end, changed) in [("COMMIT;\n", 0), ("ROLLBACK;\n", 1)] {
        assert_eq!(while_raised(&store, [old, new], "upsert", end).1, changed, "{end}");
    }
    let unlocked = Store::postgres(&recipe.with("outcome", " FOR UPDATE", ""));
    let (rows, _) = while_raised(&unlocked, [old, new], "outcome", "DELETE FROM resource;\nCOMMIT;\n");
    assert_eq!(rows, ["stale|0"], "without the lock");
}

#[tokio::test]
async fn transaction_behind_a_fence_waits_for_the_one_that_has_passed() {
    let [old, new] = grants("pass", 2).await[..] else { unreachable!() };
    let store = Store::postgres(&Recipe::read());
    let pass = |token: i64| store.begin() + &store.call("pass", &["'the lock'", &token.to_string()]);
    let mut newer = store.session();
    assert_eq!(newer.ask(&pass(new)), [new.to_string()]);
    let older = store.start(&pass(old));
    store.wait_until_blocked(1);
    newer.ask("COMMIT;\n");
    assert_eq!(older.reply().expect("it runs").rows, [""; 0]);
}

#[tokio::test]
async fn stricter_isolation_fails_after_waiting_and_a_repetition_is_refused() {
    let [old, new] = grants("isolation", 2).await[..] else { unreachable!() };
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let store = Store::postgres(&Recipe::read());
        create(&store);
        let write = store.call("write", &["'a'", &old.to_string(), "'late'"]);
        let begin = format!("BEGIN ISOLATION LEVEL {level};\n");
        let mut newer = store.session();
        newer.ask(&(store.begin() + &store.call("raise", &["'a'", &new.to_string()])));
        let older = store.start(&(begin.clone() + &write));
        store.wait_until_blocked(1);
        newer.ask("COMMIT;\n");
        let error = older.reply().expect_err(level);
        assert!(error.contains("40001"), "{error}");
        assert_eq!(store.run(&(begin + &write)).changed, 0, "{level}");
    }
}

/// The tokens of grants, larger ones first; each half rises.
async fn larger_half_first(name: &str) -> Vec<i64> {
    let mut tokens = grants(name, WRITERS).await;
    tokens.rotate_left(WRITERS / 2);
    tokens
}

#[tokio::test]
async fn concurrent_writers_leave_the_largest_token() {
    let tokens = larger_half_first("writers").await;
    let largest = tokens.iter().max().expect("tokens");
    for name in ["write", "upsert", "outcome"] {
        for store in Store::both(&Recipe::read()) {
            if name != "upsert" {
                create(&store);
            }
            let writers: Vec<Session> = tokens.iter().map(|token| start(&store, name, *token)).collect();
            for writer in writers {
                writer.reply().expect("each statement runs");
            }
            assert_eq!(row(&store), [format!("{largest}|by {largest}")], "{name} {store}");
        }
    }
}

#[tokio::test]
async fn writers_in_a_queue_for_the_row_leave_the_largest_token() {
    let tokens = larger_half_first("queue").await;
    let largest = tokens.iter().max().expect("tokens");
    let last = |store: &Store| {
        create(store);
        let mut first = store.session();
        first.ask("BEGIN;\nSELECT FROM resource FOR UPDATE;\n");
        let mut writers = Vec::new();
        for half in tokens.chunks(WRITERS / 2) {
            writers.extend(half.iter().map(|token| start(store, "write", *token)));
            store.wait_until_blocked(writers.len());
        }
        first.ask("COMMIT;\n");
        for writer in writers {
            writer.reply().expect("each statement runs");
        }
        row(store)
    };
    let recipe = Recipe::read();
    let expected = [format!("{largest}|by {largest}")];
    assert_eq!(last(&Store::postgres(&recipe)), expected);
    let unguarded = recipe.with("write", " AND token <= $2", "");
    // On a busy machine the queue may change its order, and the largest one be the last by chance.
    let mut attempts = (0..ATTEMPTS_MAX).map(|_| last(&Store::postgres(&unguarded)));
    assert!(attempts.any(|row| row != expected), "without the condition");
}
