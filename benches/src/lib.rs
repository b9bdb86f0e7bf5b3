//! What the benchmarks and the programs share: the peers, the work they are given, and how it is measured.

pub mod children;
pub mod durations;
pub mod pair;
pub mod peer;
pub mod process;
pub mod server;
pub mod stage;
pub mod timers;
pub mod work;

pub use peer::Peer;
pub use stage::Stage;
