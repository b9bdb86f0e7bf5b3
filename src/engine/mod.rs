//! What turns a wheel: the wheel itself, the shards that lock it, and the driver that visits them. It knows no future.

pub(crate) mod clock;
pub(crate) mod driver;
pub(crate) mod events;
pub(crate) mod labels;
pub(crate) mod lag;
pub(crate) mod shard;
pub(crate) mod sync;
pub(crate) mod timing_wheel;
