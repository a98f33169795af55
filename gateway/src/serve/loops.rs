//! Every loop of a gateway, as health and metrics show it: the writer's queues, its listener, the looks at the TLS
//! files, and the turns of the threads that must turn.
//!
//! 1. All have one shape: failures in a row and in all, the last clean run, the last error, and how long the
//!    present run has taken.

use gateway_control::{Family, Label, LoopHealth, Points, Unit, number};
use gateway_core::store::Queue;
use gateway_db_writer::LoopReading;

use super::readings::Readings;

const WRITER: &str = "db-writer";
const SHARD_PREFIX: &str = "shard-";

/// Whether a loop is the turns of a thread: each of its runs is a round of the watchdog.
pub(crate) fn is_thread(name: &str) -> bool {
    name == WRITER || name.strip_prefix(SHARD_PREFIX).is_some_and(|shard| shard.parse::<u16>().is_ok())
}

/// Name, labels, and how it is doing.
type Known = (String, Vec<Label>, LoopReading);

fn all(readings: &Readings) -> Vec<Known> {
    let writer = readings.writer();
    let queues = Queue::ALL.into_iter().map(|queue| {
        let label = vec![Label::Word("loop", queue.label())];
        (queue.label().to_owned(), label, writer.queue(queue).runs.read())
    });
    let listener = ("listener".to_owned(), vec![Label::Word("loop", "listener")], writer.listener.read());
    let tls = ("tls-files".to_owned(), vec![Label::Word("loop", "tls-files")], readings.tls().looks.read());
    let api_tls = readings.api_tls().looks.read();
    let api_tls = ("control-tls-files".to_owned(), vec![Label::Word("loop", "control-tls-files")], api_tls);
    let shards = readings.shards().map(|(shard, _)| {
        (format!("{SHARD_PREFIX}{shard}"), vec![Label::Word("loop", "shard"), Label::Shard(shard)])
    });
    let threads = shards.chain([(WRITER.to_owned(), vec![Label::Word("loop", WRITER)])]);
    let threads = threads.zip(readings.thread_loops());
    let threads = threads.map(|((name, labels), status)| (name, labels, status.read()));
    queues.chain([listener, tls, api_tls]).chain(threads).collect()
}

pub(super) fn health(readings: &Readings) -> Vec<LoopHealth> {
    let shown = |(name, _, reading): Known| LoopHealth {
        name,
        clean_runs: reading.clean_runs,
        consecutive_failures: reading.consecutive_failures,
        failures: reading.failures,
        last_clean_run_at: reading.last_clean_run.map(|at| at.as_secs_f64()),
        running_seconds: reading.running.map(|running| running.as_secs_f64()),
        last_error: reading.last_error,
        last_error_at: reading.last_error_at.map(|at| at.as_secs_f64()),
    };
    all(readings).into_iter().map(shown).collect()
}

pub(super) fn families(readings: &Readings) -> Vec<Family> {
    let loops = all(readings);
    let points = |read: fn(&LoopReading) -> f64| {
        loops.iter().map(|(_, labels, reading)| (labels.clone(), read(reading))).collect::<Vec<_>>()
    };
    let family = |name, help, unit, points| Family { name, help, unit, points };
    vec![
        family(
            "loop_failures",
            "Runs of a loop that failed",
            None,
            Points::Counters(points(|reading| number(reading.failures))),
        ),
        family(
            "loop_failures_in_a_row",
            "Runs of a loop that failed since the last good one",
            None,
            Points::Gauges(points(|reading| number(reading.consecutive_failures))),
        ),
        family(
            "loop_last_clean_run_timestamp",
            "When the last run of a loop ended well, since 1970; 0 before",
            Some(Unit::Seconds),
            Points::Gauges(points(|reading| reading.last_clean_run.unwrap_or_default().as_secs_f64())),
        ),
        family(
            "loop_running",
            "How long the present run of a loop has taken; 0 at rest",
            Some(Unit::Seconds),
            Points::Gauges(points(|reading| reading.running.unwrap_or_default().as_secs_f64())),
        ),
    ]
}
