//! Random interleavings against the list and the sum; every invariant is checked after every step.

use proptest::prelude::*;

use super::super::model::Reference;
use super::*;
use crate::account::Carry;

const LEAVES: [&str; 4] = ["t/p/ann", "t/p/bob", "t/q/eve", "t"];

#[derive(Debug, Clone, Copy)]
enum Step {
    Reserve {
        leaf: usize,
        estimate: u64,
        slack: u64,
        least: u64,
    },
    Again(usize),
    Commit {
        which: usize,
        percent: u64,
    },
    Release(usize),
    Unknown {
        which: usize,
        seen: Option<u64>,
    },
    Wait(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..LEAVES.len(), 0u64..400, 0u64..100, 1u64..=100).prop_map(|(leaf, estimate, slack, least)| Step::Reserve { leaf, estimate, slack, least }),
        1 => any::<usize>().prop_map(Step::Again),
        6 => (any::<usize>(), 0u64..=200).prop_map(|(which, percent)| Step::Commit { which, percent }),
        2 => any::<usize>().prop_map(Step::Release),
        2 => (any::<usize>(), prop::option::of(0u64..100)).prop_map(|(which, seen)| Step::Unknown { which, seen }),
        3 => prop_oneof![1u64..2_000, 20_000u64..90_000, 250_000u64..700_000].prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

/// `least` is the part of the largest charge that it can be lowered to, in percent.
fn ask(n: u64, leaf: usize, estimate: u64, slack: u64, least: u64) -> Reservation {
    let largest = estimate * 2 + slack;
    Reservation {
        least: wtu(largest * least / 100),
        ..reservation(n, LEAVES[leaf], estimate, largest)
    }
}

fn accounts(carry: Carry) -> Vec<(&'static str, Vec<PolicySpec>)> {
    let soft = |text, window, limit| PolicySpec {
        carry,
        ..policy(text, Tier::B, window, limit)
    };
    let tokens = PolicySpec {
        unit: Unit::Tokens,
        ..soft("tokens", minute(), 900)
    };
    vec![
        (
            "t",
            vec![
                policy("cap", Tier::D, Window::Balance, 20_000),
                soft("month", month(), 15_000),
            ],
        ),
        ("t/p", vec![soft("minute", minute(), 1_000), tokens]),
        ("t/q", vec![policy("minute", Tier::D, minute(), 800)]),
        ("t/p/ann", vec![policy("cap", Tier::D, minute(), 700)]),
        ("t/p/bob", vec![]),
        ("t/q/eve", vec![soft("cash", Window::Balance, 3_000)]),
    ]
}

/// A desk and the reference side by side.
struct Pair {
    desk: Desk,
    reference: Reference,
    made: Vec<Reservation>,
}

impl Pair {
    fn new(carry: Carry) -> Pair {
        let accounts = accounts(carry);
        let mut desk = Desk::new(&accounts);
        desk.config.remember = 1000;
        let policies = accounts
            .iter()
            .map(|(account, _)| (id(account), desk.ledger.policies(&id(account))));
        let mut reference = Reference::default();
        reference.policies = policies.collect();
        Pair {
            desk,
            reference,
            made: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) {
        let unknown_after = self.desk.config.unknown_after_ms;
        match step {
            Step::Reserve {
                leaf,
                estimate,
                slack,
                least,
            } => {
                let n = self.made.len() as u64;
                let reservation = ask(n, leaf, estimate, slack, least);
                self.made.push(reservation.clone());
                self.reserve(&reservation);
            }
            Step::Again(which) => {
                if let Some(reservation) = self.pick(which) {
                    self.reserve(&reservation);
                }
            }
            Step::Commit { which, percent } => {
                let Some(reservation) = self.pick(which) else {
                    return;
                };
                self.settle(
                    &reservation,
                    &commit(reservation.estimate.tokens * percent / 100),
                );
            }
            Step::Release(which) => {
                let Some(reservation) = self.pick(which) else {
                    return;
                };
                self.settle(&reservation, &release());
            }
            Step::Unknown { which, seen } => {
                let Some(reservation) = self.pick(which) else {
                    return;
                };
                self.settle(
                    &reservation,
                    &unknown(seen.map(|seen| seen.min(reservation.estimate.tokens))),
                );
            }
            Step::Wait(ms) => {
                let now = self.desk.now.0 + ms;
                self.desk.at(now);
                self.reference.timeout(UnixMs(now), unknown_after);
            }
            Step::Restart => {
                self.desk.restart();
                self.reference.restart(self.desk.now, unknown_after);
            }
        }
    }

    fn pick(&self, which: usize) -> Option<Reservation> {
        (!self.made.is_empty()).then(|| self.made[which % self.made.len()].clone())
    }

    fn reserve(&mut self, reservation: &Reservation) {
        let was_asked = self.reference.states().contains_key(&reservation.attempt);
        let expected = self.reference.reserve(self.desk.now, reservation);
        let admitted = self.desk.reserve(reservation);
        let found = match &admitted {
            Ok(_) => Ok(()),
            Err(Refusal::NoRoom(shortage)) if !was_asked => Err(Some(shortage.fits)),
            Err(_) => Err(None),
        };
        assert_eq!(found, expected, "{reservation:?}: {admitted:?}");
    }

    fn settle(&mut self, reservation: &Reservation, settlement: &Settlement) {
        let unknown_after = self.desk.config.unknown_after_ms;
        self.reference.settle(
            self.desk.now,
            reservation.attempt,
            settlement,
            unknown_after,
        );
        self.desk.settle_known(reservation.attempt, settlement);
    }

    fn check(&self) {
        let states = self
            .desk
            .database
            .attempts
            .iter()
            .map(|(id, row)| (*id, row.state));
        assert_eq!(states.collect::<BTreeMap<_, _>>(), self.reference.states());
        let database = &self.desk.database;
        let totals = database.windows.values().map(|row| {
            let account = database.accounts[&row.account].id.clone();
            let policy = database.policies[&row.policy].spec.name.clone();
            (
                (account, policy, row.start),
                (row.held, row.used + row.debt),
            )
        });
        assert_eq!(totals.collect::<BTreeMap<_, _>>(), self.reference.totals());
    }
}

impl Desk {
    fn settle_known(&mut self, attempt: AttemptId, settlement: &Settlement) {
        self.ledger.settle(self.now, attempt, settlement).unwrap();
        self.check();
    }

