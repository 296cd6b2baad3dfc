//! Watches the bytes of a connection for what the HTTP library does not report: a request head that
//! states its length twice (`content-length` and `transfer-encoding`), a head that arrives too
//! slowly, and a client that does not read. At the end it reads on for a moment. It parses nothing
//! else and changes no byte.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Version;
use memchr::memchr_iter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

/// A head longer than this is the HTTP library's to refuse.
const HEAD_CAP: usize = 64 * 1024;

/// How long a client may be silent, and how many bytes it may send, while a closed connection is read on.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 16 * 1024 * 1024;

/// What the watcher and the request handler of one connection tell each other.
#[derive(Default)]
pub(super) struct Framing {
    /// The head just passed on had two lengths.
    ambiguous: AtomicBool,
    /// The next byte starts a new head.
    head_next: AtomicBool,
    /// Nothing of the answer to the last request was written, and its client knows interim answers.
    unanswered: AtomicBool,
    /// Some bytes of a write are still to be written.
    half_written: AtomicBool,
    /// A request has been read to its end.
    read: Notify,
    /// The process ends: who has been answered is not waited for.
    ending: AtomicBool,
}

impl Framing {
    pub(super) fn take_ambiguous(&self) -> bool {
        self.ambiguous.swap(false, Ordering::AcqRel)
    }

    /// A request has been read to its end.
    pub(super) fn expect_head(&self, version: Version) {
        // A connection of HTTP/2 has no further head to wait for: what follows are frames.
        self.head_next
            .store(version < Version::HTTP_2, Ordering::Release);
        let interim = version == Version::HTTP_11;
        self.unanswered.store(interim, Ordering::Release);
        self.read.notify_one();
    }

    /// The process ends: what the client of a closed connection still sends gives it no more time.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Waits for the end of a request.
    pub(super) async fn request_read(&self) {
        self.read.notified().await;
    }

    /// Whether an interim answer can be written now.
    pub(super) fn takes_interim(&self) -> bool {
        self.unanswered.load(Ordering::Acquire) && !self.half_written.load(Ordering::Acquire)
    }

    fn wrote(&self, written: &Poll<io::Result<usize>>, whole: usize) {
        self.unanswered.store(false, Ordering::Release);
        let complete = matches!(written, Poll::Ready(Ok(count)) if *count == whole);
        self.half_written.store(!complete, Ordering::Release);
    }
}

pub(super) struct HeadWatch<T> {
    io: T,
    framing: Arc<Framing>,
    head: Head,
    limit: Duration,
    idle: Duration,
    /// Runs while something is to be written and the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    linger: Option<Linger>,
}

/// What may still arrive after our side is closed. Closing on unread bytes would reset the
/// connection, and the client might never read the answer it was given.
struct Linger {
    /// Set later by what arrives, up to `end`.
    deadline: Pin<Box<Sleep>>,
    end: Instant,
    bytes: usize,
}

enum Head {
    /// The first one of the connection; no byte of it has arrived.
    First { deadline: Pin<Box<Sleep>> },
    /// No byte of it has arrived; the HTTP library minds the time.
    Awaited,
    /// Some bytes arrived; the rest is due.
    Partial {
        seen: Vec<u8>,
        deadline: Pin<Box<Sleep>>,
    },
    /// It has passed: what follows is a body, or HTTP/2.
    Passed,
}

impl<T> HeadWatch<T> {
    /// `limit` is for a head from its first byte on, `idle` for a connection that says nothing, or
    /// does not read what it asked for.
    pub(super) fn new(io: T, limit: Duration, idle: Duration) -> (Self, Arc<Framing>) {
        let deadline = Box::pin(tokio::time::sleep(idle));
        let framing = Arc::new(Framing::default());
        let watch = Self {
            io,
            framing: Arc::clone(&framing),
            head: Head::First { deadline },
            limit,
            idle,
            stalled: None,
            linger: None,
        };
        (watch, framing)
    }

