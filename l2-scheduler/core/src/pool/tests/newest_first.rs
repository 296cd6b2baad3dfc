//! Long waits turn the order of one band, and of that band alone.

use super::*;
use crate::flow::BandConfig;

/// Two endpoints with one place each: the band `long` waits for the first, `short` for the second.
struct Counter {
    bench: Bench,
    long: i32,
    short: i32,
}

impl Counter {
    fn new(long: i32, short: i32) -> Self {
        let mut config = with_room(1);
        // A fifth of a minute is the target.
        let band = BandConfig {
            ttl: seconds(60.0),
            ..BandConfig::default()
        };
        config.flow.bands = [(Band(long), band.clone()), (Band(short), band)].into();
        config.health.hang_floor = seconds(3600.0);
        let mut bench = Bench::new(config);
        bench.up(0, |spec| spec.models = vec!["long".into()]);
        bench.up(1, |spec| spec.models = vec!["short".into()]);
        Self { bench, long, short }
    }

    fn ask(&mut self, name: &str) -> RequestKey {
        let band = if name == "long" {
            self.long
        } else {
            self.short
        };
        self.bench.ask_with(&tokens(1, 100), |request| {
            request.model = named(name);
            request.band = Band(band);
        })
    }

    /// What runs on an endpoint ends at so many seconds; returns who takes its place.
    fn end(&mut self, endpoint: u32, at: f64) -> RequestKey {
        let start = Timestamp(1_000_000_000);
        let until = (start + seconds(at)).since(self.bench.now);
        self.bench.pass(until);
        let (_, booking, ..) = self
            .bench
            .dispatched
            .iter()
            .rfind(|(_, _, other, _)| other.0 == endpoint)
            .expect("something runs there");
        let booking = *booking;
        self.bench.complete(booking);
        self.bench.last().0
    }

    fn newest_first(&self) -> [bool; 2] {
        let snapshot = self.bench.pool.snapshot(self.bench.now);
        [self.long, self.short].map(|band| {
            snapshot
                .bands
                .iter()
                .any(|shown| shown.band == band && shown.newest_first)
        })
    }
}

#[test]
fn the_band_whose_waits_are_long_turns_to_its_newest_and_the_other_does_not() {
    for (long, short) in [(0, 1), (1, 0)] {
        let mut counter = Counter::new(long, short);
        let old: Vec<_> = (0..10).map(|_| counter.ask("long")).collect();
        assert_eq!(counter.end(0, 13.0), old[1]);
        // The other band's queue moves every second.
        let brief: Vec<_> = (0..6).map(|_| counter.ask("short")).collect();
        for (at, next) in brief[1..=3].iter().enumerate() {
            assert_eq!(counter.end(1, 14.0 + at as f64), *next);
        }
        assert_eq!(counter.end(0, 16.999_999_999), old[2]);
        assert_eq!(counter.newest_first(), [false, false], "not yet");
        assert_eq!(counter.end(0, 17.0), old[3]);
        assert_eq!(counter.newest_first(), [true, false]);
        assert_eq!(counter.end(1, 18.0), brief[4], "here the oldest");
        assert_eq!(counter.newest_first(), [true, false]);
        let new = [counter.ask("long"), counter.ask("long")];
        for key in &old[4..] {
            counter.bench.feed(Input::Cancel(*key));
        }
        assert_eq!(counter.newest_first(), [true, false], "nobody was served");
        assert_eq!(counter.end(0, 19.0), new[1], "the newest");
        assert_eq!(counter.newest_first(), [false, false], "a short wait");
    }
}

#[test]
fn after_long_waits_the_newest_goes_first_however_short_the_line() {
    let mut counter = Counter::new(0, 1);
    let old: Vec<_> = (0..10).map(|_| counter.ask("long")).collect();
    for (at, next) in [
        (13.0, 1),
        (16.999_999_999, 2),
        (17.0, 3),
        (18.0, 9),
        (19.0, 8),
    ] {
        assert_eq!(counter.end(0, at), old[next], "at {at} s");
    }
}

#[test]
fn a_queue_that_empties_turns_back() {
    let mut counter = Counter::new(0, 1);
    let old: Vec<_> = (0..4).map(|_| counter.ask("long")).collect();
    counter.end(0, 13.0);
    assert_eq!(counter.end(0, 17.0), old[2]);
    assert_eq!(counter.newest_first(), [true, false]);
    assert_eq!(counter.end(0, 17.0), old[3], "the last");
    assert_eq!(counter.newest_first(), [false, false]);
    let next = [counter.ask("long"), counter.ask("long")];
    assert_eq!(counter.end(0, 18.0), next[0], "the oldest");
}
