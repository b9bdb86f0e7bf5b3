//! What is in Redis of a queue. A `partition` has its keys and two `batcher`s, which send changes to Redis in
//! batches. The scripts that run there are in `scripts/`, and `prelude.lua` describes how a job is stored.

pub(super) mod batcher;
pub(super) mod call_names;
pub(super) mod change;
mod fetch;
pub(super) mod listing;
pub(super) mod nearby;
mod partition;
pub(super) mod queue;
pub(super) mod sampling;
pub(super) mod take;
pub(super) mod units;
