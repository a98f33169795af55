//! Calls that are passed on, over real sockets: what a shard asks the relays, and what a node is answered.
//!
//! The relays are a stand-in that answers what the story says. Who may have what passed on is tested in the
//! core, services and deadlines with the control thread.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use gateway_core::close::CloseReason;
use gateway_core::drain::DrainOrder;
use gateway_core::limits::Limits;
use gateway_core::relay::{Answered, Asked, Hidden, Issued, Refusal, RefusalCode, Secret};
use gateway_core::seam::ToShard;
use gateway_proto::framing::encode;
use gateway_proto::{path, v1};
use rcgen::ExtendedKeyUsagePurpose;
use support::client::{Call, Client};
use support::{Gateway, soon, story, until};

const INVALID_ARGUMENT: u16 = 3;
const RESOURCE_EXHAUSTED: u16 = 8;
const UNAVAILABLE: u16 = 14;

fn join(token: &str) -> Bytes {
    encode(&v1::JoinRequest {
        token: token.into(),
        csr_der: Bytes::from_static(b"csr"),
        machine: "m".into(),
        software_version: "1".into(),
    })
}

fn fetch() -> Bytes {
    encode(&v1::FetchSecretRequest { name: "db".into(), version: String::new() })
}

async fn asked(client: &mut Client, path: &str, request: Bytes) -> Call {
    let mut call = client.call(path).await;
    call.raw(request);
    call.half_close();
    call
}

#[test]
fn who_has_no_certificate_may_join_and_gets_what_the_service_answers() {
    story(async {
        let gateway = Gateway::start_shards(Limits::default(), 2);
        let mut machine = gateway.connect(None).await;
        let mut call = asked(&mut machine, path::JOIN, join("t1")).await;
        let request = gateway.relays.next().await;
        let Asked::Join(join) = &request.asked else { panic!("{request:?}") };
        assert_eq!((join.token.0.as_str(), &join.csr_der.0[..]), ("t1", &b"csr"[..]));
        assert_eq!((join.machine.as_str(), join.software_version.as_str()), ("m", "1"));
        let issued = Issued { chain_pem: "chain".into(), trust_bundle_pem: "roots".into() };
        gateway.relays.answer(request.key, Ok(Answered::Issued(issued)));
        let answer: v1::JoinResponse = call.message().await.unwrap();
        assert_eq!((&*answer.certificate_chain_pem, &*answer.trust_bundle_pem), ("chain", "roots"));
        assert_eq!(call.end().await.status, 0);
        assert_eq!(gateway.sum(|counters| counters.relays.get()), 1);
        assert_eq!(gateway.admission.streams(), 0, "a relay is no session");
    });
}

#[test]
fn a_renewal_and_a_secret_are_asked_for_the_identity_of_the_certificate() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let renew = encode(&v1::RenewRequest { csr_der: Bytes::from_static(b"csr2") });
        let mut call = asked(&mut node, path::RENEW, renew).await;
        let request = gateway.relays.next().await;
        let Asked::Renew(identity, renew) = &request.asked else { panic!("{request:?}") };
        assert_eq!(identity.node.as_str(), "spiffe://test.example/site/lab/node/n-1");
        assert_eq!((identity.certificate_serial.as_str(), &renew.csr_der.0[..]), ("ABC01", &b"csr2"[..]));
        let issued = Issued { chain_pem: "next".into(), ..Issued::default() };
        gateway.relays.answer(request.key, Ok(Answered::Issued(issued)));
        assert_eq!(call.message::<v1::RenewResponse>().await.unwrap().certificate_chain_pem, "next");
        assert_eq!(call.end().await.status, 0);

        // On the same connection, beside a session.
        let (mut session, _) = node.session().await;
        let mut call = asked(&mut node, path::FETCH_SECRET, fetch()).await;
        let request = gateway.relays.next().await;
        let value = Hidden(Bytes::from(vec![7; 200_000]));
        let secret = Secret { value, version: "3".into(), expires_at_unix_ms: 9 };
        session.heartbeat(1);
        assert!(session.next().await.is_some(), "the session goes on while the secret is awaited");
        gateway.relays.answer(request.key, Ok(Answered::Secret(secret)));
        let answer: v1::FetchSecretResponse = call.message().await.unwrap();
        assert_eq!((answer.value.len(), &*answer.version, answer.expires_at_unix_ms), (200_000, "3", 9));
        assert_eq!(call.end().await.status, 0);
    });
}

