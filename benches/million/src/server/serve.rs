//! The server, in a process of its own. What it is asked on its standard input changes the timers that
//! requests use from then on.

use std::{
    io,
    net::Ipv4Addr,
    pin::{Pin, pin},
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    machine::{Used, cores},
    peer::{answer, tell},
    timers::{Tickwheel, Timers, Tokio},
    turns::multi_thread,
};

pub(super) const MESSAGE: usize = 8;
const IDLE: Duration = Duration::from_secs(60);
const REQUEST: Duration = Duration::from_secs(5);

const NONE: u8 = 0;
const TOKIO: u8 = 1;
const TICKWHEEL: u8 = 2;

static TIMERS: AtomicU8 = AtomicU8::new(NONE);
static REQUESTS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn child() -> io::Result<()> {
    let runtime = multi_thread(cores())?;
    let start = Instant::now();
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    tell(&[f64::from(listener.local_addr()?.port())]);
    runtime.spawn(accept(listener));
    answer(|question| {
        match question {
            "none" => TIMERS.store(NONE, Ordering::Relaxed),
            "tokio" => TIMERS.store(TOKIO, Ordering::Relaxed),
            "tickwheel" => TIMERS.store(TICKWHEEL, Ordering::Relaxed),
            _ => {}
        }
        let used = Used::by_this_process()?;
        Ok(vec![
            start.elapsed().as_secs_f64(),
            used.user.as_secs_f64(),
            used.kernel.as_secs_f64(),
            REQUESTS.load(Ordering::Relaxed) as f64,
        ])
    })
}

async fn accept(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(serve(stream));
    }
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    let deadline = tokio::time::Instant::now() + IDLE;
    let mut idle_on_tokio = pin!(Tokio.sleep_until(deadline));
    let mut idle_on_wheel = pin!(Tickwheel.sleep_until(deadline));
    // Longer than a message: a read that does not fill it needs no further one to find that there is no more.
    let mut buffer = [0; 2 * MESSAGE];
    loop {
        let read = match TIMERS.load(Ordering::Relaxed) {
            TOKIO => in_time(Tokio, idle_on_tokio.as_mut(), stream.read(&mut buffer)).await,
            TICKWHEEL => in_time(Tickwheel, idle_on_wheel.as_mut(), stream.read(&mut buffer)).await,
            _ => Some(stream.read(&mut buffer).await),
        };
        match read {
            Some(Ok(1..)) => {
                stream.write_all(&buffer[..MESSAGE]).await?;
                REQUESTS.fetch_add(1, Ordering::Relaxed);
            }
            Some(Err(error)) => return Err(error),
            // Closed by the client, or too late.
            Some(Ok(0)) | None => return Ok(()),
        }
    }
}

/// A read as a server would write it: `None` if the connection has been idle for too long, or this request
/// takes too long.
async fn in_time<T: Timers, R: Send>(
    timers: T,
    mut idle: Pin<&mut T::Sleep>,
    read: impl Future<Output = R> + Send,
) -> Option<R> {
    T::reset(idle.as_mut(), tokio::time::Instant::now() + IDLE);
    tokio::select! {
        biased;
        read = timers.timeout(REQUEST, read) => read.ok(),
        () = idle => None,
    }
}
