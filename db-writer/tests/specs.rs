//! Specs on PostgreSQL: setting them, what is due to a session, and what nodes answered.
//!
//! The same rules over made-up sequences are in `model`; here stand those that a model can't show: what is
//! refused with which words, locks, notifications, sizes, plans and what a sweep reads.

#![allow(clippy::unwrap_used)]

mod support;

use gateway_core::frame::SpecGeneration;
use gateway_core::ids::{Generation, SpecName};
use gateway_core::seam::{SPEC_HEAD_BYTES, SpecAnswer};
use gateway_core::store::*;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgListener;
use support::*;

const ALL: usize = 4 << 20;
const MOST: usize = 512 << 10;

fn known(name: &str, generation: u64) -> SpecGeneration {
    SpecGeneration { name: SpecName::new(name).unwrap(), generation: Generation(generation) }
}

fn look(name: &str, grant: &HelloGrant, has: &[(&str, u64)], answered_too: bool, room: usize) -> SpecsLook {
    let known = has.iter().map(|(name, generation)| known(name, *generation)).collect();
    SpecsLook { node: node(name), epoch: grant.epoch, known, answered_too, room }
}

fn said(name: &str, spec: &str, generation: u64, error: Option<&str>) -> SpecAnswer {
    SpecAnswer {
        key: gateway_core::ids::SessionKey { shard: gateway_core::ids::ShardId(0), slot: 1, serial: 1 },
        node: node(name),
        name: SpecName::new(spec).unwrap(),
        generation: Generation(generation),
        error: error.map(str::to_owned),
    }
}

impl Db {
    async fn set(&mut self, name: &str, spec: &str, body: &str) -> i64 {
        number(&mut self.sql, &format!("SELECT set_spec('{name}', '{spec}', {body})")).await
    }

    async fn refusal(&mut self, arguments: &str) -> (String, String) {
        let query = format!("SELECT set_spec({arguments})");
        let error = sqlx::raw_sql(AssertSqlSafe(query)).execute(&mut self.sql).await.unwrap_err();
        let error = error.into_database_error().unwrap();
        let hint = error.downcast_ref::<sqlx::postgres::PgDatabaseError>().hint().unwrap_or_default();
        (error.message().to_owned(), hint.to_owned())
    }

    /// What is due, "name generation" for each session, with "…" where more is.
    async fn due(&self, looks: Vec<SpecsLook>, at_most_bytes: usize) -> Vec<String> {
        self.due_on("g1", looks, at_most_bytes).await
    }

    async fn due_on(&self, name: &str, looks: Vec<SpecsLook>, at_most_bytes: usize) -> Vec<String> {
        let job = Job::SpecsDue { gateway: gateway(name), looks, at_most_bytes };
        let outcome = self.runner_of(name, Queue::Specs).run(&job).await;
        let Outcome::SpecsDue(Ok(found)) = outcome else { panic!("{outcome:?}") };
        let line = |found: SpecsFound| {
            let mut specs: Vec<String> =
                found.specs.iter().map(|spec| format!("{} {}", spec.name, spec.generation)).collect();
            if found.more {
                specs.push("…".to_owned());
            }
            specs.join(", ")
        };
        found.into_iter().map(line).collect()
    }

    async fn answer(&self, entries: Vec<SpecAnswer>) -> Vec<SpecAppliedOutcome> {
        let outcome = self.runner(Queue::Specs).run(&Job::SpecsApplied { entries }).await;
        let Outcome::SpecsApplied(Ok(outcomes)) = outcome else { panic!("{outcome:?}") };
        outcomes
    }

    async fn status(&mut self) -> Vec<String> {
        texts(
            &mut self.sql,
            "SELECT concat_ws(' ', node_id, name, generation, applied_generation, outcome, answered, waits_for) \
             FROM spec_status ORDER BY node_id, name",
        )
        .await
    }
}

#[tokio::test]
async fn a_generation_rises_with_each_change_and_with_nothing_else() {
    let mut db = database().await;
    db.nodes(3).await;
    assert_eq!(db.set("n1", "dns", "'a'").await, 1);
    let before = text(&mut db.sql, "SELECT xmin || ' ' || ctid || ' ' || updated_at FROM specs").await;
    assert_eq!(db.set("n1", "dns", "'a'").await, 1, "the same body");
    let after = text(&mut db.sql, "SELECT xmin || ' ' || ctid || ' ' || updated_at FROM specs").await;
    assert_eq!(after, before, "writes no row");
    assert_eq!(db.set("n1", "dns", "'b'").await, 2);
    assert_eq!(db.set("n1", "dns", "'a'").await, 3, "back to an older body is a change");
    assert_eq!(db.set("n1", "ntp", "''").await, 1);
    let many = "SELECT string_agg(node_id || ' ' || generation, ', ') \
                FROM set_specs(ARRAY['n2', 'n1', 'n2', 'n3'], 'dns', 'a')";
    assert_eq!(text(&mut db.sql, many).await, "n1 3, n2 1, n3 1");
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM set_specs('{}', 'dns', 'a')").await, 0);
}