#[test]
fn a_refusal_reaches_the_node_with_its_code_sentence_and_delay() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut machine = gateway.connect(None).await;
        let mut call = asked(&mut machine, path::JOIN, join("used")).await;
        let request = gateway.relays.next().await;
        let refusal = Refusal::new(RefusalCode::Unauthenticated, "the token was used\r\nx: 100%");
        gateway.relays.answer(request.key, Err(refusal));
        let end = call.end().await;
        assert_eq!((end.status, end.message.as_str()), (16, "the token was used  x: 100%25"));
        let mut call = asked(&mut machine, path::JOIN, join("t")).await;
        let request = gateway.relays.next().await;
        let mut refusal = Refusal::new(RefusalCode::ResourceExhausted, "busy");
        refusal.retry_after = Some(Duration::from_millis(1234));
        gateway.relays.answer(request.key, Err(refusal));
        let end = call.end().await;
        assert_eq!((end.status, end.pushback_ms), (RESOURCE_EXHAUSTED, Some(1234)));
    });
}

#[test]
fn a_node_waits_for_its_answer_no_longer_than_the_time_for_it_though_the_relays_stand_still() {
    story(async {
        let limits = Limits { relay_timeout: Duration::from_millis(100), ..Limits::default() };
        let gateway = Gateway::start(limits);
        let mut machine = gateway.connect(None).await;
        let mut call = asked(&mut machine, path::JOIN, join("t")).await;
        let request = gateway.relays.next().await;
        let end = call.end().await;
        assert_eq!(end.status, UNAVAILABLE);
        assert!(end.message.contains("did not answer in time"), "{}", end.message);
        // Its answer, too late, finds nobody, nor the call that has its slot now.
        let mut next = asked(&mut machine, path::JOIN, join("t2")).await;
        let second = gateway.relays.next().await;
        assert_eq!(second.key.slot, request.key.slot);
        let issued =
            |chain: &str| Ok(Answered::Issued(Issued { chain_pem: chain.into(), ..Issued::default() }));
        gateway.relays.answer(request.key, issued("of the first"));
        gateway.relays.answer(second.key, issued("of the second"));
        assert_eq!(next.message::<v1::JoinResponse>().await.unwrap().certificate_chain_pem, "of the second");
    });
}

#[test]
fn calls_that_the_relays_have_no_room_for_are_told_to_come_back() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut machine = gateway.connect(None).await;
        let mut waiting = Vec::new();
        // The mailbox of the stand-in holds four.
        for n in 0..4 {
            waiting.push(asked(&mut machine, path::JOIN, join(&format!("t{n}"))).await);
        }
        let mut call = asked(&mut machine, path::JOIN, join("t")).await;
        let end = call.end().await;
        assert_eq!((end.status, end.pushback_ms), (RESOURCE_EXHAUSTED, Some(1000)));
        let request = gateway.relays.next().await;
        gateway.relays.answer(request.key, Ok(Answered::Issued(Issued::default())));
        assert_eq!(waiting.remove(0).end().await.status, 0, "those that wait are served");
    });
}

#[test]
fn strangers_who_join_take_no_token_of_a_nodes_session_nor_any_for_half_a_request() {
    story(async {
        let limits = Limits {
            opens_per_second: 1,
            opens_burst: 1,
            joins_per_second: 1,
            joins_burst: 2,
            ..Limits::default()
        };
        let gateway = Gateway::start(limits);
        let mut machine = gateway.connect(None).await;
        // Three that never say what they want: they hold a place, and no token.
        let mut silent = Vec::new();
        for _ in 0..3 {
            silent.push(machine.call(path::JOIN).await);
        }
        until("they are taken", || gateway.counters[0].relays.get() == 3).await;
        for _ in 0..2 {
            silent.push(asked(&mut machine, path::JOIN, join("t")).await);
            gateway.relays.next().await;
        }
        let mut other = gateway.connect(None).await;
        for _ in 0..5 {
            let end = asked(&mut other, path::JOIN, join("t")).await.end().await;
            assert_eq!(end.status, RESOURCE_EXHAUSTED);
            assert!(end.message.contains("machines are joining"), "{}", end.message);
            assert!(end.pushback_ms.is_some_and(|ms| ms >= 500), "{end:?}");
        }
        assert_eq!(gateway.counters[0].refused_joins_per_second.get(), 5);
        let mut node = gateway.node("n-1").await;
        let _session = node.session().await;
        assert_eq!(gateway.counters[0].refused_opens_per_second.get(), 0);
        // A renewal is no open: its connection has its session already.
        let _call = asked(&mut node, path::FETCH_SECRET, fetch()).await;
        gateway.relays.next().await;
    });
}

