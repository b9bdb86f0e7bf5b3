//! What a timeout around a future that is pending once costs on a given number of workers at once. The peers
//! run in turn, slice by slice: `contention [WORKERS...] [--rounds N] [--slice-ms N]`, for 1 to 16 workers.
//!
//! `ns` is the time that one operation takes one worker, while as many workers run at once as there are
//! cores; `cpu_ns` is the CPU time of the whole process per operation. `cores_had` is how many cores the
//! slices really had: if that is less than the number of workers (or of cores, if those are fewer), something
//! else ran on the machine, and the figure is worthless. `handle` is the timeout of a wheel of one's own, and
//! `labelled` the same, counted under one label by all workers.

use std::time::Duration;

use tickwheel_benches::{
    Peer, Stage,
    children::{Arguments, Line, median},
    process,
};

fn main() {
    let arguments = Arguments::read();
    let rounds = arguments.number("rounds", 15);
    let slice = Duration::from_millis(arguments.number("slice-ms", 60));
    let workers: Vec<usize> = if arguments.rest.is_empty() {
        vec![1, 2, 4, 8]
    } else {
        arguments.rest.iter().map(|given| parse(given)).collect()
    };
    for workers in workers {
        measure(workers, rounds, slice);
    }
}

fn parse(given: &str) -> usize {
    match given.parse() {
        Ok(workers @ 1..=16) => workers,
        _ => panic!("WORKERS is 1 to 16, not {given:?}"),
    }
}

fn measure(workers: usize, rounds: u64, slice: Duration) {
    let stage = Stage::new(workers);
    let others = Peer::all().filter(|peer| matches!(peer, Peer::Tokio | Peer::TokioAlt | Peer::Pingora));
    let peers: Vec<Peer> = [Peer::Tickwheel, Peer::Handle, Peer::Labelled]
        .into_iter()
        .chain(others)
        .collect();
    let at_once = workers.min(process::cores()) as f64;
    let mut measured = vec![(Vec::new(), Vec::new(), Vec::new()); peers.len()];
    let times: Vec<u64> = peers
        .iter()
        .map(|peer| {
            let times = 20_000;
            let took = stage.churn(*peer, workers, times);
            (times as f64 * slice.as_secs_f64() / took.as_secs_f64()) as u64
        })
        .collect();
    for _ in 0..rounds {
        for ((peer, times), (wall, cpu, had)) in peers.iter().zip(&times).zip(&mut measured) {
            let before = process::cpu_time();
            let took = stage.churn(*peer, workers, *times);
            let operations = (*times * workers as u64) as f64;
            wall.push(took.as_secs_f64() * 1e9 * at_once / operations);
            let used = (process::cpu_time() - before).as_secs_f64();
            cpu.push(used * 1e9 / operations);
            had.push(used / took.as_secs_f64());
        }
    }
    for (peer, (wall, cpu, had)) in peers.iter().zip(measured) {
        let line = Line::new("contention")
            .with("workers", workers)
            .with("cores", process::cores());
        let line = line
            .with("peer", peer)
            .with_number("ns", median(wall))
            .with_number("cpu_ns", median(cpu));
        let line = line.with_number("cores_had", median(had));
        println!("{}", line.with("rounds", rounds));
    }
}