#[tokio::test]
async fn what_could_never_be_delivered_is_refused_with_what_to_do() {
    let mut db = database().await;
    db.nodes(1).await;
    run(&mut db.sql, "SELECT count(set_spec('n1', 's' || i, '')) FROM generate_series(1, 64) i").await;
    for (arguments, message, hint) in [
        ("'n9', 'dns', ''", "set_spec: node 'n9' is not registered", "SELECT register_node('n9')"),
        ("NULL, 'dns', ''", "set_spec: node '' is not registered", "SELECT register_node('spiffe://…')"),
        ("'n1', '', ''", "set_spec: '' is no spec name", "1 to 64 bytes"),
        ("'n1', NULL, ''", "set_spec: NULL is no spec name", "1 to 64 bytes"),
        ("'n1', repeat('x', 65), ''", "is no spec name", "1 to 64 bytes"),
        ("'n1', E'a\\nb', ''", "is no spec name", "no control characters"),
        ("'n1', 'dns', NULL", "set_spec: the body is null", "a body that says so"),
        (
            "'n1', 'dns', decode(repeat('00', 524289), 'hex')",
            "set_spec: the body has 524289 bytes; at most 524288 are delivered",
            "a reference to it",
        ),
        ("'n1', 'dns', ''", "set_spec: node 'n1' has 64 specs already", "into one spec"),
    ] {
        let (told, hinted) = db.refusal(arguments).await;
        assert!(told.contains(message) && hinted.contains(hint), "{arguments}: {told:?}, {hinted:?}");
    }
    assert_eq!(db.set("n1", "s64", "'one of the 64 changes'").await, 2);
    assert_eq!(db.set("n1", "s1", "decode(repeat('00', 524288), 'hex')").await, 2, "the largest body");
}

#[tokio::test]
async fn after_a_hello_that_is_due_which_the_node_does_not_list_and_later_what_it_has_not_answered() {
    let mut db = database().await;
    db.nodes(2).await;
    let proof = db.lease().await;
    for (spec, body) in [("a", "'1'"), ("b", "'1'"), ("b", "'2'"), ("c", "'1'")] {
        db.set("n1", spec, body).await;
    }
    db.set("n2", "z", "'1'").await;
    let grant = db.connect(&proof, "n1", &[]).await;
    let by_hello = |has: &[(&str, u64)]| vec![look("n1", &grant, has, true, MOST)];
    let unanswered = |has: &[(&str, u64)]| vec![look("n1", &grant, has, false, MOST)];
    assert_eq!(db.due(by_hello(&[]), ALL).await, ["a 1, b 2, c 1"]);
    assert_eq!(db.due(by_hello(&[("a", 1), ("b", 1), ("c", 9), ("gone", 4)]), ALL).await, ["b 2"]);
    db.answer(vec![said("n1", "a", 1, None), said("n1", "b", 1, None), said("n1", "c", 1, Some("no"))]).await;
    assert_eq!(db.due(unanswered(&[]), ALL).await, ["b 2"], "a failure is an answer too");
    assert_eq!(db.due(by_hello(&[("a", 1)]), ALL).await, ["b 2, c 1"], "until a Hello lists an older one");
    assert_eq!(db.due(unanswered(&[("b", 2)]), ALL).await, [""], "sent before");
    db.set("n1", "b", "'3'").await;
    assert_eq!(db.due(unanswered(&[("b", 2)]), ALL).await, ["b 3"], "and changed since");
}

#[tokio::test]
async fn a_session_that_is_not_the_nodes_gets_nothing() {
    let mut db = database().await;
    db.nodes(1).await;
    let (here, there) = (db.lease().await, db.lease_of("g2", "o2").await);
    db.set("n1", "a", "'1'").await;
    let first = db.connect(&here, "n1", &[]).await;
    assert_eq!(db.due(vec![look("n1", &first, &[], false, MOST)], ALL).await, ["a 1"]);
    let second = db.connect(&there, "n1", &[]).await;
    assert_eq!(db.due(vec![look("n1", &first, &[], false, MOST)], ALL).await, [""], "superseded elsewhere");
    assert_eq!(db.due(vec![look("n1", &second, &[], false, MOST)], ALL).await, [""], "another gateway's");
    let of_the_second = || vec![look("n1", &second, &[], false, MOST)];
    assert_eq!(db.due_on("g2", of_the_second(), ALL).await, ["a 1"]);
    let gone = PresenceEntry::Disconnected { node: node("n1"), epoch: second.epoch, reason: "peer-gone" };
    let job = Job::Presence { gateway: gateway("g2"), entries: vec![gone] };
    db.runner_of("g2", Queue::Presence).run(&job).await;
    assert_eq!(db.due_on("g2", of_the_second(), ALL).await, [""], "disconnected");
}

