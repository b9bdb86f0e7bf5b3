//! Tests `LeaseState` against a model of Redis, with faults between any two messages.
//!
//! A holder acquires, renews and releases through a network that delays, reorders and loses requests and
//! answers, while others acquire the lease whenever Redis grants it. The clocks of Redis and of the holder
//! run at the same speed and are never set.

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;
use tokio::time::Instant;

use super::state::{LeaseState, Outcome, Step, Terms};

/// Redis: who holds, and until when. Time is counted from the start.
#[derive(Debug, Default)]
struct Redis {
    holder: Option<(Who, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Us,
    Another,
}

impl Redis {
    fn holder(&mut self, now: Duration) -> Option<Who> {
        self.holder = self.holder.filter(|(_, end)| now < *end);
        self.holder.map(|(who, _)| who)
    }

    fn acquire(&mut self, who: Who, now: Duration, ttl: Duration) -> bool {
        let free = self.holder(now).is_none();
        if free {
            self.holder = Some((who, now + ttl));
        }
        free
    }

    fn renew(&mut self, now: Duration, ttl: Duration) -> bool {
        let ours = self.holder(now) == Some(Who::Us);
        if ours {
            self.holder = Some((Who::Us, now + ttl));
        }
        ours
    }

    fn release(&mut self, now: Duration) {
        if self.holder(now) == Some(Who::Us) {
            self.holder = None;
        }
    }
}

/// What the network does to one request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It arrives after the first, its answer after the second.
    Answered(Duration, Duration),
    /// It arrives after this; the connection breaks before the answer, and after so long the holder knows.
    AnswerLost(Duration, Duration),
    /// It never arrives; after so long the holder knows.
    Lost(Duration),
    /// It arrives, and nobody ever says so.
    Silence(Duration),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A renewal is sent, after it has waited for its turn.
    Send,
    /// A renewal arrives at Redis; its answer goes back later, or the holder hears of a failure.
    Renewal {
        sent: Instant,
        answer: Option<Duration>,
    },
    Answer(u32, Outcome),
    Release,
}

fn milliseconds(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

/// Most within milliseconds, some after longer than a lease.
fn delay() -> impl Strategy<Value = Duration> {
    prop_oneof![6 => milliseconds(0..20), 2 => milliseconds(20..400), 1 => milliseconds(400..3000)]
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        5 => (delay(), delay()).prop_map(|(there, back)| Fate::Answered(there, back)),
        1 => (delay(), delay()).prop_map(|(there, known)| Fate::AnswerLost(there, known)),
        1 => delay().prop_map(Fate::Lost),
        1 => delay().prop_map(Fate::Silence),
    ]
}

/// How the holder is run: how much later than it asked to be, and when it releases.
#[derive(Clone, Debug)]
struct Script {
    ttl: Duration,
    acquired: (Duration, Duration),
    fates: Vec<Fate>,
    /// How long a renewal waits before it is sent.
    waits: Vec<Duration>,
    jitters: Vec<f64>,
    /// The keeper is this much late, each time: a tick, or a machine that was stopped.
    late: Vec<Duration>,
    release: Option<(Duration, Duration)>,
    deleted: Option<Duration>,
}

fn script() -> impl Strategy<Value = Script> {
    let late = prop_oneof![8 => milliseconds(0..10), 1 => milliseconds(10..3000)];
    (
        milliseconds(200..2000),
        (delay(), delay()),
        (
            prop::collection::vec(fate(), 40),
            prop::collection::vec(delay(), 40),
        ),
        prop::collection::vec(0.0..1.0f64, 16),
        prop::collection::vec(late, 64),
        prop::option::of((milliseconds(0..8000), delay())),
        prop::option::weighted(0.1, milliseconds(0..8000)),
    )
        .prop_map(
            |(ttl, acquired, (fates, waits), jitters, late, release, deleted)| Script {
                ttl,
                acquired,
                fates,
                waits,
                jitters,
                late,
                release,
                deleted,
            },
        )
}

/// A duration less a part of a fifth of it.
fn less(of: Duration, part: f64) -> Duration {
    of - (of / 5).mul_f64(part)
}

