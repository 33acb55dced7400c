//! A key that a claim creates if it is absent: the lock itself in [`Form::Single`](crate::Form::Single), or the guard key
//! in addition to a queue. Its state, and its transactions; no I/O.
//!
//! The key's name does not identify the claim. Its create revision does, and where that is not known, its value, which
//! contains the claim's id.

use std::sync::{Mutex, MutexGuard};

use lockkit_core::{backend::Claim, support::lock};

use crate::{
    client::{Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse},
    error::RequestError,
    keys::LeaseId,
    wire::{Revision, revision_of},
};

/// The key of one claim.
#[derive(Debug)]
pub(crate) struct ExclusiveKey {
    pub(crate) key: String,
    /// The claim's id and its metadata, as one JSON object.
    value: String,
    state: Mutex<KeyState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct KeyState {
    /// The create revision, once a reply has shown it.
    created: Option<Revision>,
    /// Whether a copy of the create may have been executed, or may still be, although no reply has shown the key.
    in_doubt: bool,
}

/// What makes a copy of the create that arrives late do nothing: this compare, and the key that it names.
pub(crate) struct Condition<'a> {
    pub(crate) compare: Compare,
    pub(crate) key: &'a str,
}

/// The reply to [`ExclusiveKey::create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CreateReply {
    /// The key is the claim's, with this create revision.
    Created(Revision),
    /// Another claim or program has the key; the condition's key is as given.
    Exists { key: FoundKey, condition: FoundCondition },
    /// The key is absent, and the condition does not hold.
    ConditionFailed(FoundCondition),
}

/// The key of another claim or program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundKey {
    pub(crate) created: Revision,
    /// The revision of the reply that showed it.
    pub(crate) seen_at: Revision,
}

/// The revisions of the condition's key; 0 if it does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundCondition {
    pub(crate) created: Revision,
    pub(crate) modified: Revision,
}

impl ExclusiveKey {
    pub(crate) fn new(key: String, claim: &Claim) -> Self {
        let metadata = claim.metadata_json();
        let value = format!("{{\"claim\":\"{}\",{}", claim.id(), metadata.strip_prefix('{').unwrap_or("}"));
        Self { key, value, state: Mutex::default() }
    }

    /// Creates the key if it is absent and the condition holds; otherwise reads both.
    pub(crate) fn create(&self, lease: LeaseId, condition: Condition<'_>) -> Txn {
        let keys_only = || Some(GetOptions::new().with_keys_only());
        // Foreign values may be long; the value only matters after a copy that was not answered.
        let found = if self.state().in_doubt { None } else { keys_only() };
        Txn::new()
            .when([Compare::create_revision(&*self.key, CompareOp::Equal, 0), condition.compare])
            .and_then([TxnOp::put(&*self.key, &*self.value, Some(PutOptions::new().with_lease(lease)))])
            .or_else([TxnOp::get(&*self.key, found), TxnOp::get(condition.key, keys_only())])
    }

    /// Parses the reply to [`create`](Self::create).
    pub(crate) fn parse_create(&self, answer: &TxnResponse) -> Result<CreateReply, RequestError> {
        let revision = revision_of(answer.header())?;
        match answer.op_responses().as_slice() {
            [TxnOpResponse::Put] => Ok(CreateReply::Created(revision)),
            [TxnOpResponse::Get(found), TxnOpResponse::Get(condition)] => {
                let condition = condition.kvs().first().map_or_else(FoundCondition::default, |kv| {
                    FoundCondition { created: kv.create_revision(), modified: kv.mod_revision() }
                });
                Ok(match found.kvs().first() {
                    None => CreateReply::ConditionFailed(condition),
                    Some(kv) if self.is_own(kv) => CreateReply::Created(kv.create_revision()),
                    Some(kv) => {
                        let key = FoundKey { created: kv.create_revision(), seen_at: revision };
                        CreateReply::Exists { key, condition }
                    }
                })
            }
            _ => Err(RequestError::unexpected("a reply to another transaction")),
        }
    }

    fn is_own(&self, kv: &KeyValue) -> bool {
        kv.value() == self.value.as_bytes()
    }

    /// Records the create revision that a reply has shown.
    pub(crate) fn set_created(&self, created: Revision) {
        self.state().created = Some(created);
    }

    /// Returns the create revision.
    pub(crate) fn created(&self) -> Option<Revision> {
        self.state().created
    }

    /// Records that a copy of the create was not answered, or with an error that leaves its effect open.
    pub(crate) fn put_in_doubt(&self) {
        self.state().in_doubt = true;
    }

    /// Returns whether the effect of a copy of the create is unknown.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.state().in_doubt
    }

    /// Returns whether the key may exist at the server.
    pub(crate) fn may_exist(&self) -> bool {
        let state = self.state();
        state.created.is_some() || state.in_doubt
    }

    /// Returns the operations that delete the key if it is this claim's, and touch no other's. By its create revision;
    /// after a copy that was not answered also by its value.
    pub(crate) fn removals(&self) -> Vec<TxnOp> {
        let KeyState { created, in_doubt } = *self.state();
        let by_revision =
            created.map(|created| Compare::create_revision(&*self.key, CompareOp::Equal, created));
        let by_value = in_doubt.then(|| Compare::value(&*self.key, CompareOp::Equal, &*self.value));
        let delete = |own: Compare| TxnOp::txn(Txn::new().when([own]).and_then([TxnOp::delete(&*self.key)]));
        by_revision.into_iter().chain(by_value).map(delete).collect()
    }

    fn state(&self) -> MutexGuard<'_, KeyState> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use lockkit_core::{LockName, Metadata, backend::ClaimControl};

    use super::*;

    #[test]
    fn value_is_metadata_that_starts_with_the_claim() {
        let metadata = Metadata::of_this_process(Some("x"));
        let claim = Claim::new(LockName::new("x").unwrap(), true, metadata.clone(), &ClaimControl::new());
        let key = ExclusiveKey::new("x".to_owned(), &claim);
        assert!(key.value.starts_with(&format!("{{\"claim\":\"{}\",", claim.id())));
        assert_eq!(Metadata::from_json(key.value.as_bytes()), Some(metadata));
    }

    #[test]
    fn removal_names_what_may_exist() {
        let claim = Claim::new(
            LockName::new("x").unwrap(),
            true,
            Metadata::of_this_process(None),
            &ClaimControl::new(),
        );
        let key = ExclusiveKey::new("x".to_owned(), &claim);
        assert!(key.removals().is_empty() && !key.may_exist());
        key.put_in_doubt();
        assert!(key.removals().len() == 1 && key.may_exist());
        key.set_created(7);
        assert_eq!((key.removals().len(), key.created()), (2, Some(7)));
    }
}