#[test]
fn a_certificate_that_opens_calls_and_says_nothing_takes_four_places_and_others_are_served() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let uri = "spiffe://test.example/site/lab/node/hog";
        let certificate = gateway.pki.sign(&[uri], ExtendedKeyUsagePurpose::ClientAuth, |params| {
            params.serial_number = Some(vec![0x0a, 0x09].into());
        });
        let mut hog = gateway.connect(Some(&certificate)).await;
        let mut silent = Vec::new();
        for _ in 0..4 {
            silent.push(hog.call(path::FETCH_SECRET).await);
        }
        until("they are taken", || gateway.counters[0].relays.get() == 4).await;
        let end = hog.call(path::RENEW).await.end().await;
        assert_eq!((end.status, end.pushback_ms), (RESOURCE_EXHAUSTED, Some(1000)));
        assert_eq!(end.message, "too many calls are being passed on; retry after the given delay");
        assert_eq!(gateway.counters[0].refused_relays.get(), 1);
        let mut node = gateway.node("n-1").await;
        let mut call = asked(&mut node, path::FETCH_SECRET, fetch()).await;
        let request = gateway.relays.next().await;
        gateway.relays.answer(request.key, Err(Refusal::new(RefusalCode::NotFound, "no")));
        assert_eq!(call.end().await.status, 5);
        // What the hog gives up is given back.
        for mut call in silent {
            call.half_close();
            assert_eq!(call.end().await.status, INVALID_ARGUMENT);
        }
        let mut call = asked(&mut hog, path::FETCH_SECRET, fetch()).await;
        let request = gateway.relays.next().await;
        gateway.relays.answer(request.key, Err(Refusal::new(RefusalCode::NotFound, "no")));
        assert_eq!(call.end().await.status, 5);
    });
}

#[test]
fn strangers_hold_every_place_of_joins_and_none_of_a_nodes() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let (mut machines, mut silent) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            let mut machine = gateway.connect(None).await;
            for _ in 0..16 {
                silent.push(machine.call(path::JOIN).await);
            }
            machines.push(machine);
        }
        until("they are taken", || gateway.counters[0].relays.get() == 128).await;
        let end = gateway.connect(None).await.call(path::JOIN).await.end().await;
        assert_eq!(end.message, "too many calls are being passed on; retry after the given delay");
        let mut node = gateway.node("n-1").await;
        let mut call = asked(&mut node, path::FETCH_SECRET, fetch()).await;
        let request = gateway.relays.next().await;
        gateway.relays.answer(request.key, Err(Refusal::new(RefusalCode::NotFound, "no")));
        assert_eq!(call.end().await.status, 5);
    });
}

#[test]
fn what_is_no_request_is_invalid_and_asks_nobody() {
    story(async {
        let gateway =
            Gateway::start(Limits { hello_timeout: Duration::from_millis(200), ..Limits::default() });
        let mut machine = gateway.connect(None).await;
        for (request, why) in [
            (join(""), "token is 0 bytes"),
            (join(&"t".repeat(9000)), "token is 9000 bytes"),
            (encode(&v1::JoinRequest { token: "t".into(), ..Default::default() }), "csr_der is 0 bytes"),
            (Bytes::from_static(&[0, 0, 0, 0, 2, 255, 255]), "no valid message"),
            (Bytes::from_static(&[0, 0, 1, 0, 0]), "over the limit"),
            (Bytes::new(), "without a request"),
        ] {
            let mut call = machine.call(path::JOIN).await;
            call.raw(request);
            call.half_close();
            let end = call.end().await;
            assert_eq!(end.status, INVALID_ARGUMENT, "{why}");
            assert!(end.message.contains(why), "{}", end.message);
        }
        let silent = machine.call(path::JOIN).await.end().await;
        assert_eq!(
            (silent.status, silent.message.as_str()),
            (INVALID_ARGUMENT, "the request did not come in time")
        );
    });
}

