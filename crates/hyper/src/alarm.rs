//! The one timer of a connection.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll},
};

use tickwheel::Sleep;
use tokio::task::coop;

use crate::{connection::Connection, time::Moment};

/// When the limits of a connection are to be looked at next. To look too early does no harm, so the alarm
/// stays where it is while requests come and go, and is set to a later time only when it goes off.
#[derive(Debug)]
pub(crate) struct Alarm {
    sleep: Sleep,
    at: Moment,
}

impl Alarm {
    /// Creates an alarm that goes off at once.
    pub(crate) fn new(connection: &Connection) -> Alarm {
        let at = Moment::START;
        let sleep = connection.control.wheel.sleep_until(connection.instant(at));
        Alarm { sleep, at }
    }

    pub(crate) fn at(&self) -> Moment {
        self.at
    }

    pub(crate) fn set(&mut self, connection: &Connection, at: Moment) {
        self.at = at;
        Pin::new(&mut self.sleep).reset(connection.instant(at));
    }

    #[inline]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.sleep).poll(cx)
    }

    /// Polls the alarm after hyper's connection, which may have used up the task's budget.
    pub(crate) fn poll_without_budget(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        pin!(coop::unconstrained(&mut self.sleep)).poll(cx)
    }
}
