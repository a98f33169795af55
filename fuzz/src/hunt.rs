//! Runs a target on inputs, and tells what broke.
//!
//! An input may take so much CPU and so much memory, by its length; a panic, too much of either, or the
//! death of the process is a finding.
//!
//! 1. Which input runs is written down before it runs, where a hunt is told where: so an input that ends
//!    the process (a stack that overflows) is known too.
//! 2. Memory is what the target allocated beyond what was there, at its peak.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::ALLOCATOR;
use crate::mutate::Mutator;
use crate::targets::Target;

/// CPU time that an input may take, on a machine of any kind in a debug build.
const LONGEST: Duration = Duration::from_secs(2);

/// An input that a target does not stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub target: &'static str,
    pub input: Vec<u8>,
    /// What happened, with the place where there is one.
    pub what: String,
}

/// What a hunt did.
#[derive(Debug, Default)]
pub struct Hunt {
    pub inputs: u64,
    /// The most of the allowed memory that an input took, in percent.
    pub memory_percent: usize,
    pub finding: Option<Finding>,
}

thread_local! {
    /// What the last panic of this thread said; where it is `None` nobody listens.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps what panics say for the finding, instead of printing it.
fn listen_to_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let kept = LAST_PANIC
                .with_borrow_mut(|last| last.as_mut().map(|text| *text = info.to_string()).is_some());
            if !kept {
                before(info);
            }
        }));
    });
}

/// Runs one input. `Err`: how it broke. `Ok`: the part of the allowed memory that it took, in percent.
pub fn run_one(target: &Target, input: &[u8]) -> Result<usize, String> {
    listen_to_panics();
    LAST_PANIC.set(Some(String::new()));
    ALLOCATOR.reset_peak_usage();
    let (before, began) = (ALLOCATOR.current_usage(), cpu_time());
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let (took, peak) = (cpu_time().saturating_sub(began), ALLOCATOR.peak_usage().saturating_sub(before));
    let said = LAST_PANIC.take().unwrap_or_default();
    let most = target.most_memory(input.len());
    match outcome {
        Err(_) => Err(format!("it panicked: {said}")),
        Ok(()) if peak > most => Err(format!("it took {peak} bytes of memory; {most} are allowed")),
        Ok(()) if took > LONGEST => Err(format!("it took {took:?} of CPU; {LONGEST:?} are allowed")),
        Ok(()) => Ok(peak * 100 / most),
    }
}

/// Runs inputs until one breaks the target or time is up. Notes each number in `progress` first.
pub fn run(
    target: &Target,
    mutator: &Mutator<'_>,
    from: u64,
    within: Duration,
    progress: Option<&File>,
) -> io::Result<Hunt> {
    let (began, mut hunt) = (Instant::now(), Hunt::default());
    for number in from.. {
        let input = mutator.input(number);
        if let Some(progress) = progress {
            progress.write_all_at(&number.to_le_bytes(), 0)?;
        }
        match run_one(target, &input) {
            Ok(percent) => hunt.memory_percent = hunt.memory_percent.max(percent),
            Err(what) => {
                hunt.finding = Some(Finding { target: target.name, input, what });
                return Ok(hunt);
            }
        }
        hunt.inputs += 1;
        if began.elapsed() >= within {
            break;
        }
    }
    Ok(hunt)
}

/// The number that a hunt noted last.
pub fn noted(progress: &Path) -> Option<u64> {
    Some(u64::from_le_bytes(fs::read(progress).ok()?.try_into().ok()?))
}

/// Writes a finding below `folder`, under a name that its bytes give.
pub fn keep(finding: &Finding, folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let hash = finding.input.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let path = folder.join(format!("{}-{hash:016x}", finding.target));
    fs::write(&path, &finding.input)?;
    Ok(path)
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
