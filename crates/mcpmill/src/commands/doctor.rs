//! `doctor`: what is there, what is missing, how to get it.

use std::process::Stdio;

use mcpmill_clients::assets::{AssetId, Assets, Status};
use serde::Serialize;

use super::wants::{choices, wants_of, wants_of_settings};
use crate::{
    cli::Format,
    edges::{Edges, Named, model_of},
    error::Failure,
    prices::Prices,
    run::Setup,
};
use mcpmill_pipeline::models::Role;

/// One thing the program needs.
#[derive(Serialize)]
struct Line {
    thing: String,
    /// `ok`, `will be fetched`, `not set`, or `missing`.
    state: &'static str,
    detail: String,
}

/// Prints the state of everything the program needs. Missing things that it fetches by itself are
/// no failure.
///
/// # Errors
/// Something is missing that the user must see to.
pub async fn doctor(setup: &Setup) -> Result<(), Failure> {
    let mut lines = vec![
        tool("Python", &["python3", "--version"], Some((3, 10)), "install python3, 3.10 or later").await,
        tool("pip", &["python3", "-m", "pip", "--version"], None, "install python3-pip").await,
        tool("Node", &["node", "--version"], Some((20, 0)), "install Node 20 or later").await,
        tool("npm", &["npm", "--version"], None, "install npm").await,
        tool("git", &["git", "--version"], None, "install git: the world `repo` of the starter roster is made with it").await,
    ];
    let edges = Edges::new(&setup.config, setup.global.unsandboxed, true);
    lines.extend(AssetId::ALL.map(|id| asset(&edges.assets, id)));
    let cage = edges.cage().await;
    for (key, version) in pythons(setup) {
        lines.extend(match &cage {
            Ok(cage) => Some(python(&key, &version, cage.host().python(Some(&version)).await.is_some())),
            Err(_) => None,
        });
    }
    lines.push(match cage {
        Ok(_) if setup.global.unsandboxed => {
            Line { thing: "cage".into(), state: "ok", detail: "switched off by --unsandboxed".into() }
        }
        Ok(cage) => {
            let detail = format!("a test program ran in it; {}", cage.weaknesses().join("; "));
            Line { thing: "cage".into(), state: "ok", detail }
        }
        Err(_) if matches!(edges.assets.status(AssetId::Bubblewrap), Status::Missing { .. }) => {
            Line { thing: "cage".into(), state: "will be fetched", detail: "can be tried once bubblewrap is here".into() }
        }
        Err(failure) => {
            Line { thing: "cage".into(), state: "missing", detail: failure.hint.clone().unwrap_or_else(|| failure.to_string()) }
        }
    });
    let prices = Prices::load(&setup.declarations)?;
    for role in Role::ALL {
        lines.push(match model_of(&setup.config, role) {
            Ok(named) => Line { thing: format!("role {role}"), state: "ok", detail: priced(&named, &prices) },
            Err(failure) => Line { thing: format!("role {role}"), state: "missing", detail: failure.to_string() },
        });
    }
    lines.extend(given(setup));
    show(setup.global.format, &lines);
    match lines.iter().filter(|l| l.state == "missing").count() {
        0 => Ok(()),
        count => {
            Err(Failure::environment(format!("{count} things are missing"))
                .hint("the lines marked `missing` say how to get them"))
        }
    }
}

/// A model and what is known of its price.
fn priced(named: &Named, prices: &Prices) -> String {
    let Some((model, own)) = &named.priced else { return named.name.clone() };
    let (price, whence) = match (own, prices.find(model)) {
        (Some(price), _) => (*price, "by the settings".to_owned()),
        (None, Some(listed)) => (listed.price, format!("as of {}", listed.as_of)),
        (None, None) => return format!("{}; no price is known: set `models.NAME.price`, or its cost counts as 0", named.name),
    };
    format!("{}; ${} in and ${} out per million tokens, {whence}", named.name, price.input, price.output)
}

