//! The switch of one attempt: lets a timer end an exchange that is being polled elsewhere. Carries no decision.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use scheduler_core::EndpointId;

/// Why an attempt is ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The endpoint makes no progress with anything.
    Hung,
    /// No output within the time allowed.
    Late,
    /// Output began and then stopped for longer than allowed.
    Silent,
    /// The process must end.
    Shutdown,
}

/// Shared by an attempt and the timers that may end it.
#[derive(Debug)]
pub(crate) struct Flight {
    /// 0 while it flies, else a [`Cut`].
    cut: AtomicU8,
    /// As `cut`, for a want of output: void once there is output. Whoever noticed the want may have looked before the
    /// output came and speak after it.
    given_up: AtomicU8,
    endpoint: EndpointId,
    /// An [`Awaits`]. Written by whoever polls the attempt, read by the timers.
    awaits: AtomicU8,
    /// Milliseconds on the proxy's clock since when the engine is silent.
    touched: AtomicU64,
    /// Whoever polls the attempt. Locked for a store or a wake.
    waker: Mutex<Option<Waker>>,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaits {
    FirstOutput,
    /// More from the engine.
    Engine,
    /// The reader, who has been handed something and has not asked for more: the engine is not to blame.
    Reader,
}

impl Flight {
    pub(crate) fn new(endpoint: EndpointId, now_ms: u64) -> Self {
        Self {
            cut: AtomicU8::new(0),
            given_up: AtomicU8::new(0),
            endpoint,
            awaits: AtomicU8::new(Awaits::FirstOutput as u8),
            touched: AtomicU64::new(now_ms),
            waker: Mutex::new(None),
        }
    }

    /// Ends the attempt; the first reason stays.
    pub(crate) fn cut(&self, why: Cut) {
        self.end(&self.cut, why);
    }

    /// Ends the attempt unless it has output by the time that it hears of it.
    pub(crate) fn give_up(&self, why: Cut) {
        self.end(&self.given_up, why);
    }

    fn end(&self, slot: &AtomicU8, why: Cut) {
        let first = slot.compare_exchange(0, why.code(), Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok()
            && let Some(waker) = self.lock().take()
        {
            waker.wake();
        }
    }

    /// Ready once the attempt has been cut.
    pub(crate) fn poll_cut(&self, context: &mut Context<'_>) -> Poll<Cut> {
        if let Some(why) = self.was_cut() {
            return Poll::Ready(why);
        }
        {
            let mut waker = self.lock();
            match &mut *waker {
                Some(known) if known.will_wake(context.waker()) => {}
                slot => *slot = Some(context.waker().clone()),
            }
        }
        // A cut between the look and the store would not have woken us.
        self.was_cut().map_or(Poll::Pending, Poll::Ready)
    }

    pub(crate) fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    /// Output arrived.
    pub(crate) fn touch(&self, now_ms: u64) {
        self.touched.store(now_ms, Ordering::Relaxed);
        self.awaits.store(Awaits::Engine as u8, Ordering::Release);
    }

    /// The reader has been handed a piece.
    pub(crate) fn handed_over(&self) {
        self.awaits.store(Awaits::Reader as u8, Ordering::Release);
    }

    /// The reader asks for more than there is. What it took to come back is not the engine's silence.
    pub(crate) fn reader_waits(&self, now_ms: impl FnOnce() -> u64) {
        if self.awaits.load(Ordering::Relaxed) == Awaits::Reader as u8 {
            self.touch(now_ms());
        }
    }

    /// Whether the engine has been silent for this long in the middle of an answer.
    pub(crate) fn is_silent(&self, now_ms: u64, for_ms: u64) -> bool {
        self.awaits.load(Ordering::Acquire) == Awaits::Engine as u8
            && now_ms.saturating_sub(self.touched.load(Ordering::Relaxed)) > for_ms
    }

    /// Whether a limit has passed: before the first output, or between two pieces of it.
    pub(crate) fn overdue(
        &self,
        now_ms: u64,
        first_output_ms: u64,
        silence_ms: u64,
    ) -> Option<Cut> {
        if self.is_silent(now_ms, silence_ms) {
            return Some(Cut::Silent);
        }
        let waited = now_ms.saturating_sub(self.touched.load(Ordering::Relaxed));
        (self.awaits_output() && waited > first_output_ms).then_some(Cut::Late)
    }

    fn was_cut(&self) -> Option<Cut> {
        let given_up = || Cut::from_code(self.given_up.load(Ordering::Acquire));
        Cut::from_code(self.cut.load(Ordering::Acquire))
            .or_else(|| given_up().filter(|_| self.awaits_output()))
    }

    fn awaits_output(&self) -> bool {
        self.awaits.load(Ordering::Relaxed) == Awaits::FirstOutput as u8
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.waker.lock().expect("no panic happens under this lock")
    }
}

impl Cut {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Hung => "hung",
            Self::Late => "late",
            Self::Silent => "silent",
            Self::Shutdown => "shutdown",
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Hung => 1,
            Self::Late => 2,
            Self::Silent => 3,
            Self::Shutdown => 4,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Hung, Self::Late, Self::Silent, Self::Shutdown]
            .into_iter()
            .find(|cut| cut.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicU64);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_cut_wakes_the_attempt_once_and_keeps_its_first_reason() {
        let woken = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let flight = Flight::new(EndpointId(0), 0);
        assert_eq!(flight.poll_cut(&mut context), Poll::Pending);
        flight.cut(Cut::Hung);
        flight.cut(Cut::Shutdown);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(flight.poll_cut(&mut context), Poll::Ready(Cut::Hung));
    }

    #[test]
    fn who_is_given_up_for_want_of_output_goes_on_if_output_has_come() {
        let mut context = Context::from_waker(Waker::noop());
        for give_up_first in [true, false] {
            let flight = Flight::new(EndpointId(0), 0);
            if give_up_first {
                flight.give_up(Cut::Hung);
                assert_eq!(flight.poll_cut(&mut context), Poll::Ready(Cut::Hung));
            }
            flight.touch(50);
            flight.give_up(Cut::Late);
            assert_eq!(flight.poll_cut(&mut context), Poll::Pending);
            flight.cut(Cut::Silent);
            assert_eq!(flight.poll_cut(&mut context), Poll::Ready(Cut::Silent));
        }
    }

    #[test]
    fn the_limit_before_output_is_another_than_between_its_pieces() {
        for (output_at, now, expected) in [
            (None, 100, None),
            (None, 101, Some(Cut::Late)),
            (Some(50), 60, None),
            (Some(50), 61, Some(Cut::Silent)),
        ] {
            let flight = Flight::new(EndpointId(0), 0);
            if let Some(at) = output_at {
                flight.touch(at);
            }
            let cut = flight.overdue(now, 100, 10);
            assert_eq!(cut, expected, "output {output_at:?}, now {now}");
        }
    }

    #[test]
    fn a_reader_that_takes_its_time_is_not_the_engines_silence() {
        let flight = Flight::new(EndpointId(0), 0);
        flight.touch(50);
        flight.handed_over();
        assert_eq!(flight.overdue(1_000, 100, 10), None);
        flight.reader_waits(|| 1_000);
        assert_eq!(flight.overdue(1_010, 100, 10), None);
        flight.reader_waits(|| 1_010);
        assert_eq!(flight.overdue(1_011, 100, 10), Some(Cut::Silent));
    }
}
