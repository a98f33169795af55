//! What an error of the database means for a job: the one place where SQLSTATEs are read.
//!
//! 1. What was surely not committed and may succeed later is `Retry`; what would fail again is
//!    `Rejected`; what no job can get around is `Fatal`.
//! 2. Where the connection is lost while the server may be committing, the outcome is unknown. It
//!    is never guessed.

use gateway_core::store::StoreError;

/// How far a job had come when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing that was sent can be committed without another message from here.
    Safe,
    /// A statement that commits by itself, or the `COMMIT`, was sent.
    Committing,
}

/// A job's failure, and whether its connection can still be used.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: StoreError,
    pub(crate) connection_lost: bool,
}

impl Failure {
    /// What `error` means for a job at `stage`.
    pub(crate) fn from_sqlx(error: &sqlx::Error, stage: Stage) -> Self {
        match error {
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default().into_owned();
                Self::from_code(&code, &describe(error), stage)
            }
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => {
                Self::lost(&describe(error), stage)
            }
            sqlx::Error::Configuration(_) => {
                Self { error: StoreError::Fatal(describe(error)), connection_lost: true }
            }
            // A value could not be sent, or what came back is not what was asked for.
            sqlx::Error::Encode(_) | sqlx::Error::InvalidArgument(_) => {
                Self { error: StoreError::Rejected(describe(error)), connection_lost: false }
            }
            _ => Self { error: StoreError::Fatal(describe(error)), connection_lost: true },
        }
    }

    /// The connection is gone.
    pub(crate) fn lost(what: &str, stage: Stage) -> Self {
        let error = match stage {
            Stage::Safe => StoreError::Retry(what.to_owned()),
            Stage::Committing => StoreError::OutcomeUnknown(what.to_owned()),
        };
        Self { error, connection_lost: true }
    }

    fn from_code(code: &str, what: &str, stage: Stage) -> Self {
        let what = what.to_owned();
        let kept = |error| Self { error, connection_lost: false };
        let class = code.get(..2).unwrap_or_default();
        match (class, code) {
            // The server ends this connection. It may do so just after it has committed.
            (_, "57P01" | "57P02" | "57P04" | "57P05") => Self::lost(&what, stage),
            (_, "57P03") => Self { error: StoreError::Retry(what), connection_lost: true },
            // An idle transaction was ended, so it was not committed.
            ("25", "25P03") => Self { error: StoreError::Retry(what), connection_lost: true },
            ("08", _) => Self::lost(&what, stage),
            // Victim of a deadlock, a lock time-out, a canceled statement, no resources, no disk.
            ("40", "40003") => Self { error: StoreError::OutcomeUnknown(what), connection_lost: true },
            ("40" | "53" | "55" | "57" | "58", _) => kept(StoreError::Retry(what)),
            // A standby, or a database that was made read-only: a fail-over may be under way.
            ("25", "25006") => Self { error: StoreError::Retry(what), connection_lost: true },
            // A cached plan or a prepared statement that a migration or a pooler took away.
            ("0A", "0A000") | ("26", _) => Self { error: StoreError::Retry(what), connection_lost: true },
            ("22" | "23" | "21" | "54", _) => kept(StoreError::Rejected(what)),
            _ => Self { error: StoreError::Fatal(what), connection_lost: true },
        }
    }
}

/// The error with its SQLSTATE, for people.
fn describe(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(database) => match database.code() {
            Some(code) => format!("{} (SQLSTATE {code})", database.message()),
            None => database.message().to_owned(),
        },
        // An operating system's words alone say of no database that it is one.
        sqlx::Error::Io(error) => format!("no connection to the database of [database] url: {error}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str, stage: Stage) -> StoreError {
        Failure::from_code(code, "x", stage).error
    }

    #[test]
    fn a_victim_is_tried_again_and_a_bad_value_is_not() {
        for code in ["40001", "40P01", "55P03", "57014", "53300", "53100", "57P03"] {
            assert!(matches!(of(code, Stage::Committing), StoreError::Retry(_)), "{code}");
        }
        for code in ["22021", "22003", "23505", "23514"] {
            assert!(matches!(of(code, Stage::Committing), StoreError::Rejected(_)), "{code}");
        }
        for code in ["42P01", "42501", "42703", "3D000", "28P01"] {
            assert!(matches!(of(code, Stage::Safe), StoreError::Fatal(_)), "{code}");
        }
    }

    #[test]
    fn a_connection_lost_at_the_commit_leaves_the_outcome_unknown() {
        for code in ["57P01", "57P02", "08006"] {
            assert!(matches!(of(code, Stage::Committing), StoreError::OutcomeUnknown(_)), "{code}");
            assert!(matches!(of(code, Stage::Safe), StoreError::Retry(_)), "{code}");
        }
        let io = sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        assert!(
            describe(&io).contains("to the database of [database] url: connection reset"),
            "{}",
            describe(&io)
        );
        assert!(matches!(Failure::from_sqlx(&io, Stage::Committing).error, StoreError::OutcomeUnknown(_)));
    }
}
