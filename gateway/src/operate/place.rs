//! Which database is meant: by a URL, by a configuration's own key, or by the environment.
//!
//! 1. What stands on the command line wins over the environment; a URL wins over a file.
//! 2. Where nothing is said the file of `gateway serve` is taken, if the caller allows it and it exists.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::config::{Config, ConfigError, DatabaseUrl, Problem};

const CONFIG_VARIABLE: &str = "GATEWAY_CONFIG";
const URL_VARIABLE: &str = "GATEWAY_DATABASE_URL";
/// What `gateway serve` takes where it is given no file.
pub(crate) const DEFAULT_CONFIG: &str = "/etc/gateway/gateway.toml";

/// The database of a command.
#[derive(Debug, Clone, Default, Args)]
pub struct Place {
    /// The TOML file whose database is meant. Else $GATEWAY_CONFIG.
    #[arg(long, value_name = "FILE", conflicts_with = "database_url", help_heading = "Database")]
    pub config: Option<PathBuf>,
    /// The database itself. Else $GATEWAY_DATABASE_URL, where a password is not seen by other users.
    #[arg(long, value_name = "URL", help_heading = "Database")]
    pub database_url: Option<String>,
}

/// A database, and where LISTEN works if that is another connection string.
#[derive(Debug, Clone)]
pub(crate) struct Urls {
    pub(crate) database: DatabaseUrl,
    pub(crate) listen: Option<DatabaseUrl>,
}

impl Place {
    /// The URLs; the command line or the environment must name them.
    pub(crate) fn urls(&self) -> Result<Urls, ConfigError> {
        self.find(|name| std::env::var_os(name).map(PathBuf::from))?.ok_or_else(nothing_said)
    }

    /// The URLs; where nothing names them, those of the file that `gateway serve` takes.
    pub(crate) fn urls_or_default(&self) -> Result<Urls, ConfigError> {
        match self.find(|name| std::env::var_os(name).map(PathBuf::from))? {
            Some(urls) => Ok(urls),
            None if Path::new(DEFAULT_CONFIG).exists() => from_config(Path::new(DEFAULT_CONFIG)),
            None => Err(nothing_said()),
        }
    }

    fn find(&self, variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Option<Urls>, ConfigError> {
        // Set to nothing is as good as not set.
        let variable = |name: &str| variable(name).filter(|value| !value.as_os_str().is_empty());
        if let Some(url) = &self.database_url {
            return from_url("--database-url", url).map(Some);
        }
        if let Some(file) = &self.config {
            return from_config(file).map(Some);
        }
        if let Some(url) = variable(URL_VARIABLE) {
            return from_url(URL_VARIABLE, &url.to_string_lossy()).map(Some);
        }
        variable(CONFIG_VARIABLE).map(|file| from_config(&file)).transpose()
    }
}

fn from_url(option: &str, url: &str) -> Result<Urls, ConfigError> {
    let database = DatabaseUrl::new(url).map_err(|sentence| usage(option, sentence))?;
    Ok(Urls { database, listen: None })
}

fn from_config(file: &Path) -> Result<Urls, ConfigError> {
    let config = Config::load(file)?;
    let located = |problem| ConfigError { file: Some(file.to_owned()), problems: vec![problem] };
    let database = config.database_url().map_err(located)?;
    let listen = config.listen_url().map_err(located)?;
    Ok(Urls { database, listen })
}

fn nothing_said() -> ConfigError {
    let sentence = format!(
        "which database is meant? Name it with --config FILE or --database-url URL, or set ${CONFIG_VARIABLE} or \
         ${URL_VARIABLE}"
    );
    ConfigError { file: None, problems: vec![Problem { line: None, key: String::new(), sentence }] }
}

/// What is wrong with an option of the command line.
pub(crate) fn usage(option: &str, sentence: String) -> ConfigError {
    ConfigError { file: None, problems: vec![Problem { line: None, key: option.to_owned(), sentence }] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: Option<&str>, config: Option<&str>) -> Place {
        Place { config: config.map(PathBuf::from), database_url: url.map(str::to_owned) }
    }

    #[test]
    fn the_command_line_wins_over_the_environment() {
        let environment =
            |name: &str| (name == URL_VARIABLE).then(|| PathBuf::from("postgres://environment/d"));
        let urls = place(Some("postgres://line/d"), None).find(environment).expect("a URL").expect("named");
        assert_eq!(urls.database.to_string(), "postgres://line/d");
        let urls = place(None, None).find(environment).expect("a URL").expect("named");
        assert_eq!(urls.database.to_string(), "postgres://environment/d");
        let error =
            place(None, Some("/nowhere/x.toml")).find(environment).expect_err("there is no such file");
        assert!(error.to_string().starts_with("/nowhere/x.toml: can't be read"), "{error}");
    }

    #[test]
    fn a_database_that_nobody_names_is_asked_for() {
        assert!(place(None, None).find(|_| None).expect("nothing is wrong").is_none());
        assert!(place(None, None).find(|_| Some(PathBuf::new())).expect("nothing is wrong").is_none());
        assert!(nothing_said().to_string().contains("GATEWAY_DATABASE_URL"));
    }
}
