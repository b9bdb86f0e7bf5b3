//! `Monitor`: the commands that a server receives, as shown by its MONITOR.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::support::server::Server;

/// What Redis is sent, from here on.
pub(crate) struct Monitor {
    child: Child,
    count: Arc<AtomicU64>,
}

impl Monitor {
    pub(crate) fn start(server: &Server) -> Monitor {
        let mut child = Command::new("redis-cli")
            .args(["-p", &server.port().to_string(), "MONITOR"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli: install Debian's redis-tools");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        lines.next();
        let count = Arc::new(AtomicU64::new(0));
        let counter = count.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if !line.contains(" lua] ") {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Monitor { child, count }
    }

    pub(crate) fn commands(self) -> u64 {
        std::thread::sleep(Duration::from_millis(200));
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
