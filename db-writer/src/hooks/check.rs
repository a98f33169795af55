//! Whether the functions that the configuration names as hooks can be run, asked once, at the start.
//!
//! Owns the question and its sentences. A function that goes missing later is a failing hook, not an end.
//!
//! 1. One statement asks about all of them.
//! 2. A refusal names each function that does not do, its kind, and what to run in the database.

use std::fmt::Write as _;

use gateway_core::store::StoreError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};

use super::{Functions, Hooks, SqlFunction};
use crate::failure::{Failure, Stage};

/// Why the hooks can't be run; the sentence says what to do.
#[derive(Debug, thiserror::Error)]
pub enum HooksError {
    #[error("whether its hooks are there could not be asked: {0}")]
    NotAsked(#[source] sqlx::Error),
    #[error("{0}")]
    Unfit(String),
}

impl HooksError {
    /// What the caller must do about it.
    pub(crate) fn to_store_error(&self) -> StoreError {
        match self {
            Self::NotAsked(error) => Failure::from_sqlx(error, Stage::Safe).error,
            Self::Unfit(sentence) => StoreError::Fatal(sentence.clone()),
        }
    }
}

/// A function that is asked about, and for what.
struct Asked<'a> {
    key: &'static str,
    kind: &'a str,
    function: &'a SqlFunction,
    argument: &'static str,
}

/// What the database says of it.
struct Found {
    is_there: bool,
    returns_void: bool,
    may_execute: bool,
    namesakes: Option<String>,
    role: String,
}

/// Asks the database about every SQL function among the hooks.
pub(crate) async fn check_hooks(options: &PgConnectOptions, hooks: &Hooks) -> Result<(), HooksError> {
    let mut asked = Vec::new();
    list("hooks.reports", "report", &hooks.reports, &mut asked);
    list("hooks.statuses", "status_report", &hooks.statuses, &mut asked);
    if asked.is_empty() {
        return Ok(());
    }
    let options = options.clone().application_name("gateway hooks check").disable_statement_logging();
    let mut sql = PgConnection::connect_with(&options).await.map_err(HooksError::NotAsked)?;
    let names: Vec<&str> = asked.iter().map(|one| one.function.name.as_str()).collect();
    let arguments: Vec<&str> = asked.iter().map(|one| one.argument).collect();
    let found =
        sqlx::query_file_as!(Found, "queries/hooks_check.sql", &names as &[&str], &arguments as &[&str])
            .fetch_all(&mut sql)
            .await
            .map_err(HooksError::NotAsked)?;
    let sentences: Vec<String> =
        asked.iter().zip(&found).filter_map(|(asked, found)| fault(asked, found)).collect();
    // It has answered; how it takes the goodbye does not matter.
    let _ = sql.close().await;
    if sentences.is_empty() { Ok(()) } else { Err(HooksError::Unfit(sentences.join("\n"))) }
}

fn list<'a>(key: &'static str, argument: &'static str, functions: &'a Functions, asked: &mut Vec<Asked<'a>>) {
    for (kind, functions) in functions {
        asked.extend(functions.iter().map(|function| Asked { key, kind, function, argument }));
    }
}

/// What is wrong with a function, and what to do.
fn fault(asked: &Asked<'_>, found: &Found) -> Option<String> {
    let Asked { key, kind, function: SqlFunction { name, is_built_in }, argument } = asked;
    let full = format!("{name}({argument})");
    if *is_built_in {
        let fits = found.is_there && found.returns_void && found.may_execute;
        return (!fits).then(|| {
            format!(
                "the built-in hook {full} for kind {kind:?} can't be run: run `gateway migrate` as the database's \
                 owner, or set hooks.builtin = false"
            )
        });
    }
    let mut sentence = format!("{key}: kind {kind:?} names the function {name}, ");
    // No schema of the name may be there either, and one that is does no harm.
    let schema = name
        .rsplit_once('.')
        .map_or_else(String::new, |(schema, _)| format!("\n    CREATE SCHEMA IF NOT EXISTS {schema};"));
    let create = format!(
        "{schema}\n    CREATE FUNCTION {name}(told {argument}) RETURNS void LANGUAGE plpgsql AS $$\n    BEGIN\n        \
         -- what is to be done when it is stored\n    END $$;"
    );
    let written = if !found.is_there {
        match &found.namesakes {
            Some(others) => write!(
                sentence,
                "which does not take a {argument} (there is {others}); create it, or name another:{create}"
            ),
            None => write!(sentence, "which is not there; create it, or name another:{create}"),
        }
    } else if !found.returns_void {
        write!(sentence, "which does not return void; make it anew:\n    DROP FUNCTION {full};{create}")
    } else if !found.may_execute {
        let role = &found.role;
        write!(sentence, "which {role:?} may not run:\n    GRANT EXECUTE ON FUNCTION {full} TO {role:?};")
    } else {
        return None;
    };
    written.expect("writing to a string does not fail");
    Some(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(
        is_there: bool,
        returns_void: bool,
        may_execute: bool,
        namesakes: Option<&str>,
    ) -> Option<String> {
        let function = SqlFunction { name: "acme.on_door".to_owned(), is_built_in: false };
        let asked = Asked { key: "hooks.reports", kind: "door", function: &function, argument: "report" };
        let namesakes = namesakes.map(str::to_owned);
        fault(&asked, &Found { is_there, returns_void, may_execute, namesakes, role: "gw".to_owned() })
    }

    #[test]
    fn each_fault_has_its_sentence_and_what_to_run() {
        assert_eq!(told(true, true, true, Some("acme.on_door(report)")), None);
        let missing = told(false, false, false, None).expect("a fault");
        assert!(
            missing.starts_with(
                "hooks.reports: kind \"door\" names the function acme.on_door, which is not there"
            ),
            "{missing}"
        );
        assert!(
            missing.contains(
                "CREATE SCHEMA IF NOT EXISTS acme;\n    CREATE FUNCTION acme.on_door(told report) RETURNS void"
            ),
            "{missing}"
        );
        let wrong = told(false, false, false, Some("acme.on_door(text)")).expect("a fault");
        assert!(wrong.contains("does not take a report (there is acme.on_door(text))"), "{wrong}");
        let returns = told(true, false, true, None).expect("a fault");
        assert!(returns.contains("DROP FUNCTION acme.on_door(report);"), "{returns}");
        let barred = told(true, true, false, None).expect("a fault");
        assert!(barred.contains("GRANT EXECUTE ON FUNCTION acme.on_door(report) TO \"gw\";"), "{barred}");
    }
}
