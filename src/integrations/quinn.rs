//! quinn's timers on a wheel.

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

use crate::{timers::sleep::Sleep, wheel::Wheel};

/// A `quinn::Runtime` whose timers are on a wheel, while sockets and tasks are left to another runtime.
///
/// Each connection has one timer, set for the earliest of its deadlines: loss detection, pacing, delayed acknowledgements,
/// keep-alive, idle timeout. Nearly every packet moves it, nearly always to a later instant, and on a wheel that costs one store.
///
/// # Precision
///
/// A timer is never early, and less than one tick late plus the runtime's own delay. With the default tick of 1 ms, timers are as
/// fine as Tokio's own. Keep that tick for transfers: quinn sends in bursts of about 2 ms and saves up no more than one, so a
/// longer tick slows a bulk transfer over a long path, and a lost packet is sent again up to one tick later. For connections that
/// are mostly idle, any tick will do.
///
/// # When the wheel refuses
///
/// If the wheel is full or has been shut down, a timer waits on Tokio's own timer, as any [`Sleep`](crate::Sleep): no
/// connection hangs, and none is cut off early. Where there is no such timer, such as on a Tokio runtime that was built
/// without one, the timer ends at its second poll. The connection then checks its deadlines again and again, and yields to
/// other tasks in between. To learn that a runtime has no timers, the wheel catches a panic of Tokio's, so a program that
/// aborts on panics ends there.
///
/// # Examples
///
/// ```
/// use quinn::{Endpoint, EndpointConfig, TokioRuntime};
/// use std::{net::UdpSocket, sync::Arc, time::Duration};
/// use tickwheel::{Wheel, quinn::WheelRuntime};
///
/// // With quinn's default features, `config` is `EndpointConfig::default()`.
/// fn endpoint(config: EndpointConfig) -> Result<Endpoint, Box<dyn std::error::Error>> {
///     let wheel = Wheel::builder().tick_duration(Duration::from_millis(1)).build()?;
///     Ok(Endpoint::new(
///         config,
///         None, // a server's configuration goes here
///         UdpSocket::bind("127.0.0.1:0")?,
///         Arc::new(WheelRuntime::new(&wheel, Arc::new(TokioRuntime))),
///     )?)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct WheelRuntime {
    wheel: Wheel,
    runtime: Arc<dyn Runtime>,
}

impl WheelRuntime {
    /// Creates a runtime that takes timers from `wheel`, and everything else from `runtime`, which is `quinn::TokioRuntime` or
    /// one of your own.
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
    /// Creates a timer on the wheel. Its first poll panics outside a Tokio runtime, as that of [`Wheel::sleep`] does.
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(self.wheel.sleep_until(deadline.into()))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.runtime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        self.runtime.wrap_udp_socket(socket)
    }

    /// Reads the clock that the wheel's timers use, including one that a test has paused.
    fn now(&self) -> Instant {
        self.wheel.shard().read_clock().into_std()
    }
}

impl AsyncTimer for Sleep {
    fn reset(self: Pin<&mut Self>, deadline: Instant) {
        self.get_mut().reset(deadline.into());
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Future::poll(self, cx)
    }
}
