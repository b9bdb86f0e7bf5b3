//! The errors for a missing current wheel, and for default settings that were refused.

use std::{error::Error, fmt};

use tokio::runtime::TryCurrentError;

use crate::wheel::builder::BuildError;

/// The error of [`Wheel::try_current`](crate::Wheel::try_current) outside a Tokio runtime.
///
/// # Examples
///
/// ```
/// let error = tickwheel::Wheel::try_current().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "there is no reactor running, must be called from the context of a Tokio 1.x runtime"
/// );
/// ```
#[derive(Debug)]
pub struct NoRuntime(pub(super) TryCurrentError);

impl fmt::Display for NoRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for NoRuntime {}

/// The error of [`Builder::set_default`](crate::Builder::set_default).
///
/// # Examples
///
/// ```
/// use tickwheel::{SetDefaultError, Wheel};
///
/// let error = Wheel::builder().levels(9).set_default().unwrap_err();
/// assert!(matches!(error, SetDefaultError::Build(_)));
/// assert_eq!(error.to_string(), "9 levels are not within 1..=8");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetDefaultError {
    /// The settings of current wheels have already been set, which is possible only once per process.
    AlreadySet,
    /// The settings name a `handle`, but the wheel of each runtime is driven by that runtime.
    Handle,
    /// A setting is outside its limits.
    Build(BuildError),
}

impl fmt::Display for SetDefaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetDefaultError::AlreadySet => {
                f.write_str("the settings of current wheels have been given already, which is done once for a process")
            }
            SetDefaultError::Handle => f.write_str(
                "a handle was given to the settings of current wheels, each of which is driven by its own runtime",
            ),
            SetDefaultError::Build(error) => error.fmt(f),
        }
    }
}

impl Error for SetDefaultError {}
