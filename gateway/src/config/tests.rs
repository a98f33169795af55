//! Stories of configuration files: what an operator wrote, and what the gateway answers.
//!
//! Each broken file is the smallest one that shows its fault.

use super::*;

const MINIMAL: &str = "[gateway]\nid = \"g1\"\n";

fn problem_of(text: &str) -> String {
    let problems = match Config::parse(text) {
        Ok((config, lines)) => config.check(&lines),
        Err(problems) => problems,
    };
    assert!(!problems.is_empty(), "nothing is wrong with {text}");
    ConfigError { file: None, problems }.to_string()
}

#[test]
fn the_annotated_file_parses_to_exactly_the_defaults() {
    let (config, lines) = Config::parse(ANNOTATED).expect("the annotated file is valid");
    assert_eq!(config, Config::default());
    assert_eq!(config.check(&lines), []);
    assert_eq!(config.limits(), Limits::default());
}

#[test]
fn no_key_is_missing_from_the_annotated_file() {
    let json = serde_json::to_value(Config::default()).expect("JSON");
    let mut keys = Vec::new();
    for (section, values) in json.as_object().expect("sections") {
        for (key, value) in values.as_object().expect("keys") {
            keys.push((section.clone(), key.clone(), value.is_null()));
        }
    }
    let mut notes: Vec<_> =
        catalog().into_iter().map(|note| (note.section, note.key, note.optional)).collect();
    keys.sort();
    notes.sort();
    assert_eq!(notes, keys);
}

#[test]
fn the_examples_of_keys_without_a_default_are_valid() {
    let mut text = String::new();
    for line in ANNOTATED.lines() {
        let line = if line.starts_with("#url_file") || line.starts_with("#listen_url_file") {
            ""
        } else if line.starts_with('#') && !line.starts_with("# ") {
            line.trim_start_matches('#')
        } else {
            line
        };
        text.push_str(line);
        text.push('\n');
    }
    let (config, lines) = Config::parse(&text).expect("the examples are valid");
    assert_eq!(config.check(&lines), []);
    assert_eq!(config.shards.cpus, Some(CpuList(vec![2, 3, 4, 5, 6, 7])));
    assert!(config.database.listen_url.is_some());
}

#[test]
fn an_id_alone_is_a_configuration() {
    let (config, lines) = Config::parse(MINIMAL).expect("valid");
    assert_eq!(config.check(&lines), []);
    let mut expected = Config::default();
    expected.gateway.id = "g1".to_owned();
    assert_eq!(config, expected);
}

#[test]
fn what_show_prints_reads_back_the_same() {
    let text = "[gateway]\nid = \"g\"\n[shards]\ncpus = [3, 4]\n[lease]\nttl = \"1m 30s\"\n[database]\nurl = \"postgres://h/d\"\n";
    for text in [MINIMAL, text] {
        let (config, _) = Config::parse(text).expect("valid");
        let (again, _) = Config::parse(&show_toml(&config)).expect("valid");
        assert_eq!(again, config);
    }
}

#[test]
fn a_misspelt_key_is_named_with_its_line_and_the_right_one() {
    let text =
        format!("{MINIMAL}\n[admission]\nmax_streams = 5\nopens_per_sec = 3\n\n[leese]\nttl = \"20s\"\n");
    assert_eq!(
        problem_of(&text),
        "line 6: admission.opens_per_sec: there is no such key; did you mean opens_per_second?\n\
         line 8: leese: there is no such section; did you mean [lease]?"
    );
}

