//! Inventories in PostgreSQL: sections that replace each other, what is wanted, work once for each node.
//!
//! Each story stores batches and compares the answers and the rows. What a session is told is the core's.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use gateway_core::ids::*;
use gateway_core::inventory::{BodyHash, SectionHash};
use gateway_core::seam::{LookRequest, SectionRequest};
use gateway_core::store::*;
use support::*;

const MOST: usize = 64;

fn entry(name: &str, epoch: u64, of: &str, body: &str) -> InventoryEntry {
    InventoryEntry::Section(Arc::new(SectionRequest {
        key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
        node: node(name),
        epoch: SessionEpoch(epoch),
        frame_ref: FrameRef(1),
        section: SectionName::new(of).unwrap(),
        hash: BodyHash::of(body.as_bytes()),
        body: body.to_owned().into(),
    }))
}

fn list(pairs: &[(&str, &str)]) -> Vec<SectionHash> {
    let entry = |(of, body): &(&str, &str)| SectionHash {
        section: SectionName::new(of).unwrap(),
        hash: BodyHash::of(body.as_bytes()),
    };
    pairs.iter().map(entry).collect()
}

fn look(name: &str, pairs: &[(&str, &str)]) -> InventoryEntry {
    InventoryEntry::Look(Arc::new(LookRequest {
        key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
        node: node(name),
        list: list(pairs).into(),
    }))
}

fn wanted(names: &[&str]) -> InventoryOutcome {
    InventoryOutcome::Wanted(names.iter().map(|name| SectionName::new(name).unwrap()).collect())
}

fn outcomes(outcome: Outcome) -> Vec<InventoryOutcome> {
    let Outcome::Inventory(Ok(outcomes)) = outcome else { panic!("{outcome:?}") };
    outcomes
}

async fn commit_with(db: &Db, entries: Vec<InventoryEntry>, most: usize) -> Vec<InventoryOutcome> {
    outcomes(db.runner(Queue::Inventory).run(&Job::Inventory { entries, most }).await)
}

async fn commit(db: &Db, entries: Vec<InventoryEntry>) -> Vec<InventoryOutcome> {
    commit_with(db, entries, MOST).await
}

async fn rows(db: &mut Db) -> Vec<String> {
    let query = "SELECT concat_ws(' ', node_id, section, encode(body, 'escape'), session_epoch) FROM inventory_sections \
                 ORDER BY node_id, section";
    texts(&mut db.sql, query).await
}

async fn work(db: &mut Db) -> Vec<String> {
    texts(&mut db.sql, "SELECT kind || ' ' || key FROM work ORDER BY 1").await
}

use InventoryOutcome::{Stored, Superseded, TooMany, UnknownNode};

#[tokio::test]
async fn sections_replace_each_other_and_each_touched_node_has_work_once() {
    let mut db = database().await;
    db.nodes(2).await;
    let entries = vec![
        entry("n1", 1, "cpu", "old"),
        entry("n2", 1, "cpu", "other"),
        entry("n1", 1, "disk", "same"),
        entry("n1", 1, "empty", ""),
    ];
    assert_eq!(commit(&db, entries).await, [Stored, Stored, Stored, Stored]);
    assert_eq!(
        commit(&db, vec![entry("n1", 1, "cpu", "new"), entry("n1", 1, "disk", "same")]).await,
        [Stored, Stored]
    );
    assert_eq!(rows(&mut db).await, ["n1 cpu new 1", "n1 disk same 1", "n1 empty  1", "n2 cpu other 1"]);
    assert_eq!(work(&mut db).await, ["inventory n1", "inventory n2"]);
    let wrong = "SELECT count(*) FROM inventory_sections WHERE hash <> sha256(body)";
    assert_eq!(number(&mut db.sql, wrong).await, 0);
}

