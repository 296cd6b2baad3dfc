//! SIGKILL in the middle of work, again and again, on one database.
//!
//! The test binary runs itself as the process that is killed. What it acknowledges on its standard output before
//! it dies must be in the ledger afterwards.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use governance_context::AttemptId;
use governance_core::account::Tier;
use governance_core::keys::Pepper;
use governance_core::ledger::{Reason, Settlement, State};
use ledger_store::{Options, ReserveError, SqliteLedger, verify_file};
use tokio::task::JoinSet;

use crate::desk::{Desk, account, commit, policy, reservation};

const VICTIM: &str = "HEADPOND_LEDGER_VICTIM";
const GRANTED: u64 = 40_000;
const WORKERS: u64 = 8;

fn options() -> Options {
    let mut options = Options::new(Pepper([7; 32]));
    options.patience = std::time::Duration::from_mins(1);
    options
}

/// A small generator, so that a run can be repeated from its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }
}

/// Not a test of its own: the process that is killed. Does nothing unless asked to by the environment.
#[test]
fn victim() {
    let Ok(task) = env::var(VICTIM) else { return };
    let (seed, path) = task.split_once(' ').unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(work(Path::new(path), seed.parse().unwrap()));
}

async fn work(path: &Path, seed: u64) {
    let ledger = SqliteLedger::open(path, options()).unwrap();
    let accounts = vec![
        account("acme", &[policy("cap", Tier::D, GRANTED)]),
        account("acme/key", &[]),
    ];
    if ledger.declare(accounts).await.is_err() {
        return say("unavailable");
    }
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let ledger = ledger.clone();
        workers.spawn(async move { toil(&ledger, seed * WORKERS + worker).await });
    }
    workers.join_all().await;
}

