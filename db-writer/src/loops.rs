//! The tasks of the writer's thread that never end: one a queue, and the one that listens.
//!
//! Owns them and their names. Never restarts one: whatever made it end would end it again, and a job that
//! it held has no outcome; a process that starts anew has none of that.
//!
//! 1. One that ends, by a panic or otherwise, is told, with its name and why: it ends the thread.
//! 2. They end with their owner.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;

use tokio::task::{Id, JoinSet};

/// A loop that was to run for ever has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the loop {name} has ended: {why}")]
pub struct LoopEnded {
    pub name: &'static str,
    pub why: String,
}

#[derive(Debug, Default)]
pub(crate) struct Loops {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Loops {
    /// Starts one, within a `LocalSet`.
    pub(crate) fn start(&mut self, name: &'static str, work: impl Future<Output = ()> + 'static) {
        let task = self.tasks.spawn_local(work);
        self.names.insert(task.id(), name);
    }

    /// Resolves when one has ended.
    pub(crate) async fn ended(&mut self) -> LoopEnded {
        let (id, why) = match self.tasks.join_next_with_id().await {
            None => return std::future::pending().await,
            Some(Ok((id, ()))) => (id, "it came to its end unasked".to_owned()),
            Some(Err(error)) => {
                let id = error.id();
                let why = error.try_into_panic().map_or_else(
                    |error| error.to_string(),
                    |payload| format!("it panicked: {}", panic_text(payload.as_ref())),
                );
                (id, why)
            }
        };
        LoopEnded { name: self.names.remove(&id).unwrap_or("without a name"), why }
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_loop_that_panics_or_ends_is_told_with_its_name_and_why() {
        let tasks = tokio::task::LocalSet::new();
        let told = tasks.run_until(async {
            let mut loops = Loops::default();
            loops.start("stays", std::future::pending());
            loops.start("panics", async { panic!("row 7 is odd") });
            let first = loops.ended().await;
            loops.start("ends", async {});
            (first, loops.ended().await)
        });
        let (first, second) = told.await;
        assert_eq!(first.to_string(), "the loop panics has ended: it panicked: row 7 is odd");
        assert_eq!(second.to_string(), "the loop ends has ended: it came to its end unasked");
    }
}