#[tokio::test]
async fn room_is_shared_between_nodes_in_turn_and_the_rest_is_told_to_be_there() {
    let mut db = database().await;
    db.nodes(3).await;
    let proof = db.lease().await;
    let body = "decode(repeat('00', 1000 - 256), 'hex')";
    for name in ["n1", "n2"] {
        for spec in ["a", "b", "c"] {
            db.set(name, spec, body).await;
        }
    }
    let mut grants = Vec::new();
    for name in ["n1", "n2", "n3"] {
        grants.push(db.connect(&proof, name, &[]).await);
    }
    assert_eq!(SPEC_HEAD_BYTES, 256);
    let looks = |room: usize| -> Vec<SpecsLook> {
        (1..).zip(&grants).map(|(i, grant)| look(&format!("n{i}"), grant, &[], false, room)).collect()
    };
    assert_eq!(db.due(looks(MOST), ALL).await, ["a 1, b 1, c 1", "a 1, b 1, c 1", ""]);
    assert_eq!(db.due(looks(1001), ALL).await, ["a 1, b 1, …", "a 1, b 1, …", ""], "the last may pass it");
    assert_eq!(db.due(looks(1), ALL).await, ["a 1, …", "a 1, …", ""]);
    assert_eq!(db.due(looks(MOST), 2001).await, ["a 1, b 1, …", "a 1, …", ""], "one more of the first");
    assert_eq!(db.due(looks(MOST), 1).await, ["a 1, …", "…", ""]);
    // A body is read only where it is sent: five thousand times 512 KiB take a few megabytes at a time.
    run(&mut db.sql, "SELECT count(set_spec('n3', 's' || i, decode(repeat('00', 524288), 'hex'))) FROM generate_series(1, 60) i")
        .await;
    let job = Job::SpecsDue { gateway: gateway("g1"), looks: looks(1 << 20), at_most_bytes: ALL };
    let Outcome::SpecsDue(Ok(found)) = db.runner(Queue::Specs).run(&job).await else { panic!("not read") };
    assert_eq!((found[2].specs.len(), found[2].more), (2, true));
    assert!(found[2].specs.iter().all(|spec| spec.body.len() == 524_288));
}

#[tokio::test]
async fn an_outcome_is_stored_for_its_own_slot_and_an_older_one_changes_nothing() {
    let mut db = database().await;
    db.nodes(2).await;
    for (name, spec) in [("n1", "a"), ("n1", "b"), ("n2", "a")] {
        db.set(name, spec, "'1'").await;
        db.set(name, spec, "'2'").await;
    }
    use SpecAppliedOutcome::{Stored, UnknownGeneration, UnknownSpec};
    let outcomes = db
        .answer(vec![
            said("n2", "a", 2, Some("no disk")),
            said("n1", "none", 1, None),
            said("n1", "a", 3, None),
            said("n1", "b", 2, None),
            said("n9", "a", 1, None),
        ])
        .await;
    assert_eq!(
        outcomes,
        [Stored, UnknownSpec, UnknownGeneration { current: Generation(2) }, Stored, UnknownSpec]
    );
    assert_eq!(
        db.status().await,
        ["n1 a 2 f the node is not connected", "n1 b 2 2 applied t", "n2 a 2 2 failed: no disk t",]
    );
    let row = "SELECT xmin || ' ' || applied_at FROM specs WHERE node_id = 'n1' AND name = 'b'";
    let before = text(&mut db.sql, row).await;
    assert_eq!(db.answer(vec![said("n1", "b", 2, None)]).await, [Stored], "again");
    assert_eq!(db.answer(vec![said("n1", "b", 1, Some("late"))]).await, [Stored], "older");
    assert_eq!(text(&mut db.sql, row).await, before, "neither writes a row");
    assert_eq!(db.answer(vec![said("n2", "a", 2, None)]).await, [Stored], "tried again, and applied");
    db.set("n2", "a", "'3'").await;
    db.nodes(2).await;
    let proof = db.lease().await;
    db.connect(&proof, "n2", &[]).await;
    assert_eq!(db.status().await[2], "n2 a 3 2 applied f the node has not answered yet");
    assert_eq!(db.answer(vec![said("n2", "a", 3, Some(""))]).await, [Stored]);
    assert_eq!(db.status().await[2], "n2 a 3 3 failed t");
}

