//! "From nothing to a gateway" of the README, done as it stands there: its certificates, its configuration, its node.
//!
//! 1. Only the folder, the database and the ports are others.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use gateway_testbed::node::{Node, NodeOptions, Target};
use gateway_testbed::pki::client_config_of;
use sqlx::Executor;
use support::{SOON, World, asked_until, within};

const NODE: &str = "spiffe://fleet.example/site/lab/node/n1";

fn readme() -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("README.md");
    std::fs::read_to_string(readme).unwrap()
}

/// Fenced blocks, with their languages.
fn blocks(text: &str) -> Vec<(String, String)> {
    let fenced = text.split("\n```").skip(1).step_by(2);
    fenced
        .map(|block| block.split_once('\n').unwrap())
        .map(|(of, text)| (of.to_owned(), text.to_owned()))
        .collect()
}

fn bash(folder: &Path, script: &str) -> String {
    let output =
        Command::new("bash").args(["-euo", "pipefail", "-c", script]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_configuration_in_the_readme_is_one_that_a_gateway_takes() {
    let folder = tempfile::tempdir().unwrap();
    let all = blocks(&readme());
    let of_gateways = all.iter().filter(|(of, text)| of == "toml" && !text.contains("[dependencies]"));
    let mut seen = 0;
    for (_, text) in of_gateways {
        let file = folder.path().join("gateway.toml");
        let id = if text.contains("[gateway]") { "" } else { "[gateway]\nid = \"g1\"\n" };
        std::fs::write(&file, format!("{id}{text}")).unwrap();
        let mut check = Command::new(env!("CARGO_BIN_EXE_gateway"));
        let output =
            check.args(["config", "check", "--syntax-only", "--config"]).arg(&file).output().unwrap();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        seen += 1;
    }
    assert!(seen >= 4, "only {seen} configurations were found");
}

#[tokio::test]
async fn what_the_readme_says_makes_a_gateway_and_a_node_that_connects() {
    let world = World::new("from_nothing").await;
    let folder = tempfile::tempdir().unwrap();
    let readme = readme();
    let section = readme.split("\n## From nothing to a gateway\n").nth(1).expect("the section is there");
    let blocks = blocks(section.split("\n## ").next().unwrap());
    let [certificates, configuration, install] = &blocks[..] else { panic!("{blocks:?}") };
    assert_eq!((certificates.0.as_str(), configuration.0.as_str()), ("bash", "toml"));
    bash(folder.path(), &certificates.1);

    let tls = folder.path().display().to_string();
    let text = configuration.1.replace("/etc/gateway/tls", &tls);
    let text = text.replace("postgresql:///gateway?host=/run/postgresql", &world.url);
    let text = text.replace("127.0.0.1:7481", "127.0.0.1:0");
    assert!(text.contains(&world.url) && !text.contains("7481"), "{text}");
    let gateway = world.start(world.options("g1", &text)).await;

    let serial = install.1.lines().find(|line| line.starts_with("serial=")).expect("it takes the serial");
    let serial = bash(folder.path(), &format!("{}; echo $serial", serial.replace("/etc/gateway/tls", &tls)));
    for statement in ["register_node('", "INSERT INTO node_certs"] {
        assert!(install.1.contains(statement), "{statement}");
    }
    let mut database = world.connect().await;
    let recorded = format!(
        "SELECT register_node('{NODE}'); INSERT INTO node_certs (serial, node_id) VALUES ('{}', '{NODE}')",
        serial.trim()
    );
    database.execute(sqlx::AssertSqlSafe(recorded)).await.unwrap();
    let file = |name: &str| folder.path().join(name);
    let shown = client_config_of(&file("server-ca.pem"), &file("n1.pem"), &file("n1.key")).unwrap();
    let _node = Node::start(NodeOptions::new(NODE, Target::new(gateway.address(), shown)));
    asked_until(SOON, "the node has its session", async || {
        let live = "SELECT node_id FROM node_sessions WHERE disconnected_at IS NULL AND gateway_id = 'g1'";
        let live: Option<(String,)> = sqlx::query_as(live).fetch_optional(&mut database).await.unwrap();
        live.filter(|(node,)| node == NODE)
    })
    .await;

    // The file has all that the operator's commands need.
    for command in [&["health"][..], &["top", "--once", "--interval", "100ms"], &["live-sessions"]] {
        let mut run = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"));
        run.args(command).arg("--config").arg(gateway.options().config_path()).stdin(Stdio::null());
        for variable in ["CONFIG", "DATABASE_URL", "CONTROL_CA", "CONTROL_CERTIFICATE", "CONTROL_KEY"] {
            run.env_remove(format!("GATEWAY_{variable}"));
        }
        let output = within(SOON, "it answers", run.kill_on_drop(true).output()).await.unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{command:?}: {told}");
    }
}
