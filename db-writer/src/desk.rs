//! Where the control API leaves what it asks of the writer, and gets its answers.
//!
//! The writer's loop takes a few asks a turn; what they mean is `gateway_core::desk`'s.
//!
//! 1. At most `MAX_WAITING` asks wait: one more is given back at once, and nobody waits for room.
//! 2. An asker that went away costs its answer and nothing else.

use gateway_core::desk::{DeskAnswer, DeskAsk};
use tokio::sync::{mpsc, oneshot};

/// Asks that may wait for a turn of the writer.
const MAX_WAITING: usize = 256;

/// An ask, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) ask: DeskAsk,
    pub(crate) answer: oneshot::Sender<DeskAnswer>,
}

/// The asker's side; cheap to clone.
#[derive(Debug, Clone)]
pub struct DeskPost(mpsc::Sender<Letter>);

/// The writer's side.
#[derive(Debug)]
pub struct DeskInbox(pub(crate) mpsc::Receiver<Letter>);

/// Why an ask has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeskError {
    #[error("as many asks wait for the writer as may")]
    Full,
    #[error("the writer's thread has ended")]
    Gone,
}

/// A desk with its two sides.
pub fn desk() -> (DeskPost, DeskInbox) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    (DeskPost(sender), DeskInbox(receiver))
}

impl DeskPost {
    /// Asks; the answer comes with a turn of the writer.
    pub async fn ask(&self, ask: DeskAsk) -> Result<DeskAnswer, DeskError> {
        let (answer, answered) = oneshot::channel();
        self.0.try_send(Letter { ask, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => DeskError::Full,
            mpsc::error::TrySendError::Closed(_) => DeskError::Gone,
        })?;
        answered.await.map_err(|_| DeskError::Gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_ask_too_many_is_given_back_and_a_writer_that_ended_is_told_of() {
        let (post, inbox) = desk();
        let asking: Vec<_> = (0..MAX_WAITING)
            .map(|_| {
                let post = post.clone();
                tokio::spawn(async move { post.ask(DeskAsk::Undrain).await })
            })
            .collect();
        while post.0.capacity() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(post.ask(DeskAsk::Undrain).await, Err(DeskError::Full));
        drop(inbox);
        for one in asking {
            assert_eq!(one.await.unwrap(), Err(DeskError::Gone));
        }
        assert_eq!(post.ask(DeskAsk::Undrain).await, Err(DeskError::Gone));
    }
}
