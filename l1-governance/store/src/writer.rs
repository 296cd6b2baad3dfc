//! Who touches a ledger: whoever takes or settles a hold decides it at its [`Desk`], one thread minds the time and
//! everything else that is asked, and one writes.

mod batch;
mod decider;
mod desk;
mod disk;

use std::fs::File;
use std::sync::Arc;
use std::thread;

use governance_context::AttemptId;
use governance_core::account::AccountId;
use governance_core::ledger::{AttemptRow, DeclareError, NoAttempt, Refusal, Settled, Settlement};
use tokio::sync::{mpsc, oneshot};

use crate::error::{KeyError, Unavailable};
use crate::keys::{By, KeyChange, KeyRecord};
use crate::open::Opened;
use crate::sqlite::{Declaration, Shared};

use decider::Decider;
pub(crate) use desk::{Answer, Desk};

type Reply<T> = oneshot::Sender<T>;
type Durable<T> = Reply<Result<T, Unavailable>>;

/// What is asked of a ledger's thread.
pub(crate) enum Operation {
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
    Attempt {
        attempt: AttemptId,
        reply: Reply<Option<AttemptRow>>,
    },
    Close(Durable<()>),
}

/// Starts both threads. They end when the inbox closes or an operation says so.
pub(crate) fn start(
    opened: Opened,
    shared: Arc<Shared>,
    inbox: mpsc::Receiver<Operation>,
) -> std::io::Result<Arc<Desk>> {
    let (jobs, work) = std::sync::mpsc::sync_channel(1);
    let (report, done) = mpsc::channel(1);
    let Opened {
        ledger,
        keys: _,
        writer,
        reader,
        owner,
    } = opened;
    let config = shared.options.ledger.clone();
    let writing = thread::Builder::new()
        .name("ledger-disk".to_owned())
        .spawn(move || disk::run(writer, &config, &work, &report))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let desk = Arc::new(Desk::new(Decider::new(ledger, reader, shared, jobs)));
    let minded = Arc::clone(&desk);
    thread::Builder::new()
        .name("ledger".to_owned())
        .spawn(move || {
            let close = runtime.block_on(minded.mind(inbox, done));
            release(writing, owner, close);
        })?;
    Ok(desk)
}

/// Gives the database up before anyone is told that it is closed.
fn release(writing: thread::JoinHandle<()>, owner: File, close: Option<decider::Closing>) {
    if writing.join().is_err() {
        tracing::error!("the ledger's disk thread panicked");
    }
    // Said, and not left to the last copy of the descriptor: a child process that is being started has one for a moment.
    if let Err(error) = owner.unlock() {
        tracing::error!(%error, "the ledger's lock file could not be given up");
    }
    drop(owner);
    if let Some(closing) = close {
        closing.tell();
    }
}
