//! Random scripts of polls, bytes, changed timeouts and time, on a `TimeoutStream` and on a model of its
//! documentation.

use crate::support;

use std::{
    cell::Cell,
    io::{self, IoSlice},
    marker::PhantomPinned,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use proptest::{
    collection::vec,
    prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest},
};
use tickwheel::{Wheel, io::TimeoutStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use support::{advance, assert_at_rest, counting_waker, ms, paused_runtime};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
    Flush,
    Shutdown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Reading,
    Writing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timeout {
    Read,
    Write,
    Idle,
}

/// What the stream inside says when it is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Pending,
    Bytes(usize),
    Fails,
}

/// Times are in milliseconds.
#[derive(Clone, Debug)]
enum Step {
    Poll(Operation, Answer),
    /// The stream, or a half of it, is handed to another task.
    Hand(Direction),
    Set(Timeout, Option<u64>),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    use Operation::{Flush, Read, Shutdown, Write};
    let operation = prop_oneof![4 => Just(Read), 3 => Just(Write), 2 => Just(Flush), 1 => Just(Shutdown)];
    let answer = prop_oneof![
        8 => Just(Answer::Pending),
        2 => (1..5_usize).prop_map(Answer::Bytes),
        1 => Just(Answer::Bytes(0)),
        1 => Just(Answer::Fails),
    ];
    let timeout = prop_oneof![Just(Timeout::Read), Just(Timeout::Write), Just(Timeout::Idle)];
    let duration = prop_oneof![1 => Just(None), 3 => (0..1000_u64).prop_map(Some)];
    prop_oneof![
        6 => (operation, answer).prop_map(|(operation, answer)| Step::Poll(operation, answer)),
        1 => prop_oneof![Just(Direction::Reading), Just(Direction::Writing)].prop_map(Step::Hand),
        2 => (timeout, duration).prop_map(|(timeout, duration)| Step::Set(timeout, duration)),
        4 => prop_oneof![0..50_u64, 0..700_u64].prop_map(Step::Advance),
    ]
}

impl Operation {
    fn direction(self) -> Direction {
        match self {
            Operation::Read => Direction::Reading,
            _ => Direction::Writing,
        }
    }

    /// Bytes that the answer moves: a flush moves none.
    fn moves(self, answer: Answer) -> bool {
        matches!(self, Operation::Read | Operation::Write) && matches!(answer, Answer::Bytes(1..))
    }
}

impl Timeout {
    fn concerns(self, direction: Direction) -> bool {
        match self {
            Timeout::Read => direction == Direction::Reading,
            Timeout::Write => direction == Direction::Writing,
            Timeout::Idle => true,
        }
    }
}

// The model: a log of what happened, and the words of the docs, looked up in it each time.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// It has to wait, and a timeout is on for it.
    Pending(Operation),
    Ended(Operation),
    Moved(Operation),
    Switched(Timeout),
}

#[derive(Default)]
struct Model {
    now: u64,
    log: Vec<(u64, Event)>,
    timeouts: Vec<(Timeout, u64)>,
}

impl Model {
    fn record(&mut self, event: Event) {
        self.log.push((self.now, event));
    }

    /// When first, after the last event that `ends` it, something `begins`.
    fn since(&self, ends: impl Fn(Event) -> bool, begins: impl Fn(Event) -> bool) -> Option<u64> {
        let after = self.log.iter().rposition(|&(_, event)| ends(event));
        let mut log = self.log[after.map_or(0, |place| place + 1)..].iter();
        log.find(|&&(_, event)| begins(event)).map(|&(at, _)| at)
    }

    /// When an operation that waits has waited for too long.
    fn deadline(&self, operation: Operation) -> Option<u64> {
        let waits_since = self.since(
            |event| match event {
                Event::Ended(ended) => ended == operation,
                // Getting on is all that a flush or a shutdown can ask for.
                Event::Moved(moved) => {
                    moved == Operation::Write && operation.direction() == Direction::Writing
                }
                _ => false,
            },
            |event| event == Event::Pending(operation),
        );
        let deadline = |&(timeout, duration): &(Timeout, u64)| {
            let asked = |event| matches!(event, Event::Pending(by) if timeout.concerns(by.direction()));
            let on_since = self.since(|event| event == Event::Switched(timeout), asked);
            let moves = |event: Event| timeout == Timeout::Idle && matches!(event, Event::Moved(_));
            let last_byte = self.log.iter().rfind(|&&(_, event)| moves(event));
            let from = waits_since?
                .max(on_since?)
                .max(last_byte.map_or(0, |&(at, _)| at));
            Some(from + duration)
        };
        self.timeouts
            .iter()
            .filter(|(timeout, _)| timeout.concerns(operation.direction()))
            .filter_map(deadline)
            .min()
    }

    fn set(&mut self, timeout: Timeout, duration: Option<u64>) {
        let before = self.timeouts.iter().position(|&(other, _)| other == timeout);
        if before.is_none() || duration.is_none() {
            self.record(Event::Switched(timeout));
        }
        before.map(|place| self.timeouts.swap_remove(place));
        self.timeouts.extend(duration.map(|duration| (timeout, duration)));
    }

    /// Polls, and says whether the operation times out.
    fn poll(&mut self, operation: Operation, answer: Answer) -> bool {
        if answer == Answer::Pending {
            let asked = |(timeout, _): &(Timeout, u64)| timeout.concerns(operation.direction());
            if self.timeouts.iter().any(asked) {
                self.record(Event::Pending(operation));
            }
            if self
                .deadline(operation)
                .is_none_or(|deadline| self.now < deadline)
            {
                return false;
            }
        }
        self.record(Event::Ended(operation));
        if operation.moves(answer) {
            self.record(Event::Moved(operation));
        }
        answer == Answer::Pending
    }
}

