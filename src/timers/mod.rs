//! The futures that wait on a wheel, each with its constructor on [`Wheel`](crate::Wheel), and what they
//! share.

pub(crate) mod console;
pub mod delay_queue;
pub(crate) mod idle;
pub(crate) mod interval;
pub(crate) mod limit;
pub(crate) mod periodic;
pub(crate) mod schedule;
pub(crate) mod sleep;
pub(crate) mod timeout;
pub(crate) mod waiter;
