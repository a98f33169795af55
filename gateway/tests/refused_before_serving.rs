//! What an operator is told before anything is served: a configuration whose files are not there, and
//! a database that can't hold what nodes send.
//!
//! 1. Each refusal ends with another code than 0 and says what, where, and what to do.

#![allow(clippy::unwrap_used)]

mod support;

use std::process::Output;

use sqlx::{AssertSqlSafe, Executor};
use support::{SOON, World, within};

async fn gateway(arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_gateway"));
    for variable in ["GATEWAY_CONFIG", "GATEWAY_DATABASE_URL"] {
        command.env_remove(variable);
    }
    command.args(arguments).kill_on_drop(true).output().await.unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_configuration_whose_tls_files_are_missing_or_wrong_is_not_called_valid() {
    let world = World::new("config_check").await;
    let options = world.options("g", "");
    options.write().unwrap();
    let config = options.config_path().display().to_string();
    let check = ["config", "check", "--config", config.as_str()];
    let sound = gateway(&check).await;
    assert_eq!(sound.status.code(), Some(0), "{}", stderr(&sound));

    // No key, in several ways: it is the key's fault each time.
    let key = std::fs::read(&world.files.key).unwrap();
    let empty = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    for garbage in ["", "no key", empty, "-----BEGIN PRIVATE KEY-----\n?\n-----END PRIVATE KEY-----\n"] {
        std::fs::write(&world.files.key, garbage).unwrap();
        let told = stderr(&gateway(&check).await);
        assert!(told.contains("tls.key: ") && !told.contains("tls.certificate"), "{garbage}: {told}");
    }

    // A key of another certificate.
    let other = world.pki.nodes(["n"]).unwrap().remove(0);
    let (_, other_key) = other.write(options.dir.as_path(), "other").unwrap();
    std::fs::copy(other_key, &world.files.key).unwrap();
    let mismatch = gateway(&check).await;
    assert_eq!(mismatch.status.code(), Some(2), "{}", stderr(&mismatch));
    assert!(stderr(&mismatch).contains("tls.key"), "{}", stderr(&mismatch));
    std::fs::write(&world.files.key, key).unwrap();

    // Two of three are missing: both are named.
    std::fs::remove_file(&world.files.certificate).unwrap();
    std::fs::remove_file(&world.files.node_ca).unwrap();
    let missing = gateway(&check).await;
    let told = stderr(&missing);
    assert_eq!(missing.status.code(), Some(2), "{told}");
    for (key, file) in [("tls.certificate", &world.files.certificate), ("tls.node_ca", &world.files.node_ca)]
    {
        let line = told.lines().find(|line| line.contains(&format!("{key}: "))).unwrap_or_default();
        assert!(line.contains(&config) && line.contains(&file.display().to_string()), "{key}: {told}");
        assert!(line.contains("put it there, or name the right file"), "{line}");
    }
    assert!(told.contains("--syntax-only") && missing.stdout.is_empty(), "{told}");

    let syntax = gateway(&["config", "check", "--config", &config, "--syntax-only"]).await;
    assert_eq!(syntax.status.code(), Some(0), "{}", stderr(&syntax));
    assert!(String::from_utf8_lossy(&syntax.stdout).contains("not looked at"));
}

#[tokio::test]
async fn a_file_of_the_configuration_that_is_a_pipe_is_refused_and_not_waited_for() {
    let world = World::new("pipes").await;
    let options = world.options("g", "");
    options.write().unwrap();
    let pipe = options.dir.join("pipe");
    let (here, mode) = (rustix::fs::CWD, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(here, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let written = std::fs::read_to_string(options.config_path()).unwrap();
    let mut sound: toml::Table = written.parse().unwrap();
    sound["database"].as_table_mut().unwrap().remove("url");
    let pipe = pipe.display().to_string();
    for (section, key) in [("database", "url_file"), ("tls", "certificate"), ("upstream", "ca")] {
        let mut config = sound.clone();
        let keys = config.entry(section).or_insert_with(|| toml::Table::new().into());
        let keys = keys.as_table_mut().unwrap();
        keys.insert(key.to_owned(), pipe.as_str().into());
        if section == "upstream" {
            keys.insert("join_url".to_owned(), "https://localhost:1".into());
        }
        std::fs::write(options.config_path(), config.to_string()).unwrap();
        let config = options.config_path().display().to_string();
        for command in [&["config", "check", "--config", &config][..], &["serve", "--config", &config]] {
            let refused = within(SOON, "the refusal", gateway(command)).await;
            let told = stderr(&refused);
            assert_eq!(refused.status.code(), Some(2), "{command:?}: {told}");
            assert!(told.contains(key) && told.contains("is no regular file"), "{command:?}: {told}");
        }
    }
}

#[tokio::test]
async fn a_database_that_is_not_utf8_is_neither_migrated_nor_served() {
    let world = World::new("encoding").await;
    let name = format!("{}_ascii", world.database);
    let statement =
        format!("CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    world.connect().await.execute(AssertSqlSafe(statement)).await.unwrap();
    let url = world.url.replace(&world.database, &name);

    let migrated = gateway(&["migrate", "--database-url", &url]).await;
    let told = stderr(&migrated);
    assert_eq!(migrated.status.code(), Some(1), "{told}");
    let mut options = world.options("g", "");
    options.database_url = url;
    let served =
        gateway_testbed::gateway_process::GatewayProcess::start(options).await.unwrap_err().to_string();
    for told in [told, served] {
        assert!(
            told.contains("encoding SQL_ASCII") && told.contains("CREATE DATABASE gateway ENCODING 'UTF8'"),
            "{told}"
        );
    }
}
