//! quinn's timers on a [`Wheel`].
//!
//! [`WheelRuntime`] is a [`quinn::Runtime`] for [`Endpoint::new`](quinn::Endpoint::new):
//!
//! ```
//! use quinn::{Endpoint, EndpointConfig, TokioRuntime};
//! use std::{net::UdpSocket, sync::Arc};
//! use tickwheel::Wheel;
//! use tickwheel_quinn::WheelRuntime;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let runtime = WheelRuntime::new(&Wheel::global(), Arc::new(TokioRuntime));
//! let socket = UdpSocket::bind("127.0.0.1:0")?;
//! let client = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(runtime))?;
//! # Ok(())
//! # }
//! ```
//!
//! The README has a whole program, and says what a connection's timers cost.
#![forbid(unsafe_code)]

use std::{
    future::Future,
    io,
    net::UdpSocket,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime};
use tickwheel::{Sleep, Wheel};

/// A `quinn::Runtime` whose timers are on a wheel, while sockets and tasks are left to another runtime.
///
/// Each connection has one timer, set for the earliest of its deadlines. Nearly every packet moves it, nearly
/// always to a later instant, and on a wheel that costs one store. Timers are as precise as those of
/// [`Wheel::sleep`], and the wheel's limit and shutdown do not concern them.
///
/// # Examples
///
/// ```
/// use quinn::{Endpoint, EndpointConfig, TokioRuntime};
/// use std::{net::UdpSocket, sync::Arc};
/// use tickwheel::Wheel;
/// use tickwheel_quinn::WheelRuntime;
///
/// # #[tokio::main]
/// # async fn main() -> std::io::Result<()> {
/// let endpoint = Endpoint::new(
///     EndpointConfig::default(),
///     None, // a server's configuration goes here
///     UdpSocket::bind("127.0.0.1:0")?,
///     Arc::new(WheelRuntime::new(&Wheel::new(), Arc::new(TokioRuntime))),
/// )?;
/// # drop(endpoint);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WheelRuntime {
    wheel: Wheel,
    runtime: Arc<dyn Runtime>,
}

impl WheelRuntime {
    /// Creates a runtime that takes timers from `wheel`, and everything else from `runtime`, such as
    /// `quinn::TokioRuntime`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tickwheel::Wheel;
    /// use tickwheel_quinn::WheelRuntime;
    ///
    /// let runtime = WheelRuntime::new(&Wheel::global(), Arc::new(quinn::TokioRuntime));
    /// ```
    pub fn new(wheel: &Wheel, runtime: Arc<dyn Runtime>) -> WheelRuntime {
        WheelRuntime {
            wheel: wheel.clone(),
            runtime,
        }
    }
}

impl Runtime for WheelRuntime {
    /// Creates a timer on the wheel.
    ///
    /// # Panics
    ///
    /// Its first poll panics outside a Tokio runtime, as that of [`Wheel::sleep`] does.
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer(self.wheel.sleep_until(deadline.into())))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.runtime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        self.runtime.wrap_udp_socket(socket)
    }

    /// Reads the clock of the wheel's timers, which a test may have paused.
    fn now(&self) -> Instant {
        self.wheel.now().into_std()
    }
}

#[derive(Debug)]
struct Timer(Sleep);

impl AsyncTimer for Timer {
    fn reset(self: Pin<&mut Self>, deadline: Instant) {
        self.get_mut().0.reset_at(deadline.into());
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.get_mut().0).poll(cx)
    }
}

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
