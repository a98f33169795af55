//! How long a fault lasts: a wait that is the fault itself, not for something.
//!
//! A fault that could be awaited by a signal is awaited elsewhere; here is only time that has to pass
//! while something is away.

use std::time::{Duration, Instant};

use crate::progress::say;

/// Lets a fault last.
pub(super) async fn hold(what: &str, how_long: Duration) {
    say(&format!("  {what} for {:.1} s", how_long.as_secs_f64()));
    tokio::time::sleep(how_long).await;
}

/// Asks every 20 ms until there is an answer; an error after `within`.
pub(super) async fn until<T>(
    within: Duration,
    what: &str,
    mut question: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        if let Some(answer) = question().await? {
            return Ok(answer);
        }
        anyhow::ensure!(started.elapsed() < within, "not within {} s: {what}", within.as_secs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
