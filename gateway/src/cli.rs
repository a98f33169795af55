//! The command line: what can be asked of the binary, and with which code it ends.
//!
//! 1. Exit codes: 0 it worked, 1 it failed at run time, 2 the command line or the configuration is
//!    wrong. A clean stop by a signal is 0.
//! 2. Answers go to stdout, what went wrong to stderr, each as a plain sentence.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::{Config, ConfigError, DatabaseUrl, Problem, show_json, show_toml};
use crate::error::GatewayError;
use crate::placement::{Machine, Wishes, plan};

const EXAMPLES: &str = "\
Examples:
  gateway migrate --config /etc/gateway/gateway.toml
  gateway serve --config /etc/gateway/gateway.toml
  gateway config check --config gateway.toml
  gateway config show > gateway.toml      every key with its default, unit and meaning

Exit codes:
  0  it worked (a clean stop by SIGTERM or SIGINT too)
  1  it failed at run time; the last line on stderr says why
  2  the command line or the configuration is wrong; nothing was started";

/// Connects a fleet of node daemons to the commands that PostgreSQL holds for them.
#[derive(Debug, Parser)]
#[command(name = "gateway", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve nodes until SIGTERM or SIGINT.
    #[command(after_help = "\
Signals:
  SIGTERM, SIGINT  clean stop: streams end UNAVAILABLE, disconnects are written, the lease is released
  a second one     ends at once, with exit code 1
  SIGHUP           says what can be reloaded (nothing yet: restart instead)

Example:
  gateway serve --config /etc/gateway/gateway.toml")]
    Serve(ConfigFile),
    /// Bring the database's schema up to date. Safe to run again, and while gateways serve.
    #[command(after_help = "\
Examples:
  gateway migrate --config /etc/gateway/gateway.toml
  GATEWAY_DATABASE_URL=postgres://owner@db/gateway gateway migrate")]
    Migrate(MigrateArgs),
    /// Look at a configuration without starting anything.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the completions of a shell.
    #[command(after_help = "\
Example:
  gateway completions bash > /usr/share/bash-completion/completions/gateway")]
    Completions {
        /// bash, elvish, fish, powershell or zsh.
        shell: Shell,
    },
    /// Print the man page.
    #[command(after_help = "\
Example:
  gateway man > /usr/local/share/man/man1/gateway.1")]
    Man,
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The TOML file.
    #[arg(long, value_name = "FILE", env = "GATEWAY_CONFIG", default_value = "/etc/gateway/gateway.toml")]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct MigrateArgs {
    /// The TOML file whose database is meant.
    #[arg(
        long,
        value_name = "FILE",
        env = "GATEWAY_CONFIG",
        required_unless_present = "database_url",
        conflicts_with = "database_url"
    )]
    config: Option<PathBuf>,
    /// The database itself, as a user that may create tables.
    #[arg(long, value_name = "URL", env = "GATEWAY_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Say what is wrong with a file, or that nothing is.
    #[command(after_help = "\
Example:
  gateway config check --config gateway.toml && systemctl restart gateway")]
    Check(ConfigFile),
    /// Print every key with its value, its default, its unit and its meaning.
    #[command(after_help = "\
Examples:
  gateway config show                          the defaults
  gateway config show --config gateway.toml    what is in use with this file
  gateway config show --json | jq .lease")]
    Show {
        /// The TOML file; without it, the defaults are printed.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// As JSON, values alone; a key without a value is null.
        #[arg(long)]
        json: bool,
    },
}

/// Runs what the command line asks for.
pub fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(arguments) => serve(&arguments),
        Command::Migrate(arguments) => migrate(&arguments),
        Command::Config(ConfigCommand::Check(arguments)) => check(&arguments),
        Command::Config(ConfigCommand::Show { config, json }) => show(config, json),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "gateway", &mut text);
            print(&text)
        }
        Command::Man => man_page(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may be JSON or turned off; what ends the process is said in any case.
            let _ = writeln!(std::io::stderr(), "gateway: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn serve(arguments: &ConfigFile) -> Result<(), GatewayError> {
    let config = Config::load(&arguments.config)?;
    crate::logging::start(&config.log);
    crate::serve::run(&config)
}

fn migrate(arguments: &MigrateArgs) -> Result<(), GatewayError> {
    let url = match (&arguments.database_url, &arguments.config) {
        (Some(url), _) => DatabaseUrl::new(url).map_err(|sentence| usage("--database-url", sentence))?,
        (None, Some(file)) => {
            let config = Config::load(file)?;
            config
                .database_url()
                .map_err(|problem| ConfigError { file: Some(file.clone()), problems: vec![problem] })?
        }
        (None, None) => return Err(usage("--config", "is missing".to_owned()).into()),
    };
    let report = crate::migrate(&url)?;
    let done = if report.from == report.to {
        format!("The schema of {url} is up to date: version {}.\n", report.to)
    } else {
        format!("The schema of {url} went from version {} to {}.\n", report.from, report.to)
    };
    print(done.as_bytes())
}

fn usage(option: &str, sentence: String) -> ConfigError {
    ConfigError { file: None, problems: vec![Problem { line: None, key: option.to_owned(), sentence }] }
}

fn check(arguments: &ConfigFile) -> Result<(), GatewayError> {
    let config = Config::load(&arguments.config)?;
    let machine =
        Machine::look().map_err(|error| GatewayError::Machine(format!("the cpus can't be seen: {error}")))?;
    let plan = plan(&Wishes::of(&config), &machine)?;
    let mut text = format!("{} is valid.\n", arguments.config.display());
    text.push_str(&format!("On this machine: {plan}.\n"));
    for sentence in crate::serve::missing_files(&config) {
        text.push_str(&format!("Not there yet: {sentence}\n"));
    }
    print(text.as_bytes())
}

fn show(file: Option<PathBuf>, json: bool) -> Result<(), GatewayError> {
    let config = match file {
        Some(file) => Config::load(&file)?,
        None => Config::default(),
    };
    let text = if json { show_json(&config) + "\n" } else { show_toml(&config) };
    print(text.as_bytes())
}

fn man_page() -> Result<(), GatewayError> {
    let mut text = Vec::new();
    clap_mangen::Man::new(Cli::command())
        .render(&mut text)
        .map_err(|error| GatewayError::Machine(format!("the man page can't be written: {error}")))?;
    print(&text)
}

/// Writes an answer; a reader that went away (`| head`) is no failure.
fn print(text: &[u8]) -> Result<(), GatewayError> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(GatewayError::Machine(format!("stdout can't be written: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn migrate_needs_to_know_which_database() {
        assert!(Cli::try_parse_from(["gateway", "migrate"]).is_err());
        assert!(Cli::try_parse_from(["gateway", "migrate", "--config", "x"]).is_ok());
        assert!(Cli::try_parse_from(["gateway", "migrate", "--database-url", "postgres://h/d"]).is_ok());
        let both = ["gateway", "migrate", "--config", "x", "--database-url", "postgres://h/d"];
        assert!(Cli::try_parse_from(both).is_err());
    }

    #[test]
    fn every_command_shows_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.has_subcommands()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{} shows none", command.get_name());
        }
    }
}
