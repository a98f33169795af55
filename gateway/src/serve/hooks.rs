//! The hooks of a gateway: those of its configuration, those that are built in, those of an embedder.
//!
//! It only puts them together. Whether their functions are there is the writer's thread to ask.
//!
//! 1. For one kind the built-in runs first, then those of the configuration in its order, then an
//!    embedder's.

use gateway_db_writer::hooks::{EmbeddedHooks, Hooks};

use crate::config::{Config, ConfigError, Lines};

/// All hooks, each kind with few enough.
pub(super) fn hooks(config: &Config, embedded: EmbeddedHooks) -> Result<Hooks, ConfigError> {
    let section = &config.hooks;
    let mut hooks = Hooks::new(section.timeout.0, embedded);
    if section.builtin {
        hooks.add_built_in(section.attested_bindings);
    }
    for (kind, functions) in &section.reports {
        functions.0.iter().for_each(|name| hooks.add_report_function(kind, name));
    }
    for (kind, functions) in &section.statuses {
        functions.0.iter().for_each(|name| hooks.add_status_function(kind, name));
    }
    let refused = |sentence: String| ConfigError {
        file: None,
        problems: vec![Lines::default().problem("hooks", sentence)],
    };
    hooks.check_counts().map_err(refused)?;
    Ok(hooks)
}