#[tokio::test]
async fn what_is_stored_already_is_acked_and_leaves_no_dead_row_and_no_work() {
    let mut db = database().await;
    db.nodes(1).await;
    commit(&db, vec![entry("n1", 1, "cpu", "same"), entry("n1", 1, "disk", "old")]).await;
    run(&mut db.sql, "DELETE FROM work").await;
    let places = "SELECT ctid || ' ' || xmin || ' ' || xmax FROM inventory_sections ORDER BY section";
    let before = texts(&mut db.sql, places).await;
    assert_eq!(
        commit(&db, vec![entry("n1", 1, "cpu", "same"), entry("n1", 3, "disk", "old")]).await,
        [Stored, Stored]
    );
    assert_eq!(texts(&mut db.sql, places).await, before, "not even locked");
    assert_eq!(work(&mut db).await, [] as [&str; 0]);
    let touched = "SELECT extract(epoch FROM enqueued_at) * 1000000 FROM work";
    commit(&db, vec![entry("n1", 3, "disk", "new")]).await;
    let first = number(&mut db.sql, &format!("SELECT ({touched})::bigint")).await;
    commit(&db, vec![entry("n1", 3, "disk", "newer")]).await;
    let second = number(&mut db.sql, &format!("SELECT ({touched})::bigint")).await;
    assert!(second > first, "a worker that took it before sees that there is more to do");
}

#[tokio::test]
async fn an_unknown_node_and_one_section_too_many_fail_in_their_own_slots() {
    let mut db = database().await;
    db.nodes(2).await;
    commit(&db, vec![entry("n1", 1, "a", "1"), entry("n1", 1, "b", "1")]).await;
    let entries = vec![
        entry("stranger", 1, "a", "1"),
        entry("n1", 1, "c", "1"),
        entry("n1", 1, "d", "1"),
        entry("n1", 1, "b", "2"),
        entry("n2", 1, "a", "1"),
    ];
    let found = commit_with(&db, entries, 3).await;
    assert_eq!(found, [UnknownNode, Stored, TooMany, Stored, Stored]);
    assert_eq!(rows(&mut db).await, ["n1 a 1 1", "n1 b 2 1", "n1 c 1 1", "n2 a 1 1"]);
    assert_eq!(work(&mut db).await, ["inventory n1", "inventory n2"]);
    // An operator makes room.
    assert_eq!(text(&mut db.sql, "SELECT forget_section('n1', 'a')").await, "t");
    assert_eq!(text(&mut db.sql, "SELECT forget_section('n1', 'a')").await, "f");
    assert_eq!(commit_with(&db, vec![entry("n1", 1, "d", "1")], 3).await, [Stored]);
}

#[tokio::test]
async fn what_an_older_session_sent_is_not_stored_over_what_a_newer_one_did() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let old = db.connect(&proof, "n1", &[]).await.epoch.0;
    commit(&db, vec![entry("n1", old, "cpu", "first")]).await;
    let new = db.connect(&proof, "n1", &[]).await.epoch.0;
    assert_eq!(commit(&db, vec![entry("n1", old, "cpu", "late")]).await, [Superseded]);
    assert_eq!(commit(&db, vec![entry("n1", new, "cpu", "second")]).await, [Stored]);
    assert_eq!(rows(&mut db).await, [format!("n1 cpu second {new}")]);

    // The older one has looked at the session before the Hello, and waits for the row of the newer one.
    let mut holder = db.client("holder").await;
    run(
        &mut holder,
        &format!(
            "BEGIN; UPDATE inventory_sections SET body = 'third', hash = sha256('third'), session_epoch = {}",
            new + 1
        ),
    )
    .await;
    let mut runner = db.runner(Queue::Inventory);
    let storing = tokio::spawn(async move {
        let entries = vec![entry("n1", new, "cpu", "late")];
        outcomes(runner.run(&Job::Inventory { entries, most: MOST }).await)
    });
    db.until_waits_for("gateway g1 inventory", "holder").await;
    run(&mut holder, "COMMIT").await;
    storing.await.unwrap();
    assert_eq!(rows(&mut db).await, [format!("n1 cpu third {}", new + 1)]);
}

