//! The handle that everyone else holds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use governance_context::AttemptId;
use governance_core::account::{AccountId, Kind, PolicySpec, UnixMs};
use governance_core::keys::{KeyText, PublicPart};
use governance_core::ledger::{
    AttemptRow, Balance, DeclareError, NoAttempt, Refusal, Report, Reservation, Settled, Settlement,
};
use tokio::sync::{mpsc, oneshot};

use crate::error::{KeyError, OpenError, ReserveError, Unavailable};
use crate::hold::{Delivery, Hold};
use crate::keys::{By, KeyChange, KeyRecord, KeyRing, NewKey, ScopeChange};
use crate::open::{self, Options};
use crate::verify::{self, VerifyError};
use crate::writer::{self, Answer, Desk, Operation};

/// An account to declare, with all of its policies.
#[derive(Debug, Clone)]
pub struct Declaration {
    /// The account. What it belongs to is declared before it.
    pub account: AccountId,
    /// What it stands for.
    pub kind: Kind,
    /// All of its policies; those not named are retired.
    pub policies: Vec<PolicySpec>,
}

/// A ledger in a SQLite file. Cheap to clone; the file closes when the last clone and the last hold are gone.
#[derive(Clone)]
pub struct SqliteLedger {
    operations: mpsc::Sender<Operation>,
    desk: Arc<Desk>,
    shared: Arc<Shared>,
}

/// What handles and the ledger's thread both see.
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    pub(crate) keys: ArcSwap<KeyRing>,
    pub(crate) alarms: AtomicU64,
}

