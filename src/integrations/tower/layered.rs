//! `Layered`: a service under one of the layers.

/// A service under one of the layers of this module: a [`Timeout`](super::Timeout), a [`Deadline`](super::Deadline), a
/// [`Propagate`](super::Propagate), a [`RequestBodyTimeout`](super::RequestBodyTimeout) or a
/// [`ResponseBodyTimeout`](super::ResponseBodyTimeout).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Wheel, tower::{Layered, TimeoutLayer}};
/// use tower::Layer;
///
/// let layer = TimeoutLayer::new(&Wheel::new(), Duration::from_secs(1));
/// let service: Layered<&str, TimeoutLayer> = layer.layer("a service");
/// ```
#[derive(Clone, Debug)]
pub struct Layered<S, L> {
    pub(super) inner: S,
    pub(super) layer: L,
}

impl<S, L> Layered<S, L> {
    /// Returns a reference to the inner service.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, tower::Timeout};
    /// assert_eq!(*Timeout::new(&Wheel::new(), std::time::Duration::MAX, "a service").get_ref(), "a service");
    /// ```
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, tower::Timeout};
    /// *Timeout::new(&Wheel::new(), std::time::Duration::MAX, "a service").get_mut() = "another";
    /// ```
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes this service and returns the inner one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, tower::Timeout};
    /// assert_eq!(Timeout::new(&Wheel::new(), std::time::Duration::MAX, "a service").into_inner(), "a service");
    /// ```
    pub fn into_inner(self) -> S {
        self.inner
    }
}
