//! `SlowLink`: a network that carries so many bytes a second in each direction, however many connections
//! there are.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::Mutex,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};

pub struct SlowLink {
    port: u16,
    task: JoinHandle<()>,
}

impl SlowLink {
    pub async fn start(server: u16, bytes_per_second: u32) -> SlowLink {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(accept(listener, server, bytes_per_second));
        SlowLink { port, task }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// When the link is free again, in one direction.
type Free = Arc<Mutex<Instant>>;

async fn accept(listener: TcpListener, server: u16, rate: u32) {
    let [up, down] = [(); 2].map(|()| Free::new(Mutex::new(Instant::now())));
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
            continue;
        };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (up, down) = (up.clone(), down.clone());
        connections.spawn(async move {
            tokio::select! {
                () = carry(from_client, to_server, up, rate) => {}
                () = carry(from_server, to_client, down, rate) => {}
            }
        });
    }
}

async fn carry(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, free: Free, rate: u32) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length) = from.read(&mut buffer).await {
        if length == 0 {
            return;
        }
        let mut free = free.lock().await;
        *free = (*free).max(Instant::now()) + Duration::from_secs(1) * length as u32 / rate;
        sleep_until(*free).await;
        drop(free);
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
