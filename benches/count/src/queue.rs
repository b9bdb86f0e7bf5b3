//! The work of a `DelayQueue` that is waited for, ours and tokio-util's. It holds a thousand values, or that
//! of one request at a time.

use std::{hint::black_box, time::Duration};

use crate::polled::repeat;

const HELD: u64 = 1_000;
const SECOND: Duration = Duration::from_secs(1);

macro_rules! count {
    ($name:ident, $queue:ty) => {
        pub async fn $name(work: &str, times: u64) {
            let mut queue = <$queue>::new();
            if work == "request" {
                return repeat(times, |cx| {
                    let key = queue.insert(0, black_box(SECOND * 10));
                    assert!(black_box(queue.poll_expired(cx)).is_pending());
                    black_box(queue.remove(&key));
                    assert!(black_box(queue.poll_expired(cx)).is_ready());
                })
                .await;
            }
            for value in 0..HELD {
                queue.insert(value, SECOND * (600 + value * 7919 % HELD) as u32);
            }
            let last = queue.insert(HELD, SECOND * 3_600);
            repeat(1, |cx| assert!(queue.poll_expired(cx).is_pending())).await;
            match work {
                "idle" => {
                    repeat(times, |cx| {
                        assert!(black_box(queue.poll_expired(cx)).is_pending())
                    })
                    .await
                }
                "insert" => {
                    repeat(times, |_| {
                        let key = queue.insert(0, black_box(SECOND * 1_000));
                        black_box(queue.remove(&key));
                    })
                    .await;
                }
                "reset" => repeat(times, |_| queue.reset(&last, black_box(SECOND * 3_600))).await,
                work => panic!("there is no delay-queue-{work}"),
            }
        }
    };
}

count!(tickwheel, tickwheel::DelayQueue<u64>);
count!(tokio, tokio_util::time::DelayQueue<u64>);
