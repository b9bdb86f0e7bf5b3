//! The clients, in this process: each connection sends its next request when the last one has been answered.

use std::{io, net::Ipv4Addr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Runtime,
};

use super::serve::MESSAGE;
use crate::{machine::cores, turns::multi_thread};

pub(super) struct Clients(Runtime);

impl Clients {
    pub(super) fn start(port: u16, connections: usize) -> io::Result<Clients> {
        let runtime = multi_thread(cores())?;
        runtime.block_on(async {
            for _ in 0..connections {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
                stream.set_nodelay(true)?;
                tokio::spawn(ask(stream));
            }
            io::Result::Ok(())
        })?;
        Ok(Clients(runtime))
    }

    pub(super) fn stop(self) {
        self.0.shutdown_background();
    }
}

async fn ask(mut stream: TcpStream) -> io::Result<()> {
    let mut message = [0; MESSAGE];
    loop {
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
    }
}
