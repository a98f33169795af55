//! What any client may call: enqueue, cancel, retention, and what they refuse.
//!
//! These functions are the interface of the schema to programs that are no gateway: a refusal is
//! judged by its SQLSTATE and its sentence, and `seq` must be in the order of commits. What a gateway
//! does with the rows is in `dispatch`, `hello` and `updates`.

#![allow(clippy::unwrap_used)]

mod support;

use gateway_core::command::CommandState;
use gateway_core::store::*;
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, PgConnection};
use support::*;

/// The SQLSTATE and the message of a statement that fails.
async fn refused(sql: &mut PgConnection, statement: &str) -> (String, String) {
    let error = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(sql).await.unwrap_err();
    let error = error.into_database_error().unwrap();
    (error.code().unwrap().into_owned(), error.message().to_owned())
}

#[tokio::test]
async fn what_could_never_be_delivered_is_refused_with_the_reason() {
    let mut db = database().await;
    db.nodes(1).await;
    for (arguments, code, word) in [
        ("'n9', 'work'", "23503", "not registered"),
        ("NULL, 'work'", "23503", "not registered"),
        ("'n1', ''", "22023", "command kind"),
        ("'n1', NULL", "22023", "command kind"),
        ("'n1', 'work', lane => ''", "22023", "lane name"),
        ("'n1', 'work', lane => repeat('x', 65)", "22023", "lane name"),
        ("'n1', 'work', lane => E'a\\u0085'", "22023", "lane name"),
        ("'n1', 'work', convert_to(repeat('x', 524289), 'UTF8')", "54000", "524289"),
        ("'n1', 'work', payload => NULL", "22004", "payload"),
        ("'n1', 'work', max_attempts => 0", "22023", "max_attempts"),
        ("'n1', 'work', not_after => now()", "22023", "never be sent"),
        (
            "'n1', 'work', not_before => now() + interval '2 h', not_after => now() + interval '1 h'",
            "22023",
            "never be sent",
        ),
    ] {
        let (got, message) = refused(&mut db.sql, &format!("SELECT enqueue_command({arguments})")).await;
        assert_eq!(got, code, "{arguments}: {message}");
        assert!(message.contains(word), "{arguments}: {message}");
    }
    let largest = "SELECT enqueue_command('n1', 'work', convert_to(repeat('x', 524288), 'UTF8'), lane => repeat('x', 64))";
    run(&mut db.sql, largest).await;
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM commands").await, 1);
}

#[tokio::test]
async fn the_same_key_again_changes_nothing_and_a_rollback_leaves_no_hole() {
    let mut db = database().await;
    db.nodes(2).await;
    let once = db.enqueue_with("n1", "default", ", idempotency_key => 'k'").await;
    run(&mut db.sql, "BEGIN; SELECT enqueue_command('n1', 'work'); ROLLBACK").await;
    assert_eq!(db.enqueue_with("n1", "other", ", idempotency_key => 'k'").await, once);
    assert_ne!(db.enqueue_with("n2", "default", ", idempotency_key => 'k'").await, once);
    db.enqueue("n1", "default").await;
    let seqs = "SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM commands WHERE node_id = 'n1'";
    assert_eq!(text(&mut db.sql, seqs).await, "1 2");
    let (code, message) =
        refused(&mut db.sql, &format!("SELECT enqueue_command('n1', 'work', id => '{once}')")).await;
    assert_eq!(code, "23505", "{message}");
}

#[tokio::test]
async fn seq_order_is_commit_order_even_when_enqueues_overlap() {
    let mut db = database().await;
    db.nodes(1).await;
    let mut first = db.client("first").await;
    run(&mut first, "BEGIN; SELECT enqueue_command('n1', 'first')").await;
    let mut second = db.client("second").await;
    let waiting = tokio::spawn(async move {
        run(&mut second, "SELECT enqueue_command('n1', 'second')").await;
    });
    db.until_waits_for("second", "first").await;
    run(&mut first, "COMMIT").await;
    waiting.await.unwrap();
    let order = "SELECT string_agg(kind, ' ' ORDER BY seq) FROM commands";
    assert_eq!(text(&mut db.sql, order).await, "first second");
}

