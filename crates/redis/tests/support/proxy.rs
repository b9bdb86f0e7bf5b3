//! `Proxy`: a network between the test and the server that injects faults.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    task::JoinHandle,
    time::sleep,
};

/// What the network does to what is sent from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Up,
    /// Each part of an answer comes so much later.
    Late(Duration),
    /// Nothing arrives, until it is up again; connections stay.
    Silent,
    /// Requests arrive; answers do not, until it is up again.
    Deaf,
    /// Connections are cut, with all that was under way, and new ones refused.
    Down,
}

pub struct Proxy {
    port: u16,
    network: Arc<watch::Sender<Network>>,
    forgotten: Arc<watch::Sender<u64>>,
    task: JoinHandle<()>,
    requests: Arc<Mutex<u64>>,
}

impl Proxy {
    pub async fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let network = Arc::new(watch::Sender::new(Network::Up));
        let forgotten = Arc::new(watch::Sender::new(0));
        let requests = Arc::default();
        let task = tokio::spawn(accept(
            listener,
            server,
            network.clone(),
            forgotten.clone(),
            Arc::clone(&requests),
        ));
        Proxy {
            port,
            network,
            forgotten,
            task,
            requests,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn set(&self, network: Network) {
        self.network.send_replace(network);
    }

    /// From now on the connections that there are carry nothing any more, and stay open; new ones are served.
    pub fn forget_connections(&self) {
        self.forgotten.send_modify(|times| *times += 1);
    }

    /// How many times something was read from clients.
    pub fn requests(&self) -> u64 {
        *self.requests.lock().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    server: u16,
    network: Arc<watch::Sender<Network>>,
    forgotten: Arc<watch::Sender<u64>>,
    requests: Arc<Mutex<u64>>,
) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        if *network.borrow() == Network::Down {
            continue;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
            continue;
        };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (up, down) = (network.subscribe(), network.subscribe());
        let mut cut = network.subscribe();
        let mut forgotten = forgotten.subscribe();
        let requests = requests.clone();
        connections.spawn(async move {
            let mut up = pin!(carry(from_client, to_server, up, true, requests));
            let mut down = pin!(carry(from_server, to_client, down, false, Arc::default()));
            tokio::select! {
                () = &mut up => return,
                () = &mut down => return,
                _ = cut.wait_for(|network| *network == Network::Down) => return,
                _ = forgotten.changed() => {}
            }
            // Both ends stay open.
            std::future::pending::<()>().await;
        });
    }
}

async fn carry(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut network: watch::Receiver<Network>,
    is_request: bool,
    count: Arc<Mutex<u64>>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length) = from.read(&mut buffer).await {
        if length == 0 {
            return;
        }
        *count.lock().unwrap() += 1;
        let held_back = |network: &Network| match network {
            Network::Silent => true,
            Network::Deaf => !is_request,
            _ => false,
        };
        let state = match network.wait_for(|network| !held_back(network)).await {
            Ok(state) => *state,
            Err(_) => return,
        };
        if state == Network::Down {
            return;
        }
        if let (Network::Late(by), false) = (state, is_request) {
            sleep(by).await;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
