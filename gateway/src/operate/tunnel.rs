//! `gateway tunnel`: an interactive shell at a node, over a tunnel of the gateway that has it.
//!
//! It finds the gateway in the database, or is told its URL, opens the tunnel with a ticket, and carries bytes:
//! stdin and the size of the terminal to the node, what the node says to stdout.
//!
//! 1. A terminal is raw while the tunnel is open, and as before on every way out: the node's, a signal that ends the command,
//!    and `~.` at the start of a line, with which a node that hangs is left.
//! 2. The exit code is that of the node's program, or `NO_TUNNEL` where there is none.
//! 3. stdin and stdout have threads of their own: one that is slow slows its direction and nothing else.
//! 4. A ticket is never on the command line, where others could read it.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use clap::Args;
use gateway_control::client::{CallError, Said, Tunnel, TunnelCut, TunnelOpen, TunnelSender};
use rustix::termios::{self, OptionalActions, Termios};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc};

use super::callee::{self, Called};
use super::control_arguments::Callee;
use super::escape::Escape;
use super::place::usage;
use super::terminal::harmless;
use crate::error::GatewayError;

/// The tunnel was not opened, or was cut: as ssh says it.
const NO_TUNNEL: u8 = 255;
const PIECE_BYTES: usize = 16 << 10;
/// Pieces that wait for a thread of stdin or stdout.
const PIECES: usize = 4;
const TICKET_VARIABLE: &str = "GATEWAY_TICKET";

#[derive(Debug, Args)]
pub struct TunnelArgs {
    /// The node's id, such as spiffe://fleet.example/site/lab/node/n1.
    pub node: String,
    /// What to run there, by the node's shell; without it, the shell itself.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// The file with the ticket for this node. Else $GATEWAY_TICKET.
    #[arg(long, value_name = "FILE")]
    pub ticket_file: Option<PathBuf>,
    /// What the node is to offer.
    #[arg(long, value_name = "KIND", default_value = "shell")]
    pub kind: String,
    /// A parameter for it; may be given several times.
    #[arg(long = "parameter", value_name = "NAME=VALUE", value_parser = parameter)]
    pub parameters: Vec<(String, String)>,
    #[command(flatten)]
    pub callee: Callee,
}

fn parameter(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(super) async fn run(arguments: &TunnelArgs) -> Result<ExitCode, GatewayError> {
    let open = TunnelOpen {
        node_id: arguments.node.clone(),
        ticket: ticket(arguments.ticket_file.as_deref())?,
        kind: arguments.kind.clone(),
        parameters: parameters(arguments),
    };
    let client = client(arguments).await?;
    let tunnel = match client.open_tunnel(&open).await {
        Ok(tunnel) => tunnel,
        Err(error) => return Ok(told(&refusal(&client, &error))),
    };
    let [mut interrupt, mut terminate, mut hang_up] =
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
            .map(|kind| signal(kind).ok());
    let terminal = RawTerminal::enter();
    let (escape, left) = (terminal.0.is_some().then(Escape::new), Arc::new(Notify::new()));
    let outcome = tokio::select! {
        outcome = carry(tunnel, escape, Arc::clone(&left)) => outcome,
        () = left.notified() => Err(TunnelCut("it was left with ~.".to_owned())),
        Some(()) = heard(&mut interrupt) => Err(TunnelCut("SIGINT".to_owned())),
        Some(()) = heard(&mut terminate) => Err(TunnelCut("SIGTERM".to_owned())),
        Some(()) = heard(&mut hang_up) => Err(TunnelCut("SIGHUP".to_owned())),
    };
    drop(terminal);
    Ok(match outcome {
        Ok(Outcome { exit: Some(code), .. }) => match u8::try_from(code) {
            Ok(code) => ExitCode::from(code),
            Err(_) => told(&format!(
                "the node's exit status {code} is out of 0 to 255 (128 and the signal where one has ended the program)"
            )),
        },
        Ok(Outcome { exit: None, code: 0, .. }) => told("the node ended the tunnel without an exit status"),
        Ok(Outcome { message, .. }) => told(&format!("the tunnel was closed: {message}")),
        Err(TunnelCut(why)) => told(&format!("the tunnel was cut: {why}")),
    })
}

fn told(sentence: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "gateway: {}", harmless(sentence));
    ExitCode::from(NO_TUNNEL)
}

fn refusal(gateway: &Called, error: &CallError) -> String {
    match error {
        CallError::Refused { sentence, code, .. } => format!("no tunnel: {sentence} ({code})"),
        error => gateway.failed(error).to_string(),
    }
}

fn parameters(arguments: &TunnelArgs) -> HashMap<String, String> {
    let mut all: HashMap<String, String> = arguments.parameters.iter().cloned().collect();
    if !arguments.command.is_empty() {
        all.insert("command".to_owned(), arguments.command.join(" "));
    }
    if let Some((columns, rows)) = window() {
        all.entry("columns".to_owned()).or_insert(columns.to_string());
        all.entry("rows".to_owned()).or_insert(rows.to_string());
        // What kind of terminal it is; else programs at the node guess.
        if let Some(term) = std::env::var("TERM").ok().filter(|term| !term.is_empty()) {
            all.entry("term".to_owned()).or_insert(term);
        }
    }
    all
}