#[test]
fn a_wrong_unit_says_what_was_expected() {
    for (text, expected) in [
        (
            "[lease]\nttl = 20",
            "line 4: lease.ttl: expected a duration such as \"10s\", in quotes and with its unit, not 20",
        ),
        (
            "[lease]\nttl = \"20 parsec\"",
            "line 4: lease.ttl: expected a duration such as \"10s\", \"250ms\" or \"1m 30s\", not \"20 parsec\"",
        ),
        (
            "[sessions]\nframe_bytes = 1048576",
            "line 4: sessions.frame_bytes: expected a size such as \"1MiB\", in quotes and with its unit, not 1048576",
        ),
        (
            "[sessions]\n\nframe_bytes = \"10s\"",
            "line 5: sessions.frame_bytes: expected a size such as \"512KiB\", \"1MiB\" or \"64B\", not \"10s\"",
        ),
        (
            "[listen]\naddress = \"here\"",
            "line 4: listen.address: invalid socket address syntax; it takes: address and port, such as \"0.0.0.0:7443\"",
        ),
        (
            "[admission]\nmax_streams = \"many\"",
            "line 4: admission.max_streams: invalid type: string \"many\"; it takes: sessions, such as 10000",
        ),
        (
            "[dispatch]\ndurability = \"async\"",
            "line 4: dispatch.durability: unknown variant \"async\"; it takes: \"synchronous\" or \"asynchronous\", such as \"asynchronous\"",
        ),
        (
            "[shards]\ncpus = \"7-2\"",
            "line 4: shards.cpus: \"7-2\" runs backwards: write \"2-7\"; it takes: cpu numbers, \"2-7\", \"1,3,5\" or [1, 3, 5], such as \"2-7\"",
        ),
    ] {
        assert_eq!(problem_of(&format!("{MINIMAL}{text}\n")), expected);
    }
}

#[test]
fn a_file_without_an_id_or_with_broken_toml_is_refused() {
    assert!(problem_of("[lease]\nttl = \"20s\"\n").starts_with("gateway.id: must be given"));
    assert!(problem_of("[gateway]\nid = \n").starts_with("line 2: is not TOML"));
    assert!(problem_of("lease = 3\n").contains("lease: is a section"));
    assert!(problem_of(&format!("{MINIMAL}id = \"g2\"\n")).contains("line 3: is not TOML"));
}

#[test]
fn a_password_in_the_file_is_refused_and_not_repeated() {
    for url in ["postgres://u:hunter2@h/d", "postgres://h/d?password=hunter2"] {
        let sentence = problem_of(&format!("{MINIMAL}[database]\nurl = \"{url}\"\n"));
        assert!(sentence.contains("database.url_file"), "{sentence}");
        assert!(sentence.contains(".pgpass"), "{sentence}");
        assert!(!sentence.contains("hunter2"), "{sentence}");
    }
}

#[test]
fn the_control_address_must_be_loopback() {
    let sentence = problem_of(&format!("{MINIMAL}[control]\nlisten = \"0.0.0.0:7480\"\n"));
    assert!(
        sentence.starts_with("line 4: control.listen: 0.0.0.0:7480 is not a loopback address"),
        "{sentence}"
    );
}

#[test]
fn relations_between_keys_are_held() {
    for (text, key) in [
        ("[lease]\nttl = \"20s\"\nrenew_every = \"9s\"", "lease.renew_every"),
        ("[sessions]\nframe_bytes = \"256KiB\"", "sessions.frame_bytes"),
        ("[admission]\nmax_streams = 10", "admission.max_pending_hellos"),
        ("[admission]\nopens_per_second = 0", "line 4: admission.opens_per_second"),
        ("[group_commit]\nbatch_entries = 501", "group_commit.batch_entries"),
        ("[database]\nurl = \"postgres://h/d\"\nurl_file = \"x\"", "database.url_file"),
        ("[listen]\naddress = \"0.0.0.0:7480\"", "control.listen"),
        ("[tls]\ntrust_domain = \"spiffe://x\"", "tls.trust_domain"),
        ("[log]\nlevel = \"info,=\"", "log.level"),
    ] {
        let sentence = problem_of(&format!("{MINIMAL}{text}\n"));
        assert!(sentence.contains(key), "{text}: {sentence}");
    }
}

#[test]
fn hooks_are_named_one_or_several_for_a_kind_and_shown_as_they_are() {
    let text = format!(
        "{MINIMAL}[hooks]\ntimeout = \"2s\"\n[hooks.reports]\n\"door.opened\" = \"acme.on_door\"\n\
         [hooks.statuses]\n\"disk\" = [\"acme.on_disk\", \"page\"]\n"
    );
    let (config, lines) = Config::parse(&text).expect("valid");
    assert_eq!(config.check(&lines), []);
    assert_eq!(config.hooks.reports["door.opened"], FunctionNames(vec!["acme.on_door".to_owned()]));
    assert_eq!(config.hooks.statuses["disk"].0, ["acme.on_disk", "page"]);
    let shown = show_toml(&config);
    assert!(shown.contains("reports = { \"door.opened\" = [\"acme.on_door\"] }"), "{shown}");
    let (again, _) = Config::parse(&shown).expect("valid");
    assert_eq!(again, config);
}