const TICK: Duration = Duration::from_millis(10);
const STEP: Duration = Duration::from_millis(1);

/// Runs the script for ten seconds, a millisecond at a time, and checks what is promised at each.
fn run(script: &Script) -> Result<Summary, TestCaseError> {
    let origin = Instant::now();
    let mut redis = Redis::default();
    let mut agenda: BTreeMap<(Duration, u32), Event> = BTreeMap::new();
    let mut number = 0;
    let mut add = |agenda: &mut BTreeMap<_, _>, at: Duration, event: Event| {
        number += 1;
        agenda.insert((at, number), event);
    };
    let (mut fates, mut waits, mut lates, mut jitters) = (
        script.fates.iter().cycle(),
        script.waits.iter().cycle(),
        script.late.iter().cycle(),
        script.jitters.iter().cycle(),
    );
    let mut jitter = move || *jitters.next().unwrap();

    let terms = Terms::new(script.ttl, TICK);
    let (there, back) = script.acquired;
    prop_assert!(redis.acquire(Who::Us, there, script.ttl));
    let mut now = there + back;
    let first = jitter();
    let mut state = LeaseState::new(terms, origin, |of| less(of, first));
    let mut summary = Summary::default();

    let (mut lost, mut released, mut under_way) = (false, false, None);
    let mut ended = false;
    let mut wake = now;
    let mut renewals = 0u32;
    while now < Duration::from_secs(10) {
        let mut look = now >= wake;
        while let Some(entry) = agenda.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                // The keeper drops a request that waits when it loses or gives up the lease.
                Event::Send if lost || released => {}
                Event::Send => {
                    let sent = origin + now;
                    let renewal = |answer| Event::Renewal { sent, answer };
                    match *fates.next().unwrap() {
                        Fate::Answered(there, back) => add(&mut agenda, now + there, renewal(Some(back))),
                        Fate::AnswerLost(there, known) => {
                            add(&mut agenda, now + there, renewal(None));
                            add(&mut agenda, now + known, Event::Answer(renewals, Outcome::Failed));
                        }
                        Fate::Lost(known) => {
                            add(&mut agenda, now + known, Event::Answer(renewals, Outcome::Failed))
                        }
                        Fate::Silence(there) => add(&mut agenda, now + there, renewal(None)),
                    }
                }
                Event::Renewal { sent, answer } => {
                    let renewed = redis.renew(now, script.ttl);
                    if let Some(back) = answer {
                        let answer = if renewed {
                            Outcome::Renewed { sent }
                        } else {
                            Outcome::Refused
                        };
                        add(&mut agenda, now + back, Event::Answer(renewals, answer));
                    }
                }
                Event::Answer(of, answer) if under_way == Some(of) && !lost && !released => {
                    under_way = None;
                    let part = jitter();
                    let at = origin + now;
                    // The holder's own clock stands above every answer.
                    if at >= state.valid_until() {
                        summary.too_late += 1;
                    }
                    state.answered(at, answer, |of| less(of, part));
                    summary.renewed += u32::from(matches!(answer, Outcome::Renewed { .. }));
                    look = true;
                }
                Event::Answer(..) => {}
                Event::Release => redis.release(now),
            }
        }
        if let Some(at) = script.deleted
            && at == now
        {
            redis.holder = None;
        }
        if let Some((at, there)) = script.release
            && now >= at
            && !released
        {
            released = true;
            add(&mut agenda, now + there, Event::Release);
        }
        while look && !released {
            match state.next(origin + now) {
                Step::Wait(until) => {
                    prop_assert!(!lost);
                    prop_assert!(until <= state.valid_until(), "the end would be slept through");
                    wake = (until - origin).max(now) + *lates.next().unwrap();
                    look = false;
                }
                Step::Renew => {
                    prop_assert!(!lost, "a renewal after a loss");
                    prop_assert!(under_way.is_none(), "two renewals at once");
                    prop_assert!(origin + now < state.valid_until());
                    renewals += 1;
                    under_way = Some(renewals);
                    add(&mut agenda, now + *waits.next().unwrap(), Event::Send);
                }
                Step::Lose => {
                    lost = true;
                    wake = Duration::MAX;
                    look = false;
                }
            }
        }
        // Somebody else wants it all the time.
        redis.acquire(Who::Another, now, script.ttl);
        let believes = !lost && !released && origin + now < state.valid_until();
        ended |= origin + now >= state.valid_until();
        prop_assert!(!(believes && ended), "what has run out came back at {now:?}");
        // What an operator deletes is lost to the holder only when Redis is asked next; tokens are for that.
        let deleted = script.deleted.is_some_and(|at| at <= now);
        if believes && !deleted {
            prop_assert_eq!(redis.holder(now), Some(Who::Us), "two holders at {:?}", now);
            summary.held += 1;
        }
        now += STEP;
    }
    if script.release.is_some_and(|(at, there)| at + there < now) && agenda.is_empty() {
        prop_assert_ne!(redis.holder(now), Some(Who::Us), "a renewal outlived the release");
    }
    summary.lost = lost && !released;
    Ok(summary)
}