fn ticket(file: Option<&Path>) -> Result<String, GatewayError> {
    let text = match file {
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| usage("--ticket-file", format!("{}: {error}", file.display())))?,
        None => std::env::var(TICKET_VARIABLE).map_err(|_| {
            let sentence = format!("is needed: the ticket for this node, or ${TICKET_VARIABLE}");
            usage("--ticket-file", sentence)
        })?,
    };
    Ok(text.trim().to_owned())
}

/// The gateway that has the node, unless another is meant.
async fn client(arguments: &TunnelArgs) -> Result<Called, GatewayError> {
    let callee = &arguments.callee;
    if callee.url.is_some() || callee.gateway.is_some() {
        return callee::client(callee).await;
    }
    let files = callee::files_of(callee)?;
    let found = callee::finder(callee, files.clone())?.of_node(&arguments.node).await;
    found.map(|found| Called::new(found.client, &files)).map_err(|error| callee::not_found(callee, &error))
}

/// How a tunnel ended.
struct Outcome {
    exit: Option<i32>,
    code: u32,
    message: String,
}

async fn carry(tunnel: Tunnel, escape: Option<Escape>, left: Arc<Notify>) -> Result<Outcome, TunnelCut> {
    let Tunnel { sender, mut receiver, .. } = tunnel;
    let (stdout, written) = write_stdout();
    let mut sending = Box::pin(send(sender, read_stdin(escape, left)));
    let (mut exit, mut sends) = (None, true);
    let outcome = loop {
        let said = tokio::select! {
            said = receiver.next() => said?,
            // How it failed is told by the other direction.
            _ = &mut sending, if sends => {
                sends = false;
                continue;
            }
        };
        match said {
            // A stdout that is closed takes nothing; the node's program goes on.
            Said::Data(data) => drop(stdout.send(data).await),
            Said::HalfClose => {}
            Said::Exit { code, .. } => exit = Some(code),
            Said::Closed { code, message } => break Outcome { exit, code, message },
        }
    };
    drop(stdout);
    // All that was said is written before the end.
    let _ = tokio::task::spawn_blocking(move || written.join()).await;
    Ok(outcome)
}

/// Sends stdin and the terminal's size until stdin ends; then it keeps the way open.
async fn send(mut sender: TunnelSender, mut stdin: mpsc::Receiver<Bytes>) -> Result<(), TunnelCut> {
    let mut resized = signal(SignalKind::window_change()).ok();
    if let Some((columns, rows)) = window() {
        sender.window(columns, rows).await?;
    }
    loop {
        tokio::select! {
            data = stdin.recv() => match data {
                Some(data) => sender.data(data).await?,
                None => break,
            },
            Some(()) = heard(&mut resized) => {
                if let Some((columns, rows)) = window() {
                    sender.window(columns, rows).await?;
                }
            }
        }
    }
    sender.half_close().await?;
    std::future::pending().await
}

async fn heard(signal: &mut Option<Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Reads stdin until it ends or is left.
fn read_stdin(mut escape: Option<Escape>, left: Arc<Notify>) -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(PIECES);
    // It ends with the process: nothing else ends a read of a terminal.
    std::thread::spawn(move || {
        let mut space = [0; PIECE_BYTES];
        let mut stdin = std::io::stdin().lock();
        while let Ok(bytes) = stdin.read(&mut space)
            && bytes > 0
        {
            let typed = &space[..bytes];
            let passed = escape.as_mut().map_or_else(|| Some(typed.to_vec()), |escape| escape.pass(typed));
            let Some(passed) = passed else { return left.notify_one() };
            if !passed.is_empty() && sender.blocking_send(passed.into()).is_err() {
                return;
            }
        }
    });
    receiver
}

fn write_stdout() -> (mpsc::Sender<Bytes>, std::thread::JoinHandle<()>) {
    let (sender, mut receiver) = mpsc::channel::<Bytes>(PIECES);
    let thread = std::thread::spawn(move || {
        let mut stdout = std::io::stdout().lock();
        while let Some(data) = receiver.blocking_recv() {
            if stdout.write_all(&data).and_then(|()| stdout.flush()).is_err() {
                return;
            }
        }
    });
    (sender, thread)
}

/// The size of the terminal, if there is one.
fn window() -> Option<(u32, u32)> {
    let size = termios::tcgetwinsize(std::io::stdin()).ok()?;
    (size.ws_col > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

/// A terminal that passes every key on, until this is dropped.
struct RawTerminal(Option<Termios>);

impl RawTerminal {
    fn enter() -> Self {
        let Ok(before) = termios::tcgetattr(std::io::stdin()) else { return Self(None) };
        let mut raw = before.clone();
        raw.make_raw();
        let entered = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).is_ok();
        Self(entered.then_some(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // It was set a moment ago; a terminal that is gone needs nothing.
            let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Drain, before);
        }
    }
}
