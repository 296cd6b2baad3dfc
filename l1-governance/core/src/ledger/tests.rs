mod cases;
mod random;

use governance_context::{Band, MicroWtu, RequestId};

use super::model::Database;
use super::*;
use crate::account::{AccountPath, Boost, CalendarUnit, Kind, Limit, PolicySpec, Window};
use crate::price::{GroupName, PriceVersion, Stamp, Tokens};

fn id(text: &str) -> AccountId {
    AccountId::parse(text).unwrap()
}

fn name(text: &str) -> PolicyName {
    PolicyName::parse(text).unwrap()
}

fn attempt(n: u64) -> AttemptId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&n.to_be_bytes());
    AttemptId::new(1_000 + n % (1 << 40), random)
}

fn wtu(amount: u64) -> Amounts {
    Amounts {
        wtu: MicroWtu(amount),
        tokens: amount,
    }
}

fn reservation(n: u64, leaf: &str, estimate: u64, largest: u64) -> Reservation {
    let leaf = id(leaf);
    Reservation {
        attempt: attempt(n),
        request: RequestId::new(1_000, [1; 10]),
        tenant: leaf.tenant(),
        path: AccountPath::of(&leaf),
        estimate: wtu(estimate),
        largest: wtu(largest),
        least: wtu(largest),
        stamp: Stamp {
            model: "small".into(),
            group: GroupName::default(),
            band: Band(0),
            price: PriceVersion(1),
            ratios: PriceVersion(0),
            rounding: 1,
        },
        lease_ms: 60_000,
    }
}

fn commit(charge: u64) -> Settlement {
    Settlement::Commit(observed(charge))
}

fn observed(charge: u64) -> Observed {
    Observed {
        usage: Tokens::from_usage(charge, None, 0),
        charge: MicroWtu(charge),
        basis: Basis::Measured,
    }
}

fn release() -> Settlement {
    Settlement::Release {
        reason: Reason::NoWork,
    }
}

fn unknown(charge: Option<u64>) -> Settlement {
    Settlement::Unknown {
        reason: Reason::Cut,
        observed: charge.map(observed),
    }
}

fn month() -> Window {
    Window::Calendar {
        offset_minutes: 0,
        unit: CalendarUnit::Month,
    }
}

fn minute() -> Window {
    Window::Rolling {
        origin: UnixMs(0),
        period_ms: 60_000,
    }
}

fn policy(text: &str, tier: Tier, window: Window, limit: u64) -> PolicySpec {
    PolicySpec::new(name(text), tier, Unit::MicroWtu, window, Limit::Of(limit))
}

/// A ledger with its database; every step is written and audited.
struct Desk {
    ledger: Ledger,
    database: Database,
    now: UnixMs,
    config: Config,
}

impl Desk {
    /// Accounts with their policies, parents first.
    fn new(accounts: &[(&str, Vec<PolicySpec>)]) -> Desk {
        let config = Config {
            unknown_after_ms: 300_000,
            ..Config::default()
        };
        let mut desk = Desk {
            ledger: Ledger::new(config.clone()),
            database: Database::default(),
            now: UnixMs(1_000_000),
            config,
        };
        for (account, policies) in accounts {
            desk.ledger
                .declare(desk.now, &id(account), Kind::User, policies)
                .unwrap();
        }
        desk.check();
        desk
    }

    fn check(&mut self) {
        self.database.write(self.ledger.drain_effects());
        let report = self.database.audit(self.now);
        assert!(report.is_green(), "{:#?}", report.violations);
    }

    fn reserve(&mut self, reservation: &Reservation) -> Result<Reserved, Refusal> {
        let result = self.ledger.reserve(self.now, reservation);
        self.check();
        result
    }

    fn settle(&mut self, n: u64, settlement: &Settlement) -> Settled {
        let settled = self
            .ledger
            .settle(self.now, attempt(n), settlement)
            .unwrap();
        self.check();
        settled
    }

    fn at(&mut self, now: u64) {
        self.now = UnixMs(now);
        self.ledger.handle_timeout(self.now);
        self.check();
    }

    fn restart(&mut self) {
        let snapshot = self.database.snapshot(self.config.remember);
        self.ledger = Ledger::restore(self.config.clone(), snapshot).unwrap();
        self.ledger.disown(self.now);
        self.check();
    }

    /// `limit used held debt available` of a policy.
    fn balance(&self, account: &str, policy: &str) -> String {
        let balances = self.ledger.balances(self.now, &id(account));
        let balance = balances.iter().find(|b| b.policy == name(policy)).unwrap();
        let limit = balance
            .limit
            .map_or("-".to_owned(), |limit| limit.to_string());
        format!(
            "{limit} {} {} {} {}",
            balance.used, balance.held, balance.debt, balance.available
        )
    }
}

fn shortage(refusal: Refusal) -> Arc<Shortage> {
    match refusal {
        Refusal::NoRoom(shortage) => shortage,
        other @ (Refusal::Ended(_) | Refusal::NoAccount(_) | Refusal::Used(_)) => panic!("{other}"),
    }
}
