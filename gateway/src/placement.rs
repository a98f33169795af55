//! Which thread runs on which cpu: a pure plan from what was asked and what the machine has.
//!
//! By default one core is the writer's and the rest are the shards'; a machine of one or two cpus
//! is shared by all threads, unpinned, without spinning.
//!
//! 1. A plan pins no two threads to one cpu, unless pinning was asked for on a single-cpu machine.
//! 2. What was asked for explicitly is done or refused with the reason, never bent.
//! 3. No thread spins on a cpu that it shares.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::config::{Config, CpuList};

/// Most shards of one gateway.
const MAX_SHARDS: usize = 256;

/// The cpus of a machine, as this process may use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The affinity mask of the process.
    pub allowed: BTreeSet<usize>,
    /// What is switched on.
    pub online: BTreeSet<usize>,
}

/// What was asked for. `None` leaves it to the plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    pub shard_cpus: Option<Vec<usize>>,
    pub shard_count: Option<usize>,
    pub pin: Option<bool>,
    pub writer_cpu: Option<usize>,
    pub control_cpu: Option<usize>,
    pub spin: Duration,
}

/// Where each thread runs; `None` is wherever the kernel puts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub shards: Vec<Option<usize>>,
    pub writer: Option<usize>,
    pub control: Option<usize>,
    /// Zero where shards share cpus.
    pub spin: Duration,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pinned: Vec<usize> = self.shards.iter().copied().flatten().collect();
        let place = |cpu: Option<usize>| cpu.map_or("unpinned".to_owned(), |cpu| format!("on cpu {cpu}"));
        let shards =
            if pinned.is_empty() { "unpinned".to_owned() } else { format!("on cpus {}", CpuList(pinned)) };
        write!(
            f,
            "{} shards {shards}, writer {}, control {}",
            self.shards.len(),
            place(self.writer),
            place(self.control)
        )
    }
}

/// Why the wishes can't be met. Exit code 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("{key} names cpu {cpu}, which {reason}; this process may use cpus {allowed}")]
    Unusable { key: &'static str, cpu: usize, reason: &'static str, allowed: CpuList },
    #[error("{key} names cpu {cpu}, which {other} names too: a pinned cpu belongs to one thread")]
    TakenTwice { key: &'static str, cpu: usize, other: &'static str },
    #[error("shards.count is {count}, but shards.cpus names {cpus} cpus: leave one of them out")]
    CountAgainstCpus { count: usize, cpus: usize },
    #[error("shards.pin is false, but shards.cpus names cpus to pin to: leave one of them out")]
    UnpinnedCpus,
    #[error(
        "shards.pin is true and shards.count is {count}, but only {left} cpus are left for shards: lower the count, \
         or let shards.pin be false"
    )]
    TooFewCpus { count: usize, left: usize },
    #[error("{count} shards are too many: at most {MAX_SHARDS}")]
    TooManyShards { count: usize },
}

impl Wishes {
    /// What a configuration asks for.
    pub fn of(config: &Config) -> Self {
        Self {
            shard_cpus: config.shards.cpus.as_ref().map(|cpus| cpus.0.clone()),
            shard_count: config.shards.count.map(usize::from),
            pin: config.shards.pin,
            writer_cpu: config.db_writer.cpu,
            control_cpu: config.control.cpu,
            spin: config.shards.spin.0,
        }
    }
}

/// Plans where each thread runs.
pub fn plan(wishes: &Wishes, machine: &Machine) -> Result<Plan, PlacementError> {
    let taken = check_pins(wishes, machine)?;
    let small = machine.allowed.len() <= 2;
    let free: Vec<usize> = machine.allowed.iter().copied().filter(|cpu| !taken.contains(cpu)).collect();

    let (shards, writer) = if let Some(cpus) = &wishes.shard_cpus {
        let writer = wishes.writer_cpu.or(free.first().copied());
        (cpus.iter().copied().map(Some).collect(), writer)
    } else if wishes.pin == Some(false) || (wishes.pin.is_none() && small) {
        let count = wishes.shard_count.unwrap_or(if small {
            machine.allowed.len()
        } else {
            free.len().saturating_sub(1)
        });
        (vec![None; count.max(1)], wishes.writer_cpu)
    } else {
        pin_to_free(wishes, &free)?
    };

    if shards.len() > MAX_SHARDS {
        return Err(PlacementError::TooManyShards { count: shards.len() });
    }
    let alone = shards.iter().all(|cpu| cpu.is_some() && *cpu != writer) && writer.is_some();
    let spin = if alone { wishes.spin } else { Duration::ZERO };
    Ok(Plan { shards, writer, control: wishes.control_cpu, spin })
}

