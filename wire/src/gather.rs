//! A body that arrives in pieces, made whole within a limit.

use bytes::{Bytes, BytesMut};

/// What is announced is not believed beyond this many bytes: memory is taken as the body comes.
const BELIEVED: usize = 1 << 20;

/// Collects the pieces of a body. A body of one piece is passed on as it came.
#[derive(Debug)]
pub struct Gather {
    limit: usize,
    announced: usize,
    first: Bytes,
    all: BytesMut,
}

/// The body is larger than its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body is larger than {limit} bytes")]
pub struct TooLarge {
    /// The limit, in bytes.
    pub limit: usize,
}

impl Gather {
    /// A body of at most `limit` bytes, of which `announced` are promised; 0 if nobody said.
    ///
    /// # Errors
    /// More than the limit is announced.
    pub fn new(limit: usize, announced: usize) -> Result<Self, TooLarge> {
        if announced > limit {
            return Err(TooLarge { limit });
        }
        Ok(Self {
            limit,
            announced,
            first: Bytes::new(),
            all: BytesMut::new(),
        })
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// The body has grown over its limit.
    pub fn push(&mut self, piece: Bytes) -> Result<(), TooLarge> {
        let length = self.first.len() + self.all.len() + piece.len();
        if length > self.limit {
            return Err(TooLarge { limit: self.limit });
        }
        if self.first.is_empty() && self.all.is_empty() {
            self.first = piece;
            return Ok(());
        }
        if self.all.is_empty() {
            self.all.reserve(self.announced.min(BELIEVED).max(length));
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&piece);
        Ok(())
    }

    /// The whole body.
    pub fn finish(self) -> Bytes {
        if self.all.is_empty() {
            self.first
        } else {
            self.all.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_within_the_limit() {
        let text = b"the river runs past the mill";
        for size in 1..=text.len() {
            let mut gather = Gather::new(text.len(), 0).expect("nothing is announced");
            for piece in text.chunks(size) {
                gather
                    .push(Bytes::copy_from_slice(piece))
                    .expect("it fits exactly");
            }
            assert_eq!(
                gather.push(Bytes::from_static(b"!")),
                Err(TooLarge { limit: 28 })
            );
            assert_eq!(gather.finish(), &text[..]);
        }
    }

    #[test]
    fn one_piece_is_passed_on_as_it_came() {
        let piece = Bytes::from_static(b"whole");
        let mut gather = Gather::new(5, 5).expect("as announced");
        gather.push(piece.clone()).expect("it fits");
        gather
            .push(Bytes::new())
            .expect("an empty piece is no harm");
        assert_eq!(gather.finish(), piece);
    }

    #[test]
    fn what_is_announced_too_large_is_refused_before_it_comes() {
        assert_eq!(Gather::new(4, 5).err(), Some(TooLarge { limit: 4 }));
    }
}