#[tokio::test]
async fn a_look_names_what_is_not_stored_so_and_sees_the_sections_of_its_batch() {
    let mut db = database().await;
    db.nodes(2).await;
    commit(&db, vec![entry("n1", 1, "cpu", "1"), entry("n1", 1, "disk", "2"), entry("n2", 1, "net", "3")])
        .await;
    let looks = vec![
        look("n1", &[("net", "3"), ("cpu", "1"), ("disk", "9")]),
        look("n2", &[("net", "3")]),
        look("n1", &[]),
        look("stranger", &[("cpu", "1")]),
    ];
    assert_eq!(
        commit(&db, looks).await,
        [wanted(&["net", "disk"]), wanted(&[]), wanted(&[]), wanted(&["cpu"])]
    );
    let both = vec![look("n1", &[("net", "4"), ("disk", "9")]), entry("n1", 1, "net", "4")];
    assert_eq!(commit(&db, both).await, [wanted(&["disk"]), Stored]);
}

#[tokio::test]
async fn a_hello_that_lists_its_sections_is_told_what_is_wanted() {
    let mut db = database().await;
    db.nodes(3).await;
    let proof = db.lease().await;
    commit(&db, vec![entry("n1", 1, "cpu", "1"), entry("n3", 1, "cpu", "3")]).await;
    let listing = |name: &str, pairs: &[(&str, &str)]| {
        let mut request = hello(name, &[], &[]);
        request.hello.inventory = list(pairs);
        request
    };
    let entries = vec![
        listing("stranger", &[("cpu", "1")]),
        listing("n1", &[("cpu", "1"), ("disk", "2")]),
        listing("n2", &[]),
        listing("n3", &[("cpu", "3")]),
    ];
    let outcome = db.runner(Queue::Hellos).run(&Job::Hellos { proof, entries }).await;
    let Outcome::Hellos(Ok(Routed::Committed(outcomes))) = outcome else { panic!("{outcome:?}") };
    let told: Vec<Vec<&str>> = outcomes
        .iter()
        .filter_map(|outcome| match outcome {
            HelloOutcome::Granted(grant) => {
                Some(grant.inventory_wanted.iter().map(SectionName::as_str).collect())
            }
            HelloOutcome::Refused(_) | HelloOutcome::Quarantined(_) => None,
        })
        .collect();
    assert_eq!(told, [vec!["disk"], vec![], vec![]]);
}

#[tokio::test]
async fn a_flush_of_1_50_and_500_costs_the_same_number_of_statements() {
    let mut db = database().await;
    db.nodes(500).await;
    let mut runner = db.runner(Queue::Inventory);
    let calls = "SELECT coalesce(sum(s.calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
                 WHERE d.datname = current_database() AND s.query NOT LIKE '%pg_stat_statements%'";
    let mut counts = Vec::new();
    // The first round connects and prepares; its counts are not compared.
    for (round, size) in [1_usize, 1, 50, 500].into_iter().enumerate() {
        let body = format!("body of round {round}");
        let section = |i: usize| entry(&format!("n{}", i + 1), 1, "cpu", &body);
        let looking = |i: usize| look(&format!("n{}", i + 1), &[("cpu", &body), ("disk", "2")]);
        let mixed = |i: usize| if i.is_multiple_of(2) { looking(i) } else { section(i) };
        let kinds: [Vec<InventoryEntry>; 3] = [
            (0..size).map(section).collect(),
            (0..size).map(looking).collect(),
            [looking(0), section(499)].into_iter().chain((2..size.max(2)).map(mixed)).collect(),
        ];
        let mut of_kinds = Vec::new();
        for entries in kinds {
            let count = entries.len();
            run(&mut db.sql, "SELECT pg_stat_statements_reset()").await;
            let started = std::time::Instant::now();
            let outcome = runner.run(&Job::Inventory { entries, most: MOST }).await;
            let took = started.elapsed();
            of_kinds.push(number(&mut db.sql, calls).await);
            let found = outcomes(outcome);
            assert_eq!(found.len(), count);
            assert!(found.iter().all(|one| matches!(one, Stored | InventoryOutcome::Wanted(_))), "{found:?}");
            eprintln!("{count} entries: {took:?}");
        }
        if round > 0 {
            counts.push(of_kinds);
        }
    }
    // Sections and looks are one statement each; together BEGIN and COMMIT are around them.
    assert_eq!(counts, [[1, 1, 4], [1, 1, 4], [1, 1, 4]]);
}

