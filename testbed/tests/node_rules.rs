//! A simulated node keeps the protocol's rules, also towards a gateway that makes it hard.
//!
//! A scripted gateway does what a real one never would: it withholds acks, resends, cuts, drains. If a
//! simulated node broke a rule, the gateway's own stories would prove nothing. How it dials and counts
//! under load is not asked here.

#![allow(clippy::unwrap_used)]

mod scripted;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gateway_proto::v1::{Ack, CancelCommand, Command, CommandState, Drain, gateway_frame::Frame, node_frame};
use gateway_testbed::node::{
    Behaviour, EndKind, Execution, ExecutionLog, LogEvent, Node, NodeEvent, NodeEvents, NodeOptions, Target,
};
use gateway_testbed::pki::{Pki, WrongCertificate};
use scripted::{PATIENCE, ScriptedGateway, ScriptedSession};
use uuid::Uuid;

const SLOW_BEAT: Duration = Duration::from_secs(3600);

struct World {
    pki: Pki,
    gateway: ScriptedGateway,
    events: NodeEvents,
    options: NodeOptions,
}

async fn world() -> World {
    let pki = Pki::new().unwrap();
    let gateway = ScriptedGateway::new(&pki).await;
    let (observer, events) = NodeEvents::channel();
    let config = pki.client_config(Some(&pki.node("node-1").unwrap())).unwrap();
    let options =
        NodeOptions { observer, ..NodeOptions::new("node-1", Target::new(gateway.address(), config)) };
    World { pki, gateway, events, options }
}

fn command(id: Uuid, epoch: u64) -> Frame {
    Frame::Command(Command {
        command_id: Bytes::copy_from_slice(id.as_bytes()),
        attempt: 1,
        lane: "default".into(),
        seq: 1,
        kind: "test".into(),
        payload: Bytes::from_static(b"payload"),
        session_epoch: epoch,
        ..Command::default()
    })
}

