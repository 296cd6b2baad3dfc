//! Follows the stream of one answer: first and last output, usage, errors, the point where the client leaves. Pure.

use std::time::Duration;

use inference_wire::route::Route;
use inference_wire::sse::Reader;
use inference_wire::usage::stream_fact;

use super::outcome::{Answer, Failure};

/// An answer in the making.
pub(super) struct Reading {
    route: Route,
    events: Reader,
    answer: Answer,
    done: bool,
    leave_after: Option<u32>,
}

/// What to do after some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    ReadOn,
    /// The client has had enough.
    Leave,
    Fail(Failure),
}

impl Reading {
    pub(super) fn new(route: Route, leave_after: Option<u32>) -> Self {
        Self {
            route,
            events: Reader::new(),
            answer: Answer::default(),
            done: false,
            leave_after,
        }
    }

    /// Takes in bytes that came at `now`, counted from the intended time.
    pub(super) fn push(&mut self, now: Duration, bytes: &[u8]) -> Step {
        self.events.push(bytes);
        loop {
            let event = match self.events.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return Step::ReadOn,
                Err(_) => return Step::Fail(Failure::Unreadable),
            };
            let fact = stream_fact(&self.route, event.name, event.data);
            if fact.error.is_some() {
                return Step::Fail(Failure::InStream);
            }
            self.done |= fact.done;
            self.answer.usage = fact.usage.or(self.answer.usage);
            if fact.generated {
                self.answer.first.get_or_insert(now);
                self.answer.last = Some(now);
                self.answer.outputs = self.answer.outputs.saturating_add(fact.outputs);
                if self
                    .leave_after
                    .is_some_and(|after| self.answer.outputs > after)
                {
                    return Step::Leave;
                }
            }
        }
    }

    /// The stream has ended.
    pub(super) fn end(self) -> Result<Answer, Failure> {
        if self.done {
            Ok(self.answer)
        } else {
            Err(Failure::Cut)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use inference_wire::route::Route;
    use inference_wire::usage::Usage;

    use super::{Reading, Step};
    use crate::drive::outcome::{Answer, Failure};

    const STREAM: &[u8] = b"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"data: [DONE]\"}}]}\n\n\
        : waiting\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"length\"}]}\r\n\r\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n\
        data: [DONE]\n\n";

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Reads the pieces, each 10 ms after the one before.
    fn read(pieces: &[&[u8]], leave_after: Option<u32>) -> Result<Answer, Step> {
        let mut reading = Reading::new(Route::ChatCompletions, leave_after);
        for (at, piece) in (1..).zip(pieces) {
            match reading.push(ms(10 * at), piece) {
                Step::ReadOn => {}
                step @ (Step::Leave | Step::Fail(_)) => return Err(step),
            }
        }
        reading.end().map_err(Step::Fail)
    }

    #[test]
    fn a_stream_split_anywhere_is_the_same_answer() {
        let whole = read(&[STREAM], None).expect("complete");
        assert_eq!(
            whole.usage,
            Some(Usage {
                prompt_tokens: 9,
                cached_tokens: Some(4),
                output_tokens: 7
            })
        );
        for cut in 0..=STREAM.len() {
            let split = read(&[&STREAM[..cut], &STREAM[cut..]], None).expect("complete");
            assert_eq!(
                (split.usage, split.outputs),
                (whole.usage, whole.outputs),
                "cut at {cut}"
            );
        }
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(read(&bytes, None).expect("complete").usage, whole.usage);
    }

    #[test]
    fn the_first_and_last_output_are_timed_and_comments_are_not() {
        let ends: Vec<usize> = STREAM
            .windows(2)
            .enumerate()
            .filter(|(_, pair)| pair == b"\n\n")
            .map(|(at, _)| at + 2)
            .collect();
        let pieces: Vec<&[u8]> = std::iter::once(0)
            .chain(ends.iter().copied())
            .zip(&ends)
            .map(|(from, &to)| &STREAM[from..to])
            .collect();
        let answer = read(&pieces, None).expect("complete");
        assert_eq!((answer.first, answer.last), (Some(ms(10)), Some(ms(40))));
        assert_eq!(answer.tpot(), Some(ms(5)));
    }

    #[test]
    fn a_stream_that_ends_early_is_cut_and_an_error_inside_fails() {
        let cut = &STREAM[..STREAM.len() - 16];
        assert_eq!(read(&[cut], None), Err(Step::Fail(Failure::Cut)));
        let error = b"data: {\"error\":{\"message\":\"m\",\"code\":500}}\n\ndata: [DONE]\n\n";
        assert_eq!(read(&[error], None), Err(Step::Fail(Failure::InStream)));
        let endless = vec![b'x'; 2 << 20];
        assert_eq!(
            read(&[&endless], None),
            Err(Step::Fail(Failure::Unreadable))
        );
    }

    #[test]
    fn the_client_leaves_once_it_has_seen_enough() {
        assert_eq!(read(&[STREAM], Some(0)), Err(Step::Leave));
        assert!(read(&[STREAM], Some(100)).is_ok());
    }
}
