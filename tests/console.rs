//! Feature `console`: sleeps and timeouts emit what tokio-console reads of a resource, in the order that it
//! expects.

mod support;

use std::{
    fmt,
    future::pending,
    sync::{Arc, Mutex},
    thread,
};

use tickwheel::{Sleep, Wheel};
use tokio::time::{Duration, Instant};
use tokio_test::{assert_pending, assert_ready, task};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::with_default,
};

use support::{DAY, SECOND, advance, ms, paused_runtime, threaded_runtime};

/// Writes down what tokio-console would look at, a line each. A span goes by the number in which it was made.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lines: Vec<String>,
    spans: Vec<&'static str>,
    handles: Vec<usize>,
    entered: Vec<u64>,
    /// The lines of this file in which resources were made.
    made_in: Vec<u64>,
    /// Who enters a span is held up until a timer of this wheel has expired.
    held_up_by: Option<Wheel>,
}

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().lines)
    }

    /// How many spans have not been closed.
    fn open(&self) -> usize {
        self.0
            .lock()
            .unwrap()
            .handles
            .iter()
            .filter(|handles| **handles > 0)
            .count()
    }
}

/// Fields as they come, each with the type by which it was recorded. And the line, if they say one.
#[derive(Default)]
struct Fields(String, Option<u64>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Where in this file does not matter.
        self.0 += &format!(" {field}={value:?}");
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0 += &format!(" {field}={value}");
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "loc.line" {
            self.1 = Some(value);
        }
        match field.name() {
            "loc.line" | "loc.col" => self.0 += &format!(" {field}=u64"),
            _ => self.0 += &format!(" {field}={value}u64"),
        }
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {field}=?{value:?}");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.name().starts_with("runtime.") || metadata.target().starts_with("runtime::")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut state = self.0.lock().unwrap();
        let mut fields = Fields::default();
        span.record(&mut fields);
        state.made_in.extend(fields.1);
        state.spans.push(span.metadata().name());
        state.handles.push(1);
        let id = state.spans.len() as u64;
        let parent = if span.is_root() {
            "root".into()
        } else {
            format!("in {:?}", state.entered)
        };
        let line = format!("{} {id} {parent}:{}", span.metadata().name(), fields.0);
        state.lines.push(line);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut state = self.0.lock().unwrap();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = format!(
            "{} in {:?}:{}",
            event.metadata().target(),
            state.entered,
            fields.0
        );
        state.lines.push(line);
    }

    fn enter(&self, span: &Id) {
        let mut state = self.0.lock().unwrap();
        state.entered.push(span.into_u64());
        let held_up_by = state.held_up_by.clone();
        drop(state);
        while held_up_by
            .as_ref()
            .is_some_and(|wheel| wheel.metrics().expired == 0)
        {
            thread::yield_now();
        }
    }

    fn exit(&self, span: &Id) {
        let left = self.0.lock().unwrap().entered.pop();
        assert_eq!(
            left,
            Some(span.into_u64()),
            "spans are left in the order in which they were not entered"
        );
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.0.lock().unwrap().handles[span.into_u64() as usize - 1] += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let mut state = self.0.lock().unwrap();
        let handles = &mut state.handles[span.into_u64() as usize - 1];
        *handles -= 1;
        *handles == 0
    }
}

fn logged(test: impl AsyncFnOnce(Log)) {
    let log = Log::default();
    with_default(log.clone(), || paused_runtime().block_on(test(log)));
}

