//! A claim, as the backend receives it.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::SetOnce;

use crate::{
    LockName, Metadata, Proposal,
    metadata::{ClaimMetadata, ClientMetadata},
    metrics::Moment,
    sync::{Mutex, lock},
};

/// The random identity of one claim, never reused. It identifies an entry whose creation reply was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(u128);

impl ClaimId {
    /// Creates a random id.
    ///
    /// # Panics
    ///
    /// If the operating system has no random numbers.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        fill_with_random(&mut bytes);
        Self::of_random_bytes(bytes)
    }

    /// Parses an id that `Display` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        // `from_str_radix` accepts capitals, a sign and any length; `Display` writes only one form.
        u128::from_str_radix(text, 16).ok().map(Self).filter(|id| id.to_string() == text)
    }

    /// Returns the UUID of version 4 with these random bytes: Curator's names contain one.
    fn of_random_bytes(bytes: [u8; 16]) -> Self {
        let random = u128::from_be_bytes(bytes);
        Self(random & !(VERSION_MASK | VARIANT_MASK) | VERSION_4 | VARIANT_RFC)
    }
}

// The fields of a UUID that are not random (RFC 9562, section 5.4).
const VERSION_MASK: u128 = 0xf << 76;
const VERSION_4: u128 = 4 << 76;
const VARIANT_MASK: u128 = 0b11 << 62;
const VARIANT_RFC: u128 = 0b10 << 62;

#[allow(
    clippy::expect_used,
    reason = "without random numbers two claims could have one id, and share a hold"
)]
fn fill_with_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system has random numbers");
}

/// Makes the claims of one client.
#[derive(Debug)]
pub(crate) struct ClaimSource {
    ids: ClaimIds,
    client: Arc<ClientMetadata>,
}

impl ClaimSource {
    pub(crate) fn new(label: Option<&str>) -> Self {
        Self { ids: ClaimIds::default(), client: ClientMetadata::of_this_process(label) }
    }

    /// Creates a claim with a new id.
    pub(crate) fn claim(
        &self,
        name: LockName,
        wait: bool,
        proposal: Option<Proposal>,
        control: &ClaimControl,
    ) -> Claim {
        let metadata = ClaimMetadata::now(&self.client, proposal);
        Claim { name, id: self.ids.draw(), wait, metadata, control: control.clone() }
    }
}

/// How many ids a client draws from the operating system at a time.
const CLAIM_IDS_DRAWN: usize = 32;

/// Random ids, each used once, which are drawn several at a time: one system call per id costs more than all other steps
/// of a claim.
///
/// They come from the kernel without a generator in between, so that they are as unguessable as a single one. They
/// belong to a client, whose threads do not survive a fork: no two processes use the same ones.
#[derive(Default)]
struct ClaimIds(Mutex<DrawnIds>);

#[derive(Default)]
struct DrawnIds {
    bytes: [[u8; 16]; CLAIM_IDS_DRAWN],
    /// How many of them are not used yet; they are used from the end.
    unused: usize,
}

impl ClaimIds {
    fn draw(&self) -> ClaimId {
        let mut drawn = lock(&self.0);
        if drawn.unused == 0 {
            fill_with_random(drawn.bytes.as_flattened_mut());
            drawn.unused = CLAIM_IDS_DRAWN;
        }
        drawn.unused -= 1;
        let index = drawn.unused;
        // Nothing keeps a copy of a used id.
        let bytes = std::mem::take(&mut drawn.bytes[index]);
        ClaimId::of_random_bytes(bytes)
    }
}

/// Prints no id: with an id, its entry can be forged.
impl fmt::Debug for ClaimIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimIds").finish_non_exhaustive()
    }
}

/// Prints 32 lower-case hexadecimal digits.
impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Prints the first 8 digits: enough to follow a claim in a log, too few to forge its entry.
impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}…", self.0 >> 96)
    }
}

/// What one owner enters at the store to get one lock. The keeper creates it, or a test that drives a
/// [`Session`](super::Session) itself. If the session ends before the grant, the keeper makes another claim.
///
/// A backend handles a timeout and a dropped future the same way: [`give_up`](Self::give_up) resolves.
#[derive(Clone, Debug)]
pub struct Claim {
    name: LockName,
    id: ClaimId,
    wait: bool,
    metadata: ClaimMetadata,
    control: ClaimControl,
}

/// The keeper's end of a [`Claim`]: makes it give up, and reads what the backend has noted. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ClaimControl(Arc<ControlState>);

#[derive(Debug, Default)]
struct ControlState {
    given_up: SetOnce<()>,
    /// When the server first reported another holder.
    contended: OnceLock<Moment>,
    /// Whether it has since the start of the session that is in use.
    is_contended: AtomicBool,
}

