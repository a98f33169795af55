//! Commands at a rate, enqueued from outside the gateway.
//!
//! 1. A tick enqueues its share in one transaction, spread over the nodes in turn.
//! 2. The ids of what was committed are given back at the end, whatever the gateway did meanwhile.

use std::time::Duration;

use gateway_testbed::database::enqueue_many;
use sqlx::PgConnection;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

const TICK: Duration = Duration::from_millis(50);

/// A load that goes on until it is ended.
pub struct Load {
    task: JoinHandle<Vec<Uuid>>,
    end: oneshot::Sender<()>,
}

impl Load {
    /// Enqueues `per_second` commands for `nodes`, from now on.
    pub fn start(
        mut connection: PgConnection,
        nodes: Vec<String>,
        per_second: usize,
        payload: Vec<u8>,
    ) -> Self {
        let (end, mut ended) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut ids = Vec::new();
            let mut pace = tokio::time::interval(TICK);
            pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let (mut next, mut owed) = (nodes.iter().cycle(), 0.0);
            loop {
                tokio::select! {
                    _ = &mut ended => return ids,
                    _ = pace.tick() => {}
                }
                owed += per_second as f64 * TICK.as_secs_f64();
                let share: Vec<String> = next.by_ref().take(owed as usize).cloned().collect();
                owed -= share.len() as f64;
                ids.extend(enqueue_many(&mut connection, &share, &payload).await.expect("enqueueing"));
            }
        });
        Self { task, end }
    }

    /// Ends it; gives the ids of all that it enqueued.
    pub async fn stop(self) -> Vec<Uuid> {
        let _ = self.end.send(());
        self.task.await.expect("the load's task")
    }
}