#[tokio::test]
async fn a_snapshot_older_than_the_lock_is_told_to_try_again() {
    let mut db = database().await;
    db.nodes(1).await;
    for statement in
        ["SELECT enqueue_command('n1', 'work')", "SELECT enqueue_commands(ARRAY['n1', 'n1'], ARRAY['work'])"]
    {
        let mut old = db.client("old").await;
        run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM commands").await;
        db.enqueue("n1", "default").await;
        let (code, message) = refused(&mut old, statement).await;
        assert_eq!(code, "40001", "{message}");
    }
}

#[tokio::test]
async fn many_are_enqueued_at_once_each_with_its_own_id() {
    let mut db = database().await;
    db.nodes(2).await;
    let known = db.enqueue_with("n1", "default", ", idempotency_key => 'a'").await;
    let made = texts(
        &mut db.sql,
        "SELECT command_id FROM enqueue_commands(ARRAY['n1', 'n2', 'n1', 'n1', 'n2'], ARRAY['k'], \
         ARRAY['1', '2', '3', '4', '5']::bytea[], ARRAY['x', 'default', 'x', 'y', 'z'], \
         idempotency_keys => ARRAY['a', NULL, 'b', 'b', NULL]) ORDER BY slot",
    )
    .await;
    assert_eq!(made[0], known.to_string());
    assert_eq!(made[2], made[3]);
    let rows = "SELECT string_agg(concat_ws('/', node_id, seq, lane, encode(payload, 'escape')), ' ' ORDER BY node_id, seq) \
                FROM commands";
    assert_eq!(text(&mut db.sql, rows).await, "n1/1/default/body n1/2/x/3 n2/1/default/2 n2/2/z/5");
    let (code, message) =
        refused(&mut db.sql, "SELECT enqueue_commands(ARRAY['n1', 'n2'], ARRAY['a', 'b', 'c'])").await;
    assert_eq!(code, "2202E", "{message}");
    let (code, message) =
        refused(&mut db.sql, "SELECT enqueue_commands(ARRAY['n1', 'n9'], ARRAY['a'])").await;
    assert_eq!((code.as_str(), message.contains("'n9'")), ("23503", true), "{message}");
}

#[tokio::test]
async fn many_at_once_are_no_list_that_is_looked_through_for_each_of_another() {
    let mut db = database().await;
    db.nodes(300).await;
    let many = "SELECT count(*) FROM enqueue_commands((SELECT array_agg('n' || i) FROM generate_series(1, 300) i), \
                ARRAY['looked-at'])";
    run(&mut db.sql, "LOAD 'auto_explain'; SET auto_explain.log_nested_statements = on").await;
    run(&mut db.sql, "SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off").await;
    // From the sixth call on the plan is one that knows no counts.
    for call in 0..8 {
        if call == 7 {
            run(&mut db.sql, "SET auto_explain.log_min_duration = 0").await;
        }
        assert_eq!(number(&mut db.sql, many).await, 300);
    }
    let log = server_log();
    let plan = log
        .split("Query Text:")
        .find(|plan| plan.contains("looked-at") || plan.contains("INSERT INTO commands"));
    assert!(plan.is_some_and(|plan| plan.contains("Insert on commands")), "the plan was not written down");
    assert!(!log.contains("Rows Removed by Join Filter"), "{}", plan.unwrap_or_default());
    let seqs = "SELECT count(DISTINCT seq) || '/' || max(seq) FROM commands WHERE node_id = 'n300'";
    assert_eq!(text(&mut db.sql, seqs).await, "8/8");
}

#[tokio::test]
async fn bulk_enqueues_in_opposite_orders_never_lock_each_other_out() {
    let mut db = database().await;
    db.nodes(30).await;
    let mut tasks = Vec::new();
    for order in ["ASC", "DESC"] {
        let mut sql = db.client(order).await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let nodes =
                    format!("(SELECT array_agg('n' || i ORDER BY i {order}) FROM generate_series(1, 30) i)");
                run(&mut sql, &format!("SELECT enqueue_commands({nodes}, ARRAY['work'])")).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(number(&mut db.sql, "SELECT max(seq) FROM commands").await, 40);
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM commands").await, 1200);
}

#[tokio::test]
async fn the_gateway_that_owns_the_session_is_poked_after_the_commit_unless_that_is_off() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    let epoch = db.connect(&proof, "n1", &[("default", 1)]).await.epoch;
    let mut listener = PgListener::connect(&db.url).await.unwrap();
    listener.listen("gw:g1").await.unwrap();
    run(&mut db.sql, "SELECT enqueue_command('n2', 'work')").await;
    run(&mut db.sql, "SET gateway.notify = off; SELECT enqueue_command('n1', 'work'); RESET gateway.notify")
        .await;
    run(&mut db.sql, "BEGIN; SELECT enqueue_command('n1', 'work'); ROLLBACK").await;
    run(&mut db.sql, "SELECT pg_notify('gw:g1', 'mark')").await;
    assert_eq!(listener.recv().await.unwrap().payload(), "mark");
    run(&mut db.sql, "SELECT enqueue_command('n1', 'work')").await;
    assert_eq!(listener.recv().await.unwrap().payload(), "n1");
    // A cancellation of what the node has pokes too; of what is pending it need not.
    let claims =
        dispatch(&mut db.runner(Queue::Dispatch), &proof, vec![want("n1", epoch, "default", 1)]).await;
    run(&mut db.sql, &format!("SELECT cancel_command('n1', '{}')", claims[0].command.id)).await;
    assert_eq!(listener.recv().await.unwrap().payload(), "n1");
}

