//! Connections that nobody has vouched for: there are at most so many, and one more ends the oldest.
//!
//! Owned by whoever accepts; what a connection does is its task's.
//!
//! 1. Who stays and does nothing makes room for who comes: no number of silent peers shuts a door.
//! 2. A task that has ended takes no place.

use std::collections::VecDeque;
use std::future::Future;

use tokio::task::AbortHandle;

/// Tasks of connections, the oldest first.
pub(crate) struct Strangers {
    most: usize,
    tasks: VecDeque<AbortHandle>,
}

impl Strangers {
    pub(crate) const fn new(most: usize) -> Self {
        Self { most, tasks: VecDeque::new() }
    }

    /// Takes one in, at the cost of the oldest where all places are taken.
    pub(crate) fn admit(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        if self.tasks.len() >= self.most {
            self.tasks.retain(|task| !task.is_finished());
        }
        if self.tasks.len() >= self.most
            && let Some(oldest) = self.tasks.pop_front()
        {
            oldest.abort();
        }
        self.tasks.push_back(tokio::spawn(task).abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn the_oldest_of_those_that_are_there_makes_room_and_who_has_left_takes_none() {
        let places = Arc::new(Semaphore::new(10));
        let mut strangers = Strangers::new(2);
        let stays = || {
            let place = Arc::clone(&places).try_acquire_owned().unwrap();
            async move {
                let _place = place;
                std::future::pending().await
            }
        };
        strangers.admit(stays());
        strangers.admit(async {});
        tokio::task::yield_now().await;
        strangers.admit(stays());
        tokio::task::yield_now().await;
        assert_eq!(places.available_permits(), 8, "one had left by itself: both others are there");
        strangers.admit(stays());
        drop(places.acquire_many(8).await.unwrap());
        assert_eq!(places.available_permits(), 8, "and the oldest is gone");
    }
}