#[test]
fn a_hook_that_can_not_be_one_is_refused_with_what_to_write() {
    for (text, expected) in [
        ("timeout = \"10ms\"", "line 4: hooks.timeout: 10ms is not within \"100ms\" and \"60s\""),
        (
            "reports = { \"k\" = \"f(report)\" }",
            "line 4: hooks.reports: \"f(report)\" of the kind \"k\" is no name",
        ),
        ("reports = { \"k\" = \"Acme.F\" }", "is no name of a function: write it as in \"acme.on_door\""),
        ("reports = { \"k\" = \"a.b.c\" }", "is no name of a function"),
        ("reports = { \"k\" = \"f; drop table events\" }", "is no name of a function"),
        ("statuses = { \"k\" = [] }", "line 4: hooks.statuses: the kind \"k\" has 0 functions: name 1 to 16"),
        ("statuses = { \"k\" = [\"f\", \"f\"] }", "\"f\" of the kind \"k\" is named twice"),
        ("statuses = { \"\" = \"f\" }", "is no kind that a node can send"),
        ("statuses = { \"k\" = 3 }", "the name of a SQL function or a list of them"),
        (
            "builtin = false\nattested_bindings = true",
            "line 5: hooks.attested_bindings: is about the built-in hooks",
        ),
    ] {
        let told = problem_of(&format!("{MINIMAL}[hooks]\n{text}\n"));
        assert!(told.contains(expected), "{text}: {told}");
    }
}

#[test]
fn relative_paths_start_at_the_files_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.toml");
    let url_file = folder.path().join("db.url");
    std::fs::write(
        &file,
        format!("{MINIMAL}[tls]\nkey = \"tls/key.pem\"\n[database]\nurl_file = \"db.url\"\n"),
    )
    .expect("written");
    std::fs::write(&url_file, "postgres://u:hunter2@h/d\n").expect("written");
    let config = Config::load(&file).expect("valid");
    assert_eq!(config.tls.key, folder.path().join("tls/key.pem"));
    assert_eq!(config.tls.certificate, PathBuf::from("/etc/gateway/tls/gateway.pem"));
    let url = config.database_url().expect("a URL");
    assert_eq!(url.reveal(), "postgres://u:hunter2@h/d");
    assert_eq!(url.to_string(), "postgres://u:***@h/d");
}

#[test]
fn a_credential_is_found_in_systemds_folder_and_missed_elsewhere() {
    let path = Path::new("credential:db");
    assert_eq!(
        resolve_path(path, Path::new("/etc"), Some(Path::new("/run/credentials/gateway"))),
        Ok(PathBuf::from("/run/credentials/gateway/db"))
    );
    assert!(
        resolve_path(path, Path::new("/etc"), None).is_err_and(|error| error.contains("LoadCredential=db"))
    );
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Path::new("/nowhere/gateway.toml")).expect_err("there is none");
    assert!(error.to_string().starts_with("/nowhere/gateway.toml: can't be read"), "{error}");
}

#[test]
fn the_unit_gives_a_drain_and_a_stop_the_time_that_they_may_take() {
    let unit = include_str!("../../../configs/gateway.service");
    let limit = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec="));
    let limit: u64 =
        limit.and_then(|limit| limit.strip_suffix('s')).and_then(|limit| limit.parse().ok()).unwrap();
    let gateway = Config::default().gateway;
    let longest = gateway.drain.0 + gateway.drain_grace.0 + gateway.stop_timeout.0;
    assert!(
        std::time::Duration::from_secs(limit) > longest,
        "TimeoutStopSec is {limit} s, a stop may take {longest:?}"
    );
}

