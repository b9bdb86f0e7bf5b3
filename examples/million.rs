//! The main job: a server's timers, a million of them, on `tickwheel` and on `tokio::time`.
//!
//! Clients and a server exchange requests over real TCP connections on loopback. Each request has a timeout, each
//! connection a heartbeat and an idle deadline that traffic pushes back, and the process holds a million further
//! idle deadlines. The same work runs once on each clock, each time in a process of its own, so that neither pays for
//! the other's memory or CPU time; then one table shows both.
//!
//!     cargo run --release --example million -- --connections 2000 --timers 1000000 --seconds 10 --tick 10

use std::{
    env, fs,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    ops::RangeInclusive,
    pin::{Pin, pin},
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    thread,
    time::Duration,
};

use hdrhistogram::Histogram;
use tickwheel::Wheel;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
    time::Instant,
};

const REQUEST_TIMEOUT: Duration = Duration::from_millis(250);
const HEARTBEAT: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(1);
/// One request in so many is never answered: its timeout elapses.
const LOST: u64 = 1000;
/// After one request in so many the client falls silent: the server's idle deadline closes the connection.
const SILENT: u64 = 500;
/// The further deadlines lie at least this far beyond the end of the traffic: they are held, and never expire.
const FAR: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let options = match Options::parse(env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", Options::HELP);
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            eprintln!("{mistake}");
            return ExitCode::from(2);
        }
    };
    let outcome = match env::var(ONLY).ok().as_deref() {
        Some(Wheel::NAME) => work_alone(options, options.wheel()),
        Some(_) => work_alone(options, TokioTime),
        None => compare(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("million: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- The two clocks -------------------------------------------------------------------------------------------

/// What the work needs of a clock. Both implementations forward, line by line, to the same names.
trait Clockwork: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    type Sleep: Future + Send;
    type Interval: Send;

    fn sleep_until(&self, deadline: Instant) -> Self::Sleep;
    fn reset(sleep: Pin<&mut Self::Sleep>, deadline: Instant);
    /// `None` when the duration has elapsed.
    fn timeout<F: Future + Send>(
        &self,
        duration: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send;
    fn interval_at(&self, start: Instant, period: Duration) -> Self::Interval;
    fn tick(interval: &mut Self::Interval) -> impl Future<Output = Instant> + Send;
    /// What the clock says of itself.
    fn remark(&self) -> String;
}

impl Clockwork for Wheel {
    const NAME: &'static str = "tickwheel";
    type Sleep = tickwheel::Sleep;
    type Interval = tickwheel::Interval;

    fn sleep_until(&self, deadline: Instant) -> tickwheel::Sleep {
        self.sleep_until(deadline)
    }

    fn reset(mut sleep: Pin<&mut tickwheel::Sleep>, deadline: Instant) {
        sleep.reset(deadline);
    }

    async fn timeout<F: Future + Send>(&self, duration: Duration, future: F) -> Option<F::Output> {
        self.timeout(duration, future).await.ok()
    }

    fn interval_at(&self, start: Instant, period: Duration) -> tickwheel::Interval {
        self.interval_at(start, period)
    }

    async fn tick(interval: &mut tickwheel::Interval) -> Instant {
        let tick = interval.tick().await;
        tick.expect("this wheel has no limit, and is never shut down")
    }

    fn remark(&self) -> String {
        let metrics = self.metrics();
        format!(
            "The wheel's own count, in which a deadline pushed back expires and registers anew when its old time comes:\n\
             {} registered = {} expired + {} cancelled + {} pending.",
            grouped(metrics.registered),
            grouped(metrics.expired),
            grouped(metrics.cancelled),
            grouped(metrics.pending as u64),
        )
    }
}

#[derive(Clone)]
struct TokioTime;

impl Clockwork for TokioTime {
    const NAME: &'static str = "tokio::time";
    type Sleep = tokio::time::Sleep;
    type Interval = tokio::time::Interval;

    fn sleep_until(&self, deadline: Instant) -> tokio::time::Sleep {
        tokio::time::sleep_until(deadline)
    }

    fn reset(sleep: Pin<&mut tokio::time::Sleep>, deadline: Instant) {
        sleep.reset(deadline);
    }

    async fn timeout<F: Future + Send>(&self, duration: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(duration, future).await.ok()
    }

    fn interval_at(&self, start: Instant, period: Duration) -> tokio::time::Interval {
        tokio::time::interval_at(start, period)
    }

    async fn tick(interval: &mut tokio::time::Interval) -> Instant {
        interval.tick().await
    }

    fn remark(&self) -> String {
        String::new()
    }
}

// ---- The connections ------------------------------------------------------------------------------------------

/// What a task has to tell of its timers when it ends.
#[derive(Default)]
struct Tally {
    registered: u64,
    cancelled: u64,
    expired: u64,
    pushed_back: u64,
    early: u64,
    sleeps_late: Vec<Duration>,
    timeouts_late: Vec<Duration>,
}

impl Tally {
    fn sleep_expired(&mut self, deadline: Instant) {
        self.expired += 1;
        match Instant::now().checked_duration_since(deadline) {
            Some(late) => self.sleeps_late.push(late),
            None => self.early += 1,
        }
    }

    fn timeout_elapsed(&mut self, started: Instant) {
        self.expired += 1;
        match started.elapsed().checked_sub(REQUEST_TIMEOUT) {
            Some(late) => self.timeouts_late.push(late),
            None => self.early += 1,
        }
    }

    fn add(&mut self, other: Tally) {
        self.registered += other.registered;
        self.cancelled += other.cancelled;
        self.expired += other.expired;
        self.pushed_back += other.pushed_back;
        self.early += other.early;
        self.sleeps_late.extend(other.sleeps_late);
        self.timeouts_late.extend(other.timeouts_late);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Message {
    Request(u64),
    /// A request that the server will not answer.
    Lost(u64),
    Response(u64),
    Heartbeat,
}

const MESSAGE: usize = 9;

impl Message {
    fn encode(self) -> [u8; MESSAGE] {
        let (kind, number) = match self {
            Message::Request(number) => (0, number),
            Message::Lost(number) => (1, number),
            Message::Response(number) => (2, number),
            Message::Heartbeat => (3, 0),
        };
        let mut bytes = [kind; MESSAGE];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    fn decode([kind, number @ ..]: [u8; MESSAGE]) -> Message {
        let number = u64::from_le_bytes(number);
        match kind {
            0 => Message::Request(number),
            1 => Message::Lost(number),
            2 => Message::Response(number),
            _ => Message::Heartbeat,
        }
    }
}

struct Connection {
    stream: TcpStream,
    buffer: [u8; MESSAGE],
    filled: usize,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        Ok(Connection {
            stream,
            buffer: [0; MESSAGE],
            filled: 0,
        })
    }

    async fn open(server: SocketAddr) -> io::Result<Connection> {
        Connection::new(TcpStream::connect(server).await?)
    }

    async fn send(&mut self, message: Message) -> io::Result<()> {
        self.stream.write_all(&message.encode()).await
    }

    /// The next message, or `None` when the other side has closed. Cancel safe: what has been read of a message stays.
    async fn receive(&mut self) -> io::Result<Option<Message>> {
        while self.filled < MESSAGE {
            match self.stream.read(&mut self.buffer[self.filled..]).await? {
                0 => return Ok(None),
                read => self.filled += read,
            }
        }
        self.filled = 0;
        Ok(Some(Message::decode(self.buffer)))
    }

    async fn response_to(&mut self, number: u64) -> io::Result<()> {
        loop {
            match self.receive().await? {
                Some(Message::Response(answered)) if answered == number => return Ok(()),
                // A heartbeat, or a response that came after its request's timeout.
                Some(_) => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

struct Client<C> {
    clock: C,
    server: SocketAddr,
    connection: Connection,
    random: Random,
    answered: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    tally: Tally,
}

impl<C: Clockwork> Client<C> {
    async fn run(mut self) -> io::Result<Tally> {
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let lasts = self.request(number).await.is_ok();
            if lasts && !self.random.one_in(SILENT) {
                continue;
            }
            // Until the server closes; it may have done so already, on a machine so busy that a client looks idle.
            while let Ok(Some(_)) = self.connection.receive().await {}
            self.connection = Connection::open(self.server).await?;
        }
        Ok(self.tally)
    }

    async fn request(&mut self, number: u64) -> io::Result<()> {
        let lost = self.random.one_in(LOST);
        let request = if lost {
            Message::Lost(number)
        } else {
            Message::Request(number)
        };
        self.connection.send(request).await?;
        let started = Instant::now();
        self.tally.registered += 1;
        let answer = self.connection.response_to(number);
        match self.clock.timeout(REQUEST_TIMEOUT, answer).await {
            Some(answer) => {
                self.tally.cancelled += 1;
                answer?;
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            None => self.tally.timeout_elapsed(started),
        }
        Ok(())
    }
}

async fn serve<C: Clockwork>(clock: C, mut connection: Connection, mut random: Random) -> Tally {
    let mut tally = Tally::default();
    let mut idle_until = Instant::now() + IDLE;
    let mut idle = pin!(clock.sleep_until(idle_until));
    let mut heartbeat = clock.interval_at(Instant::now() + random.part_of(HEARTBEAT), HEARTBEAT);
    tally.registered += 2;
    loop {
        let answer = tokio::select! {
            biased;
            received = connection.receive() => {
                let Ok(Some(message)) = received else { break };
                idle_until = Instant::now() + IDLE;
                C::reset(idle.as_mut(), idle_until);
                tally.pushed_back += 1;
                let Message::Request(number) = message else { continue };
                Message::Response(number)
            }
            due = C::tick(&mut heartbeat) => {
                tally.sleep_expired(due);
                tally.registered += 1;
                Message::Heartbeat
            }
            _ = idle.as_mut() => {
                tally.sleep_expired(idle_until);
                tally.cancelled += 1; // the heartbeat
                return tally;
            }
        };
        if connection.send(answer).await.is_err() {
            break;
        }
    }
    tally.cancelled += 2;
    tally
}

/// Serves whoever connects until told to stop, then waits for the connections to end.
async fn accept<C: Clockwork>(
    clock: C,
    listener: TcpListener,
    mut stop: oneshot::Receiver<()>,
) -> io::Result<Tally> {
    let mut connections = JoinSet::new();
    let mut tally = Tally::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, client) = accepted?;
                let random = Random::new(client.port().into());
                connections.spawn(serve(clock.clone(), Connection::new(stream)?, random));
            }
            Some(ended) = connections.join_next() => tally.add(ended?),
            _ = &mut stop => break,
        }
    }
    while let Some(ended) = connections.join_next().await {
        tally.add(ended?);
    }
    Ok(tally)
}

// ---- The further deadlines ------------------------------------------------------------------------------------

/// Idle deadlines that one task holds: each a boxed sleep, polled once, as a connection's state would hold it.
struct Hoard<C: Clockwork> {
    sleeps: Vec<Pin<Box<C::Sleep>>>,
    within: Duration,
    random: Random,
}

impl<C: Clockwork> Hoard<C> {
    async fn arm(clock: C, count: usize, options: Options, number: u64) -> Hoard<C> {
        let mut hoard = Hoard {
            sleeps: Vec::with_capacity(count),
            within: options.traffic() + FAR,
            random: Random::new(number),
        };
        while hoard.sleeps.len() < count {
            let mut sleep = Box::pin(clock.sleep_until(hoard.deadline()));
            poll_fn(|cx| {
                assert!(sleep.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            hoard.sleeps.push(sleep);
            // A sleep polled without budget would be pending, and not registered.
            if hoard.sleeps.len() % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        hoard
    }

    /// Has traffic push a hundredth of the deadlines back, ten times a second.
    async fn hold(mut self, clock: C, stop: Arc<AtomicBool>) -> Tally {
        let mut tally = Tally::default();
        while !stop.load(Ordering::Relaxed) {
            let deadline = Instant::now() + Duration::from_millis(100);
            tally.registered += 1;
            clock.sleep_until(deadline).await;
            tally.sleep_expired(deadline);
            for _ in 0..self.sleeps.len() / 100 {
                let (place, deadline) = (self.random.below(self.sleeps.len() as u64), self.deadline());
                C::reset(self.sleeps[place as usize].as_mut(), deadline);
                tally.pushed_back += 1;
            }
        }
        tally.registered += self.sleeps.len() as u64;
        tally.cancelled += self.sleeps.len() as u64;
        tally
    }

    fn deadline(&mut self) -> Instant {
        Instant::now() + self.within + self.random.part_of(FAR)
    }
}

async fn arm_all<C: Clockwork>(clock: &C, options: Options) -> Vec<Hoard<C>> {
    let tasks = cores();
    let arming: Vec<_> = (0..tasks)
        .map(|number| {
            let count = options.timers / tasks + usize::from(number < options.timers % tasks);
            tokio::spawn(Hoard::arm(clock.clone(), count, options, number as u64))
        })
        .collect();
    let mut hoards = Vec::new();
    for task in arming {
        hoards.push(task.await.expect("arming does not panic"));
    }
    hoards
}

// ---- The work, on one clock -----------------------------------------------------------------------------------

fn work_alone<C: Clockwork>(options: Options, clock: C) -> io::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    // In a task of the runtime's own: a hundred thousand polls on the main thread would be another machine's work.
    let report = runtime.block_on(async { tokio::spawn(work(options, clock)).await })??;
    print!("{report}");
    Ok(())
}

async fn work<C: Clockwork>(options: Options, clock: C) -> io::Result<String> {
    // Whatever starts with the first timer starts before anything is measured.
    clock
        .sleep_until(Instant::now() + Duration::from_millis(50))
        .await;

    progress::<C>(&format!("arming {} deadlines", grouped(options.timers as u64)));
    let resident_before = resident();
    let started = Instant::now();
    let hoards = arm_all(&clock, options).await;
    let armed_in = started.elapsed();
    clock
        .sleep_until(Instant::now() + Duration::from_millis(300))
        .await;
    let bytes = resident()
        .zip(resident_before)
        .map(|(after, before)| after.saturating_sub(before));

    progress::<C>(&format!(
        "opening {} connections",
        grouped(options.connections as u64)
    ));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    let (stop_server, server_stops) = oneshot::channel();
    let serving = tokio::spawn(accept(clock.clone(), listener, server_stops));
    let stop = Arc::new(AtomicBool::new(false));
    let answered: Vec<_> = (0..options.connections)
        .map(|_| Arc::new(AtomicU64::new(0)))
        .collect();
    let mut clients = JoinSet::new();
    for (number, answered) in answered.iter().enumerate() {
        let client = Client {
            clock: clock.clone(),
            server,
            connection: Connection::open(server).await?,
            random: Random::new(number as u64),
            answered: answered.clone(),
            stop: stop.clone(),
            tally: Tally::default(),
        };
        clients.spawn(client.run());
    }
    let mut holding = JoinSet::new();
    for hoard in hoards {
        holding.spawn(hoard.hold(clock.clone(), stop.clone()));
    }

    let (started, cpu_before, answered_before) = (Instant::now(), cpu_time(), sum(&answered));
    watch(&clock, &answered, options).await;
    let requests: u64 = answered
        .iter()
        .map(|answered| answered.load(Ordering::Relaxed))
        .sum();
    let (took, cpu) = (
        started.elapsed(),
        cpu_time().zip(cpu_before).map(|(after, before)| after - before),
    );

    progress::<C>("closing");
    stop.store(true, Ordering::Relaxed);
    let mut tally = Tally::default();
    while let Some(ended) = clients.join_next().await {
        tally.add(ended??);
    }
    let _ = stop_server.send(());
    tally.add(serving.await??);
    while let Some(ended) = holding.join_next().await {
        tally.add(ended?);
    }

    let figures = Figures {
        armed_in,
        bytes,
        requests,
        took,
        cpu,
        tally,
        remark: clock.remark(),
    };
    Ok(figures.report(options))
}

async fn watch<C: Clockwork>(clock: &C, answered: &[Arc<AtomicU64>], options: Options) {
    let (started, mut before) = (Instant::now(), sum(answered));
    for second in 1..=options.seconds {
        clock.sleep_until(started + Duration::from_secs(second)).await;
        let now = sum(answered);
        let rate = grouped(now - before);
        progress::<C>(&format!(
            "second {second} of {}: {rate} requests",
            options.seconds
        ));
        before = now;
    }
}

fn sum(counts: &[Arc<AtomicU64>]) -> u64 {
    counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
}

fn progress<C: Clockwork>(what: &str) {
    eprintln!("{:>11}  {what}", C::NAME);
}

struct Figures {
    armed_in: Duration,
    bytes: Option<u64>,
    requests: u64,
    took: Duration,
    cpu: Option<Duration>,
    tally: Tally,
    remark: String,
}

impl Figures {
    /// A row of the table on each line, its name and value apart by a tab; then, after an empty line, the remark.
    fn report(self, options: Options) -> String {
        let Figures { tally, .. } = &self;
        let per_second = self.requests as f64 / self.took.as_secs_f64();
        let (cpu, cpu_each) = match self.cpu {
            Some(cpu) => (
                format!("{:.2}", cpu.as_secs_f64()),
                format!("{:.2} µs", cpu.as_secs_f64() * 1e6 / self.requests.max(1) as f64),
            ),
            None => ("not known here".into(), "not known here".into()),
        };
        let bytes = match self.bytes {
            // Below this, pages and what else the process did outweigh the timers.
            Some(_) if options.timers < 100_000 => "too few to tell".into(),
            Some(bytes) => format!("{:.0}", bytes as f64 / options.timers as f64),
            None => "not known here".into(),
        };
        let rows = [
            ("requests per second", grouped(per_second as u64)),
            ("CPU seconds, of the traffic", cpu),
            ("  for each request", cpu_each),
            (
                "further deadlines armed in",
                format!("{} ms", self.armed_in.as_millis()),
            ),
            ("resident bytes per timer", bytes),
            (
                "late, sleep or heartbeat: p50 / p99 / max",
                lateness(&tally.sleeps_late),
            ),
            ("late, timeout: p50 / p99 / max", lateness(&tally.timeouts_late)),
            ("early", grouped(tally.early)),
            ("timers registered", grouped(tally.registered)),
            ("  cancelled", grouped(tally.cancelled)),
            ("  expired", grouped(tally.expired)),
            ("deadlines pushed back", grouped(tally.pushed_back)),
        ];
        let rows: String = rows
            .iter()
            .map(|(name, value)| format!("{name}\t{value}\n"))
            .collect();
        format!("{rows}\n{}\n", self.remark)
    }
}

fn lateness(late: &[Duration]) -> String {
    let mut histogram = Histogram::<u64>::new(3).expect("3 digits are within its limits");
    for late in late {
        histogram.saturating_record(late.as_micros() as u64);
    }
    if histogram.is_empty() {
        return "none".into();
    }
    let ms = |micros: u64| format!("{:.1}", micros as f64 / 1000.0);
    let (p50, p99) = (
        histogram.value_at_quantile(0.5),
        histogram.value_at_quantile(0.99),
    );
    format!("{} / {} / {} ms", ms(p50), ms(p99), ms(histogram.max()))
}

// ---- The comparison -------------------------------------------------------------------------------------------

/// In the environment of a child process: the name of the clock it is to work on.
const ONLY: &str = "TICKWHEEL_MILLION_ONLY";

fn compare(options: &Options) -> io::Result<()> {
    let wheel = in_a_child(Wheel::NAME, options)?;
    let tokio = in_a_child(TokioTime::NAME, options)?;
    println!(
        "\n{} connections, {} further deadlines, {} s of traffic, a tick of {} ms, {} cores\n",
        grouped(options.connections as u64),
        grouped(options.timers as u64),
        options.seconds,
        options.tick,
        cores(),
    );
    println!("{:<42}{:>24}{:>24}", "", Wheel::NAME, TokioTime::NAME);
    for (wheel, tokio) in wheel
        .lines()
        .zip(tokio.lines())
        .take_while(|(row, _)| !row.is_empty())
    {
        let (name, wheel) = wheel.split_once('\t').unwrap_or((wheel, ""));
        let (_, tokio) = tokio.split_once('\t').unwrap_or((tokio, ""));
        println!("{name:<42}{wheel:>24}{tokio:>24}");
    }
    if let Some((_, remark)) = wheel.split_once("\n\n") {
        print!("\n{remark}");
    }
    Ok(())
}

fn in_a_child(name: &str, options: &Options) -> io::Result<String> {
    let child = Command::new(env::current_exe()?)
        .args(options.arguments())
        .env(ONLY, name)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !child.status.success() {
        return Err(io::Error::other(format!("the work on {name} failed")));
    }
    String::from_utf8(child.stdout).map_err(io::Error::other)
}

#[derive(Clone, Copy)]
struct Options {
    connections: usize,
    timers: usize,
    seconds: u64,
    tick: u64,
}

impl Options {
    const HELP: &str = "\
A server's timers, on tickwheel and on tokio::time.

  --connections N   TCP connections on loopback (2000, or what the file limit allows)
  --timers N        further idle deadlines held by the process (1000000)
  --seconds N       how long the traffic lasts, on each clock (10)
  --tick N          the wheel's tick, in milliseconds (10)";
    const TIMERS: RangeInclusive<u64> = 1..=20_000_000;
    const SECONDS: RangeInclusive<u64> = 1..=600;
    const TICK: RangeInclusive<u64> = 1..=1000;

    /// `None` when help is asked for.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
        let room = room_for_connections();
        let mut options = Options {
            connections: room.min(2000) as usize,
            timers: 1_000_000,
            seconds: 10,
            tick: 10,
        };
        while let Some(name) = arguments.next() {
            let mut number = |allowed| number(&name, arguments.next(), allowed);
            match name.as_str() {
                "--connections" => {
                    let why = format!(
                        "; the file limit leaves room for {room}, at two files each: see `ulimit -n`"
                    );
                    options.connections = number(1..=room).map_err(|mistake| mistake + &why)? as usize;
                }
                "--timers" => options.timers = number(Options::TIMERS)? as usize,
                "--seconds" => options.seconds = number(Options::SECONDS)?,
                "--tick" => options.tick = number(Options::TICK)?,
                "--help" | "-h" => return Ok(None),
                _ => {
                    return Err(format!(
                        "{name}: no such option; allowed are --connections, --timers, --seconds and --tick"
                    ));
                }
            }
        }
        Ok(Some(options))
    }

    fn arguments(&self) -> [String; 8] {
        let Options {
            connections,
            timers,
            seconds,
            tick,
        } = self;
        [
            "--connections".into(),
            connections.to_string(),
            "--timers".into(),
            timers.to_string(),
            "--seconds".into(),
            seconds.to_string(),
            "--tick".into(),
            tick.to_string(),
        ]
    }

    fn traffic(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    fn wheel(&self) -> Wheel {
        let tick = Duration::from_millis(self.tick);
        Wheel::builder()
            .tick_duration(tick)
            .build()
            .expect("the options are within the wheel's limits")
    }
}

fn number(name: &str, value: Option<String>, allowed: RangeInclusive<u64>) -> Result<u64, String> {
    let (least, most) = (allowed.start(), allowed.end());
    let Some(value) = value else {
        return Err(format!(
            "{name}: no value given; allowed is a whole number from {least} to {most}"
        ));
    };
    match value.parse() {
        Ok(number) if allowed.contains(&number) => Ok(number),
        _ => Err(format!(
            "{name} {value}: allowed is a whole number from {least} to {most}"
        )),
    }
}

// ---- What the machine says ------------------------------------------------------------------------------------

fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// Both ends of a connection are this process's, and some files it needs besides.
fn room_for_connections() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let open_files = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = open_files.and_then(|limits| limits.split_whitespace().next());
    match soft {
        Some("unlimited") => 1 << 20,
        Some(soft) => soft.parse::<u64>().unwrap_or(1024).saturating_sub(64) / 2,
        None => (1024 - 64) / 2,
    }
}

fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = resident.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// The process's CPU time, user and system.
fn cpu_time() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the program's name in brackets, may hold anything; user and system time are the 14th and 15th.
    let (_, after_name) = stat.rsplit_once(')')?;
    let hundredths: Option<u64> = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().ok())
        .sum();
    Some(Duration::from_millis(hundredths? * 10))
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Marsaglia's xorshift: the work needs variety, and the same for both clocks.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    fn part_of(&mut self, duration: Duration) -> Duration {
        Duration::from_micros(self.below(duration.as_micros() as u64))
    }
}
