//! What goes wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use governance_context::{Band, Work};
use scheduler_core::flow::{
    Aging, BandConfig, FairOrder, FlowConfig, Limits, OverQuota, Quota, QuotaRate, Refuse,
    Starvation,
};
use scheduler_core::{AttemptEnd, EndpointId, Input, RequestKey, Timestamp};

use crate::chance::Chance;
use crate::check::Limit;
use crate::client::{Client, Place};
use crate::ending::End;
use crate::governor::Disk;
use crate::money::{InL1, InL2};
use crate::tenants::TENANTS;
use crate::trouble::ledger::purse;
use crate::world::{ENGINES, Listed, Mood, World, engine};

mod ledger;

/// What goes wrong most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Theme {
    Anything,
    /// Disks.
    Writes,
    /// Governance dies.
    Deaths,
    /// Limits change.
    Budgets,
    /// Clients leave.
    Leaving,
}

const BANDS: [i32; 4] = [-1, 0, 1, 5];

/// Settings drawn by chance; not every band is named.
pub(crate) fn flow(chance: &mut Chance) -> FlowConfig {
    let mut bands = BTreeMap::new();
    for band in BANDS {
        if !chance.one_in(3) {
            bands.insert(Band(band), band_config(chance));
        }
    }
    FlowConfig {
        pool_limits: Limits {
            requests: chance.of(&[8, 40, 400]),
            bytes: chance.of(&[20_000, 1 << 30]),
        },
        flow_limits: Limits {
            requests: chance.of(&[5, 400]),
            bytes: 1 << 30,
        },
        no_endpoint_ttl: Duration::from_millis(chance.of(&[500, 15_000])),
        order: chance.of(&[FairOrder::Lag, FairOrder::Strict]),
        flow_quota: quota(chance),
        bands,
        other_bands: band_config(chance),
        ..FlowConfig::default()
    }
}

fn band_config(chance: &mut Chance) -> BandConfig {
    BandConfig {
        ttl: Duration::from_millis(chance.of(&[50, 2_000, 20_000])),
        limits: Limits {
            requests: chance.of(&[10, 400]),
            bytes: 1 << 30,
        },
        refuse: chance.of(&[Refuse::Doomed, Refuse::Never, Refuse::BySign]),
        starvation: chance.of(&[Starvation::Share(0.1), Starvation::Allowed]),
        aging: chance.of(&[Aging::Off, Aging::Every(Duration::from_millis(300))]),
        ceiling: chance.of(&[1.0, 0.5]),
        max_streams: chance.of(&[None, Some(3)]),
        max_stall: chance.of(&[None, Some(Duration::from_secs(4))]),
        quota: quota(chance),
        ..BandConfig::default()
    }
}

fn quota(chance: &mut Chance) -> Quota {
    if !chance.one_in(4) {
        return Quota::default();
    }
    Quota {
        in_flight_wtu: chance.of(&[None, Some(20_000)]),
        rate: chance.of(&[
            None,
            Some(QuotaRate {
                wtu_per_s: 5_000,
                burst_wtu: 20_000,
            }),
        ]),
        over: chance.of(&[OverQuota::Wait, OverQuota::Refuse]),
    }
}

impl World {
    pub(crate) fn make_trouble(&mut self) {
        let id = self.chance.below(u64::from(ENGINES)) as u32;
        if self.now > self.disk_heals {
            self.l1.thaw(self.now);
        }
        if self.theme != Theme::Anything && self.chance.one_in(3) {
            return self.make_trouble_of(self.theme);
        }
        match self.chance.below(112) {
            0..=59 => {
                for _ in 0..=self.chance.of(&[0, 0, 0, 0, 2, 12]) {
                    self.somebody_comes();
                }
            }
            60..=67 => self.somebody_leaves(),
            68..=72 => self.change_mood(id),
            73 => self.dies(id),
            74..=76 => self.list(id, Listed::Down),
            77..=82 => self.comes_up(id),
            83 => self.drains(id),
            84 => self.all_leave(),
            85..=87 => (0..ENGINES).for_each(|id| self.comes_up(id)),
            88..=90 => self.reconfigure(),
            91..=93 => {
                let at = self.any_scheduler();
                self.schedulers[at].is_blind = !self.schedulers[at].is_blind;
            }
            94..=96 => {
                let at = self.any_scheduler();
                self.schedulers[at].is_mute = !self.schedulers[at].is_mute;
            }
            97 => self.jump(),
            98 => self.kill_scheduler(),
            99 => self.say_nonsense(id),
            100..=102 => self.harm_disk(),
            103..=105 => self.change_budget(),
            106 => self.crash_l1(),
            107..=109 => self.hear_late(),
            110 => {
                self.repeat_an_end();
                if self.chance.one_in(4) {
                    self.end_key();
                }
            }
            _ => self.handler_panics(),
        }
    }

