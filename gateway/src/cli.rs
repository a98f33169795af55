//! The command line: what can be asked of the binary, and with which code it ends.
//!
//! The operator's commands are in `operate`; here they are only named.
//!
//! 1. Exit codes: 0 it worked, 1 it failed at run time, 2 the command line or the configuration is
//!    wrong. A clean stop by a signal is 0. `enqueue`, `cancel`, `verify`, `drain`, `revoke`
//!    and `health` have more to say: their help.
//! 2. Answers go to stdout, what went wrong to stderr, each as a plain sentence.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::{Config, ConfigError, Problem, show_json, show_toml};
use crate::error::GatewayError;
use crate::operate::Place;
use crate::operate::arguments::OperatorCommand;
use crate::operate::control_arguments::ControlCommand;
use crate::placement::{Machine, Wishes, plan};

const EXAMPLES: &str = "\
Examples:
  gateway migrate --config /etc/gateway/gateway.toml
  gateway serve --config /etc/gateway/gateway.toml
  gateway config check --config gateway.toml
  gateway config show > gateway.toml      every key with its default, unit and meaning
  gateway nodes --connected
  gateway enqueue spiffe://fleet.example/site/lab/node/n1 echo --payload hello --wait 30s
  gateway verify --json
  gateway drain --gateway g1 --wait 2m

Exit codes:
  0  it worked (a clean stop by SIGTERM or SIGINT too)
  1  it failed at run time; the last line on stderr says why
  2  the command line or the configuration is wrong; nothing was started
  `enqueue`, `cancel`, `verify`, `drain`, `revoke` and `health` have some of their own: see their --help";

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
  SIGTERM          drains, then stops: nodes are told to move to another gateway, each within gateway.drain, and new
                   ones are refused; who has not left drain_grace later is cut. With drain = \"0s\" it stops
  SIGINT           stops: streams end UNAVAILABLE, disconnects are written, the lease is released
  a second one     during a drain stops, during a stop ends at once, with exit code 1
  SIGHUP           looks at the TLS files at once, and says what came of it; all else needs a restart

Example:
  gateway serve --config /etc/gateway/gateway.toml")]
    Serve(ConfigFile),
    /// Bring the database's schema up to date. Safe to run again, and while gateways serve.
    #[command(after_help = "\
Examples:
  gateway migrate --config /etc/gateway/gateway.toml
  GATEWAY_DATABASE_URL=postgres://owner@db/gateway gateway migrate")]
    Migrate(Place),
    #[command(flatten)]
    Operator(OperatorCommand),
    #[command(flatten)]
    Control(ControlCommand),
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
    /// Print the man page, of all or of one command.
    #[command(after_help = "\
Examples:
  gateway man > /usr/local/share/man/man1/gateway.1
  gateway man enqueue > /usr/local/share/man/man1/gateway-enqueue.1")]
    Man {
        /// The command, such as enqueue.
        command: Option<String>,
    },
}

#[derive(Debug, Args)]
struct ConfigFile {
    /// The TOML file.
    #[arg(long, value_name = "FILE", env = "GATEWAY_CONFIG", default_value = "/etc/gateway/gateway.toml")]
    config: PathBuf,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Look at the file alone: not at the files that it names, nor at this machine's cpus. For a file
    /// that is meant for another host.
    #[arg(long)]
    syntax_only: bool,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Say what is wrong with a file and with the files that it names, or that nothing is.
    #[command(after_help = "\
Examples:
  gateway config check --config gateway.toml && systemctl restart gateway
  gateway config check --config other-host.toml --syntax-only")]
    Check(CheckArgs),
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
        Command::Man { command } => man_page(command.as_deref()),
        Command::Operator(command) => return ended(crate::operate::run(&command)),
        Command::Control(command) => return ended(crate::operate::call(&command)),
    };
    ended(done.map(|()| ExitCode::SUCCESS))
}