#[tokio::test]
async fn only_a_batch_with_a_hello_that_lists_sections_pays_for_the_comparison() {
    let mut db = database().await;
    db.nodes(500).await;
    let proof = db.lease().await;
    let mut runner = db.runner(Queue::Hellos);
    let calls = "SELECT sum(s.calls)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
                 WHERE d.datname = current_database() AND s.query NOT LIKE '%pg_stat_statements%'";
    let mut counts = Vec::new();
    for (round, (size, listing)) in
        [(1, 1), (1, 0), (500, 0), (1, 1), (500, 1), (500, 500)].into_iter().enumerate()
    {
        let mut entries: Vec<_> = (1..=size).map(|i| hello(&format!("n{i}"), &[("a", 4)], &[])).collect();
        for entry in entries.iter_mut().take(listing) {
            entry.hello.inventory = list(&[("cpu", "1"), ("disk", "2")]);
        }
        run(&mut db.sql, "SELECT pg_stat_statements_reset()").await;
        granted(runner.run(&Job::Hellos { proof: proof.clone(), entries }).await);
        if round > 0 {
            counts.push(number(&mut db.sql, calls).await);
        }
    }
    assert_eq!(counts, [5, 5, 6, 6, 6]);
}

#[tokio::test]
async fn one_section_that_the_database_refuses_fails_the_flush_and_leaves_nothing_behind() {
    let mut db = database().await;
    db.nodes(3).await;
    run(&mut db.sql, "ALTER TABLE inventory_sections ADD CONSTRAINT no_poison CHECK (body <> 'poison')")
        .await;
    let mut runner = db.runner(Queue::Inventory);
    for with_look in [false, true] {
        let mut entries =
            vec![entry("n1", 1, "cpu", "1"), entry("n2", 1, "cpu", "poison"), entry("n3", 1, "cpu", "1")];
        if with_look {
            entries.push(look("n1", &[("cpu", "1")]));
        }
        let outcome = runner.run(&Job::Inventory { entries, most: MOST }).await;
        assert!(matches!(outcome, Outcome::Inventory(Err(StoreError::Rejected(_)))), "{outcome:?}");
        assert_eq!(rows(&mut db).await, [] as [&str; 0], "nothing is stored by halves");
        assert_eq!(work(&mut db).await, [] as [&str; 0]);
    }
    let others = vec![entry("n1", 1, "cpu", "1"), entry("n3", 1, "cpu", "1")];
    assert_eq!(outcomes(runner.run(&Job::Inventory { entries: others, most: MOST }).await), [Stored, Stored]);
}

