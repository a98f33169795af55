//! What `/v1/health` says of a gateway: what its threads have counted, and whether new sessions should come here.
//!
//! 1. It reads atomics, and changes nothing.
//! 2. Where new sessions should not come here, at least one reason says why.

use std::sync::atomic::Ordering::Relaxed;

use gateway_control::{Headroom, Health, LeaseHealth, QueueHealth, Room, ShardHealth, SweepHealth};
use gateway_core::store::Queue;
use gateway_core::writer::Phase;

use super::loops;
use super::readings::{Readings, SHARD_COUNTERS, SHARD_GAUGES};

pub(super) fn health(readings: &Readings) -> Health {
    let (phase, writer, origin) = (readings.phase(), readings.writer(), readings.origin());
    let fenced = phase == Phase::Waiting && writer.fences.load(Relaxed) > 0;
    let headroom = headroom(readings);
    let reasons = reasons(phase, fenced, readings.is_standing(), &headroom);
    Health {
        gateway: origin.gateway.clone(),
        version: origin.version,
        phase,
        serving: reasons.is_empty(),
        reasons,
        fenced,
        lease: lease(readings),
        headroom,
        listening: writer.listening.load(Relaxed),
        uptime_seconds: origin.started.elapsed().as_secs_f64(),
        sessions: usize::try_from(writer.sessions.load(Relaxed)).unwrap_or(usize::MAX),
        streams: readings.streams(),
        pending_hellos: readings.admission().pending_hellos(),
        sweeps: SweepHealth {
            leads: writer.leads_sweeps.load(Relaxed),
            runs: writer.sweeps.load(Relaxed),
            last_run_at: Some(writer.last_sweep_at.load(Relaxed)).filter(|at| *at > 0),
            commands_expired: writer.commands_expired.load(Relaxed),
            sessions_reaped: writer.sessions_reaped.load(Relaxed),
        },
        queues: queues(readings),
        loops: loops::health(readings),
        shards: shards(readings),
    }
}

/// Why new sessions should not come here.
fn reasons(phase: Phase, fenced: bool, stands: bool, headroom: &Headroom) -> Vec<String> {
    let phase = match phase {
        Phase::Serving => None,
        Phase::Waiting if fenced => Some("it is fenced: its lease was lost and is not held again yet"),
        Phase::Waiting => Some("it does not hold its lease yet"),
        Phase::Draining => Some("it drains: nodes are told to move to another gateway"),
        Phase::Stopping | Phase::Stopped => Some("it stops"),
    };
    let full = |room: &Room, what: &str| {
        (room.used >= room.of).then(|| format!("it is full: {} {what} of {}", room.used, room.of))
    };
    // Hellos that wait are a matter of moments: whoever comes then is told when to come back.
    let stands = stands.then(|| "a thread of it stands still: loops says which".to_owned());
    phase.map(str::to_owned).into_iter().chain(stands).chain(full(&headroom.streams, "streams")).collect()
}

fn lease(readings: &Readings) -> LeaseHealth {
    let age = readings.lease_age();
    LeaseHealth {
        held: age.is_some(),
        epoch: age.map(|_| readings.writer().lease_epoch.load(Relaxed)),
        age_seconds: age.map(|age| age.as_secs_f64()),
        ttl_seconds: readings.origin().lease_ttl.as_secs_f64(),
    }
}

fn headroom(readings: &Readings) -> Headroom {
    let (limits, admission) = (&readings.origin().limits, readings.admission());
    let room = |used: u64, of: usize| Room { used, of: of as u64 };
    Headroom {
        streams: room(admission.streams() as u64, limits.streams),
        pending_hellos: room(admission.pending_hellos() as u64, limits.pending_hellos),
        writer_messages: room(readings.writer().messages_waiting.load(Relaxed), limits.to_writer_messages),
        shard_messages: readings
            .shards()
            .map(|(_, counters)| room(counters.mail_waiting.get(), limits.to_shard_messages))
            .collect(),
    }
}

fn queues(readings: &Readings) -> Vec<QueueHealth> {
    let health = |queue| {
        let status = readings.writer().queue(queue);
        let runs = status.runs.read();
        QueueHealth {
            queue,
            jobs: status.jobs.load(Relaxed),
            consecutive_failures: runs.consecutive_failures,
            failures: runs.failures,
            last_error: runs.last_error,
            last_error_at: runs.last_error_at.map(|at| at.as_secs_f64()),
        }
    };
    Queue::ALL.into_iter().map(health).collect()
}

fn shards(readings: &Readings) -> Vec<ShardHealth> {
    let shards = readings.cpus().zip(readings.shards()).map(|(cpu, (shard, counters))| ShardHealth {
        shard: shard.0,
        cpu,
        counters: SHARD_GAUGES
            .iter()
            .chain(&SHARD_COUNTERS)
            .map(|(name, _, read)| (*name, read(counters)))
            .collect(),
    });
    shards.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_streams(used: u64) -> Headroom {
        let free = Room { used: 0, of: 1 };
        Headroom {
            streams: Room { used, of: 10 },
            pending_hellos: free,
            writer_messages: free,
            shard_messages: vec![free],
        }
    }

    #[test]
    fn new_sessions_go_elsewhere_for_a_reason_and_for_none_come_here() {
        assert_eq!(reasons(Phase::Serving, false, false, &with_streams(9)), [] as [&str; 0]);
        assert_eq!(
            reasons(Phase::Serving, false, false, &with_streams(10)),
            ["it is full: 10 streams of 10"]
        );
        let told = reasons(Phase::Draining, false, false, &with_streams(10));
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(reasons(Phase::Serving, false, true, &with_streams(0))[0].contains("stands still"));
        assert!(reasons(Phase::Waiting, true, false, &with_streams(0))[0].contains("fenced"));
    }
}