fn made(concrete_type: &str, source: &str, id: u64) -> [String; 3] {
    let file = r#"loc.file="tests/console.rs" loc.line=u64 loc.col=u64"#;
    let (operation, poll) = (id + 1, id + 2);
    [
        format!(r#"runtime.resource {id} root: concrete_type="{concrete_type}" kind="timer" {file}"#),
        format!(r#"runtime.resource.async_op {operation} in [{id}]: source="{source}""#),
        format!("runtime.resource.async_op.poll {poll} in [{id}, {operation}]:"),
    ]
}

fn lasts(id: u64, millis: u64) -> String {
    let duration = format!(r#"duration={millis}u64 duration.unit="ms" duration.op="override""#);
    format!("runtime::resource::state_update in [{id}]: {duration}")
}

fn polled(spans: [u64; 3], is_ready: bool) -> String {
    format!(r#"runtime::resource::poll_op in {spans:?}: op_name="poll_elapsed" is_ready={is_ready}"#)
}

#[test]
fn a_sleep_is_a_resource_from_its_making_to_its_drop() {
    logged(async |log| {
        let wheel = Wheel::new();
        let mut sleep = task::spawn(wheel.sleep(SECOND));
        let mut expected = made("Sleep", "Wheel::sleep", 1).to_vec();
        expected.push(lasts(1, 1_000));
        assert_eq!(log.take(), expected);
        assert_pending!(sleep.poll());
        assert_eq!(log.take(), [polled([1, 2, 3], false)]);
        advance(SECOND).await;
        assert_ready!(sleep.poll());
        assert_eq!(log.take(), [polled([1, 2, 3], true)]);
        assert_eq!(log.open(), 3);
        drop(sleep);
        assert_eq!(log.open(), 0);

        let sleep = wheel.sleep_until(Instant::now() + ms(70));
        let mut expected = made("Sleep", "Wheel::sleep_until", 4).to_vec();
        expected.push(lasts(4, 70));
        assert_eq!(log.take(), expected);
        drop(sleep);
    });
}

#[test]
fn a_reset_is_another_operation_of_the_same_resource() {
    logged(async |log| {
        let wheel = Wheel::new();
        let mut sleep = wheel.sleep(SECOND);
        log.take();
        sleep.reset_at(Instant::now() + SECOND * 2);
        let [_, operation, poll] =
            made("", "Sleep::reset", 1).map(|line| line.replace(" 2 ", " 4 ").replace(" 3 ", " 5 "));
        assert_eq!(
            log.take(),
            [operation, poll.replace("[1, 2]", "[1, 4]"), lasts(1, 2_000)]
        );
        let mut sleep = task::spawn(sleep);
        assert_pending!(sleep.poll());
        assert_eq!(log.take(), [polled([1, 4, 5], false)]);
        assert_eq!(log.open(), 3, "the operation before is over");
    });
}

#[test]
fn a_timeout_is_a_resource_and_polls_its_future_outside_of_it() {
    logged(async |log| {
        let wheel = Wheel::new();
        let mut timeout = task::spawn(wheel.timeout(SECOND, wheel.sleep(ms(20))));
        // The sleep was made first, being an argument.
        let mut expected = made("Sleep", "Wheel::sleep", 1).to_vec();
        expected.push(lasts(1, 20));
        expected.extend(made("Timeout", "Wheel::timeout", 4));
        expected.push(lasts(4, 1_000));
        assert_eq!(log.take(), expected);
        assert_pending!(timeout.poll());
        assert_eq!(log.take(), [polled([1, 2, 3], false), polled([4, 5, 6], false)]);
        advance(ms(20)).await;
        assert_ready!(timeout.poll()).unwrap();
        assert_eq!(log.take(), [polled([1, 2, 3], true)], "the timer is not asked");
        drop(timeout);
        assert_eq!(log.open(), 0);

        wheel
            .timeout_at(Instant::now() + ms(30), pending::<()>())
            .await
            .unwrap_err();
        let mut expected = made("Timeout", "Wheel::timeout_at", 7).to_vec();
        expected.extend([lasts(7, 30), polled([7, 8, 9], false), polled([7, 8, 9], true)]);
        assert_eq!(log.take(), expected);
    });
}

#[test]
fn a_labelled_timeout_says_its_label() {
    logged(async |log| {
        let labelled = Wheel::new().labelled("database");
        let timeout = labelled.timeout(SECOND, pending::<()>());
        let mut expected = made("Timeout", "Labelled::timeout", 1).to_vec();
        expected.push(lasts(1, 1_000));
        expected
            .push(r#"runtime::resource::state_update in [1]: label="database" label.op="override""#.into());
        assert_eq!(log.take(), expected);
        drop(timeout);
    });
}

#[test]
fn a_timer_of_the_global_wheel_names_the_line_of_its_caller() {
    logged(async |log| {
        let _sleep = tickwheel::time::sleep(SECOND);
        let mut expected = made("Sleep", "Wheel::sleep", 1).to_vec();
        expected.push(lasts(1, 1_000));
        assert_eq!(log.take(), expected);
        let _timeout = tickwheel::time::timeout(SECOND, pending::<()>());
        let mut expected = made("Timeout", "Wheel::timeout", 4).to_vec();
        expected.push(lasts(4, 1_000));
        assert_eq!(log.take(), expected);
        let _sleep = Wheel::new().sleep(SECOND);
        let _sleep = tickwheel::time::sleep_until(Instant::now());
        let _timeout = tickwheel::time::timeout_at(Instant::now(), pending::<()>());
        let _interval = tickwheel::time::interval(SECOND);
        let _interval = tickwheel::time::interval_at(Instant::now(), SECOND);
        let _idle = tickwheel::time::idle_timer(SECOND);
        let _idle = Wheel::new().idle_timer(SECOND);
        static LABEL: tickwheel::time::Label = tickwheel::time::Label::new("database");
        let _timeout = LABEL.timeout(SECOND, pending::<()>());
        let _timeout = LABEL.timeout_at(Instant::now(), pending::<()>());
        for made in log.take().iter().filter(|line| line.contains("loc.file")) {
            assert!(made.contains(file!()), "{made}");
        }
        let lines = log.0.lock().unwrap().made_in.clone();
        assert_eq!(lines.len(), 11);
        assert!(
            lines.is_sorted_by(|one, next| one < next),
            "each has a caller of its own: {lines:?}"
        );
    });
}

#[test]
fn where_nobody_listens_it_costs_eight_bytes_and_says_nothing() {
    let wheel = Wheel::new();
    let sleep = wheel.sleep(Duration::from_secs(1));
    let log = Log::default();
    with_default(log.clone(), || drop(sleep));
    assert!(log.take().is_empty());
    if cfg!(target_pointer_width = "64") {
        assert!(size_of::<Sleep>() <= 48);
    }
}

/// On the machine's clock, because on a test's every poll takes the lock.
#[test]
fn a_sleep_that_elapses_while_it_is_polled_keeps_no_permit() {
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let runtime = threaded_runtime(1);
    let _entered = runtime.enter();
    let log = Log::default();
    with_default(log.clone(), || {
        let mut sleep = task::spawn(wheel.try_sleep(ms(100)));
        // From the second poll on, it is known whom it wakes.
        let _ = (sleep.poll(), sleep.poll());
        log.0.lock().unwrap().held_up_by = Some(wheel.clone());
        while sleep.poll().is_pending() {}
        let mut next = task::spawn(wheel.try_sleep(DAY));
        assert_pending!(next.poll());
        drop(sleep);
    });
}
