//! The protocol as a stock client of another language sees it: `conformance/run`, which is the
//! official gRPC library of Python, and a WebSocket library of it, against real gateways over mutual TLS.
//!
//! 1. Every story runs; one that is skipped fails this test as one that fails does.
//! 2. Three gateways serve one database: one with the defaults, which offers tunnels, one whose bucket of session opens is
//!    small, for the story of pushback, and one that the story of a drain sends away.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use gateway_testbed::authority::Authority;
use gateway_testbed::pki::{Identity, WrongCertificate};
use support::health::control_address;
use support::tunnels::{client_files, tunnel_options};
use support::{SOON, World, within};

const DEFAULTS: &str = "[shards]\ncount = 4\n";
const SMALL_BUCKET: &str = "[admission]\nopens_per_second = 1\nopens_burst = 3\n";
const LEAVING: &str = "[gateway]\ndrain = \"3s\"\ndrain_grace = \"30s\"\n";

#[tokio::test]
async fn a_stock_python_client_finds_every_story_of_the_protocol_kept() {
    run("python_conformance", "h2").await;
}

#[tokio::test]
async fn a_stock_websocket_client_finds_them_kept_too() {
    run("python_websocket", "websocket").await;
}

async fn run(story: &str, transport: &str) {
    let world = World::new(story).await;
    let hour = Duration::from_secs(3600);
    let authority = Authority::start(&world.pki, ([127, 0, 0, 1], 0).into(), &world.url, hour).await.unwrap();
    authority.keep_secret("conformance", "1", "only for nodes");
    let tokens: Vec<String> = (0..3).map(|n| authority.mint_token(&format!("joined-{n}"), hour)).collect();
    let gateway = world.start(tunnel_options(&world, &authority, "defaults", DEFAULTS)).await;
    let control = control_address(&mut world.connect().await, "defaults").await;
    let caller = client_files(gateway.options());
    let (ticket_key_name, ticket_key) = authority.mint().rotate_shown();
    let small = world.gateway("small-bucket", SMALL_BUCKET).await;
    let mut leaving = world.gateway("leaving", LEAVING).await;
    let folder = tempfile::tempdir().unwrap();
    let write = |identity: Identity, name: &str| identity.write(folder.path(), name).unwrap();
    let first = write(world.register("first").await, "first");
    let second = write(world.register("second").await, "second");
    let stranger = world.pki.wrong("first", WrongCertificate::OtherAuthority).unwrap();
    let stranger = write(stranger, "stranger");

    let ticket_key_file = folder.path().join("ticket-key.der");
    std::fs::write(&ticket_key_file, ticket_key).unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/run");
    let text = |path: &PathBuf| path.display().to_string();
    let output = tokio::process::Command::new(script)
        .args(["--endpoint", &gateway.address().to_string()])
        .args(["--small-bucket-endpoint", &small.address().to_string()])
        .args(["--ca", &text(&world.files.server_ca), "--database", &world.url])
        .args(["--cert", &text(&first.0), "--key", &text(&first.1), "--node-id", &world.id("first")])
        .args(["--second-cert", &text(&second.0), "--second-key", &text(&second.1)])
        .args(["--second-node-id", &world.id("second")])
        .args(["--leaving-endpoint", &leaving.address().to_string()])
        .args(["--leaving-pid", &leaving.pid().to_string()])
        .args(["--stranger-cert", &text(&stranger.0), "--stranger-key", &text(&stranger.1)])
        .args(["--control-endpoint", &control, "--control-ca", &text(&caller.ca)])
        .args(["--control-cert", &text(&caller.certificate), "--control-key", &text(&caller.key)])
        .args(["--ticket-key-name", &ticket_key_name, "--ticket-key", &text(&ticket_key_file)])
        .args(["--join-token", &tokens.join(","), "--secret-name", "conformance"])
        .args(["--secret-value", "only for nodes", "--transport", transport])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();

    let told = String::from_utf8_lossy(&output.stdout);
    eprintln!("{told}{}", String::from_utf8_lossy(&output.stderr));
    let summary = told.lines().last().unwrap_or_default();
    let sound = output.status.success() && summary.contains(" 0 failed") && !summary.contains("skipped");
    assert!(sound, "{summary:?}, {}", output.status);
    let ended = within(SOON, "the gateway that was sent away has ended", leaving.wait()).await.unwrap();
    assert_eq!(ended.code(), Some(0), "its node has left, so it stops in good order");
}
