//! Prints how fast the ledger is: durable tier D holds per second on one account, CPU per tier B request, and
//! entries verified per second. Run with `cargo bench -p ledger-store`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use governance_context::{AttemptId, Band, MicroWtu, RequestId};
use governance_core::account::{
    AccountId, AccountPath, CalendarUnit, Kind, Limit, PolicyName, PolicySpec, Tier, Unit, UnixMs,
    Window,
};
use governance_core::keys::Pepper;
use governance_core::ledger::{Amounts, Basis, Config, Ledger, Observed, Reservation, Settlement};
use governance_core::price::{GroupName, PriceVersion, Stamp, Tokens};
use ledger_store::{Declaration, Options, SqliteLedger, verify_file};
use tokio::task::JoinSet;

const PATH: [&str; 4] = [
    "acme",
    "acme/search",
    "acme/search/ann",
    "acme/search/ann/key",
];

fn main() {
    let directory = tempfile::tempdir_in(".").expect("a place to write");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ledger_file = directory.path().join("ledger.db");
    pure(200_000);
    runtime.block_on(async {
        for workers in [1, 16, 64, 256] {
            durable(&directory.path().join(format!("d{workers}.db")), workers).await;
        }
        batched(&ledger_file, 100_000).await;
    });
    verify(&ledger_file);
}

/// Tokens per minute and WTU per month on each of four accounts.
fn policies(tier: Tier) -> Vec<PolicySpec> {
    let minute = Window::Rolling {
        origin: UnixMs(0),
        period_ms: 60_000,
    };
    let month = Window::Calendar {
        offset_minutes: 0,
        unit: CalendarUnit::Month,
    };
    let name = |text| PolicyName::parse(text).expect("a literal name");
    let budget = PolicySpec::new(
        name("budget"),
        tier,
        Unit::MicroWtu,
        month,
        Limit::Of(1 << 55),
    );
    let tokens = PolicySpec::new(
        name("tokens"),
        Tier::B,
        Unit::Tokens,
        minute,
        Limit::Of(1 << 55),
    );
    match tier {
        Tier::B => vec![budget, tokens],
        Tier::D => vec![budget],
    }
}

fn reservation(n: u64, like: &Reservation) -> Reservation {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&n.to_be_bytes());
    Reservation {
        attempt: AttemptId::new(1_790_000_000_000 + n, random),
        request: RequestId::new(1_790_000_000_000 + n, random),
        ..like.clone()
    }
}

fn typical(leaf: &str) -> Reservation {
    let leaf = AccountId::parse(leaf).expect("an id");
    let amounts = Amounts {
        wtu: MicroWtu(1500),
        tokens: 900,
    };
    Reservation {
        attempt: AttemptId::new(0, [0; 10]),
        request: RequestId::new(0, [0; 10]),
        tenant: leaf.tenant(),
        path: AccountPath::of(&leaf),
        estimate: amounts,
        largest: amounts,
        least: amounts,
        stamp: Stamp {
            model: "small".into(),
            group: GroupName::default(),
            band: Band(0),
            price: PriceVersion(1),
            ratios: PriceVersion(1),
            rounding: 1,
        },
        lease_ms: 600_000,
    }
}

fn commit() -> Settlement {
    Settlement::Commit(Observed {
        usage: Tokens::from_usage(700, Some(100), 150),
        charge: MicroWtu(1400),
        basis: Basis::Measured,
    })
}

/// The state machine alone.
fn pure(count: u64) {
    let like = typical(PATH[3]);
    let mut ledger = Ledger::new(Config::default());
    for account in PATH {
        let account = AccountId::parse(account).expect("an id");
        ledger
            .declare(UnixMs(0), &account, Kind::User, &policies(Tier::B))
            .expect("a declaration");
    }
    let start = cpu_seconds();
    for n in 0..count {
        let now = UnixMs(1_790_000_000_000 + n);
        let reservation = reservation(n, &like);
        ledger.reserve(now, &reservation).expect("there is room");
        ledger
            .settle(now, reservation.attempt, &commit())
            .expect("it is known");
        drop(ledger.drain_effects());
    }
    let each = (cpu_seconds() - start) * 1e6 / count as f64;
    println!("core: tier B reserve + settle, 4 accounts × 2 policies    {each:8.2} µs CPU");
}

async fn open(path: &Path, accounts: &[&str], tier: Tier) -> SqliteLedger {
    let mut options = Options::new(Pepper([1; 32]));
    options.patience = Duration::from_secs(10);
    let ledger = SqliteLedger::open(path, options).expect("an open ledger");
    let declare = |account: &&str| Declaration {
        account: AccountId::parse(account).expect("an id"),
        kind: Kind::User,
        policies: policies(tier),
    };
    ledger
        .declare(accounts.iter().map(declare).collect())
        .await
        .expect("declared");
    ledger
}

/// Holds that are on disk before they are answered, all on one account.
async fn durable(path: &Path, workers: u64) {
    let ledger = open(path, &PATH[..1], Tier::D).await;
    let like = typical(PATH[0]);
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for worker in 0..workers {
        let (ledger, like) = (ledger.clone(), like.clone());
        tasks.spawn(async move {
            let mut waits = Vec::new();
            for n in 0.. {
                if start.elapsed() > Duration::from_secs(3) {
                    break;
                }
                let asked = Instant::now();
                let hold = ledger
                    .reserve(reservation(worker << 32 | n, &like))
                    .await
                    .expect("there is room");
                waits.push(asked.elapsed());
                hold.settle(commit());
            }
            waits
        });
    }
    let mut waits: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    let rate = waits.len() as f64 / start.elapsed().as_secs_f64();
    waits.sort_unstable();
    let (p50, p99) = (waits[waits.len() / 2], waits[waits.len() * 99 / 100]);
    println!(
        "tier D durable holds, one account, {workers:3} callers         {rate:8.0} /s   p50 {:.2} ms  p99 {:.2} ms",
        p50.as_secs_f64() * 1e3,
        p99.as_secs_f64() * 1e3
    );
    ledger.close().await.expect("closed");
}

/// Holds that need not be on disk first: the CPU of all threads together.
async fn batched(path: &Path, count: u64) {
    let ledger = open(path, &PATH, Tier::B).await;
    let like = typical(PATH[3]);
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let mut waits = Vec::with_capacity(count as usize);
    for n in 0..count {
        let asked = Instant::now();
        let hold = ledger
            .reserve(reservation(n, &like))
            .await
            .expect("there is room");
        waits.push(asked.elapsed());
        hold.settle(commit());
    }
    ledger.flush().await.expect("flushed");
    let each = (cpu_seconds() - cpu) * 1e6 / count as f64;
    waits.sort_unstable();
    println!(
        "store: tier B reserve + settle, 4 accounts × 2 policies   {each:8.2} µs CPU   p50 {:.0} µs  p99 {:.0} µs  {:.0} /s",
        waits[waits.len() / 2].as_secs_f64() * 1e6,
        waits[waits.len() * 99 / 100].as_secs_f64() * 1e6,
        count as f64 / start.elapsed().as_secs_f64()
    );
    ledger.close().await.expect("closed");
}

fn verify(path: &Path) {
    let start = Instant::now();
    let report = verify_file(path).expect("verified");
    let rate = report.entries as f64 / start.elapsed().as_secs_f64();
    println!(
        "verify: {} entries, green: {}               {rate:8.0} entries/s",
        report.entries,
        report.is_green()
    );
}

/// User and system time of this process, from `/proc`; zero where there is none. One tick is 10 ms.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|text| text.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}