    fn observe(&mut self, bytes: &[u8]) {
        if self.framing.head_next.swap(false, Ordering::AcqRel) {
            self.head = Head::Awaited;
        }
        match &mut self.head {
            Head::Passed => {}
            Head::First { .. } | Head::Awaited => {
                let Some(verdict) = judge(bytes) else {
                    let deadline = Box::pin(tokio::time::sleep(self.limit));
                    let seen = bytes.to_vec();
                    self.head = Head::Partial { seen, deadline };
                    return;
                };
                self.pass(verdict);
            }
            Head::Partial { seen, .. } => {
                seen.extend_from_slice(bytes);
                if let Some(verdict) = judge(seen) {
                    self.pass(verdict);
                }
            }
        }
    }

    /// An answer that is not read keeps its place in an engine, so it is not kept for ever.
    fn unless_stalled(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let idle = self.idle;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)));
        let over = stalled.as_mut().poll(context);
        over.map(|()| Err(io::Error::from(io::ErrorKind::TimedOut)))
    }

    fn pass(&mut self, verdict: Verdict) {
        self.head = Head::Passed;
        self.framing
            .ambiguous
            .store(verdict == Verdict::TwoLengths, Ordering::Release);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Fine,
    TwoLengths,
}

/// `None` while the head is incomplete.
fn judge(bytes: &[u8]) -> Option<Verdict> {
    if bytes.starts_with(b"PRI * HTTP/2") || bytes.len() > HEAD_CAP {
        return Some(Verdict::Fine);
    }
    // As the HTTP library reads it: blank lines before a head are skipped, and any line may end in a bare line feed.
    let blank = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let bytes = &bytes[bytes.iter().take_while(|byte| blank(byte)).count()..];
    let end = memchr_iter(b'\n', bytes).find(|at| {
        [&b"\n"[..], b"\r\n"]
            .iter()
            .any(|next| bytes[at + 1..].starts_with(next))
    })?;
    let (mut length, mut encoding) = (false, false);
    for line in bytes[..end].split(|byte| *byte == b'\n').skip(1) {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        length |= name.eq_ignore_ascii_case(b"content-length");
        encoding |= name.eq_ignore_ascii_case(b"transfer-encoding");
    }
    Some(if length && encoding {
        Verdict::TwoLengths
    } else {
        Verdict::Fine
    })
}

impl<T: AsyncRead + Unpin> AsyncRead for HeadWatch<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.io).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {
                if buffer.filled().len() > before {
                    self.observe(&buffer.filled()[before..]);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => match &mut self.head {
                Head::First { deadline } | Head::Partial { deadline, .. } => deadline
                    .as_mut()
                    .poll(context)
                    .map(|()| Err(io::Error::from(io::ErrorKind::TimedOut))),
                Head::Awaited | Head::Passed => Poll::Pending,
            },
        }
    }
}

