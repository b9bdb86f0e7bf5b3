//! quinn's timers on a wheel.

use std::{
    future::Future,
    io,
    net::UdpSocket,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime};

use crate::{sleep::Sleep, wheel::Wheel};

/// A runtime for a QUIC endpoint: timers are on a wheel, sockets and tasks are left to another runtime.
///
/// Each connection has one timer. It is set for the earliest of its deadlines: loss detection, pacing, delayed
/// acknowledgements, keep-alive, idle timeout. Nearly every packet moves it, nearly always to a later instant. On a wheel that
/// costs one store.
///
/// # Precision
///
/// Give the wheel ticks of 1 ms, the shortest there are:
///
/// - A timer is never early, and less than one tick late plus what the runtime adds. With ticks of 10 ms, a lost packet is sent
///   again up to 10 ms later, and an acknowledgement that may be delayed by 25 ms may take 35 ms.
/// - quinn sends in bursts of about 2 ms and saves up no more than one burst. A late timer loses what it could have sent. With
///   ticks of 10 ms, a bulk transfer over a long path can become slower, because few packets come back in between.
///
/// With ticks of 1 ms, timers are as fine as Tokio's own. Nothing else in quinn needs precision: for connections that mostly
/// idle, any tick will do.
///
/// # When the wheel refuses
///
/// If the wheel is full or has been shut down, a timer waits on the other runtime's timer: no connection hangs, and none is
/// cut off early. So that runtime must have a timer. `quinn::TokioRuntime` panics on a Tokio runtime that was built without one.
///
/// # Examples
///
/// ```
/// use quinn::{Endpoint, EndpointConfig, TokioRuntime};
/// use std::{net::UdpSocket, sync::Arc, time::Duration};
/// use tickwheel::{Wheel, quinn::WheelRuntime};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let wheel = Wheel::builder().tick_duration(Duration::from_millis(1)).build()?;
/// let endpoint = Endpoint::new(
///     EndpointConfig::default(),
///     None, // a server's configuration goes here
///     UdpSocket::bind("127.0.0.1:0")?,
///     Arc::new(WheelRuntime::new(&wheel, Arc::new(TokioRuntime))),
/// )?;
/// # assert_eq!(endpoint.open_connections(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct WheelRuntime {
    wheel: Wheel,
    runtime: Arc<dyn Runtime>,
}

impl WheelRuntime {
    /// Takes timers from `wheel`, and all else from `runtime`: `quinn::TokioRuntime`, or one of your own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use tickwheel::{Wheel, quinn::WheelRuntime};
    ///
    /// let runtime = WheelRuntime::new(&Wheel::new(), Arc::new(quinn::TokioRuntime));
    /// ```
    pub fn new(wheel: &Wheel, runtime: Arc<dyn Runtime>) -> WheelRuntime {
        WheelRuntime {
            wheel: wheel.clone(),
            runtime,
        }
    }
}

impl Runtime for WheelRuntime {
    /// Makes a timer on the wheel. Its first poll panics outside a Tokio runtime, as that of [`Wheel::sleep`] does.
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(WheelTimer {
            sleep: self.wheel.sleep_until(deadline.into()),
            refused: None,
            runtime: self.runtime.clone(),
        })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.runtime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        self.runtime.wrap_udp_socket(socket)
    }

    /// Reads the clock that the wheel's timers go by, also where a test has paused it.
    fn now(&self) -> Instant {
        self.wheel.now().into_std()
    }
}

#[derive(Debug)]
struct WheelTimer {
    sleep: Sleep,
    /// The other runtime's timer, while the wheel has refused.
    refused: Option<Pin<Box<dyn AsyncTimer>>>,
    runtime: Arc<dyn Runtime>,
}

impl AsyncTimer for WheelTimer {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        // With the next poll, the wheel may have room again.
        self.refused = None;
        self.sleep.reset(deadline.into());
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let WheelTimer {
            sleep,
            refused,
            runtime,
        } = &mut *self;
        if refused.is_none() && ready!(Pin::new(&mut *sleep).poll(cx)).is_ok() {
            return Poll::Ready(());
        }
        refused
            .get_or_insert_with(|| runtime.new_timer(sleep.deadline().into_std()))
            .as_mut()
            .poll(cx)
    }
}
