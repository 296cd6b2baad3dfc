//! The pool's state machine behind one lock: turns calls and time into inputs and its outputs into wake-ups.
//! Makes no decision.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use scheduler_core::{
    AttemptEnd, BookingId, EndpointId, Input, LoadVector, Output, Pool, PoolSnapshot, Queued,
    Request, RequestKey, Timestamp,
};
use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tokio::time::Instant;

use crate::flight::{Cut, Flight};

mod booking;
mod waiting;

pub(crate) use booking::Booking;
pub(crate) use waiting::{Turn, Waiting};

/// Owner of the pool.
pub(crate) struct Dispatcher {
    /// Locked for microseconds by whoever has an event: a task that owned the pool would add two wake-ups to every
    /// request.
    state: Mutex<State>,
    origin: Instant,
    next_key: AtomicU64,
    /// The timer must be set earlier.
    rearm: Notify,
    probes: mpsc::Sender<EndpointId>,
    vectors: broadcast::Sender<LoadVector>,
}

/// Load vectors that wait to be sent; when there are more, the oldest are left out.
pub(crate) const MOST_VECTORS: usize = 8;

struct State {
    pool: Pool,
    waiting: HashMap<RequestKey, oneshot::Sender<Turn>>,
    flights: BTreeMap<BookingId, Arc<Flight>>,
    armed: Option<Timestamp>,
}

/// What follows from an input, to be done after the lock is released: a turn that nobody waits for any more is a
/// booking to give back, which takes the lock again.
#[derive(Default)]
struct Outbox {
    turns: Vec<(oneshot::Sender<Turn>, Turn)>,
    own: Option<Turn>,
    hung: Vec<Arc<Flight>>,
    probes: Vec<EndpointId>,
    vector: Option<LoadVector>,
    rearm: bool,
}

impl Dispatcher {
    /// The dispatcher and the endpoints it wants probed.
    pub(crate) fn new(
        pool: Pool,
        probe_capacity: usize,
    ) -> (Arc<Self>, mpsc::Receiver<EndpointId>) {
        let (probes, wanted) = mpsc::channel(probe_capacity.max(1));
        let dispatcher = Arc::new(Self {
            state: Mutex::new(State {
                pool,
                waiting: HashMap::new(),
                flights: BTreeMap::new(),
                armed: None,
            }),
            origin: Instant::now(),
            next_key: AtomicU64::new(0),
            rearm: Notify::new(),
            probes,
            vectors: broadcast::Sender::new(MOST_VECTORS),
        });
        (dispatcher, wanted)
    }

