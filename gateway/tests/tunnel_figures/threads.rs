//! What threads have used of the processors, by their names.
//!
//! It reads what the kernel says of a process's threads; threads of one name count together.
//!
//! 1. A figure is of what was used between two looks, by threads that were there at the second.

use std::collections::BTreeMap;
use std::time::Duration;

/// What this thread has used until now.
pub fn used_here() -> Duration {
    nanos(&std::fs::read_to_string("/proc/thread-self/schedstat").unwrap())
}

/// The first number of the kernel's account of a thread: its time on a processor.
fn nanos(account: &str) -> Duration {
    let nanos = account.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// By the name of the threads: what they have used, and how often they have waited.
#[derive(Debug, Clone, Default)]
pub struct Usage(BTreeMap<String, (Duration, u64)>);

impl Usage {
    /// Of this process until now.
    pub fn of(process: u32) -> Self {
        let mut usage: BTreeMap<String, (Duration, u64)> = BTreeMap::new();
        for thread in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
            let folder = thread.unwrap().path();
            let text = |file: &str| std::fs::read_to_string(folder.join(file));
            // A thread may end between the looks.
            let (Ok(name), Ok(times), Ok(status)) = (text("comm"), text("schedstat"), text("status")) else {
                continue;
            };
            let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let waits: u64 = waits.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
            let entry = usage.entry(name.trim().to_owned()).or_default();
            *entry = (entry.0 + nanos(&times), entry.1 + waits);
        }
        Self(usage)
    }

    /// What was used since `before`, a megabyte: the busiest first, the idle left out.
    pub fn since(&self, before: &Self, megabytes: f64) -> String {
        let mut used: Vec<(&str, f64, f64)> = self
            .0
            .iter()
            .map(|(name, (time, waits))| {
                let (time_before, waits_before) = before.0.get(name).copied().unwrap_or_default();
                let micros = time.saturating_sub(time_before).as_secs_f64() * 1e6 / megabytes;
                (name.as_str(), micros, waits.saturating_sub(waits_before) as f64 / megabytes)
            })
            .filter(|(_, micros, _)| *micros >= 10.0)
            .collect();
        used.sort_by(|one, other| other.1.total_cmp(&one.1));
        let shown: Vec<String> = used
            .iter()
            .map(|(name, micros, waits)| format!("{name} {micros:.0} us, {waits:.1} waits"))
            .collect();
        shown.join("; ")
    }
}