async fn toil(ledger: &SqliteLedger, seed: u64) {
    let mut dice = Dice(seed);
    let mut forgotten = Vec::new();
    for step in 0..5_000 {
        let amount = 1 + dice.roll(60);
        let n = seed * 10_000 + step;
        let hold = match ledger.reserve(reservation(n, "acme/key", amount)).await {
            Ok(hold) => hold,
            Err(ReserveError::Refused(_)) => {
                say("refused");
                continue;
            }
            Err(ReserveError::Unavailable(_)) => return say("unavailable"),
        };
        let id = hold.attempt();
        say(&format!("held {id} {amount}"));
        match dice.roll(8) {
            0 => forgotten.push(hold),
            1..=3 => {
                hold.settle(Settlement::Release {
                    reason: Reason::NoWork,
                });
                if ledger.flush().await.is_err() {
                    return say("unavailable");
                }
                say(&format!("released {id} 0"));
            }
            _ => {
                let charge = dice.roll(amount + 1);
                hold.settle(commit(charge));
                if ledger.flush().await.is_err() {
                    return say("unavailable");
                }
                say(&format!("committed {id} {charge}"));
            }
        }
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The reader may be gone already; then nothing was acknowledged.
    writeln!(out, "> {line}").and_then(|()| out.flush()).ok();
}

fn command(path: &Path, seed: u64) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([
        "--exact",
        "crash::victim",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(VICTIM, format!("{seed} {}", path.display()));
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// What the victim said about each attempt last, in order of strength: held, then how it ended.
type Acknowledged = BTreeMap<String, (String, u64)>;

/// Runs a victim and kills it after so many acknowledgements; reads what it still said.
fn run(mut command: Command, lines: u64, acknowledged: &mut Acknowledged) -> Vec<String> {
    let mut child = command.spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut said = Vec::new();
    // The last line may be cut off by the kill; it was not acknowledged then.
    for line in out.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        let Some((_, line)) = line.split_once("> ") else {
            continue;
        };
        said.push(line.to_owned());
        if said.len() as u64 == lines {
            child.kill().unwrap();
        }
        let mut words = line.split(' ');
        let words_of_three = words.next().zip(words.next()).zip(words.next());
        if let Some(((what, id), amount)) = words_of_three {
            let amount = amount.parse().expect("the victim writes numbers");
            acknowledged.insert(id.to_owned(), (what.to_owned(), amount));
        }
    }
    child.kill().ok();
    child.wait().unwrap();
    said
}

async fn nothing_is_lost(ledger: &SqliteLedger, acknowledged: &Acknowledged) {
    for (id, (what, amount)) in acknowledged {
        let id: AttemptId = id.parse().unwrap();
        let row = ledger
            .attempt(id)
            .await
            .unwrap()
            .unwrap_or_else(|| panic!("{id} {what} is lost"));
        match what.as_str() {
            "released" => assert_eq!(row.state, State::Released, "{id}"),
            "committed" => {
                assert_eq!(
                    (row.state, row.charged.wtu.0),
                    (State::Committed, *amount),
                    "{id}"
                );
            }
            _ => {
                assert_eq!(row.largest.wtu.0, *amount, "{id}");
                assert_ne!(row.state, State::Sent, "{id}: its owner is dead");
                assert_ne!(row.state, State::Refused, "{id}");
            }
        }
    }
}

fn green(path: &Path) {
    let report = verify_file(path).unwrap();
    assert!(report.is_green(), "{:#?}", report.violations);
}

#[tokio::test]
async fn killed_twenty_times_nothing_is_overspent_or_lost() {
    let desk = Desk::new();
    let path = desk.path();
    let mut dice = Dice(2026);
    let mut acknowledged = Acknowledged::new();
    let mut refused = 0;
    for seed in 0..20 {
        let lines = 5 + dice.roll(250);
        let said = run(command(&path, seed), lines, &mut acknowledged);
        assert!(
            said.len() as u64 >= lines,
            "the victim of seed {seed} died by itself: {said:?}"
        );
        refused += said.iter().filter(|line| *line == "refused").count();
        green(&path);
        let ledger = SqliteLedger::open(&path, options()).unwrap();
        ledger.flush().await.unwrap();
        nothing_is_lost(&ledger, &acknowledged).await;
        let balance = ledger.balances(&crate::desk::id("acme")).unwrap().remove(0);
        assert!(
            balance.used + balance.held <= GRANTED && balance.debt == 0,
            "{balance:?}"
        );
        ledger.close().await.unwrap();
        green(&path);
    }
    let unknown = verify_file(&path).unwrap().unknown;
    assert!(unknown.attempts > 0, "some died in the middle");
    println!(
        "{} acknowledged, {refused} refused, {} unknown",
        acknowledged.len(),
        unknown.attempts
    );
    resolved_by_the_rule(&desk, unknown.held).await;
}

/// Much later every unknown end of a hard cap is charged its hold.
async fn resolved_by_the_rule(desk: &Desk, held: u64) {
    let path = desk.path();
    let before = verify_file(&path).unwrap();
    let mut later = options();
    let clock = later.clock.clone();
    later.clock = std::sync::Arc::new(move || clock().plus(3_600_000));
    let ledger = SqliteLedger::open(&path, later).unwrap();
    let balance = || async { ledger.balances(&crate::desk::id("acme")).unwrap().remove(0) };
    let first = balance().await;
    while balance().await.held > 0 {
        ledger.flush().await.unwrap();
    }
    let last = balance().await;
    assert!(last.used <= GRANTED);
    assert_eq!(last.used + last.debt, first.used + first.held + first.debt);
    ledger.close().await.unwrap();
    let after = verify_file(&path).unwrap();
    assert!(
        after.is_green() && after.unknown.attempts == 0,
        "{:#?}",
        after.violations
    );
    assert!(before.unknown.held == held && after.entries > before.entries);
}

/// A file that may not grow is what a full disk looks like to a process that has no other.
#[tokio::test]
async fn a_full_disk_admits_nothing_and_loses_nothing() {
    let desk = Desk::new();
    let path = desk.path();
    let inner = command(&path, 77);
    let mut limited = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f 1200; exec \"$0\" \"$@\"";
    limited
        .arg("-c")
        .arg(script)
        .arg(inner.get_program())
        .args(inner.get_args());
    limited.envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    limited.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut acknowledged = Acknowledged::new();
    let said = run(limited, u64::MAX, &mut acknowledged);
    assert!(
        said.iter().any(|line| line == "unavailable"),
        "the disk was large enough: {} lines",
        said.len()
    );
    assert!(!acknowledged.is_empty());
    green(&path);
    let ledger = SqliteLedger::open(&path, options()).unwrap();
    ledger.flush().await.unwrap();
    nothing_is_lost(&ledger, &acknowledged).await;
    ledger.close().await.unwrap();
    green(&path);
}