impl SqliteLedger {
    /// Opens or creates the ledger at `path` and takes ownership of it. Attempts that a previous process left
    /// behind become unknown.
    pub fn open(path: &Path, options: Options) -> Result<SqliteLedger, OpenError> {
        let mut opened = open::open(path, &options)?;
        let keys = std::mem::take(&mut opened.keys);
        let (operations, inbox) = mpsc::channel(options.capacity);
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            options,
            keys: ArcSwap::from_pointee(keys),
            alarms: AtomicU64::new(0),
        });
        let desk =
            writer::start(opened, shared.clone(), inbox).map_err(|source| OpenError::Io {
                path: path.to_owned(),
                source: Box::new(source),
            })?;
        Ok(SqliteLedger {
            operations,
            desk,
            shared,
        })
    }

    /// Sets the amounts aside on every account of the path, or on none. With a tier D account on the path the
    /// answer comes after the hold is on disk.
    pub async fn reserve(&self, reservation: Reservation) -> Result<Hold, ReserveError> {
        let place = self
            .operations
            .clone()
            .try_reserve_owned()
            .map_err(|error| full(&error))?;
        let on_disk = match self.desk.reserve(Arc::new(reservation), place)? {
            Answer::Granted(delivery) => return Ok(delivery.accept()),
            Answer::OnceOnDisk(on_disk) => on_disk,
        };
        match tokio::time::timeout(self.shared.options.patience, on_disk).await {
            Ok(Ok(result)) => result.map(Delivery::accept).map_err(ReserveError::from),
            Ok(Err(_)) => Err(Unavailable::Closed.into()),
            Err(_) => Err(Unavailable::Slow.into()),
        }
    }

    /// Late evidence about an attempt whose hold is gone: the first answer wins.
    pub async fn settle_attempt(
        &self,
        attempt: AttemptId,
        settlement: Settlement,
    ) -> Result<Result<Settled, NoAttempt>, Unavailable> {
        self.ask(|reply| Operation::SettleById {
            attempt,
            settlement,
            reply,
        })
        .await?
    }

    /// Declares accounts in order, and stops at the first that does not fit. On disk when it returns.
    pub async fn declare(&self, accounts: Vec<Declaration>) -> Result<(), KeyError> {
        let declared: Result<Result<(), DeclareError>, Unavailable> = self
            .ask(|reply| Operation::Declare { accounts, reply })
            .await?;
        Ok(declared??)
    }

    /// Ends an account, everything below it, and their keys. On disk and in force when it returns.
    pub async fn end_account(
        &self,
        account: AccountId,
    ) -> Result<Result<(), Refusal>, Unavailable> {
        self.ask(|reply| Operation::EndAccount { account, reply })
            .await?
    }

    /// Returns once everything that was decided before is on disk.
    pub async fn flush(&self) -> Result<(), Unavailable> {
        self.ask(Operation::Flush).await?
    }

    /// Writes what was decided and gives the file up. Holds that are out become unknown at the next start.
    pub async fn close(&self) -> Result<(), Unavailable> {
        self.ask(Operation::Close).await?
    }

    /// Where an account stands, including what is not on disk yet. Empty for an unknown account.
    pub fn balances(&self, account: &AccountId) -> Result<Vec<Balance>, Unavailable> {
        self.desk.balances(account)
    }

    /// The record of an attempt, however old.
    pub async fn attempt(&self, attempt: AttemptId) -> Result<Option<AttemptRow>, Unavailable> {
        self.ask(|reply| Operation::Attempt { attempt, reply })
            .await
    }

    /// Checks every invariant on what is on disk.
    pub async fn verify(&self) -> Result<Report, VerifyError> {
        let path = self.shared.path.clone();
        let now = (self.shared.options.clock)();
        tokio::task::spawn_blocking(move || verify::verify_at(&path, Some(now)))
            .await
            .map_err(|error| VerifyError::Stopped(error.to_string()))?
    }

    /// How many tier D charges were above the largest possible one since the ledger was opened.
    pub fn alarms(&self) -> u64 {
        self.shared.alarms.load(Ordering::Relaxed)
    }

    /// All keys as they are at this instant.
    pub fn keys(&self) -> Arc<KeyRing> {
        self.shared.keys.load_full()
    }

    /// The key a text is, if it is valid at this instant. Touches nothing but memory.
    pub fn authenticate(&self, text: &str) -> Option<Arc<KeyRecord>> {
        let now = (self.shared.options.clock)();
        self.shared
            .keys
            .load()
            .authenticate(&self.shared.options.pepper, text, now)
    }

    /// Makes a key. The text is told once and never stored.
    pub async fn create_key(
        &self,
        by: By,
        key: NewKey,
    ) -> Result<(KeyText, Arc<KeyRecord>), KeyError> {
        let text = generate()?;
        let record = self
            .change(
                by,
                KeyChange::Create {
                    text: text.clone(),
                    key,
                },
            )
            .await?;
        Ok((text, record))
    }

    /// Takes over a key made elsewhere. Does nothing when it is known already.
    pub async fn import_key(&self, text: KeyText, key: NewKey) -> Result<Arc<KeyRecord>, KeyError> {
        self.change(By::Operator, KeyChange::Import { text, key })
            .await
    }

    /// Changes what keys may do, all or none.
    pub async fn update_keys(&self, by: By, changes: Vec<ScopeChange>) -> Result<(), KeyError> {
        self.change_all(by, KeyChange::Update(changes))
            .await
            .map(drop)
    }

    /// Makes a new key in the place of an old one, which goes on working for `overlap_ms`. They share account
    /// and budget.
    pub async fn rotate_key(
        &self,
        by: By,
        public: PublicPart,
        overlap_ms: u64,
    ) -> Result<(KeyText, Arc<KeyRecord>), KeyError> {
        let text = generate()?;
        let change = KeyChange::Rotate {
            public,
            text: text.clone(),
            overlap_ms,
        };
        let record = self.change(by, change).await?;
        Ok((text, record))
    }

    /// Gives a key a larger budget until an instant.
    pub async fn raise_budget(
        &self,
        by: By,
        public: PublicPart,
        extra: governance_context::MicroWtu,
        until: UnixMs,
    ) -> Result<Arc<KeyRecord>, KeyError> {
        self.change(
            by,
            KeyChange::Raise {
                public,
                extra,
                until,
            },
        )
        .await
    }

    /// Ends a key. In force in this process when it returns; repeating it changes nothing.
    pub async fn revoke_key(&self, by: By, public: PublicPart) -> Result<Arc<KeyRecord>, KeyError> {
        self.change(by, KeyChange::Revoke(public)).await
    }

    async fn change(&self, by: By, change: KeyChange) -> Result<Arc<KeyRecord>, KeyError> {
        let records = self.change_all(by, change).await?;
        records.into_iter().next().ok_or(KeyError::NotFound)
    }

    async fn change_all(&self, by: By, change: KeyChange) -> Result<Vec<Arc<KeyRecord>>, KeyError> {
        self.ask(|reply| Operation::Keys {
            by,
            change: Box::new(change),
            reply,
        })
        .await?
    }

    async fn ask<T>(
        &self,
        operation: impl FnOnce(oneshot::Sender<T>) -> Operation,
    ) -> Result<T, Unavailable> {
        let (reply, answer) = oneshot::channel();
        self.operations
            .send(operation(reply))
            .await
            .map_err(|_| Unavailable::Closed)?;
        answer.await.map_err(|_| Unavailable::Closed)
    }
}

impl std::fmt::Debug for SqliteLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteLedger")
            .field("path", &self.shared.path)
            .finish_non_exhaustive()
    }
}

fn full<T>(error: &mpsc::error::TrySendError<T>) -> Unavailable {
    match error {
        mpsc::error::TrySendError::Full(_) => Unavailable::Busy,
        mpsc::error::TrySendError::Closed(_) => Unavailable::Closed,
    }
}

fn generate() -> Result<KeyText, KeyError> {
    let mut random = [0; 44];
    getrandom::fill(&mut random).map_err(|error| Unavailable::Failed(error.to_string()))?;
    Ok(KeyText::generate(&random))
}
