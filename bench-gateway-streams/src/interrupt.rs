//! Ctrl-C and SIGTERM.
//!
//! An interrupted run is a failed run: its work is dropped where it stands, and each thing that it
//! started stops by its own `Drop`. This file stops nothing itself and never exits the process.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for either; says which came.
pub(crate) async fn interrupted() -> &'static str {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without handlers the process just ends, and the watchdogs of its children clean up.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => "interrupted",
        _ = terminate.recv() => "told to end",
    }
}

/// Runs `work` unless it is interrupted, which is an error: all that `work` owned is dropped.
pub(crate) async fn unless_interrupted<T>(
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        outcome = work => outcome,
        word = interrupted() => Err(anyhow::anyhow!("{word}; everything that was started is stopped")),
    }
}
