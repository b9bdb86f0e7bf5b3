//! What does all that mean for a server? One with real connections answers real requests, and its CPU time is
//! split by where it is spent.
//!
//! The same process serves without timers, with Tokio's and with the wheel's, on the same connections, and
//! changes between the three many times a second. So what disturbs one disturbs all, and a part of a few per
//! cent can be told from the noise.

use std::{io, thread, time::Duration};

use crate::{
    figures::{Row, Section, Unit},
    options::Options,
    peer::Peer,
    progress::Progress,
    server::client::Clients,
    statistics::{Spread, median},
    turns::in_turns,
};

mod client;
mod serve;

pub(crate) use serve::child;

const ROUNDS: usize = 40;
const SLICE: Duration = Duration::from_millis(70);
/// Requests that have been begun before a change of timers end with those they began with.
const SETTLING: Duration = Duration::from_millis(4);

pub(crate) struct Server {
    /// CPU of a request, all of it.
    pub(crate) section: Section,
    /// Microseconds of a request without timers: in the kernel, and in Tokio and the program itself.
    pub(crate) kernel: f64,
    pub(crate) program: f64,
    pub(crate) tokio: Part,
    pub(crate) wheel: Part,
    pub(crate) requests_per_second: f64,
}

/// The part of the timers in a request's CPU time.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) micros: f64,
    /// In per cent.
    pub(crate) share: Spread,
}

/// What a slice has measured.
#[derive(Clone, Copy)]
struct Slice {
    seconds: f64,
    requests: f64,
    /// Microseconds of a request.
    user: f64,
    kernel: f64,
}

impl Slice {
    fn between(before: &[f64], after: &[f64]) -> io::Result<Slice> {
        let ([start, user_before, kernel_before, requests_before], [end, user, kernel, requests]) =
            (before, after)
        else {
            return Err(io::Error::other("the server did not say what it used"));
        };
        let requests = requests - requests_before;
        let each = 1e6 / requests.max(1.0);
        Ok(Slice {
            seconds: end - start,
            requests,
            user: (user - user_before) * each,
            kernel: (kernel - kernel_before) * each,
        })
    }

    fn cpu(&self) -> f64 {
        self.user + self.kernel
    }
}

pub(crate) fn measure(options: &Options, progress: &mut Progress) -> io::Result<Server> {
    let slice = options.lasting(SLICE);
    let connections = options.connections;
    progress.begin(
        &format!("what part timers have in the CPU time of a server with {connections} connections"),
        3 * ROUNDS as u32 * (slice + SETTLING),
    );
    let mut server = Peer::start(&["server"])?;
    let port = server.numbers()?.first().copied().unwrap_or(0.0) as u16;
    let clients = Clients::start(port, connections)?;
    let rounds = in_turns(ROUNDS, progress, |timers| {
        server.ask(["none", "tokio", "tickwheel"][timers])?;
        thread::sleep(SETTLING);
        let before = server.ask("so far?")?;
        thread::sleep(slice);
        Slice::between(&before, &server.ask("so far?")?)
    })?;
    clients.stop();
    Ok(split(connections, rounds))
}

fn split(connections: usize, [without, tokio, wheel]: [Vec<Slice>; 3]) -> Server {
    let part = |with: &[Slice]| {
        let rounds = || {
            with.iter()
                .zip(&without)
                .map(|(with, without)| (with.cpu(), without.cpu()))
        };
        let micros: Vec<_> = rounds().map(|(with, without)| with - without).collect();
        Part {
            micros: median(&micros),
            share: Spread::of(rounds().map(|(with, without)| 100.0 * (1.0 - without / with))),
        }
    };
    let of =
        |slices: &[Slice], figure: fn(&Slice) -> f64| -> Vec<f64> { slices.iter().map(figure).collect() };
    // The kernel counts by samples where it splits a thread's time, so only the sum of many slices tells the
    // two apart.
    let kernel: f64 = without.iter().map(|slice| slice.kernel * slice.requests).sum();
    let all: f64 = without.iter().map(|slice| slice.cpu() * slice.requests).sum();
    let cpu = median(&of(&without, Slice::cpu));
    let (tokio_part, wheel_part) = (part(&tokio), part(&wheel));
    let requests: f64 = wheel.iter().map(|slice| slice.requests).sum();
    let seconds: f64 = wheel.iter().map(|slice| slice.seconds).sum();
    Server {
        section: Section {
            key: "server",
            title: "A server with real connections".to_owned(),
            about: format!(
                "{connections} TCP connections over loopback send one request after the other. The server pushes the idle deadline of the \
                 connection back for each, and waits for it within a timeout."
            ),
            rows: vec![Row::new(
                "CPU of a request, all of it",
                Unit::Micros,
                [of(&tokio, Slice::cpu), of(&wheel, Slice::cpu)],
            )],
            others: None,
        },
        kernel: cpu * kernel / all,
        program: cpu * (1.0 - kernel / all),
        tokio: tokio_part,
        wheel: wheel_part,
        requests_per_second: requests / seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(user: f64, kernel: f64) -> Slice {
        Slice {
            seconds: 0.5,
            requests: 1000.0,
            user,
            kernel,
        }
    }

    #[test]
    fn a_slice_is_the_difference_of_two_looks() {
        let slice = Slice::between(&[1.0, 2.0, 3.0, 1000.0], &[1.5, 2.2, 3.4, 3000.0]).unwrap();
        assert_eq!((slice.seconds, slice.requests), (0.5, 2000.0));
        assert!((slice.user - 100.0).abs() < 1e-9 && (slice.kernel - 200.0).abs() < 1e-9);
        assert!(Slice::between(&[], &[1.0]).is_err());
    }

    #[test]
    fn the_part_of_the_timers_is_what_the_version_without_does_not_take() {
        let server = split(
            10,
            [
                vec![slice(2.0, 6.0), slice(4.0, 12.0), slice(2.0, 6.0)],
                // The machine was twice as slow in the second round.
                vec![slice(4.0, 6.0), slice(8.0, 12.0), slice(4.0, 6.0)],
                vec![slice(2.0, 6.0), slice(4.0, 12.0), slice(2.0, 6.0)],
            ],
        );
        assert_eq!((server.kernel, server.program), (6.0, 2.0));
        assert_eq!((server.tokio.micros, server.wheel.micros), (2.0, 0.0));
        assert!((server.tokio.share.median - 20.0).abs() < 1e-9);
        assert_eq!(server.wheel.share.median, 0.0);
        assert_eq!(server.requests_per_second, 2000.0);
        assert_eq!(server.section.rows[0].ratio().median, 1.25);
    }
}
