//! Feature `serde`: snapshots and metrics serialize under the names of their fields.

use crate::support;

use std::future::pending;

use serde_json::{json, to_value};
use tickwheel::Wheel;
use tokio_test::{assert_pending, task};

use support::SECOND;

#[tokio::test(start_paused = true)]
async fn a_snapshot_serializes_all_that_it_shows() {
    let wheel = Wheel::builder().shards(1).levels(2).build().unwrap();
    let labelled = wheel.labelled("<script>");
    labelled.timeout(SECOND, async {}).await.unwrap();
    let mut timeout = task::spawn(labelled.timeout(SECOND, pending::<()>()));
    assert_pending!(timeout.poll());
    assert_eq!(
        to_value(wheel.snapshot()).unwrap(),
        json!({
            "pending": 1,
            "due_within": [0, 0, 0, 1, 0, 0, 0, 0, 0],
            "levels": [{"pending": 0, "buckets": []}, {"pending": 1, "buckets": [{"index": 3, "pending": 1}]}],
            "shards": [{"engine": 0, "pending": 1}],
            "engines": [{"kernel_timer": false, "pending": 1}],
            "lag": {
                "count": 0,
                "p50": {"secs": 0, "nanos": 0},
                "p99": {"secs": 0, "nanos": 0},
                "max": {"secs": 0, "nanos": 0},
                "buckets": [],
            },
            "labels": [{
                "name": "<script>",
                "started": 2,
                "completed": 1,
                "elapsed": 0,
                "cancelled": 0,
                "pending": 1,
                "headroom": [0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            }],
        })
    );
}

#[tokio::test(start_paused = true)]
async fn metrics_serialize_every_field() {
    let wheel = Wheel::new();
    wheel.sleep(SECOND).await;
    let metrics = wheel.metrics();
    let value = to_value(metrics).unwrap();
    assert_eq!(value["registered"], json!(metrics.registered));
    assert_eq!(value["max_lag"], to_value(metrics.max_lag).unwrap());
    assert_eq!(value["engines"], json!(1));
    let fields = format!("{metrics:?}").matches(": ").count();
    assert_eq!(value.as_object().unwrap().len(), fields);
}
