//! A server of short lines over TCP, with 10,000 connections, of which 100 send requests:
//! `lines [--connections N] [--busy N] [--seconds N] [--rounds N]`.
//!
//! Each connection has a timeout around the reading of every request, and a sleep for its idle time. Its bytes are the growth of the server
//! since before the first connection, whatever they are used for.

use std::{future::Future, io};

use tickwheel_benches::{
    pair::{self, Program},
    server,
    timers::Timers,
};
use tokio::net::TcpStream;

#[derive(Clone)]
struct Lines;

impl Program for Lines {
    const NAME: &'static str = "lines";
    const CONNECTIONS: u64 = 10_000;
    const BUSY: u64 = 100;

    fn serve<T: Timers>(stream: TcpStream, timers: T) -> impl Future<Output = ()> + Send {
        server::serve(stream, timers)
    }

    fn ask(stream: &mut TcpStream) -> impl Future<Output = io::Result<()>> + Send {
        server::ask(stream)
    }
}

fn main() {
    pair::main::<Lines>();
}
