//! How long things take, how much comes at once and how much waits: the histograms of a gateway, and the gauges beside them.
//!
//! 1. It reads atomics, and changes nothing.
//! 2. Labels are shards, queues and words of our own.

use std::sync::atomic::Ordering::Relaxed;

use gateway_control::{Distribution, Family, Label, Points, Unit, number};
use gateway_core::frame::{GatewayFrame, NodeFrame};
use gateway_core::histogram::HistogramReading;
use gateway_core::store::Queue;
use gateway_shard::{KindCounts, ShardCounters};

use super::readings::Readings;

/// The points of a family of histograms.
type Distributions = Vec<(Vec<Label>, Distribution)>;

pub(super) fn families(readings: &Readings) -> Vec<Family> {
    let mut families = of_shards(readings);
    families.extend(of_queues(readings));
    families.extend(of_dispatch(readings));
    families
}

fn histogram(name: &'static str, help: &'static str, unit: Option<Unit>, points: Distributions) -> Family {
    Family { name, help, unit, points: Points::Histograms(points) }
}

fn of_shards(readings: &Readings) -> Vec<Family> {
    let per_shard = |read: fn(&ShardCounters) -> HistogramReading| {
        readings
            .shards()
            .map(|(shard, counters)| (vec![Label::Shard(shard)], read(counters).into()))
            .collect()
    };
    let kinds = |kinds: &'static [&'static str], read: fn(&ShardCounters) -> &KindCounts| {
        let points = readings.shards().flat_map(move |(shard, counters)| {
            kinds.iter().zip(read(counters).iter()).map(move |(kind, count)| {
                (vec![Label::Shard(shard), Label::Word("kind", kind)], number(count))
            })
        });
        Points::Counters(points.collect())
    };
    vec![
        histogram(
            "handshake",
            "From the accept of a connection until HTTP/2 stands, of those that came so far",
            Some(Unit::Seconds),
            per_shard(|shard| shard.handshake_latencies.read()),
        ),
        histogram(
            "ring_lateness",
            "How much later than due a timer of a shard's io_uring came; up to shards.doze at rest",
            Some(Unit::Seconds),
            per_shard(|shard| shard.ring_lateness.read()),
        ),
        Family {
            name: "frames_in_by_kind",
            help: "Frames from nodes, by kind",
            unit: None,
            points: kinds(&NodeFrame::KINDS, |shard| &shard.frames_in_by_kind),
        },
        Family {
            name: "frames_out_by_kind",
            help: "Frames to nodes, by kind",
            unit: None,
            points: kinds(&GatewayFrame::KINDS, |shard| &shard.frames_out_by_kind),
        },
    ]
}

fn of_queues(readings: &Readings) -> Vec<Family> {
    let per_queue = |read: fn(&gateway_db_writer::QueueStatus) -> HistogramReading| {
        Queue::ALL
            .into_iter()
            .map(|queue| (vec![Label::Queue(queue)], read(readings.writer().queue(queue)).into()))
            .collect()
    };
    vec![
        histogram(
            "flush",
            "How long a group commit took, from when it was handed over",
            Some(Unit::Seconds),
            per_queue(|queue| queue.latencies.read()),
        ),
        histogram("batch_entries", "Entries of a group commit", None, per_queue(|queue| queue.sizes.read())),
        Family {
            name: "queue_depth",
            help: "Entries that wait for a group commit; of dispatch, lanes that wait for a pass",
            unit: None,
            points: Points::Gauges(readings.per_queue(|queue| number(queue.waiting.load(Relaxed)))),
        },
    ]
}

fn of_dispatch(readings: &Readings) -> Vec<Family> {
    let writer = readings.writer();
    let age = readings.lease_age();
    vec![
        histogram(
            "dispatch_latency",
            "From the enqueue of a command, or from when it came due, until it was given to its shard",
            Some(Unit::Seconds),
            vec![(Vec::new(), writer.dispatch_latencies.read().into())],
        ),
        histogram(
            "dispatch_pass_rows",
            "Commands that a dispatch pass claimed",
            None,
            vec![(Vec::new(), writer.pass_rows.read().into())],
        ),
        Family::gauge("lease_held", "1 while the lease is held", u64::from(age.is_some())),
        Family {
            name: "lease_age",
            help: "Since the last good renewal of the lease began; 0 while it is not held",
            unit: Some(Unit::Seconds),
            points: Points::Gauges(vec![(Vec::new(), age.unwrap_or_default().as_secs_f64())]),
        },
    ]
}
