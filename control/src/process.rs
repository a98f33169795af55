//! What the kernel says about this process: memory, processor time, descriptors.
//!
//! 1. A number that can't be read is left out, never shown as zero.

use rustix::time::{ClockId, clock_gettime};

use crate::status::{Family, Points, Unit, number};

/// The process's own metrics.
pub(crate) fn families() -> Vec<Family> {
    let mut families = Vec::new();
    let used = clock_gettime(ClockId::ProcessCPUTime);
    families.push(Family {
        name: "process_cpu",
        help: "Processor time of all threads",
        unit: Some(Unit::Seconds),
        points: Points::Counters(vec![(Vec::new(), used.tv_sec as f64 + used.tv_nsec as f64 / 1e9)]),
    });
    if let Some(bytes) = resident_bytes() {
        families.push(Family::gauge("process_resident_memory", "Memory in RAM", bytes).in_unit(Unit::Bytes));
    }
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        let open = number(entries.count() as u64);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        families.push(Family {
            name: "process_open_fds",
            help: "Open file descriptors",
            unit: None,
            points: Points::Gauges(vec![(Vec::new(), open)]),
        });
        families.extend(
            limit.map(|limit| Family::gauge("process_max_fds", "Bound of open file descriptors", limit)),
        );
    }
    families
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}