type Seats = (Vec<Option<usize>>, Option<usize>);

/// Pins the writer and the shards to cpus that nobody asked for.
fn pin_to_free(wishes: &Wishes, free: &[usize]) -> Result<Seats, PlacementError> {
    // A single cpu, and pinning was asked for: all share it.
    if let (&[only], None) = (free, wishes.writer_cpu) {
        return Ok((vec![Some(only); wishes.shard_count.unwrap_or(1)], Some(only)));
    }
    let (writer, left) = match (wishes.writer_cpu, free) {
        (None, [first, rest @ ..]) => (Some(*first), rest),
        (writer, free) => (writer, free),
    };
    let count = wishes.shard_count.unwrap_or(left.len().max(1));
    if count <= left.len() {
        return Ok((left[..count].iter().copied().map(Some).collect(), writer));
    }
    if wishes.pin == Some(true) {
        return Err(PlacementError::TooFewCpus { count, left: left.len() });
    }
    Ok((vec![None; count], wishes.writer_cpu))
}

/// The cpus that were asked for by number, each usable and named once.
fn check_pins(wishes: &Wishes, machine: &Machine) -> Result<BTreeSet<usize>, PlacementError> {
    if let (Some(count), Some(cpus)) = (wishes.shard_count, &wishes.shard_cpus)
        && count != cpus.len()
    {
        return Err(PlacementError::CountAgainstCpus { count, cpus: cpus.len() });
    }
    if wishes.pin == Some(false) && wishes.shard_cpus.is_some() {
        return Err(PlacementError::UnpinnedCpus);
    }
    let shards = wishes.shard_cpus.iter().flatten().map(|cpu| ("shards.cpus", *cpu));
    let writer = wishes.writer_cpu.map(|cpu| ("db_writer.cpu", cpu));
    let control = wishes.control_cpu.map(|cpu| ("control.cpu", cpu));
    let mut taken: Vec<(&'static str, usize)> = Vec::new();
    for (key, cpu) in shards.chain(writer).chain(control) {
        let unusable = |reason| {
            let allowed = CpuList(machine.allowed.iter().copied().collect());
            Err(PlacementError::Unusable { key, cpu, reason, allowed })
        };
        if !machine.online.contains(&cpu) {
            return unusable("is not there or offline");
        }
        if !machine.allowed.contains(&cpu) {
            return unusable("is outside the affinity mask");
        }
        if let Some((other, _)) = taken.iter().find(|(_, other)| *other == cpu) {
            return Err(PlacementError::TakenTwice { key, cpu, other });
        }
        taken.push((key, cpu));
    }
    Ok(taken.into_iter().map(|(_, cpu)| cpu).collect())
}

impl Machine {
    /// The machine as it is now.
    pub fn look() -> std::io::Result<Self> {
        let mask = rustix::thread::sched_getaffinity(None)?;
        let allowed: BTreeSet<usize> =
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| mask.is_set(*cpu)).collect();
        // Where sysfs is hidden (some containers), the mask is all that is known of what is online.
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online")
            .ok()
            .and_then(|text| text.trim().parse::<CpuList>().ok())
            .map_or_else(|| allowed.clone(), |cpus| cpus.0.into_iter().collect());
        Ok(Self { allowed, online })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cpus: usize) -> Machine {
        Machine { allowed: (0..cpus).collect(), online: (0..cpus).collect() }
    }

    fn planned(wishes: Wishes, cpus: usize) -> (Vec<Option<usize>>, Option<usize>) {
        let plan = plan(&wishes, &machine(cpus)).expect("a plan");
        (plan.shards, plan.writer)
    }

    fn pinned(cpus: std::ops::Range<usize>) -> Vec<Option<usize>> {
        cpus.map(Some).collect()
    }

    #[test]
    fn by_default_one_core_writes_and_the_rest_are_shards() {
        let nothing = Wishes::default;
        assert_eq!(planned(nothing(), 8), (pinned(1..8), Some(0)));
        assert_eq!(planned(nothing(), 3), (pinned(1..3), Some(0)));
        assert_eq!(planned(nothing(), 2), (vec![None; 2], None));
        assert_eq!(planned(nothing(), 1), (vec![None; 1], None));
    }

    #[test]
    fn counts_and_pins_are_done_as_asked() {
        for (wishes, cpus, shards, writer) in [
            (Wishes { shard_count: Some(4), ..Wishes::default() }, 8, pinned(1..5), Some(0)),
            (Wishes { shard_count: Some(4), ..Wishes::default() }, 4, vec![None; 4], None),
            (Wishes { shard_count: Some(4), pin: Some(false), ..Wishes::default() }, 2, vec![None; 4], None),
            (Wishes { shard_count: Some(4), pin: Some(false), ..Wishes::default() }, 8, vec![None; 4], None),
            (Wishes { pin: Some(true), ..Wishes::default() }, 2, pinned(1..2), Some(0)),
            (Wishes { pin: Some(true), ..Wishes::default() }, 1, pinned(0..1), Some(0)),
            (Wishes { pin: Some(false), ..Wishes::default() }, 8, vec![None; 7], None),
            (Wishes { shard_cpus: Some(vec![2, 3]), ..Wishes::default() }, 4, pinned(2..4), Some(0)),
            (Wishes { shard_cpus: Some(vec![0, 1]), ..Wishes::default() }, 2, pinned(0..2), None),
            (
                Wishes { writer_cpu: Some(3), control_cpu: Some(0), ..Wishes::default() },
                4,
                pinned(1..3),
                Some(3),
            ),
            (
                Wishes { writer_cpu: Some(1), shard_cpus: Some(vec![0]), ..Wishes::default() },
                2,
                pinned(0..1),
                Some(1),
            ),
        ] {
            assert_eq!(planned(wishes.clone(), cpus), (shards, writer), "{wishes:?} on {cpus} cpus");
        }
    }

    #[test]
    fn what_can_not_be_done_is_refused_with_the_reason() {
        let offline = Machine { allowed: (0..4).collect(), online: (0..8).filter(|cpu| *cpu != 2).collect() };
        for (wishes, sentence) in [
            (
                Wishes { shard_cpus: Some(vec![1, 6]), ..Wishes::default() },
                "shards.cpus names cpu 6, which is outside the affinity mask; this process may use cpus 0,1,2,3",
            ),
            (
                Wishes { writer_cpu: Some(2), ..Wishes::default() },
                "db_writer.cpu names cpu 2, which is not there or offline; this process may use cpus 0,1,2,3",
            ),
            (
                Wishes { shard_cpus: Some(vec![0, 1, 1]), ..Wishes::default() },
                "shards.cpus names cpu 1, which shards.cpus names too: a pinned cpu belongs to one thread",
            ),
            (
                Wishes { writer_cpu: Some(1), control_cpu: Some(1), ..Wishes::default() },
                "control.cpu names cpu 1, which db_writer.cpu names too: a pinned cpu belongs to one thread",
            ),
            (
                Wishes { shard_cpus: Some(vec![0, 1]), shard_count: Some(3), ..Wishes::default() },
                "shards.count is 3, but shards.cpus names 2 cpus: leave one of them out",
            ),
            (
                Wishes { shard_cpus: Some(vec![0, 1]), pin: Some(false), ..Wishes::default() },
                "shards.pin is false, but shards.cpus names cpus to pin to: leave one of them out",
            ),
            (
                Wishes { shard_count: Some(4), pin: Some(true), ..Wishes::default() },
                "shards.pin is true and shards.count is 4, but only 3 cpus are left for shards: lower the count, or \
                 let shards.pin be false",
            ),
            (
                Wishes { shard_count: Some(257), pin: Some(false), ..Wishes::default() },
                "257 shards are too many: at most 256",
            ),
        ] {
            let error = plan(&wishes, &offline).expect_err("it can't be done");
            assert_eq!(error.to_string(), sentence);
        }
    }

    #[test]
    fn shards_spin_only_on_cpus_of_their_own() {
        let spin = Duration::from_micros(50);
        let spun =
            |wishes: Wishes, cpus| plan(&Wishes { spin, ..wishes }, &machine(cpus)).expect("a plan").spin;
        assert_eq!(spun(Wishes::default(), 4), spin);
        assert_eq!(spun(Wishes::default(), 2), Duration::ZERO);
        assert_eq!(spun(Wishes { pin: Some(true), ..Wishes::default() }, 2), spin);
        assert_eq!(spun(Wishes { pin: Some(true), ..Wishes::default() }, 1), Duration::ZERO);
        assert_eq!(spun(Wishes { pin: Some(false), ..Wishes::default() }, 8), Duration::ZERO);
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let machine = Machine::look().expect("the mask of this process");
        assert!(!machine.allowed.is_empty());
        assert!(machine.allowed.is_subset(&machine.online));
    }
}
