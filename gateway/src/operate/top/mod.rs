//! `gateway top`: how one gateway is doing, look after look, over its control API.
//!
//! `metrics` reads what it says, `view` makes of two looks what is shown, `screen` draws it.
//!
//! 1. A gateway that does not answer the first look is a failure; one that answers no more is told of, and asked again.
//! 2. On a terminal a frame takes the place of the one before; elsewhere each look is a line.

mod metrics;
mod screen;
mod view;

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::arguments::duration;
use super::callee::{Called, client};
use super::control_arguments::AskArgs;
use super::terminal::{Reader, harmless, json_line, remark, write};
use crate::error::GatewayError;
use metrics::Metrics;
use screen::Screen;
use view::{Look, View};

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Between looks; rates are of this time.
    #[arg(long, value_name = "DURATION", value_parser = interval, default_value = "1s")]
    pub interval: Duration,
    /// Look twice, an interval apart, show what came of it, and end.
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub ask: AskArgs,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    let bounds = Duration::from_millis(100)..=Duration::from_secs(3600);
    if bounds.contains(&interval) { Ok(interval) } else { Err("must be \"100ms\" to \"1h\"".to_owned()) }
}

pub(super) async fn run(arguments: &TopArgs) -> Result<ExitCode, GatewayError> {
    let gateway = client(&arguments.ask.callee).await?;
    let mut before = look(&gateway).await?;
    let mut before_at = Instant::now();
    let wants_screen = !arguments.once && !arguments.ask.json;
    let mut stop = Stop::new()?;
    let screen = if wants_screen { Screen::enter()? } else { None };
    let mut pace = tokio::time::interval(arguments.interval);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace.tick().await;
    loop {
        let looked = tokio::select! {
            () = stop.asked() => return Ok(ExitCode::SUCCESS),
            looked = async {
                pace.tick().await;
                look(&gateway).await
            } => looked,
        };
        let reader = match looked {
            Ok(after) => {
                let after_at = Instant::now();
                let over = after_at.duration_since(before_at).as_secs_f64();
                let view = View::new(&before, &after, over);
                (before, before_at) = (after, after_at);
                show(arguments, screen.as_ref(), &view)?
            }
            Err(error) if arguments.once => return Err(error),
            Err(error) => tell(screen.as_ref(), &error)?,
        };
        if arguments.once || reader == Reader::Gone {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

async fn look(gateway: &Called) -> Result<Look, GatewayError> {
    let (_, health) = gateway.health().await.map_err(|error| gateway.failed(&error))?;
    let text = gateway.metrics().await.map_err(|error| gateway.failed(&error))?;
    let health = serde_json::from_value(health).map_err(|error| {
        let sentence = format!("its health is none that this version knows: {error}");
        GatewayError::Control(harmless(&sentence))
    })?;
    let metrics = Metrics::read(&text);
    if metrics.is_empty() {
        return Err(GatewayError::Control("its metrics are none that this version knows".to_owned()));
    }
    Ok(Look { health, metrics })
}

fn show(arguments: &TopArgs, screen: Option<&Screen>, view: &View) -> Result<Reader, GatewayError> {
    if arguments.ask.json {
        let view = serde_json::to_value(view)
            .map_err(|error| GatewayError::Machine(format!("what was seen can't be written: {error}")))?;
        return write(&json_line(&view));
    }
    match screen {
        Some(screen) => screen.draw(&screen::whole(view)),
        None if arguments.once => write(&screen::whole(view)),
        None => write(&screen::line(view, SystemTime::now())),
    }
}

/// There was no answer; the next look may have one.
fn tell(screen: Option<&Screen>, error: &GatewayError) -> Result<Reader, GatewayError> {
    let sentence = harmless(&error.to_string());
    match screen {
        Some(screen) => screen.draw(&format!("{sentence}\n\nIt is asked again. Ctrl-C ends this.\n")),
        None => {
            remark(&sentence);
            Ok(Reader::There)
        }
    }
}

/// Whoever wants this to end: Ctrl-C, or SIGTERM.
struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Stop {
    fn new() -> Result<Self, GatewayError> {
        let failed = |error: io::Error| GatewayError::Machine(format!("signals can't be heard: {error}"));
        let hear = |kind| signal(kind).map_err(failed);
        Ok(Self {
            interrupt: hear(SignalKind::interrupt())?,
            terminate: hear(SignalKind::terminate())?,
            quit: hear(SignalKind::quit())?,
            hangup: hear(SignalKind::hangup())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.quit.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