#[test]
fn an_answer_that_is_read_drop_by_drop_is_dropped_in_its_time() {
    story(async {
        let limits = Limits { send_timeout: Duration::from_secs(1), ..Limits::default() };
        let gateway = Gateway::start(limits);
        let mut http2 = h2::client::Builder::new();
        http2.initial_window_size(1024);
        let node = gateway.pki.node("sipper");
        let mut node =
            Client::connect_with(gateway.addr, &gateway.pki.roots, Some(&node), &http2).await.unwrap();
        let mut call = asked(&mut node, path::FETCH_SECRET, fetch()).await;
        let request = gateway.relays.next().await;
        let value = Hidden(Bytes::from(vec![7; 250_000]));
        let secret = Secret { value, version: "3".into(), expires_at_unix_ms: 0 };
        gateway.relays.answer(request.key, Ok(Answered::Secret(secret)));
        let over = until("its connection goes", || gateway.counters[0].connections.get() == 0);
        futures_util::future::join(call.sip(Duration::from_millis(100)), over).await;
        assert_eq!(call.end().await.status, UNAVAILABLE, "and not a whole answer");
    });
}

#[test]
fn a_gateway_that_does_not_serve_passes_nothing_on_and_one_that_drains_serves_those_who_are_there() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut node = gateway.node("n-1").await;
        let mut machine = gateway.connect(None).await;
        gateway.tell_all_and_wait(|| ToShard::Serving(false)).await;
        let end = machine.call(path::JOIN).await.end().await;
        assert_eq!(
            (end.status, end.message.as_str()),
            (UNAVAILABLE, CloseReason::Fenced.to_string().as_str())
        );
        gateway.tell_all_and_wait(|| ToShard::Serving(true)).await;
        let (_session, _) = node.session().await;
        let order = DrainOrder { within: Duration::from_secs(60), seed: 7 };
        let mut call = asked(&mut node, path::FETCH_SECRET, fetch()).await;
        let request = gateway.relays.next().await;
        gateway.tell_all_and_wait(|| ToShard::Drain(order)).await;
        gateway.relays.answer(request.key, Err(Refusal::new(RefusalCode::NotFound, "no")));
        assert_eq!(call.end().await.status, 5, "what was asked is answered");
        let end = gateway.connect(None).await.call(path::JOIN).await.end().await;
        assert_eq!(end.status, UNAVAILABLE);
        assert!(end.pushback_ms.is_some(), "{end:?}");
    });
}

#[test]
fn a_stop_ends_the_calls_that_wait() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut machine = gateway.connect(None).await;
        let mut call = asked(&mut machine, path::JOIN, join("t")).await;
        gateway.relays.next().await;
        let stopped = gateway.stop();
        let ended = async { soon(call.end()).await };
        let ((outcomes, _), end) = futures_util::future::join(stopped, ended).await;
        assert!(outcomes.iter().all(Result::is_ok));
        assert_eq!((end.status, end.message.as_str()), (UNAVAILABLE, "gateway stopping; reconnect"));
    });
}

#[test]
fn a_node_that_goes_away_gives_its_place_back() {
    story(async {
        let gateway = Gateway::start(Limits::default());
        let mut machine = gateway.connect(None).await;
        let mut call = asked(&mut machine, path::JOIN, join("t")).await;
        let first = gateway.relays.next().await;
        call.send.send_reset(h2::Reason::CANCEL);
        machine.over.abort();
        drop((machine, call));
        until("the connection is gone", || gateway.counters[0].connections.get() == 0).await;
        gateway.relays.answer(first.key, Ok(Answered::Issued(Issued::default())));
        let mut machine = gateway.connect(None).await;
        let _call = asked(&mut machine, path::JOIN, join("t")).await;
        let second = gateway.relays.next().await;
        assert_eq!(second.key.slot, first.key.slot);
        assert_ne!(second.key.serial, first.key.serial);
    });
}