    pub(crate) fn now(&self) -> Timestamp {
        let nanos = self.origin.elapsed().as_nanos();
        Timestamp(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now().0 / 1_000_000
    }

    /// A key for a request and all its attempts.
    pub(crate) fn next_key(&self) -> RequestKey {
        RequestKey(self.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// Asks for an endpoint.
    pub(crate) fn arrive(self: &Arc<Self>, request: Box<Request>) -> Waiting {
        let key = request.key;
        let now = self.now();
        let mut state = self.lock();
        state.pool.handle(now, Input::Arrive(request));
        let mut outbox = self.collect(&mut state, now, Some(key));
        let waiting = if let Some(turn) = outbox.own.take() {
            Waiting::decided(turn)
        } else {
            let (sender, receiver) = oneshot::channel();
            state.waiting.insert(key, sender);
            Waiting::queued(Arc::clone(self), key, receiver)
        };
        drop(state);
        self.deliver(outbox);
        waiting
    }

    /// Tells the pool what happened.
    pub(crate) fn feed(self: &Arc<Self>, input: Input) {
        let now = self.now();
        let mut state = self.lock();
        state.pool.handle(now, input);
        let outbox = self.collect(&mut state, now, None);
        drop(state);
        self.deliver(outbox);
    }

    /// The state of the pool.
    pub(crate) fn snapshot(&self) -> PoolSnapshot {
        let now = self.now();
        self.lock().pool.snapshot(now)
    }

    /// Whether this request waits for its turn.
    pub(crate) fn is_waiting(&self, key: RequestKey) -> bool {
        self.lock().waiting.contains_key(&key)
    }

    /// Who waits where, at most this many.
    pub(crate) fn line(&self, most: usize) -> Vec<Queued> {
        let now = self.now();
        self.lock().pool.line(now, most)
    }

    /// What other schedulers shall be told from here on.
    pub(crate) fn vectors(&self) -> broadcast::Receiver<LoadVector> {
        self.vectors.subscribe()
    }

    /// Tells the pool the time whenever it asked for it. Never returns.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        loop {
            let due = self.tick();
            let sleep = async {
                match due {
                    Some(due) => tokio::time::sleep_until(self.instant(due)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                () = self.rearm.notified() => {}
            }
        }
    }

    /// Cuts attempts whose limits have passed, a few times a second. Never returns.
    pub(crate) async fn keep_limits(self: Arc<Self>, first_output: Duration, silence: Duration) {
        let (first_output, silence) = (millis(first_output), millis(silence));
        let period = Duration::from_millis((first_output.min(silence) / 4).clamp(5, 250));
        loop {
            tokio::time::sleep(period).await;
            let now_ms = self.now_ms();
            let overdue: Vec<_> = self
                .lock()
                .flights
                .values()
                .filter_map(|flight| {
                    let cut = flight.overdue(now_ms, first_output, silence)?;
                    Some((Arc::clone(flight), cut))
                })
                .collect();
            for (flight, cut) in overdue {
                match cut {
                    Cut::Late => flight.give_up(cut),
                    Cut::Hung | Cut::Silent | Cut::Shutdown => flight.cut(cut),
                }
            }
        }
    }

    /// The endpoint left a probe unanswered: its streams that have been silent for as long are not coming back.
    pub(crate) fn cut_silent(&self, endpoint: EndpointId, silence: Duration) {
        let (now_ms, silence) = (self.now_ms(), millis(silence));
        let silent: Vec<_> = self
            .lock()
            .flights
            .values()
            .filter(|flight| flight.endpoint() == endpoint && flight.is_silent(now_ms, silence))
            .map(Arc::clone)
            .collect();
        for flight in silent {
            flight.cut(Cut::Hung);
        }
    }

    /// Ends everything that waits or is in flight; how many calls that is.
    pub(crate) fn cut_all(self: &Arc<Self>) -> usize {
        let now = self.now();
        let mut state = self.lock();
        let flights: Vec<_> = state.flights.values().map(Arc::clone).collect();
        let mut waiting: Vec<_> = state.waiting.keys().copied().collect();
        waiting.sort_unstable();
        for key in &waiting {
            state.pool.handle(now, Input::Cancel(*key));
        }
        let outbox = self.collect(&mut state, now, None);
        drop(state);
        self.deliver(outbox);
        for flight in &flights {
            flight.cut(Cut::Shutdown);
        }
        flights.len() + waiting.len()
    }

    fn tick(self: &Arc<Self>) -> Option<Timestamp> {
        let now = self.now();
        let mut state = self.lock();
        if state.pool.poll_timeout().is_some_and(|due| due <= now) {
            state.pool.handle_timeout(now);
        }
        let outbox = self.collect(&mut state, now, None);
        let due = state.pool.poll_timeout();
        state.armed = due;
        drop(state);
        self.deliver(Outbox {
            rearm: false,
            ..outbox
        });
        due
    }

    fn finish(self: &Arc<Self>, booking: BookingId, end: AttemptEnd) {
        let now = self.now();
        let mut state = self.lock();
        state.flights.remove(&booking);
        state.pool.handle(now, Input::Finished { booking, end });
        let outbox = self.collect(&mut state, now, None);
        drop(state);
        self.deliver(outbox);
    }

    fn cancel(self: &Arc<Self>, key: RequestKey) {
        let now = self.now();
        let mut state = self.lock();
        if state.waiting.remove(&key).is_none() {
            return;
        }
        state.pool.handle(now, Input::Cancel(key));
        let outbox = self.collect(&mut state, now, None);
        drop(state);
        self.deliver(outbox);
    }

    fn collect(
        self: &Arc<Self>,
        state: &mut State,
        now: Timestamp,
        own: Option<RequestKey>,
    ) -> Outbox {
        let mut outbox = Outbox::default();
        while let Some(output) = state.pool.poll_output() {
            match output {
                Output::Dispatch {
                    request,
                    booking,
                    endpoint,
                    decision,
                } => {
                    let flight = Arc::new(Flight::new(endpoint, now.0 / 1_000_000));
                    state.flights.insert(booking, Arc::clone(&flight));
                    let booking =
                        Booking::new(Arc::clone(self), booking, endpoint, decision, flight);
                    outbox.turn(state, own, request, Turn::Go(booking));
                }
                Output::Refuse { request, refusal } => {
                    outbox.turn(state, own, request, Turn::Refused(refusal));
                }
                Output::Abandon { booking } => {
                    outbox.hung.extend(state.flights.get(&booking).cloned());
                }
                Output::Probe { endpoint } => outbox.probes.push(endpoint),
                Output::Tell(vector) => outbox.vector = Some(vector),
            }
        }
        let due = state.pool.poll_timeout();
        if due.is_some_and(|due| state.armed.is_none_or(|armed| due < armed)) {
            state.armed = due;
            outbox.rearm = true;
        }
        outbox
    }

    fn deliver(self: &Arc<Self>, outbox: Outbox) {
        for (waiter, turn) in outbox.turns {
            // A waiter that has left gives the turn back by dropping it.
            let _ = waiter.send(turn);
        }
        for flight in outbox.hung {
            flight.give_up(Cut::Hung);
        }
        for endpoint in outbox.probes {
            if self.probes.try_send(endpoint).is_err() {
                self.feed(Input::Probed {
                    endpoint,
                    ok: false,
                });
            }
        }
        if let Some(vector) = outbox.vector {
            // Before peers are met nobody listens.
            let _ = self.vectors.send(vector);
        }
        if outbox.rearm {
            self.rearm.notify_one();
        }
    }

    fn instant(&self, at: Timestamp) -> Instant {
        self.origin + Duration::from_nanos(at.0.min(FAR_NS))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the pool does not panic")
    }
}

fn millis(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}

/// A hundred years: later than any timer, and within what an `Instant` can hold.
const FAR_NS: u64 = 100 * 365 * 24 * 60 * 60 * 1_000_000_000;

impl Outbox {
    fn turn(
        &mut self,
        state: &mut State,
        own: Option<RequestKey>,
        request: RequestKey,
        turn: Turn,
    ) {
        if own == Some(request) {
            self.own = Some(turn);
        } else if let Some(waiter) = state.waiting.remove(&request) {
            self.turns.push((waiter, turn));
        } else if let Turn::Go(booking) = turn {
            // Nobody waits: it left while this was decided. Its booking ends when the outbox is delivered.
            let (gone, _) = oneshot::channel();
            self.turns.push((gone, Turn::Go(booking)));
        }
    }
}
