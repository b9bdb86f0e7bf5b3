//! What the engine uses of Tokio, as its version 1.54 does it: see `src/engine/driver/tokio_timer.rs`.

pub mod runtime;
pub mod sync;
pub mod task;
pub mod time;

/// `tokio::select!`, of two futures that are polled in this order.
#[macro_export]
macro_rules! select {
    (biased; $_:tt = $first:expr => {} () = $second:expr => {}) => {{
        let (mut first, mut second) = (std::pin::pin!($first), std::pin::pin!($second));
        std::future::poll_fn(|cx| match first.as_mut().poll(cx) {
            std::task::Poll::Ready(_) => std::task::Poll::Ready(()),
            std::task::Poll::Pending => second.as_mut().poll(cx),
        })
        .await
    }};
}
