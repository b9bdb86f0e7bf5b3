//! The parts that the benchmarks and programs share: the peers, their work, and how it is measured.

pub mod children;
pub mod durations;
pub mod peer;
pub mod process;
pub mod stage;
pub mod work;

pub use count::timers;
pub use peer::Peer;
pub use stage::Stage;
