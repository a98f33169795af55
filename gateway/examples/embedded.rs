//! A program that embeds a gateway and has a node of its own: no socket between the two, all else as in production.
//!
//! It starts a gateway from a configuration file with a hook in Rust, lets a node in memory say Hello, has a command
//! done by it, and stops. The database is a real one, with the schema of `gateway migrate`:
//!
//! ```text
//! cargo run -p gateway --example embedded -- /etc/gateway/gateway.toml
//! ```
//!
//! 1. The hook's rows are there exactly when its event is: it runs in the transaction that stores that.
//! 2. The node waits as long as it is told before it dials again, as every node must.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;
use std::time::{Duration, SystemTime};

use gateway::hooks::sqlx::{self, Connection as _, PgConnection};
use gateway::hooks::{EmbeddedHooks, HookFuture, HookTransaction, Report, ReportHook};
use gateway::local::{FrameConnection, FromGateway, LocalPeer};
use gateway::{Gateway, GatewayHandle, RunningGateway};
use gateway_proto::v1::gateway_frame::Frame as FromGatewayFrame;
use gateway_proto::v1::node_frame::Frame;
use gateway_proto::v1::{
    Command, CommandState, CommandUpdate, Event, EventBatch, GatewayFrame, Hello, Lane, NodeFrame,
};
use prost::Message as _;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const NODE: &str = "spiffe://fleet.example/site/ams1/node/embedded";
const SERIAL: &str = "E3BEDDED";

/// Runs when an event `door.opened` is stored.
struct DoorLog;

impl ReportHook for DoorLog {
    fn name(&self) -> &str {
        "door-log"
    }

    fn on_report<'a>(
        &'a self,
        report: Report<'a>,
        transaction: &'a mut HookTransaction<'_>,
    ) -> HookFuture<'a> {
        Box::pin(async move {
            transaction.enqueue_work("door.look", report.node.as_str(), "{}").await?;
            Ok(())
        })
    }
}

fn main() -> Outcome<()> {
    let config = std::env::args().nth(1).ok_or("usage: embedded CONFIG.toml")?;
    run(Path::new(&config)).map(|done| println!("the node did: {done}"))
}

/// The whole life of the program; what its node was asked to do.
pub fn run(config: &Path) -> Outcome<String> {
    let config = gateway::config::Config::load(config)?;
    let database = config.database_url().map_err(|problem| problem.to_string())?;
    // Blocks until the lease is held: not to be called within an async runtime.
    let running: RunningGateway = Gateway::builder(config)
        .hooks(EmbeddedHooks::default().on_report("door.opened", DoorLog))
        .serve(Duration::from_secs(30))?;
    let gateway = running.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        register(database.reveal()).await?;
        tokio::try_join!(node(gateway.clone()), client(database.reveal())).map(|(done, ())| done)
    })?;

    // What `GET /v1/health` and `/v1/sessions` of the control API would say.
    let status = gateway.status();
    println!("{} is {:?}, and has {} sessions", status.gateway, status.phase, status.sessions);
    for session in runtime.block_on(gateway.sessions())? {
        println!("{} with epoch {}", session.node, session.epoch.0);
    }
    gateway.stop();
    running.join()?;
    Ok(done)
}

/// Makes the node and its certificate known, as whoever issues certificates does.
async fn register(database: &str) -> Outcome<()> {
    let mut connection = PgConnection::connect(database).await?;
    for statement in [
        "SELECT register_node($1)",
        "INSERT INTO node_certs (node_id, serial) VALUES ($1, $2) ON CONFLICT DO NOTHING",
    ] {
        let query = sqlx::query(statement).bind(NODE);
        let query = if statement.contains("$2") { query.bind(SERIAL) } else { query };
        query.execute(&mut connection).await?;
    }
    Ok(())
}

/// A client of the database: enqueues a command.
async fn client(database: &str) -> Outcome<()> {
    let mut connection = PgConnection::connect(database).await?;
    sqlx::query(
        "SELECT enqueue_command(node_id => $1, kind => 'greet', payload => 'hello', lane => 'default')",
    )
    .bind(NODE)
    .execute(&mut connection)
    .await?;
    Ok(())
}

/// The node: dials until it was served, and gives what it was asked to do.
async fn node(gateway: GatewayHandle) -> Outcome<String> {
    loop {
        let peer = LocalPeer {
            node: NODE.to_owned(),
            certificate_serial: SERIAL.to_owned(),
            ends_at: SystemTime::now() + Duration::from_secs(3600),
        };
        match session(gateway.connect(peer)?).await? {
            Ok(done) => return Ok(done),
            // Exactly as long as the gateway says, where it does.
            Err(pushback) => tokio::time::sleep(pushback.unwrap_or(Duration::from_secs(1))).await,
        }
    }
}

/// One session: an event, and a command from its arrival to its ack. `Err` is when to dial again.
async fn session(mut connection: FrameConnection) -> Outcome<Result<String, Option<Duration>>> {
    send(&mut connection, Frame::Hello(hello())).await?;
    let mut done = String::new();
    loop {
        let frame = match connection.receiver.recv().await {
            FromGateway::Frame(frame) => GatewayFrame::decode(frame)?.frame,
            // A status, its sentence, and perhaps how long to wait; no status where the connection was lost.
            FromGateway::Ended(end) if end.status == Some(0) => return Ok(Ok(done)),
            FromGateway::Ended(end) => {
                eprintln!("the session ended: {end}");
                return Ok(Err(end.pushback));
            }
        };
        match frame {
            Some(FromGatewayFrame::Welcome(_)) => {
                send(&mut connection, Frame::EventBatch(door_opened())).await?
            }
            Some(FromGatewayFrame::Command(command)) => {
                done = String::from_utf8_lossy(&command.payload).into_owned();
                send(&mut connection, Frame::CommandUpdate(succeeded(command))).await?;
            }
            // The result is durable: the session has done its work, and so has the node.
            Some(FromGatewayFrame::Ack(_)) => connection.sender.finish(),
            _ => {}
        }
    }
}

async fn send(connection: &mut FrameConnection, frame: Frame) -> Outcome<()> {
    let frame = NodeFrame { frame: Some(frame) }.encode_to_vec();
    // It waits while the gateway holds the node back. A session that is over says so, and its end why.
    if connection.sender.send(frame.into()).await.is_err() {
        eprintln!("the session is over; a frame of the node was not sent");
    }
    Ok(())
}

fn hello() -> Hello {
    Hello {
        protocol: 1,
        boot_id: "boot-1".to_owned(),
        machine: "in-memory".to_owned(),
        software_version: env!("CARGO_PKG_VERSION").to_owned(),
        lanes: vec![Lane { name: "default".to_owned(), capacity: 4 }],
        journal_id: "journal-1".to_owned(),
        journal_last_seq: 1,
        ..Hello::default()
    }
}

fn door_opened() -> EventBatch {
    let event = Event { seq: 1, kind: "door.opened".to_owned(), ..Event::default() };
    EventBatch { r#ref: 1, journal_id: "journal-1".to_owned(), events: vec![event], ..EventBatch::default() }
}

fn succeeded(command: Command) -> CommandUpdate {
    CommandUpdate {
        r#ref: 2,
        command_id: command.command_id,
        attempt: command.attempt,
        state: CommandState::Succeeded as i32,
        result: "done".into(),
        ..CommandUpdate::default()
    }
}
