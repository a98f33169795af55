//! The number of statements of a job does not depend on how many entries it has.
//!
//! The server counts, not the client: what is compared are the calls that it saw of this gateway for
//! batches of 1, 50 and 500. How long a call takes is not asked here.

#![allow(clippy::unwrap_used)]

mod support;

use gateway_core::command::CommandState;
use gateway_core::ids::{SessionKey, ShardId};
use gateway_core::seam::SpecAnswer;
use gateway_core::store::*;
use support::*;

/// Runs a job and gives how many statements of this gateway's the server counted, and their names.
async fn statements(db: &mut Db, queue: Queue, job: &Job) -> (i64, Outcome) {
    let mut runner = db.runner(queue);
    // The first job also connects and prepares.
    runner
        .run(&match queue {
            Queue::Hellos | Queue::Dispatch => job.clone(),
            _ => Job::Cancels { gateway: gateway("g1") },
        })
        .await;
    counted(db, &mut runner, job).await
}

async fn counted(db: &mut Db, runner: &mut gateway_db_writer::QueueRunner, job: &Job) -> (i64, Outcome) {
    run(&mut db.sql, "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)").await;
    let outcome = runner.run(job).await;
    let count = "SELECT sum(s.calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
                 WHERE d.datname = current_database() AND s.query NOT LIKE '%pg_stat_statements%'";
    (number(&mut db.sql, count).await, outcome)
}

#[tokio::test]
async fn a_batch_of_1_50_and_500_costs_the_same_number_of_statements() {
    let mut db = database().await;
    db.nodes(500).await;
    let proof = db.lease().await;
    let mut hellos = db.runner(Queue::Hellos);
    let mut dispatches = db.runner(Queue::Dispatch);
    let mut updates = db.runner(Queue::Updates);
    let mut presence = db.runner(Queue::Presence);
    let mut specs = db.runner(Queue::Specs);
    let mut counts = Vec::new();
    // The first round connects and prepares; its counts are not compared.
    for (round, size) in [1, 1, 50, 500].into_iter().enumerate() {
        let names: Vec<String> = (1..=size).map(|i| format!("n{i}")).collect();
        let entries = names.iter().map(|name| hello(name, &[("a", 4), ("b", 4)], &[])).collect();
        let started = std::time::Instant::now();
        let (hello_count, outcome) =
            counted(&mut db, &mut hellos, &Job::Hellos { proof: proof.clone(), entries }).await;
        let hello_time = started.elapsed();
        let grants = granted(outcome);
        run(
            &mut db.sql,
            &format!(
                "SELECT enqueue_command('n' || i, 'work', lane => 'a') FROM generate_series(1, {size}) i"
            ),
        )
        .await;
        let wants: Vec<LaneWant> =
            names.iter().zip(&grants).map(|(name, grant)| want(name, grant.epoch, "a", 4)).collect();
        let started = std::time::Instant::now();
        let (dispatch_count, outcome) =
            counted(&mut db, &mut dispatches, &Job::Dispatch { proof: proof.clone(), wants }).await;
        let dispatch_time = started.elapsed();
        let claims = claimed(outcome);
        assert_eq!(claims.len(), size);
        let entries = claims
            .iter()
            .map(|claim| update(claim.node.as_str(), claim.command.id, 1, CommandState::Succeeded))
            .collect();
        let started = std::time::Instant::now();
        let (update_count, outcome) = counted(&mut db, &mut updates, &Job::Updates { entries }).await;
        let update_time = started.elapsed();
        assert!(updated(outcome).iter().all(|outcome| *outcome == stored(CommandState::Succeeded, "a")));
        let entries = names
            .iter()
            .zip(&grants)
            .map(|(name, grant)| PresenceEntry::Alive { node: node(name), epoch: grant.epoch })
            .collect();
        let job = Job::Presence { gateway: gateway("g1"), entries };
        let (presence_count, outcome) = counted(&mut db, &mut presence, &job).await;
        assert_eq!(outcome, Outcome::Presence(Ok(vec![PresenceOutcome::Written; size])));
        let (spec_look_count, spec_answer_count) = spec_counts(&mut db, &mut specs, &names, &grants).await;
        eprintln!("{size}: hellos {hello_time:?}, dispatch {dispatch_time:?}, updates {update_time:?}");
        if round > 0 {
            let specs = (spec_look_count, spec_answer_count);
            counts.push((hello_count, dispatch_count, update_count, presence_count, specs));
        }
    }
    // BEGIN, lock, read, write, COMMIT; the others are one statement that commits by itself.
    assert_eq!(counts, [(5, 1, 1, 1, (1, 1)); 3]);
}

/// The statements of a look that finds a spec for each node, and of the answers to them.
async fn spec_counts(
    db: &mut Db,
    runner: &mut gateway_db_writer::QueueRunner,
    names: &[String],
    grants: &[HelloGrant],
) -> (i64, i64) {
    let size = names.len();
    let set = format!(
        "SELECT count(*) FROM set_specs((SELECT array_agg('n' || i) FROM generate_series(1, {size}) i), 'dns', '{size}')"
    );
    run(&mut db.sql, &set).await;
    let look = |(name, grant): (&String, &HelloGrant)| SpecsLook {
        node: node(name),
        epoch: grant.epoch,
        known: Vec::new(),
        answered_too: true,
        room: 1000,
    };
    let looks = names.iter().zip(grants).map(look).collect();
    let job = Job::SpecsDue { gateway: gateway("g1"), looks, at_most_bytes: 4 << 20 };
    let (looked, outcome) = counted(db, runner, &job).await;
    let Outcome::SpecsDue(Ok(found)) = outcome else { panic!("{outcome:?}") };
    assert!(found.len() == size && found.iter().all(|found| found.specs.len() == 1));
    let said = |(name, found): (&String, &SpecsFound)| SpecAnswer {
        key: SessionKey { shard: ShardId(0), slot: 1, serial: 1 },
        node: node(name),
        name: found.specs[0].name.clone(),
        generation: found.specs[0].generation,
        error: None,
    };
    let entries = names.iter().zip(&found).map(said).collect();
    let (answered, outcome) = counted(db, runner, &Job::SpecsApplied { entries }).await;
    assert_eq!(outcome, Outcome::SpecsApplied(Ok(vec![SpecAppliedOutcome::Stored; size])));
    (looked, answered)
}

#[tokio::test]
async fn a_pass_that_finds_nothing_is_one_call_too() {
    let mut db = database().await;
    db.nodes(1).await;
    let proof = db.lease().await;
    let session = db.connect(&proof, "n1", &[("default", 1)]).await;
    let wants = vec![want("n1", session.epoch, "default", 1)];
    let (count, outcome) = statements(&mut db, Queue::Dispatch, &Job::Dispatch { proof, wants }).await;
    assert_eq!((count, claimed(outcome)), (1, Vec::new()));
}
