//! Virtual keys: the ring that authentication reads, and the changes that make the next one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use governance_context::{MicroWtu, TenantId};
use governance_core::account::{
    AccountId, AccountPath, Boost, Kind, Limit, PolicyName, PolicySpec, Tier, Unit, UnixMs, Window,
};
use governance_core::keys::{Actor, KeyHash, KeyText, Pepper, PublicPart, Scope, ceiling};
use governance_core::ledger::Ledger;

use crate::error::KeyError;

/// Who asks for a change. A key is looked up when the change is made, so that a revoked one changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The operator of the installation.
    Operator,
    /// The owner of a key.
    Key(PublicPart),
}

/// A key to make.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The account it belongs to, usually a user's. It must be declared.
    pub owner: AccountId,
    /// For people.
    pub name: String,
    /// What it may do.
    pub scope: Scope,
}

/// A change of what a key may do.
#[derive(Debug, Clone)]
pub struct ScopeChange {
    /// Which key.
    pub public: PublicPart,
    /// The version the change was made from.
    pub version: u64,
    /// What it may do from then on.
    pub scope: Scope,
}

/// A key as it is stored: everything but the secret.
#[derive(Debug, Clone)]
pub struct KeyRecord {
    /// The part that may be shown.
    pub public: PublicPart,
    pub(crate) hash: KeyHash,
    /// The key's own account. A rotated key keeps it.
    pub account: AccountId,
    /// Who pays for its requests.
    pub path: AccountPath,
    /// The account the key belongs to.
    pub owner: AccountId,
    /// The tenant.
    pub tenant: TenantId,
    /// For people.
    pub name: String,
    /// What it may do.
    pub scope: Scope,
    /// When it was made.
    pub created: UnixMs,
    /// When it was revoked.
    pub revoked: Option<UnixMs>,
    /// First instant it no longer works after a rotation.
    pub retires: Option<UnixMs>,
    /// The key made in its place.
    pub replaced_by: Option<PublicPart>,
    /// How often it was written.
    pub version: u64,
}

impl KeyRecord {
    /// Whether it opens anything at an instant.
    pub fn is_valid(&self, now: UnixMs) -> bool {
        let over = |end: Option<UnixMs>| end.is_some_and(|end| end <= now);
        self.revoked.is_none() && !over(self.retires) && !over(self.scope.expires)
    }
}

/// All keys at one instant.
#[derive(Clone, Default)]
pub struct KeyRing {
    keys: BTreeMap<PublicPart, Arc<KeyRecord>>,
}

impl KeyRing {
    /// The key a text is, if it is valid. Every reason why not looks the same.
    pub fn authenticate(&self, pepper: &Pepper, text: &str, now: UnixMs) -> Option<Arc<KeyRecord>> {
        let text = KeyText::parse(text)?;
        let hash = text.hash(pepper);
        let record = self.keys.get(&text.public())?;
        (record.hash == hash && record.is_valid(now)).then(|| record.clone())
    }

    /// A key by its public part, valid or not.
    pub fn get(&self, public: &PublicPart) -> Option<&Arc<KeyRecord>> {
        self.keys.get(public)
    }

    /// All keys by their public part, valid or not.
    pub fn list(&self) -> impl Iterator<Item = &Arc<KeyRecord>> {
        self.keys.values()
    }

    pub(crate) fn insert(&mut self, record: KeyRecord) -> Arc<KeyRecord> {
        let record = Arc::new(record);
        self.keys.insert(record.public, record.clone());
        record
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.keys.keys()).finish()
    }
}

/// A change to the keys.
#[derive(Debug)]
pub(crate) enum KeyChange {
    Create {
        text: KeyText,
        key: NewKey,
    },
    Import {
        text: KeyText,
        key: NewKey,
    },
    Update(Vec<ScopeChange>),
    Rotate {
        public: PublicPart,
        text: KeyText,
        overlap_ms: u64,
    },
    Raise {
        public: PublicPart,
        extra: MicroWtu,
        until: UnixMs,
    },
    Revoke(PublicPart),
}