    /// Whether the least of a refused reservation fits as soon as the refusal says.
    fn keeps_word(&self, refused: &Reservation, fits: Fits) -> bool {
        let snapshot = self.database.snapshot(self.config.remember);
        let mut ledger = Ledger::restore(self.config.clone(), snapshot).unwrap();
        let mut again = Reservation {
            attempt: attempt(u64::from(u32::MAX)),
            largest: refused.least,
            ..refused.clone()
        };
        match fits {
            // Of the hard caps; what soft limits say of less is not known yet.
            Fits::Lowered => again.estimate = Amounts::default(),
            Fits::OnceHoldsEnd => {
                let open = self.database.attempts.values();
                for row in open.filter(|row| row.state.is_open()) {
                    ledger.settle(self.now, row.id, &release()).unwrap();
                }
            }
            Fits::OnceStartedOver | Fits::Never => return true,
        }
        ledger.reserve(self.now, &again).is_ok()
    }

    /// What every policy was charged in all, over all its windows.
    fn charged(&self) -> BTreeMap<PolicyNo, u64> {
        let mut charged = BTreeMap::new();
        for row in self.database.windows.values() {
            *charged.entry(row.policy).or_default() += row.used + row.debt;
        }
        charged
    }

    /// The same from the entries of attempts alone: what rolls from window to window adds nothing.
    fn charges_entered(&self) -> BTreeMap<PolicyNo, u64> {
        let mut charged: BTreeMap<PolicyNo, u64> =
            self.charged().into_keys().map(|no| (no, 0)).collect();
        for entry in self
            .database
            .entries
            .iter()
            .filter(|entry| entry.attempt.is_some())
        {
            *charged.entry(entry.policy).or_default() +=
                (entry.d_used + entry.d_debt).unsigned_abs();
        }
        charged
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(192) })]

    #[test]
    fn the_ledger_is_a_list_and_a_sum(steps in prop::collection::vec(step(), 1..80)) {
        let mut pair = Pair::new(Carry::Forget);
        for step in steps {
            pair.step(step);
            pair.check();
        }
    }

    /// With debt carried the list cannot say what is admitted, but nothing is ever lost or invented.
    #[test]
    fn carried_debt_is_conserved(steps in prop::collection::vec(step(), 1..80)) {
        let mut desk = Desk::new(&accounts(Carry::Debt));
        let mut made = Vec::new();
        for step in steps {
            drive(&mut desk, &mut made, step);
            prop_assert_eq!(desk.charged(), desk.charges_entered());
        }
        for entry in desk.database.entries.iter().filter(|entry| entry.kind == EntryKind::Commit) {
            let attempt = &desk.database.attempts[&entry.attempt.unwrap()];
            let unit = desk.database.policies[&entry.policy].spec.unit;
            prop_assert_eq!((entry.d_used + entry.d_debt).unsigned_abs(), attempt.charged.in_unit(unit));
        }
    }
}

fn drive(desk: &mut Desk, made: &mut Vec<Reservation>, step: Step) {
    let pick = |which: usize, desk: &Desk| {
        let admitted = |r: &&Reservation| desk.ledger.attempt(&r.attempt).is_some();
        let known: Vec<&Reservation> = made.iter().filter(admitted).collect();
        (!known.is_empty()).then(|| known[which % known.len()].clone())
    };
    match step {
        Step::Reserve {
            leaf,
            estimate,
            slack,
            least,
        } => {
            let reservation = ask(made.len() as u64, leaf, estimate, slack, least);
            made.push(reservation.clone());
            if let Err(Refusal::NoRoom(shortage)) = desk.reserve(&reservation) {
                let keeps = desk.keeps_word(&reservation, shortage.fits);
                assert!(keeps, "{shortage:?}");
            }
        }
        Step::Commit { which, percent } => {
            if let Some(r) = pick(which, desk) {
                desk.settle_known(r.attempt, &commit(r.estimate.tokens * percent / 100));
            }
        }
        Step::Release(which) => {
            if let Some(r) = pick(which, desk) {
                desk.settle_known(r.attempt, &release());
            }
        }
        Step::Unknown { which, seen } => {
            if let Some(r) = pick(which, desk) {
                desk.settle_known(r.attempt, &unknown(seen));
            }
        }
        Step::Wait(ms) => desk.at(desk.now.0 + ms),
        Step::Again(_) | Step::Restart => desk.restart(),
    }
}