impl Claim {
    /// Creates a claim with a new id. `wait` is false for a try.
    pub fn new(name: LockName, wait: bool, metadata: Metadata, control: &ClaimControl) -> Self {
        Self { name, id: ClaimId::random(), wait, metadata: metadata.into(), control: control.clone() }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the identity of this claim.
    pub fn id(&self) -> ClaimId {
        self.id
    }

    /// Returns whether to queue if another claim holds the lock; a try sends one request instead.
    pub fn wait(&self) -> bool {
        self.wait
    }

    /// Returns the metadata to store with the entry.
    pub fn metadata(&self) -> &Metadata {
        self.metadata.record()
    }

    /// Returns the metadata as [`Metadata::to_json`] does, with the part that all claims of a client share made once.
    pub fn metadata_json(&self) -> String {
        self.metadata.to_json()
    }

    pub(crate) fn shared_metadata(&self) -> &ClaimMetadata {
        &self.metadata
    }

    /// Resolves when the claim must be withdrawn: the caller's time limit passed, its future was dropped, or the client
    /// closes.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe; resolves at once if it has resolved before.
    pub fn give_up(&self) -> impl Future<Output = ()> + Send {
        self.control.given_up()
    }

    /// Returns whether [`give_up`](Self::give_up) has resolved.
    pub fn has_given_up(&self) -> bool {
        self.control.has_given_up()
    }

    /// Notes that the server reported another holder. A caller whose time limit passes then gets `None` instead of
    /// `Unavailable`.
    pub fn note_contended(&self) {
        self.control.0.contended.get_or_init(Moment::now);
        self.control.0.is_contended.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`note_contended`](Self::note_contended) was called.
    pub fn was_contended(&self) -> bool {
        self.control.was_contended()
    }
}

impl ClaimControl {
    /// Creates a control.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the claim give up.
    pub fn give_up(&self) {
        // No effect if it has been set.
        let _ = self.0.given_up.set(());
    }

    /// Resolves when the claim must give up.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn given_up(&self) -> impl Future<Output = ()> + Send {
        let given_up = self.0.given_up.wait();
        async {
            given_up.await;
        }
    }

    /// Returns whether the claim must give up.
    pub fn has_given_up(&self) -> bool {
        self.0.given_up.initialized()
    }

    /// Returns whether the backend noted another holder.
    pub fn was_contended(&self) -> bool {
        self.0.is_contended.load(Ordering::Relaxed)
    }

    /// Forgets the holder that was reported to a session which has ended.
    pub(crate) fn forget_contended(&self) {
        self.0.is_contended.store(false, Ordering::Relaxed);
    }

    /// Returns when the backend first noted another holder, if it has.
    pub(crate) fn contended_since(&self) -> Option<Moment> {
        self.0.contended.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_of_a_client_are_random_uuids_that_differ() {
        let clients = [ClaimSource::new(None), ClaimSource::new(None)];
        let (control, name) = (ClaimControl::new(), LockName::new("a").unwrap());
        let mut ids = HashSet::new();
        for client in clients.iter().cycle().take(10 * CLAIM_IDS_DRAWN) {
            let id = client.claim(name.clone(), true, None, &control).id();
            assert_is_uuid_4(id);
            assert!(ids.insert(id), "{id} is used twice");
        }
        assert_eq!(format!("{:?}", clients[0].ids), "ClaimIds { .. }");
    }

    #[track_caller]
    fn assert_is_uuid_4(id: ClaimId) {
        let text = id.to_string();
        assert!(text.len() == 32 && &text[12..13] == "4" && "89ab".contains(&text[16..17]), "{text}");
    }

    #[test]
    fn written_id_is_parsed_in_that_form_only() {
        let id = ClaimId::of_random_bytes([0; 16]);
        assert_eq!(id.to_string(), "00000000000040008000000000000000");
        assert_eq!(ClaimId::of_random_bytes([0xff; 16]).to_string(), "ffffffffffff4fffbfffffffffffffff");
        for id in [id, ClaimId::random()] {
            let text = id.to_string();
            assert_is_uuid_4(id);
            assert_eq!(ClaimId::parse(&text), Some(id));
            assert_eq!(format!("{id:?}"), format!("{}…", &text[..8]));
        }
        let text = "0a1b2c3d4e5f60718293a4b5c6d7e8f9";
        assert_eq!(ClaimId::parse(text).unwrap().to_string(), text);
        let signed = format!("+{}", &text[1..]);
        for other in
            ["", &text[1..], &format!("0{text}"), &text.to_uppercase(), &signed, &text.replace('a', "g")]
        {
            assert_eq!(ClaimId::parse(other), None, "{other}");
        }
    }

    #[test]
    fn metadata_of_a_claim_is_that_of_its_json() {
        let claim =
            ClaimSource::new(Some("x")).claim(LockName::new("a").unwrap(), true, None, &ClaimControl::new());
        assert_eq!(Metadata::from_json(claim.metadata_json().as_bytes()).as_ref(), Some(claim.metadata()));
        assert_eq!(claim.metadata().label.as_deref(), Some("x"));
        let made = Claim::new(claim.name().clone(), true, claim.metadata().clone(), &ClaimControl::new());
        assert_eq!(made.metadata_json(), claim.metadata_json());
        assert_ne!(made.id(), claim.id());
    }
}