// The stream inside, which says what it is told to say, and the one around it.

struct Scripted {
    answer: Rc<Cell<Answer>>,
    _pinned: PhantomPinned,
}

impl Scripted {
    fn bytes(&self) -> Poll<io::Result<usize>> {
        match self.answer.get() {
            Answer::Pending => Poll::Pending,
            Answer::Bytes(bytes) => Poll::Ready(Ok(bytes)),
            Answer::Fails => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    fn done(&self) -> Poll<io::Result<()>> {
        self.bytes().map_ok(drop)
    }
}

impl AsyncRead for Scripted {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.bytes().map_ok(|bytes| buffer.put_slice(&[0; 8][..bytes]))
    }
}

impl AsyncWrite for Scripted {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        self.bytes()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.bytes()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.done()
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.done()
    }
}

/// A task that polls one direction.
struct Task {
    waker: Waker,
    woken: Arc<AtomicUsize>,
    waits_for: Option<Operation>,
}

impl Task {
    fn new() -> Task {
        let (waker, woken) = counting_waker();
        Task {
            waker,
            woken,
            waits_for: None,
        }
    }

    /// Another task goes on; it polls before it waits for anything.
    fn pass_on(&mut self) {
        *self = Task::new();
    }

    /// Since it polled last.
    fn times_woken(&self) -> usize {
        self.woken.load(Ordering::SeqCst)
    }
}

struct Scene {
    stream: Pin<Box<TimeoutStream<Scripted>>>,
    answer: Rc<Cell<Answer>>,
    tasks: [Task; 2],
    vectored: bool,
    model: Model,
}

impl Scene {
    fn poll(&mut self, operation: Operation, answer: Answer) {
        self.answer.set(answer);
        let task = &mut self.tasks[operation.direction() as usize];
        task.woken.store(0, Ordering::SeqCst);
        let cx = &mut Context::from_waker(&task.waker);
        let stream = self.stream.as_mut();
        let outcome = match operation {
            Operation::Read => stream.poll_read(cx, &mut ReadBuf::new(&mut [0; 8])),
            Operation::Write if self.vectored => stream
                .poll_write_vectored(cx, &[IoSlice::new(&[0; 8])])
                .map_ok(drop),
            Operation::Write => stream.poll_write(cx, &[0; 8]).map_ok(drop),
            Operation::Flush => stream.poll_flush(cx),
            Operation::Shutdown => stream.poll_shutdown(cx),
        };
        let expected = match answer {
            _ if self.model.poll(operation, answer) => Some(Err(io::ErrorKind::TimedOut)),
            Answer::Pending => None,
            Answer::Bytes(_) => Some(Ok(())),
            Answer::Fails => Some(Err(io::ErrorKind::ConnectionReset)),
        };
        let outcome = match outcome {
            Poll::Ready(outcome) => Some(outcome.map_err(|error| error.kind())),
            Poll::Pending => None,
        };
        assert_eq!(outcome, expected, "{operation:?} at {}", self.model.now);
        task.waits_for = outcome.is_none().then_some(operation);
    }

    fn set(&mut self, timeout: Timeout, duration: Option<u64>) {
        self.model.set(timeout, duration);
        let before = self.tasks.each_ref().map(Task::times_woken);
        let duration = duration.map(ms);
        let stream = self.stream.as_mut();
        match timeout {
            Timeout::Read => stream.set_read_timeout_pinned(duration),
            Timeout::Write => stream.set_write_timeout_pinned(duration),
            Timeout::Idle => stream.set_idle_timeout_pinned(duration),
        }
        // Who waits by it looks again, and nobody else.
        for direction in [Direction::Reading, Direction::Writing] {
            let task = &self.tasks[direction as usize];
            let told = task.times_woken() > before[direction as usize];
            let waits_by_it = task.waits_for.is_some() && timeout.concerns(direction);
            assert_eq!(told, waits_by_it, "{direction:?}");
        }
    }

    async fn advance(&mut self, millis: u64) {
        advance(ms(millis)).await;
        self.model.now += millis;
        for task in &self.tasks {
            let deadline = task
                .waits_for
                .and_then(|operation| self.model.deadline(operation));
            if deadline.is_some_and(|deadline| deadline <= self.model.now) {
                assert!(
                    task.times_woken() > 0,
                    "{:?} is not woken at {deadline:?}",
                    task.waits_for
                );
            }
        }
    }
}

async fn play(script: Vec<Step>, vectored: bool) {
    // Ticks of which each instant of the script is one.
    let wheel = Wheel::builder()
        .tick_duration(Duration::from_millis(1))
        .build()
        .unwrap();
    let answer = Rc::new(Cell::new(Answer::Pending));
    let inside = Scripted {
        answer: answer.clone(),
        _pinned: PhantomPinned,
    };
    let mut scene = Scene {
        stream: Box::pin(TimeoutStream::new(&wheel, inside)),
        answer,
        tasks: [Task::new(), Task::new()],
        vectored,
        model: Model::default(),
    };
    for step in script {
        match step {
            Step::Poll(operation, answer) => scene.poll(operation, answer),
            Step::Hand(direction) => scene.tasks[direction as usize].pass_on(),
            Step::Set(timeout, duration) => scene.set(timeout, duration),
            Step::Advance(millis) => scene.advance(millis).await,
        }
    }
    drop(scene);
    assert_at_rest(&wheel);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_script_goes_as_the_docs_say(script in vec(step(), 1..60), vectored in any::<bool>()) {
        paused_runtime().block_on(play(script, vectored));
    }
}
