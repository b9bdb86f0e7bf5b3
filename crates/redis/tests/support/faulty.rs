//! `Faulty`: a connection that injects faults between any two messages.

use std::{
    io, mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{Arg, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, Value, aio::ConnectionLike};
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
    /// It breaks, and the request arrives when the gate is opened, which is reached again by then.
    Leave(Gate),
    /// The request does not arrive, and fails in this way.
    Fail(ErrorKind),
    /// It takes a while to send the request.
    SlowRequest(Duration),
    /// The answer takes a while.
    Slow(Duration),
    /// None, and the gate is reached.
    Pass(Gate),
    /// The request arrives when the gate is opened, whether or not anybody still waits for the answer.
    StopRequest(Gate),
    /// The answer arrives when the gate is opened.
    StopAnswer(Gate),
    /// The connection panics with [`PANIC`].
    Panic,
}

pub const PANIC: &str = "a panic of the test";

/// Where a request or its answer waits, until it is opened for one.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<[Notify; 2]>);

impl Gate {
    /// Waits until something is there.
    pub async fn reached(&self) {
        self.0[0].notified().await;
    }

    pub fn open(&self) {
        self.0[1].notify_one();
    }

    async fn pass(&self) {
        self.0[0].notify_one();
        self.0[1].notified().await;
    }
}

type NextFault = dyn FnMut(&Cmd) -> Fault + Send;

pub struct Faulty<C> {
    inner: C,
    next: Arc<Mutex<NextFault>>,
    faults: Faults,
}

impl<C: Clone> Clone for Faulty<C> {
    fn clone(&self) -> Faulty<C> {
        let panics = mem::take(&mut self.faults.0.lock().unwrap().clone_panics);
        assert!(!panics, "{PANIC}");
        Faulty {
            inner: self.inner.clone(),
            next: self.next.clone(),
            faults: self.faults.clone(),
        }
    }
}

impl<C> Faulty<C> {
    /// One that is asked what happens to each request.
    pub fn new(inner: C, next: impl FnMut(&Cmd) -> Fault + Send + 'static) -> Faulty<C> {
        Faulty {
            inner,
            next: Arc::new(Mutex::new(next)),
            faults: Faults::default(),
        }
    }

    /// One whose faults are set as the test goes.
    pub fn with_faults(inner: C) -> (Faulty<C>, Faults) {
        let faults = Faults::default();
        let mut connection = Faulty::new(inner, {
            let faults = faults.clone();
            move |request| faults.next(request)
        });
        connection.faults = faults.clone();
        (connection, faults)
    }
}

/// What a [`Faulty`] connection does.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    once: Option<Fault>,
    clone_panics: bool,
    /// By an argument that the request has, `""` for any.
    always: Vec<(&'static str, Fault)>,
}

impl Faults {
    /// From now on, every request meets this.
    pub fn set(&self, fault: Fault) {
        self.set_for("", fault);
    }

    /// From now on, requests with this argument do.
    pub fn set_for(&self, argument: &'static str, fault: Fault) {
        self.0.lock().unwrap().always.insert(0, (argument, fault));
    }

    /// Every request arrives again, and is answered.
    pub fn clear(&self) {
        self.0.lock().unwrap().always.clear();
    }

    /// Requests with this argument pass through a gate that is open.
    pub fn notice(&self, argument: &'static str) -> Gate {
        let gate = Gate::default();
        self.set_for(argument, Fault::Pass(gate.clone()));
        gate
    }

    /// Requests with this argument arrive when the gate is opened.
    pub fn stop(&self, argument: &'static str) -> Gate {
        let gate = Gate::default();
        self.set_for(argument, Fault::StopRequest(gate.clone()));
        gate
    }

    /// The answers to requests with this argument do.
    pub fn stop_answer(&self, argument: &'static str) -> Gate {
        let gate = Gate::default();
        self.set_for(argument, Fault::StopAnswer(gate.clone()));
        gate
    }

    /// The next request panics.
    pub fn panic_once(&self) {
        self.0.lock().unwrap().once = Some(Fault::Panic);
    }

    /// The next clone of the connection panics.
    pub fn panic_at_clone(&self) {
        self.0.lock().unwrap().clone_panics = true;
    }

    pub fn has_panicked(&self) -> bool {
        self.0.lock().unwrap().once.is_none()
    }

    fn next(&self, request: &Cmd) -> Fault {
        let mut state = self.0.lock().unwrap();
        let once = state.once.take();
        let mut faults = state.always.iter();
        let always = faults.find(|(argument, _)| argument.is_empty() || says(request, argument));
        once.or(always.map(|(_, fault)| fault.clone()))
            .unwrap_or(Fault::None)
    }
}

/// Whether a request has this argument.
pub fn says(request: &Cmd, argument: &str) -> bool {
    let mut arguments = request.args_iter();
    arguments.any(|given| matches!(given, Arg::Simple(given) if given == argument.as_bytes()))
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
                Fault::Leave(gate) => {
                    tokio::spawn(async move {
                        gate.pass().await;
                        let _ = inner.req_packed_command(&cmd).await;
                        gate.0[0].notify_one();
                    });
                    Err(broken())
                }
                Fault::Fail(kind) => Err((kind, "a fault of the test").into()),
                Fault::SlowRequest(by) => {
                    sleep(by).await;
                    inner.req_packed_command(&cmd).await
                }
                Fault::Slow(by) => {
                    let answer = inner.req_packed_command(&cmd).await;
                    sleep(by).await;
                    answer
                }
                Fault::Pass(gate) => {
                    gate.0[0].notify_one();
                    inner.req_packed_command(&cmd).await
                }
                Fault::StopAnswer(gate) => {
                    let answer = inner.req_packed_command(&cmd).await;
                    gate.pass().await;
                    answer
                }
                Fault::StopRequest(gate) => tokio::spawn(async move {
                    gate.pass().await;
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
