//! hyper's timer on a wheel.

use std::{pin::Pin, time::Duration};

use hyper::rt;
use tokio::time::Instant;

use crate::{timers::sleep::Sleep, wheel::Wheel};

/// Runs hyper's timers on a wheel: header read timeouts, keep-alive pings, idle connections.
///
/// Sleeps are as precise as those of [`Wheel::sleep`]: never early, and less than one tick late plus their
/// slack and the runtime's own delay. [`reset`](hyper::rt::Timer::reset) restarts a sleep in place, so the
/// next keep-alive ping needs no allocation and, while the sleep is pending, does not touch the wheel.
/// [`now`](hyper::rt::Timer::now) reads the wheel's clock, including one that a test has paused.
///
/// No sleep is refused, so connections keep their timeouts on a wheel that is full or has been shut down.
///
/// hyper-util's `auto::Builder` reads the first bytes of a connection to tell HTTP/1 from HTTP/2, and no
/// timer runs until then. A client that connects and sends nothing therefore stays connected in spite of
/// `header_read_timeout`, and with `http2_only` too. A read timeout of `io::TimeoutStream` is no way out,
/// because it [cuts off slow handlers](crate::io#under-hyper). The limits of the package
/// [`tickwheel-hyper`](https://docs.rs/tickwheel-hyper) cover that, idle connections and slow bodies.
///
/// Header timeouts end with the head of a request.
/// [`RequestBodyTimeoutLayer`](crate::tower::RequestBodyTimeoutLayer) limits the waits for its body, and
/// [`ResponseBodyTimeoutLayer`](crate::tower::ResponseBodyTimeoutLayer) those for the body of a response.
///
/// # Cancellation
///
/// Dropping a sleep cancels it at once.
///
/// # Panics
///
/// The first poll of a sleep panics outside a Tokio runtime, as that of [`Wheel::sleep`] does.
///
/// # Examples
///
/// A server that gives clients ten seconds to send their headers:
///
/// ```
/// use hyper::{Response, server::conn::http1, service::service_fn};
/// use hyper_util::rt::TokioIo;
/// use std::{convert::Infallible, time::Duration};
/// use tickwheel::Wheel;
/// use tokio::{io::{AsyncReadExt, AsyncWriteExt}, net::{TcpListener, TcpStream}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let wheel = Wheel::new();
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # let address = listener.local_addr()?;
///
/// tokio::spawn(async move {
///     while let Ok((stream, _)) = listener.accept().await {
///         let connection = http1::Builder::new()
///             .timer(wheel.clone())
///             .header_read_timeout(Duration::from_secs(10))
///             .serve_connection(
///                 TokioIo::new(stream),
///                 service_fn(async |_| Ok::<_, Infallible>(Response::new(String::from("hello")))),
///             );
///         tokio::spawn(connection);
///     }
/// });
/// #
/// # let mut client = TcpStream::connect(address).await?;
/// # client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
/// # let mut answer = String::new();
/// # client.read_to_string(&mut answer).await?;
/// # assert!(answer.ends_with("hello"));
/// # Ok(())
/// # }
/// ```
impl rt::Timer for Wheel {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Wheel::sleep(self, duration))
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Wheel::sleep_until(self, deadline.into()))
    }

    fn now(&self) -> std::time::Instant {
        Wheel::now(self).into_std()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, new_deadline: std::time::Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleep>() {
            Some(sleep) => sleep.get_mut().reset_at(Instant::from_std(new_deadline)),
            // Another timer has created this sleep.
            None => *sleep = rt::Timer::sleep_until(self, new_deadline),
        }
    }
}

impl rt::Sleep for Sleep {}