/// Versions of Python that settings name, each with the setting.
fn pythons(setup: &Setup) -> Vec<(String, String)> {
    let harvest = &setup.config.harvest;
    let own = harvest.servers.iter().map(|(key, one)| (format!("harvest.servers.\"{key}\".python"), one.python.clone()));
    let all = std::iter::once(("harvest.python".to_owned(), harvest.python.clone())).chain(own);
    all.filter(|(_, version)| !version.is_empty()).collect()
}

fn python(key: &str, version: &str, there: bool) -> Line {
    let (state, detail) = match there {
        true => ("ok", format!("as `{key}` says")),
        false => ("missing", format!("`{key}` names it: install it, or let uv or pyenv keep it")),
    };
    Line { thing: format!("Python {version}"), state, detail }
}

/// What is the user's to give: keys, secrets, values; and what was chosen beyond the default. That something
/// is not set is no failure: what needs it is skipped and says so.
fn given(setup: &Setup) -> Vec<Line> {
    let marketplaces = setup.config.discover.marketplaces.iter().filter_map(|id| setup.declarations.marketplace(id).ok());
    let wants = marketplaces.flat_map(|marketplace| wants_of(setup, marketplace.as_ref())).chain(wants_of_settings(setup));
    let state = |there| if there { "ok" } else { "not set" };
    let wants = wants.map(|want| Line { thing: want.thing, state: state(want.there), detail: want.detail });
    wants.chain(choices(setup).into_iter().map(|(thing, detail)| Line { thing, state: "ok", detail })).collect()
}

fn show(format: Format, lines: &[Line]) {
    if format == Format::Json {
        println!("{}", serde_json::json!(lines));
        return;
    }
    let width = lines.iter().map(|l| l.thing.chars().count()).max().unwrap_or_default();
    for line in lines {
        println!("{:<width$}  {:<15}  {}", line.thing, line.state, line.detail);
    }
}

/// The user's own tools: run with `--version` only.
async fn tool(thing: &str, command: &[&str], oldest: Option<(u32, u32)>, how: &str) -> Line {
    let run = tokio::process::Command::new(command[0]).args(&command[1..]).stdin(Stdio::null()).output().await;
    let Some(output) = run.ok().filter(|output| output.status.success()) else {
        return Line { thing: thing.into(), state: "missing", detail: how.into() };
    };
    let said = String::from_utf8_lossy(&output.stdout).split(" from ").next().unwrap_or_default().trim().to_owned();
    match (oldest, version(&said)) {
        (Some(oldest), Some(found)) if found < oldest => {
            Line { thing: thing.into(), state: "missing", detail: format!("{said} is too old: {how}") }
        }
        _ => Line { thing: thing.into(), state: "ok", detail: said },
    }
}

/// The first two numbers of what a program says of its version.
fn version(said: &str) -> Option<(u32, u32)> {
    let word =
        said.split(' ').map(|word| word.trim_start_matches('v')).find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut numbers = word.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn asset(assets: &Assets, id: AssetId) -> Line {
    let pinned = id.asset();
    let what = format!("{} {} ({}, {})", id, pinned.version, pinned.purpose, pinned.licence);
    match assets.status(id) {
        Status::Present(_) => Line { thing: id.to_string(), state: "ok", detail: what },
        Status::Missing { download_bytes, how } => {
            let detail = format!("{what}; {} MB at first use, by `{how}`", download_bytes.div_ceil(1 << 20));
            Line { thing: id.to_string(), state: "will be fetched", detail }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("Python 3.11.7"), Some((3, 11)));
        assert_eq!(version("v20.20.2"), Some((20, 20)));
        assert_eq!(version("git version 2.47.3"), Some((2, 47)));
        assert_eq!(version("none"), None);
        assert!(version("Python 3.9.1") < Some((3, 10)));
    }
}