#[test]
fn a_drain_of_nothing_is_none_and_one_for_ever_is_refused() {
    let (config, _) = Config::parse(&format!("{MINIMAL}drain = \"0s\"\n")).unwrap();
    assert_eq!(config.drain_plan(), None);
    assert!(Config::default().drain_plan().is_some());
    assert!(problem_of(&format!("{MINIMAL}drain = \"11m\"\n")).contains("gateway.drain"));
}

#[test]
fn services_are_reached_over_mutual_tls_alone() {
    let of = |upstream: &str| problem_of(&format!("{MINIMAL}[upstream]\n{upstream}"));
    let url = "join_url = \"https://join.example:1\"\n";
    assert!(of(url).contains("upstream.join_url: needs upstream.ca"), "{}", of(url));
    let plain = of("renew_url = \"http://join.example:1\"\nca = \"ca.pem\"\n");
    assert!(plain.contains("must begin with https://"), "{plain}");
    let half = of(&format!("{url}ca = \"ca.pem\"\nkey = \"a.key\"\n"));
    assert!(half.contains("needs upstream.certificate"), "{half}");
    let long = of("timeout = \"2m\"\n");
    assert!(long.contains("is not within \"100ms\" and \"60s\""), "{long}");
    assert!(of("max_in_flight = 0\n").contains("must be 1 to 1000"));
}

#[test]
fn what_is_wrong_with_identities_is_said_with_what_to_write() {
    for (section, told) in [
        ("[identity]\nuri_path = \"/node/{node}\"", "{site} and {node} once each"),
        ("[identity]\nunknown_serial = \"maybe\"", "refuse"),
        ("[identity]\nclock_skew = \"1h\"", "is not within \"0s\" and \"10m\""),
        ("[identity]\nrevocation_poll = \"1ms\"", "is not within \"100ms\" and \"60s\""),
        ("[identity]\nrevocation_scan = \"2h\"", "is not within \"1s\" and \"1h\""),
        ("[identity]\ndestructive_kinds = [\"wipe\", \"\"]", "is no kind of a command"),
        ("[tls]\nreload_every = \"10ms\"", "is not within \"1s\" and \"1h\""),
    ] {
        let problem = problem_of(&format!("{MINIMAL}{section}\n"));
        assert!(problem.contains(told), "{section}: {problem}");
    }
    let text =
        format!("{MINIMAL}[identity]\nuri_path = \"/{{site}}/n/{{node}}\"\ndestructive_kinds = [\"wipe\"]\n");
    let (config, lines) = Config::parse(&text).expect("valid");
    assert_eq!(config.check(&lines), []);
}

#[test]
fn what_a_problem_repeats_of_the_file_is_harmless_and_cut() {
    let text = format!("[gateway]\nid = 'g'\n\"a\u{1b}[2J\u{202e}{}\" = 1\n", "x".repeat(5000));
    let problems = Config::parse(&text.replace('\u{1b}', "\\u001b")).expect_err("there is no such key");
    let shown = problems[0].to_string();
    assert!(shown.contains("\\u{1b}[2J\\u{202e}x") && shown.len() < 2000, "{shown}");
    assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
}

#[test]
fn a_control_api_has_a_ca_for_its_clients_a_port_of_its_own_and_a_url() {
    let of = |keys: &str| problem_of(&format!("{MINIMAL}[control]\n{keys}"));
    assert!(of("api_listen = \"127.0.0.1:7481\"").contains("control.client_ca"));
    let ca = "client_ca = \"ca.pem\"\n";
    assert!(of(&format!("{ca}api_listen = \"0.0.0.0:7481\"")).contains("gateway.internal_url"));
    assert!(of(&format!("{ca}api_listen = \"127.0.0.1:7480\"")).contains("takes the port of control.listen"));
    assert!(of(&format!("{ca}api_listen = \"127.0.0.1:7443\"")).contains("takes the port of listen.address"));
    assert!(of("certificate = \"c.pem\"").contains("control.key"));
    assert!(of("clients = [\"a b\"]").contains("no name of a certificate"));
    let whole =
        format!("{MINIMAL}[control]\n{ca}api_listen = \"127.0.0.1:7481\"\nclients = [\"spiffe://a/b\"]\n");
    let (config, lines) = Config::parse(&whole).expect("valid");
    assert_eq!(config.check(&lines), []);
}
