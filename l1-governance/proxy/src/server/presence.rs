//! Whether the client of a connection is still there. One that has closed its sending side may be
//! reading on, or may have left: TCP says the same of both until something is sent to them.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::head_watch::Framing;

/// Every client of HTTP/1.1 must accept it before an answer, whether it asked for it or not.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Resolves once the client has certainly left while its answer is awaited. Without this, only
/// writing would tell, and an answer that is not streamed is written when everything is computed.
pub(super) async fn left(socket: &TcpStream, framing: &Framing) {
    loop {
        framing.request_read().await;
        match closed(socket).await {
            Ok(true) => break,
            // Another request: its end is told in turn.
            Ok(false) => {}
            Err(_) => return,
        }
    }
    if framing.takes_interim() {
        // If it cannot be written now, the answer is waited for as before.
        drop(socket.try_write(INTERIM));
    }
    drop(socket.ready(Interest::ERROR).await);
}

/// Waits until there is something to read; whether that is the end.
async fn closed(socket: &TcpStream) -> io::Result<bool> {
    let mut space = [0];
    let mut peeked = ReadBuf::new(&mut space);
    let at_once = poll_fn(|context| Poll::Ready(socket.poll_peek(context, &mut peeked))).await;
    if let Poll::Ready(count) = at_once {
        return Ok(count? == 0);
    }
    // What comes next says whether the end is among it; if not, there is no need to look.
    let ready = socket.ready(Interest::READABLE).await?;
    Ok(ready.is_read_closed() && socket.peek(&mut [0]).await? == 0)
}

/// A socket that others may ask about.
pub(super) struct Socket(pub(super) Arc<TcpStream>);

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read_buf(buffer) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Socket {
    fn poll_sent(
        &self,
        context: &mut Context<'_>,
        send: impl Fn() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match send() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_sent(context, || self.0.try_write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Shutting down is done to the socket, whichever of its descriptors is named.
        let descriptor = self.0.as_fd().try_clone_to_owned()?;
        Poll::Ready(std::net::TcpStream::from(descriptor).shutdown(std::net::Shutdown::Write))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_sent(context, || self.0.try_write_vectored(buffers))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