fn ended(done: Result<ExitCode, GatewayError>) -> ExitCode {
    match done {
        Ok(code) => {
            crate::logging::end(None);
            code
        }
        Err(error) => {
            // The log may be JSON or turned off; what ends the process is said in any case.
            crate::logging::end(Some(&error.to_string()));
            ExitCode::from(error.exit_code())
        }
    }
}

fn serve(arguments: &ConfigFile) -> Result<(), GatewayError> {
    let config = Config::load(&arguments.config)?;
    crate::logging::start(&config.log)?;
    crate::serve::run(&config)
}

fn migrate(place: &Place) -> Result<(), GatewayError> {
    let url = place.urls()?.database;
    let report = crate::migrate(&url)?;
    let done = if report.from == report.to {
        format!("The schema of {url} is up to date: version {}.\n", report.to)
    } else {
        format!("The schema of {url} went from version {} to {}.\n", report.from, report.to)
    };
    print(done.as_bytes())
}

fn check(arguments: &CheckArgs) -> Result<(), GatewayError> {
    let file = &arguments.file.config;
    let config = Config::load(file)?;
    let mut text = format!("{} is valid.\n", file.display());
    if arguments.syntax_only {
        text.push_str("The files that it names and this machine were not looked at (--syntax-only).\n");
        return print(text.as_bytes());
    }
    let located = |problems: Vec<Problem>| {
        let sentence = "to look at this file alone, as for another host, pass --syntax-only".to_owned();
        let advice = Problem { line: None, key: String::new(), sentence };
        ConfigError { file: Some(file.clone()), problems: problems.into_iter().chain([advice]).collect() }
    };
    crate::serve::check_files(&config).map_err(located)?;
    let machine =
        Machine::look().map_err(|error| GatewayError::Machine(format!("the cpus can't be seen: {error}")))?;
    let plan = plan(&Wishes::of(&config), &machine)?;
    text.push_str(&format!("On this machine: {plan}.\n"));
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

fn man_page(command: Option<&str>) -> Result<(), GatewayError> {
    let mut cli = Cli::command();
    cli.build();
    let page = match command {
        None => cli,
        Some(name) => match cli.find_subcommand(name) {
            Some(found) => found.clone(),
            None => {
                let sentence = format!("there is no command {name:?}; see gateway --help");
                let problem = Problem { line: None, key: "man".to_owned(), sentence };
                return Err(ConfigError { file: None, problems: vec![problem] }.into());
            }
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page)
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
    fn a_command_takes_its_database_from_one_place() {
        for command in
            [vec!["migrate"], vec!["nodes"], vec!["cancel", "n", "019b0a5e-7c1d-7d3e-8c4f-0123456789ab"]]
        {
            let parses = |more: &[&str]| {
                let line = ["gateway"].iter().chain(&command).chain(more);
                Cli::try_parse_from(line).is_ok()
            };
            assert!(parses(&["--config", "x"]) && parses(&["--database-url", "postgres://h/d"]));
            assert!(!parses(&["--config", "x", "--database-url", "postgres://h/d"]), "{command:?}");
        }
    }

    #[test]
    fn every_command_has_a_man_page_and_completions() {
        let mut cli = Cli::command();
        cli.build();
        let mut completions = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "gateway", &mut completions);
        let completions = String::from_utf8(completions).expect("text");
        for name in
            ["enqueue", "cancel", "nodes", "sessions", "commands", "events", "specs", "inventory", "verify"]
                .into_iter()
                .chain([
                    "drain",
                    "undrain",
                    "revoke",
                    "dispatch",
                    "reload-tls",
                    "health",
                    "live-sessions",
                    "top",
                ])
        {
            let mut page = Vec::new();
            let command = cli.find_subcommand(name).expect("a command").clone();
            clap_mangen::Man::new(command).render(&mut page).expect("a page");
            let page = String::from_utf8(page).expect("text");
            assert!(page.contains("json") && page.contains("Example"), "{name}: {page}");
            assert!(completions.contains(&format!("gateway,{name})")), "{name} has no completions");
        }
    }

    #[test]
    fn every_command_shows_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.has_subcommands()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{} shows none", command.get_name());
        }
    }
}
