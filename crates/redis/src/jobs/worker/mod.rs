//! What delivers jobs. A worker consists of a `stream`, an `engine` that takes jobs (`takes`) and holds and renews
//! them (`claims`), and a `desk` between the two, which starts as many as there are `places` for. `lookout` says
//! when to look at a partition, and `pace` how many jobs the consumer starts in a moment, which limits how many are
//! claimed.

mod builder;
mod claims;
mod desk;
mod engine;
mod held;
mod job;
mod lookout;
mod pace;
mod places;
mod run;
mod stream;
mod takes;

pub use builder::WorkerBuilder;
pub use job::Job;
pub use run::{JobError, Run};
pub use stream::Worker;
