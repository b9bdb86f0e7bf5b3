//! The global wheel, which [`tickwheel::time`](crate::time) uses.

use std::{error::Error, fmt, sync::LazyLock};

use crate::{
    engine::shared::Shared,
    wheel::{
        Wheel,
        builder::{BuildError, Builder},
    },
};

static GLOBAL: LazyLock<Wheel> = LazyLock::new(|| Wheel::assemble(Shared::global().clone()));

impl Wheel {
    /// Returns the global wheel, on which the timers of [`tickwheel::time`](crate::time) wait.
    ///
    /// There is one for the process, with a part of its own in each runtime, so that no runtime waits for
    /// another, and tests with paused clocks do not disturb each other. It has the settings of [`Wheel::new`]
    /// unless [`Builder::build_global`] was called before its first use. It lives as long as the process.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{Wheel, time::{Duration, sleep}};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// sleep(Duration::from_millis(20)).await;
    /// assert_eq!(Wheel::global().metrics().expired, 1);
    /// # }
    /// ```
    pub fn global() -> Wheel {
        GLOBAL.clone()
    }
}

impl Builder {
    /// Builds the [global wheel](Wheel::global) with these settings.
    ///
    /// Call this once, at the start of the program, before the first timer of
    /// [`tickwheel::time`](crate::time).
    ///
    /// # Errors
    ///
    /// Returns a [`GlobalError`] if the global wheel has been used or built already, if a
    /// [`handle`](Builder::handle) was given, or if a setting is not allowed. After one of the latter two,
    /// another call may succeed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Wheel;
    ///
    /// Wheel::builder().slack(Duration::ZERO).build_global()?;
    /// assert_eq!(Wheel::global().slack(), Duration::ZERO);
    /// # Ok::<(), tickwheel::GlobalError>(())
    /// ```
    pub fn build_global(self) -> Result<(), GlobalError> {
        if self.handle.is_some() {
            return Err(GlobalError::Handle);
        }
        self.check().map_err(GlobalError::Build)?;
        if Shared::set_global(self.settings) {
            Ok(())
        } else {
            Err(GlobalError::AlreadyBuilt)
        }
    }
}

/// The error of [`Builder::build_global`].
///
/// # Examples
///
/// ```
/// use tickwheel::{GlobalError, Wheel};
///
/// let _ = Wheel::global();
/// assert_eq!(Wheel::builder().build_global(), Err(GlobalError::AlreadyBuilt));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GlobalError {
    /// The global wheel has been used, or was built by another call.
    AlreadyBuilt,
    /// A [`handle`](Builder::handle) was given. The global wheel has a part in each runtime.
    Handle,
    /// A setting is not allowed.
    Build(BuildError),
}

impl fmt::Display for GlobalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GlobalError::AlreadyBuilt => {
                f.pad("the global wheel has been used or built already: build it before its first timer")
            }
            GlobalError::Handle => {
                f.pad("a runtime handle was given: the global wheel has a part of its own in each runtime")
            }
            GlobalError::Build(error) => error.fmt(f),
        }
    }
}

impl Error for GlobalError {}
