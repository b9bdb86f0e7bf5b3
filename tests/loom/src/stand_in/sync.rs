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

/// A channel that sends nothing: its receiver waits for the end of the sender.
pub mod oneshot {
    use std::{marker::PhantomData, pin::Pin, sync::Arc};

    use super::Notify;

    pub struct Sender<T>(Arc<Notify>, PhantomData<T>);

    pub type Receiver = Pin<Box<dyn Future<Output = ()> + Send>>;

    pub fn channel<T>() -> (Sender<T>, Receiver) {
        let ended = Arc::new(Notify::new());
        (
            Sender(ended.clone(), PhantomData),
            Box::pin(async move { ended.notified().await }),
        )
    }

    impl<T> Drop for Sender<T> {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
}