    fn make_trouble_of(&mut self, theme: Theme) {
        match theme {
            Theme::Writes => self.harm_disk(),
            Theme::Deaths if self.chance.one_in(4) => self.crash_l1(),
            Theme::Deaths if self.chance.one_in(3) => self.hear_late(),
            Theme::Deaths | Theme::Anything => {}
            Theme::Budgets if self.chance.one_in(8) => self.end_key(),
            Theme::Budgets => self.change_budget(),
            Theme::Leaving if self.chance.one_in(4) => self.l1.disk = Disk::Slow,
            Theme::Leaving => {
                self.somebody_leaves();
                self.whoever_asks_leaves();
            }
        }
    }

    fn any_scheduler(&mut self) -> usize {
        self.chance.below(self.schedulers.len() as u64) as usize
    }

    fn somebody_comes(&mut self) {
        let chance = &mut self.chance;
        let own_limit = chance
            .one_in(4)
            .then(|| self.now + 1 + chance.below(3_000_000_000));
        let prompt = chance.of(&[1, 300, 900, 3_000, 12_000]) + chance.below(200) as u32;
        let output = 1 + chance.below(80) as u32;
        let tenant = chance.below(TENANTS);
        let client = Client {
            place: Place::Over,
            band: Band(chance.of(&[-1, 0, 0, 0, 1, 5, 7])),
            purse: purse(chance, tenant, prompt, output),
            tenant,
            prompt,
            output,
            family: chance.below(40),
            bytes: chance.below(2_000),
            arrived: self.now,
            own_limit,
            expires: 0,
            tried: Vec::new(),
            attempt: 0,
            streams: false,
            heard: self.now,
            generation: 0,
        };
        let scheduler = self.any_scheduler();
        self.enter(client, scheduler);
    }

    fn enter(&mut self, client: Client, scheduler: usize) {
        let index = self.clients.len();
        self.clients.push(client);
        self.open.push(index);
        self.knock(index, scheduler);
    }

    fn somebody_leaves(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.chance.below(self.open.len() as u64) as usize;
        let index = self.open[at];
        match self.clients[index].place {
            Place::Asks { .. } => self.ends_in_l1(index, InL1::Left),
            // Its own refusal says so.
            Place::Waits { scheduler } => {
                self.tally.canceled += 1;
                self.settle_money(index, self.left(index));
                self.feed(scheduler, Input::Cancel(RequestKey(index as u64)));
            }
            Place::Runs { .. } => self.hang_up(index, self.left(index)),
            Place::Over => {}
        }
    }

    /// The first of those who wait for a hold.
    fn whoever_asks_leaves(&mut self) {
        let asks = |index: &&usize| matches!(self.clients[**index].place, Place::Asks { .. });
        if let Some(index) = self.open.iter().find(asks).copied() {
            self.ends_in_l1(index, InL1::Left);
        }
    }

    /// Its client is gone; what its scheduler knows of the work, if governance can ask it.
    fn left(&self, index: usize) -> End {
        let purse = &self.clients[index].purse;
        End::ClientGone(self.is_one_process.then_some(purse.noted))
    }

    /// What serves a request panics.
    fn handler_panics(&mut self) {
        let runs = |index: &&usize| matches!(self.clients[**index].place, Place::Runs { .. });
        if let Some(index) = self.open.iter().find(runs).copied() {
            self.hang_up(index, End::Panicked);
        }
    }