#[tokio::test]
async fn a_cancellation_says_where_the_command_is() {
    let mut db = database().await;
    db.nodes(1).await;
    let id = db.enqueue("n1", "default").await;
    let cancel = format!("SELECT cancel_command('n1', '{id}', 'why')");
    assert_eq!(text(&mut db.sql, &cancel).await, "canceled");
    assert_eq!(text(&mut db.sql, &cancel).await, "canceled");
    let row = "SELECT concat_ws('/', state, cancel_reason, finished_at IS NOT NULL) FROM commands";
    assert_eq!(text(&mut db.sql, row).await, "canceled/why/t");
    let running = db.enqueue("n1", "default").await;
    let entries = vec![update("n1", running, 1, CommandState::Running)];
    db.runner(Queue::Updates).run(&Job::Updates { entries }).await;
    assert_eq!(text(&mut db.sql, &format!("SELECT cancel_command('n1', '{running}')")).await, "running");
    // A node could not read a longer one, at no Hello.
    let endless = format!("SELECT cancel_command('n1', '{running}', repeat('r', 4097))");
    let (code, message) = refused(&mut db.sql, &endless).await;
    assert!(code == "54000" && message.contains("4097 bytes"), "{code} {message}");
    let (code, message) = refused(&mut db.sql, "SELECT cancel_command('n1', gen_random_uuid())").await;
    assert_eq!(code, "P0002", "{message}");
}

#[tokio::test]
async fn a_waiter_reads_what_a_command_waits_for() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let id = db.enqueue("n1", "default").await;
    let why = format!("SELECT waits_for FROM command_status WHERE node_id = 'n1' AND id = '{id}'");
    assert_eq!(text(&mut db.sql, &why).await, "the node is not connected");
    db.connect(&proof, "n1", &[("other", 1)]).await;
    assert_eq!(text(&mut db.sql, &why).await, "the node did not declare this lane");
    let epoch = db.connect(&proof, "n1", &[("default", 1)]).await.epoch;
    assert_eq!(text(&mut db.sql, &why).await, "it waits for a credit of its lane");
    dispatch(&mut db.runner(Queue::Dispatch), &proof, vec![want("n1", epoch, "default", 1)]).await;
    assert_eq!(text(&mut db.sql, &why).await, "the node has it");
    let entries = vec![update("n1", id, 1, CommandState::Succeeded)];
    db.runner(Queue::Updates).run(&Job::Updates { entries }).await;
    let done = format!(
        "SELECT concat_ws('/', state, done, encode(result, 'escape')) FROM command_status WHERE id = '{id}'"
    );
    assert_eq!(text(&mut db.sql, &done).await, "succeeded/t/result");
}

#[tokio::test]
async fn retention_removes_what_ended_and_never_gives_a_seq_twice() {
    let mut db = database().await;
    db.nodes(1).await;
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(db.enqueue("n1", "default").await);
    }
    let entries = [0, 2, 3, 4].map(|i: usize| update("n1", all[i], 1, CommandState::Succeeded)).to_vec();
    db.runner(Queue::Updates).run(&Job::Updates { entries }).await;
    let remove = "SELECT remove_old_commands('n1', now() + interval '1 h', 3)";
    assert_eq!(number(&mut db.sql, remove).await, 3);
    assert_eq!(number(&mut db.sql, remove).await, 1);
    assert_eq!(number(&mut db.sql, remove).await, 0);
    db.enqueue("n1", "default").await;
    let seqs = "SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM commands";
    assert_eq!(text(&mut db.sql, seqs).await, "2 6");
}