#[tokio::test]
async fn a_change_and_an_answer_wait_for_each_other_and_neither_is_lost() {
    let mut db = database().await;
    db.nodes(2).await;
    db.set("n1", "a", "'1'").await;
    db.set("n2", "a", "'1'").await;
    let mut other = db.client("setter").await;
    run(&mut other, "BEGIN; SELECT set_spec('n1', 'a', '2')").await;
    let options = db.options.clone();
    let answering = tokio::spawn(async move {
        let mut runner = gateway_db_writer::QueueRunner::new(&options, &gateway("g1"), Queue::Specs, true);
        let entries = vec![said("n2", "a", 1, None), said("n1", "a", 1, None), said("n1", "b", 1, None)];
        runner.run(&Job::SpecsApplied { entries }).await
    });
    db.until_waits_for("gateway g1 specs", "setter").await;
    // Whoever sets for the same node waits as well, and comes after it.
    run(&mut other, "COMMIT").await;
    let outcome = answering.await.unwrap();
    use SpecAppliedOutcome::{Stored, UnknownSpec};
    assert_eq!(outcome, Outcome::SpecsApplied(Ok(vec![Stored, Stored, UnknownSpec])));
    let status = db.status().await;
    assert_eq!(status, ["n1 a 2 1 applied f the node is not connected", "n2 a 1 1 applied t"]);
}

#[tokio::test]
async fn callers_that_set_for_the_same_nodes_do_not_lock_each_other_out() {
    let mut db = database().await;
    db.nodes(2).await;
    let mut first = db.client("first").await;
    run(&mut first, "BEGIN; SELECT count(*) FROM set_specs('{n1}', 'a', '1')").await;
    let options = db.options.clone();
    let second = tokio::spawn(async move {
        let mut sql = client(&options, "second").await;
        run(&mut sql, "SELECT count(*) FROM set_specs('{n2,n1}', 'a', '2')").await;
    });
    db.until_waits_for("second", "first").await;
    // In their order: the second holds nothing of n2 yet, for which the first asks now.
    run(&mut first, "SELECT count(*) FROM set_specs('{n2}', 'a', '1'); COMMIT").await;
    second.await.unwrap();
    assert_eq!(text(&mut db.sql, "SELECT string_agg(generation::text, ' ') FROM specs").await, "2 2");
}

#[tokio::test]
async fn a_change_is_told_to_the_gateway_of_the_session_on_a_channel_of_its_own() {
    let mut db = database().await;
    db.nodes(3).await;
    let proof = db.lease().await;
    db.connect(&proof, "n1", &[]).await;
    db.connect(&proof, "n2", &[]).await;
    let mut heard = PgListener::connect(&db.url).await.unwrap();
    heard.listen_all(["gws:g1", "gw:g1"]).await.unwrap();
    run(&mut db.sql, "SELECT set_spec('n1', 'a', '1')").await;
    run(&mut db.sql, "SELECT set_spec('n1', 'a', '1')").await; // no change
    run(&mut db.sql, "SELECT set_spec('n3', 'a', '1')").await; // no session
    run(&mut db.sql, "SET gateway.notify = off; SELECT set_spec('n1', 'a', '2'); SET gateway.notify = on")
        .await;
    run(&mut db.sql, "BEGIN; SELECT set_spec('n1', 'a', '3'); ROLLBACK").await;
    run(&mut db.sql, "SELECT set_spec('n2', 'b', '1')").await;
    run(&mut db.sql, "SELECT enqueue_command('n1', 'work')").await;
    let mut told = Vec::new();
    for _ in 0..3 {
        let one = heard.recv().await.unwrap();
        told.push(format!("{} {}", one.channel(), one.payload()));
    }
    assert_eq!(told, ["gws:g1 n1", "gws:g1 n2", "gw:g1 n1"]);
}

/// Buffers that a look reads, after it was executed before.
async fn buffers(sql: &mut sqlx::PgConnection, arguments: &str) -> i64 {
    let statement = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) EXECUTE due({arguments})");
    run(sql, &statement.replace("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) ", "")).await;
    let plan = texts(sql, &statement).await;
    let line = plan.iter().find(|line| line.contains("Buffers:")).unwrap();
    let number = |word: &str| -> i64 {
        let rest = line.split(word).nth(1).unwrap_or("0");
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
    };
    number("hit=") + number("read=")
}

