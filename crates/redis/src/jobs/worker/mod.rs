//! What delivers jobs. A worker consists of a `stream`, an `engine` that takes jobs (`takes`) and holds them
//! until they are due (`stock`), and a `desk` between the two, which starts as many as the `consumer` has
//! places for. All that it has taken is `held` until it is finished. `lookout` says when to look at a
//! partition.

mod consumer;
mod desk;
mod engine;
mod held;
mod job;
mod lookout;
mod run;
mod stock;
mod stream;
mod takes;

pub use job::Job;
pub use run::{JobError, Run};
pub use stream::{Worker, WorkerBuilder};
