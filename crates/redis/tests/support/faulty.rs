//! `Faulty`: a connection that injects faults between any two messages.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{Arg, Cmd, Pipeline, RedisError, RedisFuture, Value, aio::ConnectionLike};
use tokio::{sync::Notify, task::yield_now, time::sleep};

/// What happens to one request.
#[derive(Clone, Debug)]
pub enum Fault {
    None,
    /// The connection breaks before the request arrives.
    LoseRequest,
    /// It breaks after the request arrived.
    LoseAnswer,
    /// It breaks, and the request arrives after a while.
    Late(Duration),
    /// The answer takes a while.
    Slow(Duration),
    /// The request arrives when it is told to, whether or not anybody still waits for the answer.
    Hold(Arc<Notify>),
    /// The answer arrives when it is told to.
    HoldAnswer(Arc<Notify>),
    /// The connection panics with [`PANIC`].
    Panic,
}

pub const PANIC: &str = "a panic of the test";

type NextFault = Box<dyn FnMut(&Cmd) -> Fault + Send>;

#[derive(Clone)]
pub struct Faulty<C> {
    inner: C,
    next: Arc<Mutex<NextFault>>,
}

impl<C> Faulty<C> {
    pub fn new(inner: C, mut next: impl FnMut() -> Fault + Send + 'static) -> Faulty<C> {
        Faulty::by_request(inner, move |_| next())
    }

    /// One whose faults depend on what is asked.
    pub fn by_request(inner: C, next: impl FnMut(&Cmd) -> Fault + Send + 'static) -> Faulty<C> {
        Faulty {
            inner,
            next: Arc::new(Mutex::new(Box::new(next))),
        }
    }
}

/// Whether a request has this argument.
pub fn says(request: &Cmd, argument: &str) -> bool {
    request
        .args_iter()
        .any(|given| matches!(given, Arg::Simple(given) if given == argument.as_bytes()))
}

fn broken() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionReset, "a fault of the test").into()
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> ConnectionLike for Faulty<C> {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let fault = (self.next.lock().unwrap())(cmd);
        let (mut inner, cmd) = (self.inner.clone(), cmd.clone());
        Box::pin(async move {
            match fault {
                Fault::None => inner.req_packed_command(&cmd).await,
                Fault::LoseRequest => Err(broken()),
                Fault::LoseAnswer => {
                    let _ = inner.req_packed_command(&cmd).await;
                    Err(broken())
                }
                Fault::Late(by) => {
                    tokio::spawn(async move {
                        sleep(by).await;
                        let _ = inner.req_packed_command(&cmd).await;
                    });
                    Err(broken())
                }
                Fault::Slow(by) => {
                    let answer = inner.req_packed_command(&cmd).await;
                    sleep(by).await;
                    answer
                }
                Fault::HoldAnswer(until) => {
                    let answer = inner.req_packed_command(&cmd).await;
                    until.notified().await;
                    answer
                }
                Fault::Hold(until) => tokio::spawn(async move {
                    until.notified().await;
                    inner.req_packed_command(&cmd).await
                })
                .await
                .unwrap(),
                Fault::Panic => {
                    yield_now().await;
                    panic!("{PANIC}")
                }
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.inner.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }
}
