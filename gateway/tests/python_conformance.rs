//! The protocol as a stock client of another language sees it: `conformance/run`, which is the
//! official gRPC library of Python, against real gateways over mutual TLS.
//!
//! 1. Every story runs; one that is skipped fails this test as one that fails does.
//! 2. Two gateways serve one database: one with the defaults, one whose bucket of session opens is
//!    small, for the story of pushback.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use gateway_testbed::cluster::{Cluster, ClusterOptions};
use gateway_testbed::database::register_nodes;
use gateway_testbed::gateway_process::{GatewayOptions, GatewayProcess};
use gateway_testbed::pki::{Pki, SITE, TRUST_DOMAIN, WrongCertificate, node_uri};

const SMALL_BUCKET: &str = "[admission]\nopens_per_second = 1\nopens_burst = 3\n";

#[tokio::test]
async fn a_stock_python_client_finds_every_story_of_the_protocol_kept() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let database = cluster.create_database("gateway").await.unwrap();
    let pki = Pki::new().unwrap();
    let files = pki.write_gateway_files(folder.path()).unwrap();

    let gateway_in = |name: &str, extra: &str| {
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_gateway"));
        let mut options = GatewayOptions::new(binary, folder.path().join(name), database.clone(), files.clone());
        options.id = name.to_owned();
        options.extra = extra.to_owned();
        // Also where there is one cpu: a superseding session then lives on another shard.
        options.shards = Some(4);
        options
    };
    let defaults = gateway_in("defaults", "");
    defaults.migrate().await.unwrap();
    let gateway = GatewayProcess::start(defaults).await.unwrap();
    let small = GatewayProcess::start(gateway_in("small-bucket", SMALL_BUCKET)).await.unwrap();

    let (first, second) = (node_uri(TRUST_DOMAIN, SITE, "first"), node_uri(TRUST_DOMAIN, SITE, "second"));
    let mut connection = cluster.connect("gateway").await.unwrap();
    register_nodes(&mut connection, &[first.clone(), second.clone()]).await.unwrap();
    let write = |identity: gateway_testbed::pki::Identity, name: &str| identity.write(folder.path(), name).unwrap();
    let first_files = write(pki.node("first").unwrap(), "first");
    let second_files = write(pki.node("second").unwrap(), "second");
    let stranger = write(pki.wrong("first", WrongCertificate::OtherAuthority).unwrap(), "stranger");

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/run");
    let output = tokio::process::Command::new(script)
        .args(["--endpoint", &gateway.address().to_string()])
        .args(["--small-bucket-endpoint", &small.address().to_string()])
        .args([Path::new("--ca"), &files.server_ca])
        .args([Path::new("--cert"), &first_files.0, Path::new("--key"), &first_files.1])
        .args(["--node-id", &first])
        .args([Path::new("--second-cert"), &second_files.0, Path::new("--second-key"), &second_files.1])
        .args(["--second-node-id", &second])
        .args([Path::new("--stranger-cert"), &stranger.0, Path::new("--stranger-key"), &stranger.1])
        .args(["--database", &database])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();

    let told = String::from_utf8_lossy(&output.stdout);
    println!("{told}{}", String::from_utf8_lossy(&output.stderr));
    let summary = told.lines().last().unwrap_or_default();
    let sound = output.status.success() && summary.contains(" 0 failed") && !summary.contains("skipped");
    assert!(
        sound,
        "{summary:?}, {}\nthe gateway's log ends:\n{}\nthat of the small bucket:\n{}",
        output.status,
        gateway.log_tail(40),
        small.log_tail(20)
    );
}