    fn change_mood(&mut self, id: u32) {
        let mood = self.chance.of(&[
            Mood::Well,
            Mood::Well,
            Mood::Hangs,
            Mood::Refuses(AttemptEnd::Failed),
            Mood::Refuses(AttemptEnd::Busy),
            Mood::Slow(3),
        ]);
        self.seats[id as usize].mood = mood;
    }

    /// The process dies and another begins under the same name; discovery sees nothing of it.
    fn dies(&mut self, id: u32) {
        for index in self.open.clone() {
            if matches!(self.clients[index].place, Place::Runs { engine, .. } if engine == id) {
                self.fail(index, AttemptEnd::Failed, Work::Prefill);
            }
        }
        let seat = &mut self.seats[id as usize];
        seat.engine = engine();
        seat.ends = None;
        seat.started += 100.0;
    }

    fn drains(&mut self, id: u32) {
        if self.seats[id as usize].listed == Listed::Up {
            self.list(id, Listed::Draining);
        }
    }

    /// The list of endpoints is empty for once.
    fn all_leave(&mut self) {
        if self.chance.one_in(3) {
            (0..ENGINES).for_each(|id| self.list(id, Listed::Down));
        }
    }

    /// It comes back, or is told again; sometimes another engine has its place.
    fn comes_up(&mut self, id: u32) {
        if self.chance.one_in(4) {
            self.seats[id as usize].generation += 1;
        }
        self.list(id, Listed::Up);
    }

    fn reconfigure(&mut self) {
        let at = self.any_scheduler();
        let flow = flow(&mut self.chance);
        let snapshot = self.schedulers[at].pool.snapshot(Timestamp(self.now));
        let scheduler = &mut self.schedulers[at];
        scheduler.limit = Limit::lowered(&flow, snapshot.queue_length, snapshot.queue_bytes);
        scheduler.flow = flow.clone();
        self.feed(at, Input::Reconfigure(Box::new(flow)));
    }

    /// A clock goes back, which counts for nothing, or stops for a while.
    fn jump(&mut self) {
        let at = self.any_scheduler();
        let past = Timestamp(self.now.saturating_sub(5_000_000_000));
        self.schedulers[at].pool.handle_timeout(past);
        if self.chance.one_in(2) {
            self.now += self.chance.below(20_000_000_000);
            for scheduler in &mut self.schedulers {
                scheduler.pool.handle_timeout(Timestamp(self.now));
            }
        }
    }

    /// A scheduler dies with all it knew; another takes its place, and its clients ask again, once each.
    fn kill_scheduler(&mut self) {
        let at = self.any_scheduler();
        self.schedulers[at] = self.new_scheduler();
        for index in self.open.clone() {
            let client = &self.clients[index];
            match client.place {
                Place::Runs {
                    scheduler, engine, ..
                } if scheduler == at => {
                    let id = client.id(index);
                    self.seats[engine as usize].engine.abort(id);
                }
                Place::Waits { scheduler } if scheduler == at => {}
                Place::Asks { .. } | Place::Runs { .. } | Place::Waits { .. } | Place::Over => {
                    continue;
                }
            }
            self.tally.killed += 1;
            self.note_l2(index, InL2::Died);
            self.settle_money(index, End::Cut);
            self.end(index);
            if !self.clients[index].streams {
                let again = self.clients[index].again(self.now);
                self.enter(again, (at + 1) % self.schedulers.len());
            }
        }
    }

    /// What no scheduler should mind.
    fn say_nonsense(&mut self, id: u32) {
        let at = self.any_scheduler();
        let stranger = EndpointId(1_000 + id);
        for input in [
            Input::EndpointDown(stranger),
            Input::Draining(stranger),
            Input::ScrapeFailed { endpoint: stranger },
            Input::Probed {
                endpoint: stranger,
                ok: true,
            },
            Input::Cancel(RequestKey(u64::MAX)),
            Input::FirstToken(scheduler_core::BookingId(u64::MAX)),
        ] {
            self.feed(at, input);
        }
        if self.seats[id as usize].listed == Listed::Up {
            self.list(id, Listed::Up);
        }
    }
}
