//! The errors of [`tickwheel::time`](crate::time).

pub use crate::error::Elapsed;
#[doc(no_inline)]
pub use tokio::time::error::Error;