#[derive(Debug, Default)]
struct Summary {
    held: u32,
    renewed: u32,
    too_late: u32,
    lost: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whoever_believes_holds(script in script()) {
        run(&script)?;
    }

    /// Without faults nothing is lost.
    #[test]
    fn who_is_answered_keeps_it(
        ttl in milliseconds(200..2000),
        jitters in prop::collection::vec(0.0..1.0f64, 16),
        delays in prop::collection::vec((milliseconds(0..10), milliseconds(0..10)), 40),
        late in prop::collection::vec(milliseconds(0..10), 64),
    ) {
        let summary = run(&Script {
            ttl,
            acquired: delays[0],
            fates: delays.iter().map(|&(there, back)| Fate::Answered(there, back)).collect(),
            waits: vec![Duration::ZERO],
            jitters,
            late,
            release: None,
            deleted: None,
        })?;
        prop_assert!(!summary.lost, "{summary:?}");
        prop_assert!(summary.renewed >= 8, "{summary:?}");
    }

    /// An outage shorter than what is left costs nothing.
    #[test]
    fn a_short_outage_is_survived(
        ttl in milliseconds(1000..2000),
        jitters in prop::collection::vec(0.0..1.0f64, 16),
        failures in 0..10usize,
    ) {
        let instantly = Duration::from_millis(1);
        let mut fates = vec![Fate::Answered(instantly, instantly); 40];
        fates[..failures].fill(Fate::Lost(instantly));
        let summary = run(&Script {
            ttl,
            acquired: (instantly, instantly),
            fates,
            waits: vec![Duration::ZERO],
            jitters,
            late: vec![Duration::ZERO],
            release: None,
            deleted: None,
        })?;
        prop_assert!(!summary.lost, "{summary:?}");
    }
}

/// The scripts above do what they are for: renewals, late answers and losses are all among them.
#[test]
fn the_faults_do_happen() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut total = Summary::default();
    let mut lost = 0;
    for _ in 0..200 {
        let script = script().new_tree(&mut runner).unwrap().current();
        let summary = run(&script).unwrap();
        total.held += summary.held;
        total.renewed += summary.renewed;
        total.too_late += summary.too_late;
        lost += u32::from(summary.lost);
    }
    assert!(total.held > 10_000 && total.renewed > 100, "{total:?}");
    assert!(total.too_late > 0 && lost > 20, "{total:?}, {lost} lost");
}

#[test]
fn a_renewal_that_failed_on_a_coarse_wheel_is_tried_again() {
    let (second, sent) = (Duration::from_secs(1), Instant::now());
    let terms = Terms::new(60 * second, 2 * second);
    let mut state = LeaseState::new(terms, sent, |delay| delay);
    let now = sent + 20 * second;
    assert_eq!(state.next(now), Step::Renew);
    state.answered(now, Outcome::Failed, |delay| delay);
    assert_eq!(state.next(now), Step::Wait(now + 2 * second));
}
