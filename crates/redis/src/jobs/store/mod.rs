//! What is in Redis of a queue. Each partition of a `queue` has its keys and two `batcher`s, which send
//! changes in batches. The scripts that run there are in `scripts/`, and `prelude.lua` describes how a job is
//! stored.

/// A script that changes jobs, which begins with the common prelude and ends the function that this begins.
/// Its first line says whether Redis may run it when out of memory.
macro_rules! script {
    ($first:literal, $file:literal) => {
        Script::new(concat!(
            $first,
            "\n",
            include_str!("scripts/prelude.lua"),
            include_str!($file),
            "end)()"
        ))
    };
}

pub(super) mod batcher;
pub(super) mod change;
pub(super) mod claim;
mod fetch;
pub(super) mod listing;
pub(super) mod nearby;
pub(super) mod queue;
pub(super) mod take;
