//! `tokio::sync`.

use std::{
    future::poll_fn,
    task::{Poll, Waker},
};

use loom::sync::Mutex;

#[derive(Default)]
pub struct Notify(Mutex<Notification>);

#[derive(Default)]
struct Notification {
    is_there: bool,
    waiter: Option<Waker>,
}

impl Notify {
    pub fn new() -> Notify {
        Notify::default()
    }

    pub fn notify_one(&self) {
        let mut notification = self.0.lock().unwrap();
        notification.is_there = true;
        let waiter = notification.waiter.take();
        drop(notification);
        waiter.into_iter().for_each(Waker::wake);
    }

    pub async fn notified(&self) {
        poll_fn(|cx| {
            let mut notification = self.0.lock().unwrap();
            if std::mem::take(&mut notification.is_there) {
                return Poll::Ready(());
            }
            notification.waiter = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