fn ack(session: &mut ScriptedSession, reference: u64, state: CommandState) {
    session.send(Frame::Ack(Ack { r#ref: reference, state: state.into() }));
}

#[tokio::test]
async fn a_result_that_was_not_acked_comes_again_and_is_not_executed_again() {
    let mut world = world().await;
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(ExecutionLog::open(&folder.path().join("log")).unwrap());
    world.options.log = Some(Arc::clone(&log));
    let node = Node::start(world.options);
    let id = Uuid::new_v4();

    let mut first = world.gateway.session().await;
    assert!(first.hello().await.known_commands.is_empty());
    first.welcome(1, SLOW_BEAT);
    first.send(command(id, 1));
    assert_eq!(first.update().await.state(), CommandState::Accepted);
    assert_eq!(first.update().await.state(), CommandState::Succeeded);
    first.cut();

    let mut second = world.gateway.session().await;
    let hello = second.hello().await;
    assert_eq!(hello.known_commands.len(), 1);
    assert_eq!(hello.known_commands[0].state(), CommandState::Succeeded);
    second.welcome(2, SLOW_BEAT);
    let again = second.update().await;
    assert_eq!((again.state(), again.result.as_ref()), (CommandState::Succeeded, b"payload".as_slice()));
    // A replay of what it knows is answered from memory.
    second.send(command(id, 2));
    assert_eq!(second.update().await.state(), CommandState::Succeeded);
    ack(&mut second, again.r#ref, CommandState::Succeeded);
    assert_eq!(world.events.settled(id, PATIENCE).await.unwrap(), CommandState::Succeeded);

    assert!(node.stop().await.is_empty());
    log.flush().unwrap();
    let lines = ExecutionLog::read(log.path()).unwrap();
    let count = |event| lines.iter().filter(|line| line.event == event).count();
    assert_eq!((count(LogEvent::Received), count(LogEvent::Started), count(LogEvent::Acked)), (2, 1, 1));
}

#[tokio::test]
async fn a_pushback_is_kept_to_the_millisecond_and_not_shortened() {
    let world = world().await;
    let _node = Node::start(world.options);
    let mut refused = world.gateway.session().await;
    refused.hello().await;
    let told = Instant::now();
    refused.end(8, Some(Duration::from_millis(700)));
    world.gateway.session().await.hello().await;
    let waited = told.elapsed();
    assert!(waited >= Duration::from_millis(700), "{waited:?}");
    // The handshake is in it, on a busy machine; a back-off of its own would be anything up to 250 ms.
    assert!(waited < Duration::from_millis(5000), "{waited:?}");
}

#[tokio::test]
async fn a_node_that_is_not_permitted_never_dials_again() {
    let mut world = world().await;
    let _node = Node::start(world.options);
    let mut session = world.gateway.session().await;
    session.hello().await;
    session.end(7, None);
    let last = world
        .events
        .wait_for(PATIENCE, |seen| match &seen.event {
            NodeEvent::Ended { end, redial_after, .. } => Some((end.status(), *redial_after)),
            _ => None,
        })
        .await;
    assert_eq!(last.unwrap(), (Some(7), None));
    assert!(world.events.next().await.is_none(), "the node is gone");
}

#[tokio::test]
async fn a_gateway_that_acks_no_heartbeat_is_dead_after_three() {
    let mut world = world().await;
    let node = Node::start(world.options);
    let mut session = world.gateway.session().await;
    session.hello().await;
    session.welcome(1, Duration::from_millis(50));
    for sequence in 1..=3 {
        match session.frame().await {
            Some(node_frame::Frame::Heartbeat(beat)) => assert_eq!(beat.sequence, sequence),
            other => panic!("a heartbeat must come, not {other:?}"),
        }
    }
    let end = world.events.ended(node.name(), PATIENCE).await.unwrap();
    assert_eq!((end.kind.clone(), end.is_drop()), (EndKind::GatewaySilent, true));
    world.gateway.session().await.hello().await;
}

#[tokio::test]
async fn a_drained_node_is_welcomed_elsewhere_before_it_leaves_the_old_stream() {
    let mut world = world().await;
    let elsewhere = ScriptedGateway::new(&world.pki).await;
    let config = world.pki.client_config(Some(&world.pki.node("node-1").unwrap())).unwrap();
    world.options.elsewhere = vec![Target::new(elsewhere.address(), config)];
    let node = Node::start(world.options);
    let mut old = world.gateway.session().await;
    old.hello().await;
    old.welcome(1, SLOW_BEAT);
    world.events.connected(node.name(), PATIENCE).await.unwrap();
    let told = Instant::now();
    old.send(Frame::Drain(Drain { reconnect_after_ms: 300 }));
    let mut new = elsewhere.session().await;
    assert!(told.elapsed() >= Duration::from_millis(300));
    assert!(new.hello().await.known_commands.is_empty());

    // The new gateway has not answered yet: the old one still has the node.
    let meanwhile = Uuid::new_v4();
    old.send(command(meanwhile, 1));
    assert_eq!(old.update().await.state(), CommandState::Accepted);
    let succeeded = old.update().await;
    assert_eq!(succeeded.state(), CommandState::Succeeded);
    new.welcome(2, SLOW_BEAT);
    assert!(old.frame().await.is_none(), "the old stream is half-closed now");
    assert_eq!(world.events.connected(node.name(), PATIENCE).await.unwrap(), 2);
    let again = new.update().await;
    assert_eq!(again.state(), CommandState::Succeeded, "what was not acked is said again");
    ack(&mut new, again.r#ref, CommandState::Succeeded);
    old.end(0, None);
    let end = world.events.ended(node.name(), PATIENCE).await.unwrap();
    assert!(end.kind == EndKind::Asked && !end.is_drop(), "{end:?}");
    new.send(command(Uuid::new_v4(), 2));
    assert_eq!(new.update().await.state(), CommandState::Accepted);
}

#[tokio::test]
async fn a_drained_node_that_is_refused_elsewhere_keeps_its_session_and_comes_again_after_the_pushback() {
    let mut world = world().await;
    let node = Node::start(world.options);
    let mut old = world.gateway.session().await;
    old.hello().await;
    old.welcome(1, SLOW_BEAT);
    world.events.connected(node.name(), PATIENCE).await.unwrap();
    old.send(Frame::Drain(Drain { reconnect_after_ms: 0 }));
    let mut refused = world.gateway.session().await;
    refused.hello().await;
    let told = Instant::now();
    refused.end(14, Some(Duration::from_millis(500)));
    old.send(command(Uuid::new_v4(), 1));
    assert_eq!(old.update().await.state(), CommandState::Accepted, "it still has its session");
    let mut new = world.gateway.session().await;
    assert!(told.elapsed() >= Duration::from_millis(500), "{:?}", told.elapsed());
    new.hello().await;
    // The old session is superseded before the new one is welcomed.
    old.end(10, None);
    new.welcome(2, SLOW_BEAT);
    assert_eq!(world.events.connected(node.name(), PATIENCE).await.unwrap(), 2);
}

#[tokio::test]
async fn held_work_is_finished_while_disconnected_and_canceled_when_asked() {
    let mut world = world().await;
    world.options.behaviour = Behaviour { execution: Execution::Held, ..Behaviour::default() };
    let node = Node::start(world.options);
    let (finished, canceled) = (Uuid::new_v4(), Uuid::new_v4());
    let mut first = world.gateway.session().await;
    first.hello().await;
    first.welcome(1, SLOW_BEAT);
    first.send(command(finished, 1));
    first.send(command(canceled, 1));
    for _ in 0..2 {
        let update = first.update().await;
        assert_eq!(update.state(), CommandState::Accepted);
        ack(&mut first, update.r#ref, CommandState::Accepted);
    }
    first.send(Frame::CancelCommand(CancelCommand {
        command_id: Bytes::copy_from_slice(canceled.as_bytes()),
        reason: "a test".into(),
    }));
    assert_eq!(first.update().await.state(), CommandState::Canceled);
    first.cut();
    world.events.ended(node.name(), PATIENCE).await.unwrap();
    node.release(None);
    let mut second = world.gateway.session().await;
    second.hello().await;
    second.welcome(2, SLOW_BEAT);
    let mut states = Vec::new();
    for _ in 0..2 {
        let update = second.update().await;
        states.push((Uuid::from_slice(&update.command_id).unwrap(), update.state()));
        ack(&mut second, update.r#ref, update.state());
    }
    states.sort();
    let mut expected = vec![(finished, CommandState::Succeeded), (canceled, CommandState::Canceled)];
    expected.sort();
    assert_eq!(states, expected);
}

#[tokio::test]
async fn an_alert_is_seen_as_such_and_makes_the_node_wait_the_longest() {
    let mut world = world().await;
    let wrong = world.pki.wrong("node-1", WrongCertificate::Expired).unwrap();
    let config = world.pki.client_config(Some(&wrong)).unwrap();
    world.options.target = Target::new(world.gateway.address(), config);
    let _node = Node::start(world.options);
    // The handshake fails on the gateway's side, which is all that it has to do.
    let accepting = tokio::spawn(async move { world.gateway.session().await });
    let (end, redial_after) = world
        .events
        .wait_for(PATIENCE, |seen| match &seen.event {
            NodeEvent::Ended { end, redial_after, .. } => Some((end.clone(), *redial_after)),
            _ => None,
        })
        .await
        .unwrap();
    assert!(matches!(end.kind, EndKind::TlsAlert(_)), "{end:?}");
    assert_eq!(redial_after, Some(Duration::from_secs(30)));
    assert!(accepting.await.is_err(), "the gateway saw no session");
}

#[tokio::test]
async fn a_node_that_says_goodbye_waits_for_the_answers_it_is_owed() {
    let world = world().await;
    let mut events = world.events;
    let node = Node::start(world.options);
    let mut session = world.gateway.session().await;
    session.hello().await;
    session.welcome(1, SLOW_BEAT);
    let id = Uuid::new_v4();
    session.send(command(id, 1));
    let _accepted = session.update().await;
    let succeeded = session.update().await;
    events.connected(node.name(), PATIENCE).await.unwrap();
    let goodbye = tokio::spawn(node.goodbye());
    assert!(matches!(session.frame().await, Some(node_frame::Frame::Goodbye(_))));
    ack(&mut session, succeeded.r#ref, CommandState::Succeeded);
    session.end(0, None);
    assert!(goodbye.await.unwrap().is_empty(), "the last ack was read");
}
