//! `LimitedIo`: the IO of a connection.

use std::{
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper::rt::{Read, ReadBufCursor, Write};

use crate::connection::Connection;

/// The IO of a connection under limits, created by [`ConnectionLimits::wrap`](crate::ConnectionLimits::wrap)
/// and [`serve`](crate::ConnectionLimits::serve).
///
/// It passes everything on and buffers nothing. After an upgrade, it is what
/// [`downcast`](hyper_util::server::conn::auto::upgrade::downcast) finds in place of the IO, which
/// [`into_inner`](LimitedIo::into_inner) returns.
pub struct LimitedIo<I> {
    io: I,
    connection: Arc<Connection>,
}

impl<I> LimitedIo<I> {
    pub(crate) fn new(io: I, connection: Arc<Connection>) -> LimitedIo<I> {
        LimitedIo { io, connection }
    }

    /// Returns the IO, for example after an upgrade.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hyper::service::service_fn;
    /// # use std::convert::Infallible;
    /// use tickwheel::Wheel;
    /// use tickwheel_hyper::ConnectionLimits;
    ///
    /// let (io, _service, _watcher) = ConnectionLimits::new(&Wheel::new()).wrap("io", "service");
    /// assert_eq!(io.into_inner(), "io");
    /// ```
    pub fn into_inner(self) -> I {
        self.io
    }

    fn note_write(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) => self.connection.wrote(*bytes),
            // hyper ends the connection.
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.connection.set_blocked(true),
        }
    }
}

impl<I: Read + Unpin> Read for LimitedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_ready() {
            self.connection.read();
        }
        read
    }
}

impl<I: Write + Unpin> Write for LimitedIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.note_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.note_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.connection.set_blocked(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut_down = Pin::new(&mut self.io).poll_shutdown(cx);
        self.connection.set_blocked(shut_down.is_pending());
        shut_down
    }
}

impl<I: fmt::Debug> fmt::Debug for LimitedIo<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedIo")
            .field("io", &self.io)
            .finish_non_exhaustive()
    }
}
