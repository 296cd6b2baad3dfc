//! Everything a pool knows of one endpoint.

pub(crate) mod booking;
pub(crate) mod health;
pub(crate) mod list;
pub(crate) mod load;
pub(crate) mod room;
pub(crate) mod view;

use std::sync::Arc;

use crate::cost::Pace;
use crate::pool::{EndpointSpec, EndpointState};
use crate::residency::{Holder, hash_bytes};
use crate::{EndpointId, EndpointLoad, PeerId, Timestamp};

use health::Health;
use load::Load;
use room::Room;
use view::View;

/// A model name as a number. Two names that collide share their endpoints, and the engine answers that it does not know
/// the model: harmless, and one in 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ModelKey(u64);

impl ModelKey {
    pub(crate) fn new(model: &str) -> Self {
        Self(hash_bytes(1, model.as_bytes()))
    }
}

/// One endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    pub(crate) name: Arc<str>,
    pub(crate) name_hash: u64,
    generation: u64,
    /// Which class's calibration it uses.
    pub(crate) class: usize,
    pub(crate) weight: u32,
    /// Empty: any model.
    models: Vec<ModelKey>,
    models_configured: bool,
    /// Counts changes of `models`.
    models_version: u32,
    max_context: Option<u32>,
    presence: Presence,
    /// Which engine of those that came and went this is.
    pub(crate) incarnation: u32,
    pub(crate) load: Load,
    pub(crate) view: View,
    pub(crate) health: Health,
    pub(crate) room: Room,
    pub(crate) pace: Pace,
    /// Its cache in the prefix index; none once it is gone.
    pub(crate) holder: Option<Holder>,
    /// The last sign of life of any of its bookings.
    pub(crate) last_sign: Timestamp,
    pub(crate) hang_timer: Option<Timestamp>,
    /// Completions in a row that found almost nothing cached where much was expected.
    pub(crate) phantom_hits: u32,
    pub(crate) last_lesson: Timestamp,
    /// What other schedulers have on it, by their latest vectors.
    pub(crate) peers: Vec<(PeerId, Timestamp, EndpointLoad)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Up,
    Draining,
    Gone,
}

/// An endpoint's name as a number, the same for every scheduler.
pub(crate) fn name_hash(name: &str) -> u64 {
    hash_bytes(2, name.as_bytes())
}

/// What decides whom an endpoint may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    incarnation: u32,
    presence: Presence,
    is_quarantined: bool,
    max_context: Option<u64>,
    models_version: u32,
}

impl Endpoint {
    pub(crate) fn new(
        now: Timestamp,
        spec: &EndpointSpec,
        class: usize,
        default_room: u32,
    ) -> Self {
        let room = Room::new(spec.room.unwrap_or(default_room));
        let mut endpoint = Self {
            id: spec.id,
            name: spec.name.clone(),
            name_hash: 0,
            generation: spec.generation,
            class,
            weight: 1,
            models: Vec::new(),
            models_configured: false,
            models_version: 0,
            max_context: None,
            presence: Presence::Up,
            incarnation: 0,
            load: Load::default(),
            view: View::new(now),
            health: Health::default(),
            room,
            pace: Pace::new(),
            holder: None,
            last_sign: Timestamp::ZERO,
            hang_timer: None,
            phantom_hits: 0,
            last_lesson: Timestamp::ZERO,
            peers: Vec::new(),
        };
        endpoint.configure(spec, class, default_room);
        endpoint
    }

    /// Whether `spec` describes this very engine.
    pub(crate) fn is_same_engine(&self, spec: &EndpointSpec) -> bool {
        self.name == spec.name && self.generation == spec.generation
    }

    /// Takes over settings of the same engine.
    pub(crate) fn configure(&mut self, spec: &EndpointSpec, class: usize, default_room: u32) {
        self.presence = Presence::Up;
        self.name_hash = name_hash(&spec.name);
        self.class = class;
        self.weight = spec.weight.max(1);
        self.models_configured = !spec.models.is_empty();
        if self.models_configured {
            self.serve(&spec.models);
        }
        self.max_context = spec.max_context;
        self.room
            .configure(spec.room.unwrap_or(default_room).max(1));
    }

    pub(crate) fn presence(&self) -> Presence {
        self.presence
    }

    /// Takes nothing new from here on.
    pub(crate) fn drain(&mut self) {
        if self.presence == Presence::Up {
            self.presence = Presence::Draining;
        }
    }

    /// It left. Should it come back while attempts are in flight, they count on; its failures do not.
    pub(crate) fn retire(&mut self) {
        self.presence = Presence::Gone;
        self.health = Health::default();
        self.room.forget_refusals();
    }

    pub(crate) fn is_up(&self) -> bool {
        self.presence == Presence::Up
    }

    pub(crate) fn state(&self) -> EndpointState {
        match self.presence {
            Presence::Gone => EndpointState::Gone,
            Presence::Draining => EndpointState::Draining,
            Presence::Up if self.health.is_quarantined() => EndpointState::Quarantined,
            Presence::Up => EndpointState::Ready,
        }
    }

    /// The engine says what it serves; configuration knows better where it says anything.
    pub(crate) fn reported_models(&mut self, models: &[String]) {
        if !self.models_configured {
            self.serve(models);
        }
    }

    fn serve<S: AsRef<str>>(&mut self, models: &[S]) {
        let keys = models.iter().map(|model| ModelKey::new(model.as_ref()));
        let models: Vec<_> = keys.collect();
        if models != self.models {
            self.models = models;
            self.models_version += 1;
        }
    }

    /// What filters depend on.
    pub(crate) fn standing(&self) -> Standing {
        Standing {
            incarnation: self.incarnation,
            presence: self.presence,
            is_quarantined: self.health.is_quarantined(),
            max_context: self.max_context(),
            models_version: self.models_version,
        }
    }

    pub(crate) fn serves(&self, model: ModelKey) -> bool {
        self.models.is_empty() || self.models.contains(&model)
    }

    pub(crate) fn max_context(&self) -> Option<u64> {
        self.max_context.or(self.view.max_context()).map(u64::from)
    }
}
