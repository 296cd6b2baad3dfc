//! The two threads of a ledger: one decides, one writes. Nothing else touches the ledger or its connection.

mod batch;
mod decider;
mod disk;

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use governance_context::AttemptId;
use governance_core::account::AccountId;
use governance_core::ledger::{
    AttemptRow, Balance, DeclareError, NoAttempt, Refusal, Reservation, Settled, Settlement,
};
use tokio::sync::mpsc::OwnedPermit;
use tokio::sync::{mpsc, oneshot};

use crate::error::{KeyError, ReserveError, Unavailable};
use crate::hold::Delivery;
use crate::keys::{By, KeyChange, KeyRecord};
use crate::open::Opened;
use crate::sqlite::{Declaration, Shared};

use decider::Decider;

type Reply<T> = oneshot::Sender<T>;
type Durable<T> = Reply<Result<T, Unavailable>>;

/// What is asked of a ledger.
pub(crate) enum Operation {
    Reserve(Box<ReserveOperation>),
    Settle {
        reservation: Arc<Reservation>,
        settlement: Settlement,
    },
    SettleById {
        attempt: AttemptId,
        settlement: Settlement,
        reply: Durable<Result<Settled, NoAttempt>>,
    },
    Declare {
        accounts: Vec<Declaration>,
        reply: Durable<Result<(), DeclareError>>,
    },
    EndAccount {
        account: AccountId,
        reply: Durable<Result<(), Refusal>>,
    },
    Keys {
        by: By,
        change: Box<KeyChange>,
        reply: Reply<Result<Vec<Arc<KeyRecord>>, KeyError>>,
    },
    Flush(Durable<()>),
    Balances {
        account: AccountId,
        reply: Reply<Vec<Balance>>,
    },
    Attempt {
        attempt: AttemptId,
        reply: Reply<Option<AttemptRow>>,
    },
    Close(Durable<()>),
}

/// A reservation, the place its settlement will take, and who waits for the answer since when.
pub(crate) struct ReserveOperation {
    pub(crate) reservation: Arc<Reservation>,
    pub(crate) permit: OwnedPermit<Operation>,
    pub(crate) reply: Reply<Result<Delivery, ReserveError>>,
    pub(crate) enqueued: Instant,
}

/// Starts both threads. They end when the inbox closes or an operation says so.
pub(crate) fn start(
    opened: Opened,
    shared: Arc<Shared>,
    inbox: mpsc::Receiver<Operation>,
) -> std::io::Result<()> {
    let (jobs, work) = std::sync::mpsc::sync_channel(1);
    let (report, done) = mpsc::channel(1);
    let Opened {
        ledger,
        keys: _,
        writer,
        reader,
        owner,
    } = opened;
    let remember = shared.options.ledger.remember;
    let disk = thread::Builder::new()
        .name("ledger-disk".to_owned())
        .spawn(move || disk::run(writer, remember, &work, &report))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    thread::Builder::new()
        .name("ledger".to_owned())
        .spawn(move || {
            let decider = Decider::new(ledger, reader, shared, jobs);
            let close = runtime.block_on(decider.run(inbox, done));
            release(disk, owner, close);
        })?;
    Ok(())
}

/// Gives the database up before anyone is told that it is closed.
fn release(disk: thread::JoinHandle<()>, owner: File, close: Option<decider::Closing>) {
    if disk.join().is_err() {
        tracing::error!("the ledger's disk thread panicked");
    }
    drop(owner);
    if let Some(closing) = close {
        closing.tell();
    }
}
