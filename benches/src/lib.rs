//! What the benchmarks and the programs share: the peers, the work they are given, and how it is measured.

pub mod children;
pub mod durations;
pub mod pair;
pub mod peer;
pub mod process;
pub mod stage;
pub mod work;

pub use count::{server, timers};
pub use peer::Peer;
pub use stage::Stage;
