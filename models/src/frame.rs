//! What the models share: the faults of a scene, the numbers of claims, and the check of tokens.

use crate::rank::{Domain, Rank};

/// Claims of a queue's model; two for each client.
pub(crate) const CLAIMS: usize = 4;

/// How often each kind of fault may happen in a scene. A model uses the kinds that its protocol can meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// Requests, replies or notifications that are lost; for Redlock, connections that break under a request.
    pub(crate) lost: u8,
    /// Replies that arrive late.
    pub(crate) late: u8,
    /// Messages that arrive twice.
    pub(crate) duplicates: u8,
    /// Requests that the server refuses.
    pub(crate) refusals: u8,
    /// Callers that give up.
    pub(crate) cancels: u8,
    /// Deadlines that pass without an acknowledged heartbeat: of a session (etcd, ZooKeeper), of a waiter's entry
    /// (Redis).
    pub(crate) lapses: u8,
    /// Clients that die.
    pub(crate) deaths: u8,
    /// Entries that an operator deletes.
    pub(crate) deletes: u8,
    /// Sessions that an operator ends.
    pub(crate) revoked: u8,
    /// Contenders of other programs.
    pub(crate) foreign: u8,
    /// Failovers to a replica that has fallen behind.
    pub(crate) failovers: u8,
    /// Keys that expire early.
    pub(crate) early: u8,
    /// Nodes that restart empty.
    pub(crate) restarts: u8,
}

impl Faults {
    /// Adds what a word in the name of a scene says. Returns false when it is not a fault.
    pub(crate) fn add(&mut self, word: &str) -> bool {
        let (count, kind) = match word.split_once(' ') {
            Some(("two", kind)) => (2, kind),
            Some(("three", kind)) => (3, kind),
            _ => (1, word),
        };
        let fault = match kind {
            "lost" => &mut self.lost,
            "late answer" | "late list" => &mut self.late,
            "duplicate" => &mut self.duplicates,
            "refused" => &mut self.refusals,
            "cancel" | "cancels" => &mut self.cancels,
            "lapse" | "lease ends" | "session ends" => &mut self.lapses,
            "death" => &mut self.deaths,
            "operator" => &mut self.deletes,
            "revoked" => &mut self.revoked,
            "another program" => &mut self.foreign,
            "failover" => &mut self.failovers,
            "early" => &mut self.early,
            "restart" | "restarts" => &mut self.restarts,
            _ => return false,
        };
        *fault = count;
        true
    }
}

/// One of the claims A1, A2 (of one client), B1, B2 (of the other), or that of another program.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimNo(pub(crate) u8);

impl ClaimNo {
    /// The contender of another program.
    pub(crate) const FOREIGN: Self = Self(CLAIMS as u8);

    /// All claims, without that of another program.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..CLAIMS as u8).map(Self)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn client(self) -> usize {
        self.index() / 2
    }

    /// Whether the claim may start: the client's earlier one is not new any more.
    pub(crate) fn may_start(self, is_new: impl Fn(Self) -> bool) -> bool {
        self.0.is_multiple_of(2) || !is_new(Self(self.0 - 1))
    }
}

impl std::fmt::Debug for ClaimNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(["A1", "A2", "B1", "B2", "other"][self.index()])
    }
}

/// The tokens of a queue's grants, as far as a later grant is compared with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tokens {
    /// By claim; 0 for none. Kept after the claim's end while another claim acquires that began before the grant.
    granted: [Rank; CLAIMS],
    /// By acquiring claim: the highest token when it began.
    floors: [Rank; CLAIMS],
    /// The highest token so far.
    last: Rank,
    /// How many grants there were.
    pub(crate) grants: u8,
}

impl Tokens {
    pub(crate) fn begin(&mut self, claim: ClaimNo) {
        (self.granted[claim.index()], self.floors[claim.index()]) = (0, self.last);
    }

    /// Records a grant. Returns whether its token is unique and higher than that of every grant before its claim began.
    #[must_use]
    pub(crate) fn grant(&mut self, claim: ClaimNo, token: Rank) -> bool {
        let floor = std::mem::take(&mut self.floors[claim.index()]);
        let rises = token > floor && !self.granted.contains(&token);
        self.granted[claim.index()] = token;
        self.last = self.last.max(token);
        self.grants += 1;
        rises
    }

    pub(crate) fn end(&mut self, claim: ClaimNo) {
        self.floors[claim.index()] = 0;
    }

    /// The token that this claim was granted.
    pub(crate) fn of(&self, claim: ClaimNo) -> Rank {
        self.granted[claim.index()]
    }

    /// Forgets the tokens of ended claims that every acquiring claim covers by its floor.
    pub(crate) fn forget_old(
        &mut self,
        acquires: impl Fn(ClaimNo) -> bool,
        has_ended: impl Fn(ClaimNo) -> bool,
    ) {
        let floors = ClaimNo::all().filter(|claim| acquires(*claim)).map(|claim| self.floors[claim.index()]);
        let floor = floors.min().unwrap_or(Rank::MAX);
        for claim in ClaimNo::all().filter(|claim| has_ended(*claim)) {
            if self.granted[claim.index()] <= floor {
                self.granted[claim.index()] = 0;
            }
        }
    }

    /// See [`Ranked`](crate::rank::Ranked).
    pub(crate) fn each_rank(&mut self, domain: Domain, visit: &mut impl FnMut(Domain, &mut Rank)) {
        visit(domain, &mut self.last);
        self.granted.iter_mut().for_each(|token| visit(domain, token));
        self.floors.iter_mut().for_each(|token| visit(domain, token));
    }
}

/// Properties of several models.
pub(crate) const ONE_HOLDER: &str = "one holder at a time";
pub(crate) const TOKENS_RISE: &str = "tokens are unique and rise";
pub(crate) const IN_ORDER: &str = "first come, first served";
pub(crate) const NO_ORPHAN: &str = "no orphan at rest";
pub(crate) const EVENTUALLY: &str = "eventually every claim is granted or ends";

/// A property that the model itself finds broken: an action writes its name into the state's `broken`.
macro_rules! recorded {
    ($name:expr) => {
        Property::always($name, |_, state: &State| state.broken != Some($name))
    };
}
pub(crate) use recorded;

/// Declares the safety steps of a model: each with the property that breaks without it, and a scene in which it does.
macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident: $property:ident in $scene:literal),+ $(,)?) => {
        /// The safety steps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step {
            $($(#[$doc])* $step,)+
        }

        impl $crate::explore::SafetyStep for Step {
            const REMOVALS: &'static [(Self, &'static str, &'static str)] =
                &[$((Self::$step, $property, $scene)),+];
        }
    };
}
pub(crate) use steps;
