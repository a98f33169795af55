//! What a run sets of its gateways: their TOML.
//!
//! Owns the text and how one text is laid over another. A gateway has its defaults, but for what a run has to
//! set; what the scenario sets goes over that, and what the caller's own file says over all.

use anyhow::Context;

use super::WorldPlan;

/// What the gateways of a run are set to.
pub(super) fn gateway_toml(plan: &WorldPlan) -> anyhow::Result<String> {
    let (room, heartbeat) = (plan.sessions + 1000, humantime::format_duration(plan.heartbeat));
    let opens = plan.opens_per_second.unwrap_or(100_000);
    let mut text = format!(
        "[admission]\nopens_per_second = {opens}\nopens_burst = {opens}\nmax_streams = {room}\n\
         max_pending_hellos = {room}\n[identity]\nunknown_serial = \"accept\"\n[sessions]\nheartbeat_interval = \"{heartbeat}\"\n"
    );
    if let Some(ttl) = plan.lease_ttl {
        let (ttl, renew) = (ttl.as_millis(), ttl.as_millis() / 5);
        text.push_str(&format!("[lease]\nttl = \"{ttl}ms\"\nrenew_every = \"{renew}ms\"\n"));
    }
    if let Some(drain) = plan.drain {
        text.push_str(&format!("[gateway]\ndrain = \"{}\"\n", humantime::format_duration(drain)));
    }
    let text = merged(&text, plan.more_toml)?;
    match &plan.gateway.gateway_toml {
        None => Ok(text),
        Some(path) => {
            let more =
                std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
            merged(&text, &more).with_context(|| path.display().to_string())
        }
    }
}

/// Section by section, key by key; what `more` says wins.
pub(super) fn merged(base: &str, more: &str) -> anyhow::Result<String> {
    let mut base: toml::Table = base.parse()?;
    let more: toml::Table = more.parse()?;
    for (section, keys) in more {
        match (base.get_mut(&section), keys) {
            (Some(toml::Value::Table(base)), toml::Value::Table(keys)) => base.extend(keys),
            (_, keys) => drop(base.insert(section, keys)),
        }
    }
    Ok(base.to_string())
}
