//! A ledger in a temporary directory, and short ways to ask it for things.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governance_context::{AttemptId, Band, MicroWtu, RequestId};
use governance_core::account::{
    AccountId, AccountPath, CalendarUnit, Kind, Limit, PolicyName, PolicySpec, Tier, Unit, UnixMs,
    Window,
};
use governance_core::keys::Pepper;
use governance_core::ledger::{Amounts, Basis, Observed, Reservation, Settlement};
use governance_core::price::{GroupName, PriceVersion, Stamp, Tokens};
use ledger_store::{Declaration, Options, SqliteLedger};

pub(crate) const NOW: u64 = 1_790_000_000_000;

/// A directory, a clock that is set by hand, and the options that go with them.
pub(crate) struct Desk {
    directory: tempfile::TempDir,
    clock: Arc<AtomicU64>,
    pub(crate) options: Options,
}

impl Desk {
    pub(crate) fn new() -> Desk {
        let clock = Arc::new(AtomicU64::new(NOW));
        let mut options = Options::new(Pepper([7; 32]));
        // Tests share a machine: only those about impatience are impatient.
        options.patience = Duration::from_mins(1);
        let reading = clock.clone();
        options.clock = Arc::new(move || UnixMs(reading.load(Ordering::SeqCst)));
        Desk {
            directory: tempfile::tempdir().unwrap(),
            clock,
            options,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("ledger.db")
    }

    pub(crate) fn open(&self) -> SqliteLedger {
        SqliteLedger::open(&self.path(), self.options.clone()).unwrap()
    }

    pub(crate) fn set_clock(&self, now: u64) {
        self.clock.store(now, Ordering::SeqCst);
    }

    /// A connection of somebody else.
    pub(crate) fn intruder(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).unwrap()
    }
}

pub(crate) fn id(text: &str) -> AccountId {
    AccountId::parse(text).unwrap()
}

pub(crate) fn policy(name: &str, tier: Tier, limit: u64) -> PolicySpec {
    let month = Window::Calendar {
        offset_minutes: 0,
        unit: CalendarUnit::Month,
    };
    PolicySpec::new(
        PolicyName::parse(name).unwrap(),
        tier,
        Unit::MicroWtu,
        month,
        Limit::Of(limit),
    )
}

pub(crate) fn account(text: &str, policies: &[PolicySpec]) -> Declaration {
    Declaration {
        account: id(text),
        kind: Kind::User,
        policies: policies.to_vec(),
    }
}

pub(crate) fn attempt(n: u64) -> AttemptId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&n.to_be_bytes());
    AttemptId::new(NOW + n, random)
}

pub(crate) fn reservation(n: u64, leaf: &str, amount: u64) -> Reservation {
    let leaf = id(leaf);
    let amounts = Amounts {
        wtu: MicroWtu(amount),
        tokens: amount,
    };
    Reservation {
        attempt: attempt(n),
        request: RequestId::new(NOW + n, [1; 10]),
        tenant: leaf.tenant(),
        path: AccountPath::of(&leaf),
        estimate: amounts,
        largest: amounts,
        least: amounts,
        stamp: Stamp {
            model: "small".into(),
            group: GroupName::default(),
            band: Band(0),
            price: PriceVersion(3),
            ratios: PriceVersion(1),
            rounding: 1,
        },
        lease_ms: 60_000,
    }
}

pub(crate) fn observed(charge: u64) -> Observed {
    Observed {
        usage: Tokens::from_usage(charge, None, 0),
        charge: MicroWtu(charge),
        basis: Basis::Measured,
    }
}

pub(crate) fn commit(charge: u64) -> Settlement {
    Settlement::Commit(observed(charge))
}

/// `used held debt` of the first policy of an account.
pub(crate) async fn counters(ledger: &SqliteLedger, account: &str) -> (u64, u64, u64) {
    let balance = ledger.balances(&id(account)).unwrap().remove(0);
    (balance.used, balance.held, balance.debt)
}

pub(crate) async fn assert_green(ledger: &SqliteLedger) {
    ledger.flush().await.unwrap();
    let report = ledger.verify().await.unwrap();
    assert!(report.is_green(), "{:#?}", report.violations);
}
