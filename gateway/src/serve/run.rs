//! The life of the binary: start, say that it is ready, obey signals, end with the right code.
//!
//! 1. `Ok` is a clean stop that was asked for; everything else is an error with a sentence.
//! 2. A clean stop ends within `gateway.stop_timeout`, or the process ends without it. A drain before it
//!    takes at most `drain` and `drain_grace` more.
//! 3. A gateway that drains is watched as one that serves.

use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use gateway_core::writer::Phase;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::running::RunningGateway;
use super::start::Gateway;
use super::supervision::{End, Event};
use super::{signals, watchdog};
use crate::config::Config;
use crate::error::GatewayError;

/// Longer than any life of a process.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Serves until a signal or a fault ends it. A process alone may call it: it takes the signals.
pub fn run(config: &Config) -> Result<(), GatewayError> {
    let mut gateway = Gateway::start(config)?;
    let drain = config.drain_plan();
    let stop_mark = signals::listen(gateway.sender(), drain.is_some())?;
    let (feeding, ended) = crossbeam_channel::bounded(0);
    let mut feeding = Some(feeding);
    let bells = gateway.bells();
    watchdog::start(gateway.readings(), bells, ended)?;
    let mut is_ready = false;
    let mut deadline = Instant::now() + FAR;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let event = match gateway.events().recv_timeout(left) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => return Err(too_slow(config)),
            Err(RecvTimeoutError::Disconnected) => unreachable!("a running gateway holds a sender"),
        };
        // The watchdog holds the shards' bells: they would not learn that the writer is gone.
        if matches!(event, Event::Phase(Phase::Stopping | Phase::Stopped) | Event::Ended { .. }) {
            drop(feeding.take());
        }
        // The drain is over: every node has left, or had long enough.
        if matches!(event, Event::Phase(Phase::Stopping)) && !gateway.is_stopping() {
            stop_mark.set();
            deadline = Instant::now() + config.gateway.stop_timeout.0;
        }
        match &event {
            Event::Phase(phase) => tell_phase(config, *phase, &gateway, &mut is_ready),
            Event::Signal(SIGHUP) => {
                tracing::info!(
                    "SIGHUP: looking at the TLS files; to change its configuration, restart the gateway"
                );
                gateway.reload_tls();
            }
            Event::Signal(SIGTERM)
                if !gateway.is_leaving()
                    && let Some(plan) = drain =>
            {
                tracing::info!("asked to drain and stop; a second signal stops at once");
                watchdog::notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
                gateway.drain_and_stop(plan);
                deadline = Instant::now() + plan.within + plan.grace + config.gateway.stop_timeout.0;
            }
            Event::Signal(signal) => {
                if !gateway.is_stopping() {
                    tracing::info!(signal, "asked to stop; another signal ends the process at once");
                    watchdog::notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
                    drop(feeding.take());
                    gateway.stop();
                    stop_mark.set();
                    deadline = Instant::now() + config.gateway.stop_timeout.0;
                }
            }
            Event::Ended { thread, end: End::Failed(error) } => tracing::error!(thread, error, "failed"),
            Event::Ended { thread, end } => tracing::debug!(thread, ?end, "ended"),
        }
        if gateway.take(event)? {
            tracing::info!("stopped");
            return Ok(());
        }
    }
}

fn tell_phase(config: &Config, phase: Phase, gateway: &RunningGateway, is_ready: &mut bool) {
    match phase {
        Phase::Serving => {
            let status = format!("listening on {}", gateway.address());
            if !std::mem::replace(is_ready, true) {
                tracing::info!(
                    address = %gateway.address(),
                    control = %gateway.control_address(),
                    api = gateway.api_address().map_or_else(|| "off".to_owned(), |api| api.to_string()),
                    tunnels = if config.names_tunnels() { "on" } else { "off" },
                    upstream = upstream(config),
                    "ready; health at http://{}/v1/health",
                    gateway.control_address()
                );
                // In one message: who waits for the readiness then knows the address.
                watchdog::notify(&[NotifyState::Status(&status), NotifyState::Ready]);
            } else {
                watchdog::notify(&[NotifyState::Status(&status)]);
            }
        }
        Phase::Waiting => watchdog::notify(&[NotifyState::Status("fenced; waiting for the lease")]),
        Phase::Draining => watchdog::notify(&[NotifyState::Status("draining")]),
        Phase::Stopping => watchdog::notify(&[NotifyState::Status("stopping")]),
        Phase::Stopped => {}
    }
}

/// The calls of nodes that are passed on.
fn upstream(config: &Config) -> String {
    let section = &config.upstream;
    let calls = [("join", &section.join_url), ("renew", &section.renew_url), ("secret", &section.secret_url)];
    let named: Vec<&str> = calls.into_iter().filter(|(_, url)| url.is_some()).map(|(call, _)| call).collect();
    if named.is_empty() { "off".to_owned() } else { named.join(",") }
}

fn too_slow(config: &Config) -> GatewayError {
    GatewayError::Stop(format!(
        "the clean stop took longer than gateway.stop_timeout of {}; ended without it: nodes are told nothing, and the \
         successor on this machine takes the lease over",
        config.gateway.stop_timeout
    ))
}
