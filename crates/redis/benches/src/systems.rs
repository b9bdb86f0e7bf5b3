//! The three systems, each used as its documentation recommends.

use std::time::{Duration, Instant, SystemTime};

use apalis_core::{backend::TaskSink, task::builder::TaskBuilder, worker::builder::WorkerBuilder};
use apalis_redis::{Config, RedisStorage};
use futures::StreamExt;
use redis::{AsyncConnectionConfig, aio::ConnectionManager};
use rsmq_async::RsmqConnection;
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Notifications};
use tokio::{sync::mpsc::UnboundedSender, task::JoinSet};
use tower::limit::ConcurrencyLimitLayer;

use crate::support::{connect, server::Server};

/// Told of each job, and when it was delivered; the job is done then.
pub(crate) type Done = UnboundedSender<(u64, Instant)>;

pub(crate) trait System: Sized {
    const NAME: &'static str;

    /// A queue, and a worker for it that has so many jobs in flight.
    async fn start(server: &Server, in_flight: usize, done: Done) -> Self;

    async fn schedule(&self, job: u64, delay: Duration);
}

pub(crate) struct Tickwheel {
    jobs: DelayedJobs<ConnectionManager>,
    _worker: JoinSet<()>,
}

impl System for Tickwheel {
    const NAME: &'static str = "tickwheel";

    async fn start(server: &Server, in_flight: usize, done: Done) -> Tickwheel {
        let jobs = DelayedJobs::new(&Wheel::new(), connect(&server.url()).await, "bench")
            .notifications(&Notifications::of(server.client()));
        jobs.counts().await.expect("a server");
        let stream = jobs
            .worker()
            .concurrency(in_flight)
            .prefetch((4 * in_flight).max(32))
            .look_ahead(Duration::from_secs(1))
            .start();
        let mut worker = JoinSet::new();
        worker.spawn(stream.for_each_concurrent(in_flight, move |job| {
            let done = done.clone();
            async move {
                let Ok(job) = job else { return };
                let at = Instant::now();
                let id = job.id().parse().expect("a number");
                assert!(job.done().await.expect("an answer"));
                let _ = done.send((id, at));
            }
        }));
        Tickwheel {
            jobs,
            _worker: worker,
        }
    }

    async fn schedule(&self, job: u64, delay: Duration) {
        let id = job.to_string();
        assert!(
            self.jobs
                .schedule(&id, delay, b"payload")
                .await
                .expect("an answer")
        );
    }
}

pub(crate) struct Apalis {
    storage: RedisStorage<u64>,
    _worker: JoinSet<()>,
}

impl System for Apalis {
    const NAME: &'static str = "apalis-redis";

    async fn start(server: &Server, in_flight: usize, done: Done) -> Apalis {
        let config = Config::default()
            .queue("bench")
            .batch_size((4 * in_flight).max(32));
        let storage = RedisStorage::new(connect(&server.url()).await).with_config(config);
        let work = move |job: u64| {
            let done = done.clone();
            async move {
                let _ = done.send((job, Instant::now()));
                Ok::<(), std::io::Error>(())
            }
        };
        let name = format!("bench-{:?}", SystemTime::now());
        let run = WorkerBuilder::new(&*name)
            .backend(storage.clone())
            .layer(ConcurrencyLimitLayer::new(in_flight))
            .build(work);
        let mut worker = JoinSet::new();
        worker.spawn(async move {
            if let Err(error) = run.run().await {
                eprintln!("apalis: {error}");
            }
        });
        Apalis {
            storage,
            _worker: worker,
        }
    }

    async fn schedule(&self, job: u64, delay: Duration) {
        let mut storage = self.storage.clone();
        if delay.is_zero() {
            storage.push(job).await.expect("an answer");
        } else {
            // It counts in seconds.
            let task = TaskBuilder::new(job).run_after(delay).build();
            storage.push_task(task).await.expect("an answer");
        }
    }
}

pub(crate) struct Rsmq {
    queue: rsmq_async::Rsmq,
    _workers: JoinSet<()>,
}

/// A tick, as the wheel's.
const POLL: Duration = Duration::from_millis(10);

impl System for Rsmq {
    const NAME: &'static str = "rsmq_async";

    async fn start(server: &Server, in_flight: usize, done: Done) -> Rsmq {
        // As the others', without the client's limit of 500 ms for an answer: `RsmqOptions` cannot say so.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = server
            .client()
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("a server");
        let mut queue = rsmq_async::Rsmq::new_with_connection(connection, false, None)
            .await
            .expect("a server");
        // It is there already in a second run on the same server.
        let _ = queue.create_queue("bench", None, None, None).await;
        let mut workers = JoinSet::new();
        for _ in 0..in_flight {
            let (mut queue, done) = (queue.clone(), done.clone());
            workers.spawn(async move {
                loop {
                    match queue.receive_message::<String>("bench", None).await {
                        Ok(Some(message)) => {
                            let at = Instant::now();
                            let job = message.message.parse().expect("a number");
                            queue
                                .delete_message("bench", &message.id)
                                .await
                                .expect("an answer");
                            let _ = done.send((job, at));
                        }
                        Ok(None) => tokio::time::sleep(POLL).await,
                        Err(error) => {
                            eprintln!("rsmq: {error}");
                            return;
                        }
                    }
                }
            });
        }
        Rsmq {
            queue,
            _workers: workers,
        }
    }

    async fn schedule(&self, job: u64, delay: Duration) {
        let delay = (!delay.is_zero()).then_some(delay);
        self.queue
            .clone()
            .send_message("bench", job.to_string(), delay)
            .await
            .expect("an answer");
    }
}