/// So many more specs on each of a hundred nodes, all answered, and their dead rows cleaned up.
async fn answer_many(db: &mut Db, specs: std::ops::RangeInclusive<u32>) {
    let (first, last) = (specs.start(), specs.end());
    run(
        &mut db.sql,
        &format!(
            "SELECT count(*) FROM generate_series({first}, {last}) s, \
                 LATERAL set_specs(ARRAY(SELECT 'n' || i FROM generate_series(1, 100) i), 's' || s, 'body'); \
             UPDATE specs SET applied_generation = generation, applied_outcome = 'applied', applied_at = now() \
             WHERE name <> 'due' AND applied_generation IS NULL"
        ),
    )
    .await;
    run(&mut db.sql, "VACUUM ANALYZE specs").await;
}

#[tokio::test]
async fn a_sweep_over_many_answered_specs_reads_what_is_due() {
    let mut db = database().await;
    db.nodes(100).await;
    let proof = db.lease().await;
    let names: Vec<String> = (1..=100).map(|i| format!("n{i}")).collect();
    let entries = names.iter().map(|name| hello(name, &[], &[])).collect();
    granted(db.runner(Queue::Hellos).run(&Job::Hellos { proof, entries }).await);
    let mut sql = db.client("reader").await;
    run(&mut sql, PLANNING).await;
    run(&mut sql, &format!("PREPARE due AS {}", include_str!("../queries/specs_due.sql"))).await;
    let list = |of: &dyn Fn(&String) -> String| {
        let items: Vec<String> = names.iter().map(of).collect();
        format!("ARRAY[{}]", items.join(","))
    };
    let looks = format!(
        "'g1', 4000000, {}, {}, {}, {}, {}, {}",
        list(&|name| format!("'{name}'")),
        list(&|_| "1".to_owned()),
        list(&|_| "'{}'".to_owned()),
        list(&|_| "'{}'".to_owned()),
        list(&|_| "false".to_owned()),
        list(&|_| "1000000".to_owned()),
    );
    // One that is due on every tenth node.
    let set = "SELECT count(*) FROM generate_series(1, 10) i, LATERAL set_spec('n' || i * 10, 'due', 'x')";
    run(&mut db.sql, set).await;
    // Of these indexes the height grows with the logarithm alone: both readings find the same.
    answer_many(&mut db, 1..=25).await;
    let before = buffers(&mut sql, &looks).await;
    answer_many(&mut db, 26..=55).await;
    let after = buffers(&mut sql, &looks).await;
    eprintln!(
        "a sweep of 100 sessions, 10 specs due: {before} buffers beside 2,500 answered, {after} beside 5,500"
    );
    assert!(after * 10 <= before * 11, "{after} buffers beside 5,500 answered specs, {before} beside 2,500");
    let plan = texts(&mut sql, &format!("EXPLAIN EXECUTE due({looks})")).await.join("\n");
    assert!(plan.contains("specs_unanswered"), "a sweep does not read what is answered\n{plan}");
}

#[tokio::test]
async fn specs_that_change_and_are_answered_add_nothing_to_what_a_hello_a_pass_or_an_enqueue_reads() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let grant = db.connect(&proof, "n1", &[("default", 4)]).await;
    let mut pin = db.client("pin").await;
    run(&mut pin, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM nodes").await;
    let mut sql = db.client("reader").await;
    run(&mut sql, PLANNING).await;
    run(&mut sql, &format!("PREPARE pass AS {DISPATCH}")).await;
    let pass =
        format!("EXECUTE pass({})", dispatch_arguments(&proof, &[want("n1", grant.epoch, "default", 4)]));
    let mut readings = Vec::new();
    for round in 0..2 {
        for statement in [pass.as_str(), "SELECT enqueue_command('n1', 'work')"] {
            let mut last = 0;
            for _ in 0..2 {
                run(&mut sql, "BEGIN").await;
                let plan =
                    texts(&mut sql, &format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {statement}")).await;
                run(&mut sql, "ROLLBACK").await;
                let line = plan.iter().find(|line| line.contains("Buffers:")).unwrap();
                last = line.split("hit=").nth(1).unwrap().split(' ').next().unwrap().parse::<i64>().unwrap();
            }
            readings.push(last);
        }
        if round == 0 {
            for generation in 1..=200 {
                db.set("n1", "a", &format!("'{generation}'")).await;
                db.answer(vec![said("n1", "a", generation, None)]).await;
            }
        }
    }
    assert!(readings[2] <= readings[0] && readings[3] <= readings[1], "{readings:?}");
    run(&mut pin, "COMMIT").await;
}
