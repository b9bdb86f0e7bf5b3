//! What delivers jobs. A worker consists of a `stream`, an `engine` that takes jobs (`takes`) and holds and renews
//! them (`claims`), and a `desk` between the two, which starts as many as the `consumer` has places for. `lookout`
//! says when to look at a partition.

mod builder;
mod claims;
mod consumer;
mod desk;
mod engine;
mod held;
mod job;
mod lookout;
mod run;
mod stream;
mod takes;

pub use builder::WorkerBuilder;
pub use job::Job;
pub use run::{JobError, Run};
pub use stream::Worker;
