//! What may not be logged is in no line, though everything is logged that there is: level `trace`.
//!
//! One gateway, everything that nodes and operators hand to it in secret, each with a word that stands
//! nowhere else; then its log is searched for each of them, as text and as the ways in which bytes are shown.
//!
//! 1. What is searched for is known to have passed: each piece reached its receiver.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway_proto::path;
use gateway_proto::v1::{FetchSecretRequest, FetchSecretResponse, SignedEnvelope};
use gateway_testbed::authority::{Authority, Mood, Received, Status};
use gateway_testbed::database::{NewCommand, enqueue};
use gateway_testbed::node::{End, Enrolment, Node, NodeOptions, Target, unary};
use support::{QUICK_REDIAL, SOON, World};

/// Words that are searched for, each for what it is in.
struct Words(Vec<(&'static str, Vec<u8>)>);

impl Words {
    /// A word that stands nowhere else.
    fn hide(&mut self, what: &'static str) -> String {
        let word = format!("zq{:02}{}", self.0.len(), uuid::Uuid::new_v4().simple());
        self.0.push((what, word.clone().into_bytes()));
        word
    }

    /// The places at which the log shows any of them, in any of the ways.
    fn found_in(&self, log: &str) -> Vec<String> {
        let lower = log.to_lowercase();
        let mut found = Vec::new();
        for (what, word) in &self.0 {
            // A part is enough to know: lines may be cut.
            let part = &word[..word.len().min(18)];
            let joined = |separator: &str| part.iter().map(u8::to_string).collect::<Vec<_>>().join(separator);
            let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
            let text = String::from_utf8_lossy(part).to_lowercase();
            for (way, shown) in [("as text", text), ("as hex", hex), ("as numbers", joined(", "))] {
                if let Some(at) = lower.find(&shown) {
                    let (from, to) = (at.saturating_sub(200), (at + 80).min(lower.len()));
                    let (from, to) = (lower.floor_char_boundary(from), lower.floor_char_boundary(to));
                    found.push(format!("{what}, {way}: …{}…", &lower[from..to]));
                }
            }
        }
        found
    }
}

#[tokio::test]
async fn tokens_csrs_secrets_payloads_and_results_are_in_no_line_of_the_log() {
    let world = World::new("no_secret_in_logs").await;
    let any_port = ([127, 0, 0, 1], 0).into();
    let life = Duration::from_secs(3600);
    let authority = Authority::start(&world.pki, any_port, &world.url, life).await.unwrap();
    let mut options = world.options("g1", "[log]\nlevel = \"trace,h2=trace,rustls=trace,hyper=trace,sqlx=trace,tower=trace,glommio=trace\"\n[shards]\ncount = 1\n");
    options.upstream_url = Some(authority.url());
    let gateway = world.start(options).await;
    let mut words = Words(Vec::new());

    // Join, renew, fetch; and a service whose own sentence repeats what it was asked.
    let token = authority.mint_token("n1", life);
    words.0.push(("join token", token.clone().into_bytes()));
    let secret = words.hide("secret");
    authority.keep_secret("db", "1", secret.clone());
    let target = Target::new(gateway.address(), world.pki.client_config(None).unwrap());
    let enrolment = Enrolment::new(world.pki.client_tls(), "machine-1", &token);
    enrolment.join(&target).await.unwrap();
    enrolment.renew(&target).await.unwrap();
    let csrs = authority.received().into_iter().filter_map(|call| match call {
        Received::Join(call) => Some(call.request?.csr_der),
        Received::Renew(call) => Some(call.request?.csr_der),
        Received::FetchSecret(_) | Received::Reauthorize(_) | Received::Jwks => None,
    });
    // Its key and its signature: the head of a CSR is the same in all.
    words.0.extend(csrs.map(|csr| ("CSR", csr[csr.len() - 24..].to_vec())));
    assert_eq!(&enrolment.fetch_secret(&target, "db", "").await.unwrap().value[..], secret.as_bytes());
    let bad_token = words.hide("refused token");
    let refused = Enrolment::new(world.pki.client_tls(), "machine-2", &bad_token);
    refused.join(&target).await.unwrap_err();
    let said = words.hide("a service's sentence");
    authority.set_mood(Mood::Failing(Status::new(13, format!("can't use {said}"))));
    refused.join(&target).await.unwrap_err();
    authority.set_mood(Mood::Well);

    // A session with all that it carries.
    let mut node_options = NodeOptions::new(&world.id("n1"), target.clone());
    node_options.enrolment = Some(Arc::clone(&enrolment));
    node_options.observer = Arc::clone(&world.watch) as _;
    node_options.redial = QUICK_REDIAL;
    let result = words.hide("result");
    node_options.behaviour.result = Some(Bytes::from(result.clone()));
    node_options.sections = vec![("firmware".to_owned(), Bytes::from(words.hide("section")))];
    let node = Node::start(node_options);
    world.watch.connected_after(node.name(), 0).await;
    let payload = words.hide("payload");
    let mut connection = world.connect().await;
    let id = enqueue(&mut connection, &NewCommand::new(node.name(), payload.as_bytes())).await.unwrap();
    world.watch.all_settled(&[id], SOON).await;
    let body = words.hide("event");
    let attested = SignedEnvelope {
        body: words.hide("envelope").into(),
        kid: "k".to_owned(),
        signature: words.hide("signature").into(),
    };
    node.emit_signed("door", body.into(), attested);
    node.tell_status("s1", "disk", words.hide("status").into());
    let spec = words.hide("spec");
    sqlx::query("SELECT set_spec($1, 'dns', $2)")
        .bind(node.name())
        .bind(spec.as_bytes())
        .execute(&mut connection)
        .await
        .unwrap();
    world
        .watch
        .until(SOON, "all of it is stored", |seen| {
            let all = seen.events_acked_to(node.name()) == 1
                && !seen.statuses.is_empty()
                && !seen.spec_acks.is_empty()
                && !seen.sections_stored.is_empty();
            all.then_some(())
        })
        .await;
    let broken = words.hide("what is no message");
    let no_message: Result<FetchSecretResponse, End> = unary(
        &enrolment.dressed(&target).await.unwrap(),
        path::FETCH_SECRET,
        &FetchSecretRequest { name: broken.repeat(20), version: String::new() },
    )
    .await;
    assert_eq!(no_message.unwrap_err().status(), Some(3));
    node.goodbye().await;

    let log = std::fs::read_to_string(gateway.options().log_path()).unwrap();
    assert!(log.contains("TRACE"), "the log is as verbose as it gets: {}", log.len());
    assert!(words.0.len() > 12, "much was hidden");
    let found = words.found_in(&log);
    assert!(found.is_empty(), "{} of {}:\n{}", found.len(), words.0.len(), found.join("\n"));
}

#[test]
fn the_search_would_find_what_a_careless_line_shows() {
    let mut words = Words(Vec::new());
    let word = words.hide("token");
    let bytes = Bytes::from(word.clone());
    for line in [
        format!("got {word}"),
        format!("got {bytes:?}"),
        format!("got {:?}", word.as_bytes()),
        format!("got {:x}", bytes),
        format!("got {:X}", bytes),
    ] {
        assert_eq!(words.found_in(&line).len(), 1, "{line}");
    }
    assert!(words.found_in("got (hidden)").is_empty());
}