/// Judges a change and makes it in the ring and the ledger, or in neither. Returns the records it wrote.
pub(crate) struct Changing<'a> {
    pub(crate) ring: &'a mut KeyRing,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) pepper: &'a Pepper,
    pub(crate) now: UnixMs,
}

impl Changing<'_> {
    pub(crate) fn make(
        &mut self,
        by: By,
        change: KeyChange,
    ) -> Result<Vec<Arc<KeyRecord>>, KeyError> {
        let actor = self.actor(by)?;
        match change {
            KeyChange::Create { text, key } => self.create(&actor, &text, key),
            KeyChange::Import { text, key } => self.import(&actor, &text, key),
            KeyChange::Update(changes) => self.update(&actor, changes),
            KeyChange::Rotate {
                public,
                text,
                overlap_ms,
            } => self.rotate(&actor, public, &text, overlap_ms),
            KeyChange::Raise {
                public,
                extra,
                until,
            } => self.raise(&actor, public, extra, until),
            KeyChange::Revoke(public) => self.revoke(&actor, public),
        }
    }

    /// Revokes every key at or below an account that has ended.
    pub(crate) fn end_below(&mut self, account: &AccountId) -> Vec<Arc<KeyRecord>> {
        let below = |record: &&Arc<KeyRecord>| {
            record.revoked.is_none() && record.account.is_within(account)
        };
        let ending: Vec<KeyRecord> = self
            .ring
            .list()
            .filter(below)
            .map(|record| KeyRecord::clone(record))
            .collect();
        ending
            .into_iter()
            .map(|record| self.revoked(record))
            .collect()
    }

    fn actor(&self, by: By) -> Result<Actor, KeyError> {
        let By::Key(public) = by else {
            return Ok(Actor::Operator);
        };
        let record = self
            .ring
            .get(&public)
            .filter(|record| record.is_valid(self.now));
        let record = record.ok_or(KeyError::NoActor)?;
        Ok(Actor::Key {
            owner: record.owner.clone(),
            scope: record.scope.clone(),
        })
    }

    fn create(
        &mut self,
        actor: &Actor,
        text: &KeyText,
        key: NewKey,
    ) -> Result<Vec<Arc<KeyRecord>>, KeyError> {
        ceiling(actor, &key.owner, &key.scope)?;
        if self.ring.get(&text.public()).is_some() {
            return Err(KeyError::Exists);
        }
        let account = key
            .owner
            .child(&text.public().to_string())
            .map_err(|_| governance_core::ledger::DeclareError::Unknown(key.owner.clone()))?;
        let policies: Vec<PolicySpec> = budget_policy(&key.scope, None).into_iter().collect();
        self.ledger
            .declare(self.now, &account, Kind::Key, &policies)?;
        let record = KeyRecord {
            public: text.public(),
            hash: text.hash(self.pepper),
            path: AccountPath::of(&account),
            tenant: account.tenant(),
            account,
            owner: key.owner,
            name: key.name,
            scope: key.scope,
            created: self.now,
            revoked: None,
            retires: None,
            replaced_by: None,
            version: 1,
        };
        Ok(vec![self.ring.insert(record)])
    }

    fn import(
        &mut self,
        actor: &Actor,
        text: &KeyText,
        key: NewKey,
    ) -> Result<Vec<Arc<KeyRecord>>, KeyError> {
        match self.ring.get(&text.public()) {
            None => self.create(actor, text, key),
            Some(known) if known.hash == text.hash(self.pepper) => Ok(vec![known.clone()]),
            Some(_) => Err(KeyError::Exists),
        }
    }

    fn update(
        &mut self,
        actor: &Actor,
        changes: Vec<ScopeChange>,
    ) -> Result<Vec<Arc<KeyRecord>>, KeyError> {
        let mut records = Vec::with_capacity(changes.len());
        for change in changes {
            let record = self.live(change.public)?;
            if record.version != change.version {
                return Err(KeyError::Changed(record.version));
            }
            ceiling(actor, &record.owner, &change.scope)?;
            let mut record = KeyRecord::clone(&record);
            record.scope = change.scope;
            record.version += 1;
            records.push(record);
        }
        records
            .into_iter()
            .map(|record| self.rescoped(record, None))
            .collect()
    }

    fn rotate(
        &mut self,
        actor: &Actor,
        public: PublicPart,
        text: &KeyText,
        overlap_ms: u64,
    ) -> Result<Vec<Arc<KeyRecord>>, KeyError> {
        let old = self.live(public)?;
        ceiling(actor, &old.owner, &old.scope)?;
        if self.ring.get(&text.public()).is_some() {
            return Err(KeyError::Exists);
        }
        let new = KeyRecord {
            public: text.public(),
            hash: text.hash(self.pepper),
            created: self.now,
            retires: None,
            replaced_by: None,
            version: 1,
            ..KeyRecord::clone(&old)
        };
        let mut old = KeyRecord::clone(&old);
        let retires = self.now.plus(overlap_ms);
        old.retires = Some(old.retires.map_or(retires, |earlier| earlier.min(retires)));
        old.replaced_by = Some(new.public);
        old.version += 1;
        Ok(vec![self.ring.insert(new), self.ring.insert(old)])
    }

    fn raise(
        &mut self,
        actor: &Actor,
        public: PublicPart,
        extra: MicroWtu,
        until: UnixMs,
    ) -> Result<Vec<Arc<KeyRecord>>, KeyError> {
        let record = self.live(public)?;
        let mut raised = record.scope.clone();
        raised.budget = raised.budget.map(|budget| budget.saturating_add(extra));
        ceiling(actor, &record.owner, &raised)?;
        let mut record = KeyRecord::clone(&record);
        record.version += 1;
        let boost = Boost {
            extra: extra.0,
            until,
        };
        Ok(vec![self.rescoped(record, Some(boost))?])
    }

    fn revoke(
        &mut self,
        actor: &Actor,
        public: PublicPart,
    ) -> Result<Vec<Arc<KeyRecord>>, KeyError> {
        let record = self.ring.get(&public).ok_or(KeyError::NotFound)?.clone();
        if let Actor::Key { scope, .. } = actor {
            // Taking away needs reach, not means: the ceiling is asked with what the actor has.
            ceiling(actor, &record.owner, scope)?;
        }
        if record.revoked.is_some() {
            return Ok(vec![record]);
        }
        Ok(vec![self.revoked(KeyRecord::clone(&record))])
    }

    fn live(&self, public: PublicPart) -> Result<Arc<KeyRecord>, KeyError> {
        let record = self.ring.get(&public).ok_or(KeyError::NotFound)?;
        if record.is_valid(self.now) {
            Ok(record.clone())
        } else {
            Err(KeyError::Over)
        }
    }

    fn rescoped(
        &mut self,
        record: KeyRecord,
        boost: Option<Boost>,
    ) -> Result<Arc<KeyRecord>, KeyError> {
        match budget_policy(&record.scope, boost) {
            Some(policy) => self.ledger.set_policy(self.now, &record.account, &policy)?,
            None => self
                .ledger
                .remove_policy(self.now, &record.account, &budget_name())?,
        }
        Ok(self.ring.insert(record))
    }

    fn revoked(&mut self, mut record: KeyRecord) -> Arc<KeyRecord> {
        record.revoked = Some(self.now);
        record.version += 1;
        self.ring.insert(record)
    }
}

fn budget_name() -> PolicyName {
    PolicyName::parse("budget").expect("a literal name")
}

/// A key's budget is a hard cap that never starts over.
fn budget_policy(scope: &Scope, boost: Option<Boost>) -> Option<PolicySpec> {
    let limit = Limit::Of(scope.budget?.0.min(i64::MAX as u64));
    let mut policy = PolicySpec::new(
        budget_name(),
        Tier::D,
        Unit::MicroWtu,
        Window::Balance,
        limit,
    );
    policy.boost = boost;
    Some(policy)
}
