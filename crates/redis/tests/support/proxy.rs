//! `Proxy`: a network between the test and the server that injects faults.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::{Mutex, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until},
};

use super::server::Server;

/// What the network does to what is sent from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Up,
    /// Each part of an answer comes so much later.
    Late(Duration),
    /// It carries so many bytes a second in each direction, however many connections there are.
    Narrow(u32),
    /// Nothing arrives, until it is up again; connections stay.
    Silent,
    /// Requests arrive; answers do not, until it is up again.
    Deaf,
    /// Connections are cut, with all that was under way, and new ones refused.
    Down,
}

pub struct Proxy {
    port: u16,
    link: Arc<Link>,
    task: JoinHandle<()>,
}

/// How much of the time that a loaded machine has kept it waiting a narrow network makes up for.
const MADE_UP: Duration = Duration::from_millis(50);

/// What its connections share.
struct Link {
    server: u16,
    network: watch::Sender<Network>,
    forgotten: watch::Sender<u64>,
    requests: AtomicU64,
    /// When a narrow network is free again for requests, and for answers.
    free: [Mutex<Instant>; 2],
}

impl Server {
    /// A server, and a network to it.
    pub async fn with_proxy() -> (Server, Proxy) {
        let server = Server::start();
        let proxy = Proxy::start(server.port()).await;
        (server, proxy)
    }
}

impl Proxy {
    pub async fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let link = Arc::new(Link {
            server,
            network: watch::Sender::new(Network::Up),
            forgotten: watch::Sender::new(0),
            requests: AtomicU64::new(0),
            free: [(); 2].map(|()| Mutex::new(Instant::now())),
        });
        let task = tokio::spawn(accept(listener, link.clone()));
        Proxy { port, link, task }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub fn set(&self, network: Network) {
        self.link.network.send_replace(network);
    }

    /// Cuts all connections, and lets new ones be made.
    pub async fn cut(&self) {
        self.set(Network::Down);
        sleep(Duration::from_millis(50)).await;
        self.set(Network::Up);
    }

    /// From now on the connections that there are carry nothing any more, and stay open; new ones are served.
    pub fn forget_connections(&self) {
        self.link.forgotten.send_modify(|times| *times += 1);
    }

    /// How many times something was read from clients.
    pub fn requests(&self) -> u64 {
        self.link.requests.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, link: Arc<Link>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        if *link.network.borrow() == Network::Down {
            continue;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", link.server)).await else {
            continue;
        };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (mut cut, mut forgotten) = (link.network.subscribe(), link.forgotten.subscribe());
        let link = link.clone();
        connections.spawn(async move {
            let mut up = pin!(carry(from_client, to_server, &link, true));
            let mut down = pin!(carry(from_server, to_client, &link, false));
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

async fn carry(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, link: &Link, is_request: bool) {
    let mut network = link.network.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if is_request {
            link.requests.fetch_add(1, SeqCst);
        }
        let passes = |network: &Network| match network {
            Network::Silent => false,
            Network::Deaf => is_request,
            _ => true,
        };
        let Ok(state) = network.wait_for(passes).await.map(|state| *state) else {
            return;
        };
        match state {
            Network::Down => return,
            Network::Late(by) if !is_request => sleep(by).await,
            Network::Narrow(rate) => {
                let mut free = link.free[usize::from(is_request)].lock().await;
                let idle_since = Instant::now().checked_sub(MADE_UP).unwrap();
                *free = (*free).max(idle_since) + Duration::from_secs(1) * length as u32 / rate;
                sleep_until(*free).await;
            }
            _ => {}
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