#[tokio::test]
async fn flushes_of_the_same_sections_in_opposite_orders_do_not_deadlock() {
    let mut db = database().await;
    db.nodes(40).await;
    let mut tasks = Vec::new();
    for reversed in [false, true] {
        let mut runner = db.runner(Queue::Inventory);
        tasks.push(tokio::spawn(async move {
            for round in 0..20 {
                let mut numbers: Vec<u64> = (1..=40).collect();
                if reversed {
                    numbers.reverse();
                }
                let body = format!("{reversed} {round}");
                let entries = numbers.iter().map(|i| entry(&format!("n{i}"), 1, "cpu", &body)).collect();
                let found = outcomes(runner.run(&Job::Inventory { entries, most: MOST }).await);
                assert!(found.iter().all(|outcome| *outcome == Stored), "{found:?}");
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(number(&mut db.sql, deadlocks).await, 0);
    assert_eq!(
        number(&mut db.sql, "SELECT count(*) FROM inventory_sections WHERE hash = sha256(body)").await,
        40
    );
    assert_eq!(number(&mut db.sql, "SELECT count(*) FROM work").await, 40);
}

#[tokio::test]
async fn an_inventory_waits_for_no_hello_dispatch_or_update_and_none_of_them_for_it() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 1)]).await;
    let id = db.enqueue("n1", "default").await;
    commit(&db, vec![entry("n1", session.epoch.0, "cpu", "1")]).await;
    let mut holder = db.client("holder").await;
    run(
        &mut holder,
        "BEGIN; SELECT FROM node_sessions FOR UPDATE; SELECT FROM leases FOR UPDATE; SELECT FROM commands FOR UPDATE; \
         SELECT FROM nodes FOR UPDATE",
    )
    .await;
    assert_eq!(commit(&db, vec![entry("n1", session.epoch.0, "cpu", "2")]).await, [Stored]);
    run(
        &mut holder,
        "ROLLBACK; BEGIN; SELECT FROM inventory_sections FOR UPDATE; SELECT FROM work FOR UPDATE",
    )
    .await;
    let claims =
        dispatch(&mut db.runner(Queue::Dispatch), &proof, vec![want("n1", session.epoch, "default", 1)])
            .await;
    assert_eq!(ids(&claims), [id]);
    let mut request = hello("n1", &[("default", 1)], &[]);
    request.hello.inventory = list(&[("cpu", "2"), ("disk", "1")]);
    let job = Job::Hellos { proof, entries: vec![request] };
    let grant = granted(db.runner(Queue::Hellos).run(&job).await).pop().unwrap();
    assert_eq!(
        wanted(&["disk"]),
        InventoryOutcome::Wanted(grant.inventory_wanted),
        "it reads and does not wait"
    );
}

/// A section that changes leaves its old version behind, so its own probes read more until a vacuum comes.
/// What is only sent again leaves nothing, and nothing of other nodes is read.
#[tokio::test]
async fn a_resend_and_a_look_read_the_same_after_a_thousand_changes_elsewhere_that_no_vacuum_could_clean() {
    let mut db = database().await;
    db.nodes(50).await;
    let mut pin = db.client("pin").await;
    run(&mut pin, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM nodes").await;
    let mut runner = db.runner(Queue::Inventory);
    let mut reader = db.client("reader").await;
    run(&mut reader, PLANNING).await;
    for (name, query) in [
        ("store", include_str!("../queries/inventory_store.sql")),
        ("looking", include_str!("../queries/inventory_look.sql")),
    ] {
        run(&mut reader, &format!("PREPARE {name} AS {query}")).await;
    }
    let resend =
        "EXECUTE store(64, ARRAY['n1'], ARRAY[1], ARRAY['cpu'], ARRAY[sha256('kept')], ARRAY['kept'::bytea])";
    let looking =
        "EXECUTE looking(ARRAY[0, 0], ARRAY['n1', 'n1'], ARRAY['cpu', 'none'], ARRAY[sha256('kept'), 'x'])";
    let mut readings = Vec::new();
    for rounds in [10, 40] {
        for round in 0..rounds {
            let body = format!("{rounds} {round}");
            let changed =
                (2..=50).flat_map(|i| ["cpu", "disk"].map(|of| entry(&format!("n{i}"), 1, of, &body)));
            let kept = ["cpu", "disk"].map(|of| entry("n1", 1, of, "kept"));
            let entries = kept.into_iter().chain(changed).collect();
            outcomes(runner.run(&Job::Inventory { entries, most: MOST }).await);
        }
        let mut reading = Vec::new();
        for statement in [resend, looking] {
            buffers(&mut reader, statement).await;
            reading.push(buffers(&mut reader, statement).await);
        }
        readings.push(reading);
    }
    eprintln!("buffers of a resend and of a look: {readings:?}");
    for (before, after) in readings[0].iter().zip(&readings[1]) {
        assert!(after * 10 <= before * 11, "{readings:?}");
    }
    run(&mut pin, "COMMIT").await;
}
