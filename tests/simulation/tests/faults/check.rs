//! What must be true after every event.

use scheduler_core::flow::FlowConfig;
use scheduler_core::{EndpointState, Input, Timestamp};

use crate::client::Place;
use crate::world::{DEPTH, ENGINES, INDEX, Listed, World};

const LOOKS: u32 = 16;

/// Most that may wait: the setting, or what waited when it was lowered.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) requests: usize,
    pub(crate) bytes: u64,
}

impl Limit {
    pub(crate) fn of(flow: &FlowConfig) -> Self {
        Self {
            requests: flow.pool_limits.requests,
            bytes: flow.pool_limits.bytes,
        }
    }

    /// Of other settings, while this much waits.
    pub(crate) fn lowered(flow: &FlowConfig, requests: usize, bytes: u64) -> Self {
        Self {
            requests: flow.pool_limits.requests.max(requests),
            bytes: flow.pool_limits.bytes.max(bytes),
        }
    }
}

impl World {
    pub(crate) fn check(&mut self) {
        for at in 0..self.schedulers.len() {
            self.check_queue(at);
            self.check_endpoints(at);
            self.check_nobody_is_left(at);
        }
    }

    fn check_queue(&self, at: usize) {
        let (mut waiting, mut bytes, mut running) = (0, 0, 0);
        for index in &self.open {
            let client = &self.clients[*index];
            match client.place {
                Place::Waits { scheduler } if scheduler == at => {
                    waiting += 1;
                    bytes += client.bytes;
                    assert!(
                        self.now <= client.expires,
                        "request {index} waits past its end"
                    );
                }
                Place::Runs { scheduler, .. } if scheduler == at => running += 1,
                Place::Asks { .. } | Place::Waits { .. } | Place::Runs { .. } | Place::Over => {}
            }
        }
        let snapshot = self.schedulers[at].pool.snapshot(Timestamp(self.now));
        assert_eq!(
            (snapshot.queue_length, snapshot.queue_bytes),
            (waiting, bytes)
        );
        assert_eq!(snapshot.bookings, running);
        let limit = self.schedulers[at].limit;
        assert!(
            waiting <= limit.requests && bytes <= limit.bytes,
            "{waiting} wait, {bytes} bytes"
        );
        let of_bands: usize = snapshot.bands.iter().map(|band| band.waiting).sum();
        let runs_in_bands: usize = snapshot.bands.iter().map(|band| band.running).sum();
        assert_eq!(
            (of_bands, runs_in_bands),
            (waiting, running),
            "{:?}",
            snapshot.bands
        );
        assert!(
            (0.0..=1.0).contains(&snapshot.saturation.value),
            "{:?}",
            snapshot.saturation
        );
        assert!(
            snapshot.index_bytes <= INDEX,
            "{} bytes of index",
            snapshot.index_bytes
        );
    }

    fn check_endpoints(&self, at: usize) {
        let snapshot = self.schedulers[at].pool.snapshot(Timestamp(self.now));
        assert!(
            snapshot.endpoints.len() <= ENGINES as usize,
            "told twice, there once"
        );
        for endpoint in &snapshot.endpoints {
            let seat = &self.seats[endpoint.id.0 as usize];
            let (mut dispatched, mut silent) = (0, 0);
            for index in &self.open {
                let client = &self.clients[*index];
                if let Place::Runs {
                    scheduler, engine, ..
                } = client.place
                    && (scheduler, engine) == (at, endpoint.id.0)
                    && client.generation == seat.generation
                {
                    dispatched += 1;
                    silent += u32::from(!client.streams);
                }
            }
            if seat.listed != Listed::Down {
                assert_eq!(
                    (endpoint.bookings, endpoint.prefilling),
                    (dispatched, silent),
                    "{endpoint:?}"
                );
                assert_ne!(endpoint.state, EndpointState::Gone);
            }
            assert!(endpoint.prefilling <= DEPTH, "{endpoint:?}");
            assert!(endpoint.effective_load >= endpoint.bookings, "{endpoint:?}");
            if endpoint.prefilling == 0 {
                assert_eq!(endpoint.pending_tokens, 0, "{endpoint:?}");
            }
        }
    }

    /// Work is conserved: a second look at the same moment rarely finds anybody who could go (what the first look did can
    /// change the prices of those it passed over), and a few looks find everybody.
    fn check_nobody_is_left(&mut self, at: usize) {
        assert!(self.schedulers[at].pool.poll_output().is_none());
        if !std::mem::take(&mut self.schedulers[at].has_looked) {
            return;
        }
        let up = (0..ENGINES).find(|id| self.seats[*id as usize].listed == Listed::Up);
        let Some(id) = up else {
            return;
        };
        self.tally.looks += 1;
        for look in 0.. {
            assert!(
                look < LOOKS,
                "looks at one moment find somebody without end"
            );
            // An endpoint that is told again is nothing new, but makes it look.
            let spec = self.spec(id);
            self.feed(at, Input::EndpointUp(spec));
            let Some(output) = self.schedulers[at].pool.poll_output() else {
                break;
            };
            self.tally.second_finds += u32::from(look == 0);
            self.act(at, output);
            self.act_all();
        }
        self.schedulers[at].has_looked = false;
    }

    /// Nothing is left of anybody.
    pub(crate) fn check_rest(&self) {
        for scheduler in &self.schedulers {
            let snapshot = scheduler.pool.snapshot(Timestamp(self.now));
            assert_eq!(
                (
                    snapshot.queue_length,
                    snapshot.queue_bytes,
                    snapshot.bookings
                ),
                (0, 0, 0)
            );
            assert_eq!(snapshot.active_flows, 0, "{:?}", snapshot.flows);
            for band in &snapshot.bands {
                let works = (band.waiting, band.running, band.waiting_bytes);
                assert_eq!(works, (0, 0, 0), "{band:?}");
                assert!(
                    band.waiting_wtu.abs() + band.running_wtu.abs() < 1e-9,
                    "{band:?}"
                );
            }
            for endpoint in &snapshot.endpoints {
                let sums = (endpoint.bookings, endpoint.prefilling);
                assert_eq!(sums, (0, 0), "{endpoint:?}");
                assert_eq!(
                    (endpoint.pending_tokens, endpoint.context_tokens),
                    (0, 0),
                    "{endpoint:?}"
                );
            }
        }
    }
}