impl<T: AsyncRead + Unpin> HeadWatch<T> {
    /// Discards what the client still sends, until it closes too, says nothing more or has had its time.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(linger) = &mut self.linger else {
            return Poll::Ready(());
        };
        let mut space = [0; 4096];
        while linger.bytes > 0 {
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut self.io).poll_read(context, &mut buffer) {
                // After what has arrived: a process that stood still is not the client's silence.
                Poll::Pending => return linger.deadline.as_mut().poll(context),
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    linger.bytes = linger.bytes.saturating_sub(buffer.filled().len());
                    if !self.framing.ending.load(Ordering::Acquire) {
                        let silent = Instant::now() + LINGER;
                        linger.deadline.as_mut().reset(silent.min(linger.end));
                    }
                }
                Poll::Ready(_) => break,
            }
        }
        Poll::Ready(())
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for HeadWatch<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.framing.wrote(&written, bytes.len());
        self.unless_stalled(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.io).poll_shutdown(context))?;
            self.linger = Some(Linger {
                deadline: Box::pin(tokio::time::sleep(LINGER)),
                end: Instant::now() + self.idle,
                bytes: LINGER_BYTES,
            });
        }
        self.poll_rest(context).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, buffers);
        let whole = buffers.iter().map(|buffer| buffer.len()).sum();
        self.framing.wrote(&written, whole);
        self.unless_stalled(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, DuplexStream};
    use tokio::time::sleep;

    use super::*;

    const IDLE: Duration = Duration::from_secs(10);

    /// A client and its connection, about to be closed.
    fn closing() -> (DuplexStream, HeadWatch<DuplexStream>) {
        let (client, server) = tokio::io::duplex(1 << 16);
        (client, HeadWatch::new(server, LINGER, IDLE).0)
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_ends_does_not_wait_for_who_sends_on() {
        let (mut client, mut watch) = closing();
        let framing = Arc::clone(&watch.framing);
        let begun = Instant::now();
        let sends = async {
            for piece in 0..20 {
                let sent = client.write_all(&[0; 100]).await;
                sent.expect("the connection is there as long as the test");
                sleep(LINGER / 10).await;
                if piece == 5 {
                    framing.end();
                }
            }
        };
        let reads_on = async {
            watch.shutdown().await.expect("it can be closed");
            begun.elapsed().as_millis()
        };
        let (closed, ()) = tokio::join!(reads_on, sends);
        assert!((1_500..1_550).contains(&closed), "{closed} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_connection_is_read_on_while_its_client_sends_and_no_longer_than_it_may_idle()
    {
        for (times, expected) in [(0, 1_000), (1, 1_000), (5, 4_600), (20, 10_000)] {
            let (mut client, mut watch) = closing();
            let begun = Instant::now();
            let sends = async {
                for _ in 0..times {
                    let sent = client.write_all(&[0; 100]).await;
                    sent.expect("the connection is there as long as the test");
                    sleep(LINGER * 9 / 10).await;
                }
            };
            let reads_on = async {
                watch.shutdown().await.expect("it can be closed");
                begun.elapsed().as_millis()
            };
            let (closed, ()) = tokio::join!(reads_on, sends);
            assert!(
                (expected..expected + 50).contains(&closed),
                "{closed} ms after {times} pieces"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_arrived_while_the_process_stood_still_is_read_before_the_time_is_over() {
        let (mut client, mut watch) = closing();
        let mut shutdown = std::pin::pin!(watch.shutdown());
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(shutdown.as_mut().poll(&mut context).is_pending());
        client.write_all(&[0; 100]).await.expect("room for it");
        tokio::time::advance(3 * LINGER).await;
        assert!(shutdown.as_mut().poll(&mut context).is_pending());
        tokio::time::advance(LINGER).await;
        assert!(shutdown.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn two_lengths_are_noticed_whatever_their_order_and_case() {
        for (head, verdict) in [
            ("POST / HTTP/1.1\r\nhost: a\r\n", None),
            (
                "POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc",
                Some(Verdict::Fine),
            ),
            (
                "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
                Some(Verdict::Fine),
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
                Some(Verdict::TwoLengths),
            ),
            (
                "POST / HTTP/1.1\r\nTRANSFER-ENCODING: chunked\r\ncontent-length: 3\r\n\r\n",
                Some(Verdict::TwoLengths),
            ),
            (
                "POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\ntransfer-encoding: x\n\n",
                Some(Verdict::Fine),
            ),
            (
                "POST / HTTP/1.1\ncontent-length: 3\n\r\nabc",
                Some(Verdict::Fine),
            ),
            (
                "\r\n\r\nPOST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\n\r\n",
                Some(Verdict::TwoLengths),
            ),
            ("\r\n\r\n", None),
            ("PRI * HTTP/2.0\r\n", Some(Verdict::Fine)),
        ] {
            assert_eq!(judge(head.as_bytes()), verdict, "{head}");
        }
    }
}
