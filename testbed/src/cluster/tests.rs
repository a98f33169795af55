//! A cluster as root and as an ordinary user, through stops, crashes and a second start.
//!
//! Each story starts a real server in a folder of its own. Data must outlive stops and crashes; a
//! cluster that is dropped must leave neither a process nor a folder. What is stored in it is no
//! matter here.

use super::*;

async fn insert_and_count(url: &str) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)").await.unwrap();
    connection.execute("INSERT INTO kept VALUES (1)").await.unwrap();
    let (count,): (i64,) =
        sqlx::query_as("SELECT count(*) FROM kept").fetch_one(&mut connection).await.unwrap();
    count
}

#[tokio::test]
async fn a_cluster_keeps_its_data_over_stop_and_crash_and_leaves_nothing() {
    let mut cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let dir = cluster.dir().to_owned();
    let url = cluster.create_database("first").await.unwrap();
    assert_eq!(insert_and_count(&url).await, 1);
    cluster.restart(StopMode::Fast).unwrap();
    assert_eq!(insert_and_count(&url).await, 2);
    cluster.restart(StopMode::Immediate).unwrap();
    assert_eq!(insert_and_count(&url).await, 3);
    let mut connection = cluster.connect("first").await.unwrap();
    let (fsync,): (String,) = sqlx::query_as("SHOW fsync").fetch_one(&mut connection).await.unwrap();
    assert_eq!(fsync, "on");
    let pid = cluster.pid().unwrap();
    drop(connection);
    drop(cluster);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(!dir.exists());
}

#[tokio::test]
async fn a_second_start_uses_the_data_again_and_a_parallel_one_is_refused() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let options = ClusterOptions { dir: Some(root.path().join("kept")), ..ClusterOptions::default() };
    let cluster = Cluster::start(options.clone()).unwrap();
    let url = cluster.create_database("first").await.unwrap();
    assert_eq!(insert_and_count(&url).await, 1);
    let error = Cluster::start(options.clone()).unwrap_err();
    assert!(matches!(error, ClusterError::AlreadyRunning { .. }), "{error}");
    drop(cluster);
    let cluster = Cluster::start(options).unwrap();
    let url = cluster.create_database("first").await.unwrap();
    assert_eq!(insert_and_count(&url).await, 2);
}

#[tokio::test]
async fn the_loopback_port_asks_for_the_password() {
    let cluster = Cluster::start(ClusterOptions { loopback_tcp: true, ..ClusterOptions::default() }).unwrap();
    let url = cluster.tcp_url("postgres").unwrap();
    assert!(PgConnection::connect(&url).await.is_ok());
    assert!(PgConnection::connect(&cluster.url("postgres")).await.is_ok());
    let wrong = url.replace(cluster.password(), "wrong");
    assert!(PgConnection::connect(&wrong).await.is_err());
}

#[tokio::test]
async fn a_deep_folder_gets_a_socket_that_fits() {
    let root = tempfile::tempdir().unwrap();
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let dir = root.path().join("d".repeat(120));
    let cluster = Cluster::start(ClusterOptions { dir: Some(dir), ..ClusterOptions::default() }).unwrap();
    assert!(cluster.connect("postgres").await.is_ok());
}

#[test]
fn a_bad_setting_shows_the_servers_own_words() {
    let settings = vec![("no_such_setting".to_owned(), "1".to_owned())];
    let error = Cluster::start(ClusterOptions { settings, ..ClusterOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

/// As root, the whole first story once more as an ordinary user, in a process of its own.
#[test]
fn an_ordinary_user_can_run_a_cluster_too() {
    if !rustix::process::geteuid().is_root() {
        return; // Then the other stories have shown it.
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let program = folder.path().join("story");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut story = Command::new(&program);
    story
        .args(["--exact", "cluster::tests::a_cluster_keeps_its_data_over_stop_and_crash_and_leaves_nothing"])
        .env_clear()
        .envs([("TMPDIR", folder.path()), ("PATH", Path::new("/usr/bin:/bin"))])
        .current_dir(folder.path());
    Account::for_tests("nobody").apply(&mut story);
    let output = story.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn a_frozen_server_answers_nothing_until_it_is_thawed_and_can_be_stopped_as_it_is() {
    let mut cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let url = cluster.create_database("first").await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    cluster.freeze().unwrap();
    let answer = connection.execute("SELECT 1");
    let mut answer = std::pin::pin!(answer);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
    assert!(early.is_err(), "the connection's own process stands still too");
    cluster.thaw().unwrap();
    tokio::time::timeout(Duration::from_secs(20), answer).await.unwrap().unwrap();
    cluster.freeze().unwrap();
    cluster.stop(StopMode::Immediate).unwrap();
    assert_eq!(cluster.pid(), None);
}
