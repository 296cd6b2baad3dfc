//! The memory for request bodies that have not been judged: their callers' limits do not count yet.

use std::sync::atomic::{AtomicUsize, Ordering};

/// So many bodies of the largest size may be received at once.
const LARGEST_BODIES: usize = 16;
/// This part of the largest size is free: large bodies do not keep ordinary ones out.
const FREE_PART: usize = 256;

/// What bodies take and may take.
pub(crate) struct Room {
    taken: AtomicUsize,
    most: usize,
    free: usize,
}

/// The part of one body, given back when this is dropped.
pub(crate) struct Place<'a> {
    room: &'a Room,
    received: usize,
    taken: usize,
}

/// There is no room for more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Room {
    pub(crate) fn new(largest_body: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            most: largest_body.saturating_mul(LARGEST_BODIES),
            free: largest_body / FREE_PART,
        }
    }

    pub(crate) fn enter(&self) -> Place<'_> {
        Place {
            room: self,
            received: 0,
            taken: 0,
        }
    }
}

impl Place<'_> {
    /// Takes room for the next bytes of the body.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Full> {
        self.received += bytes;
        let more = self.received.saturating_sub(self.room.free) - self.taken;
        if more == 0 {
            return Ok(());
        }
        let before = self.room.taken.fetch_add(more, Ordering::Relaxed);
        self.taken += more;
        if before + more > self.room.most {
            return Err(Full);
        }
        Ok(())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back_and_small_bodies_are_free() {
        let room = Room::new(512);
        let mut places: Vec<_> = (0..16).map(|_| room.enter()).collect();
        for place in &mut places {
            assert_eq!((place.take(500), place.take(12)), (Ok(()), Ok(())));
        }
        let mut last = room.enter();
        assert_eq!(last.take(2), Ok(()), "free");
        assert_eq!(last.take(100), Err(Full));
        drop(last);
        places.pop();
        assert_eq!(room.enter().take(500), Ok(()));
        drop(places);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }
}
