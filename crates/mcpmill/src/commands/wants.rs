//! What settings and declarations want of this machine, and whether it is there. Values are never shown.

use mcpmill_core::edge::Network;
use mcpmill_pipeline::discover::Marketplace;

use crate::{
    edges::{is_variable, set},
    run::Setup,
};

/// Something that the user gives.
pub(super) struct Want {
    /// What it is.
    pub(super) thing: String,
    /// Whether it is given.
    pub(super) there: bool,
    /// Where it is looked for, and what comes of its absence.
    pub(super) detail: String,
}

/// What a marketplace wants: keys in variables of the environment, and values of `[discover.values]`.
pub(super) fn wants_of(setup: &Setup, marketplace: &dyn Marketplace) -> Vec<Want> {
    let keys = marketplace.keys().into_iter().map(|key| {
        let there = set(&key.name).is_some();
        let without = match (there, key.required) {
            (true, _) => "",
            (false, true) => "; without it the marketplace is skipped",
            (false, false) => "; without it the marketplace is asked all the same",
        };
        let detail = format!("the variable `{}` holds its key{without}", key.name);
        Want { thing: format!("key of {}", marketplace.id()), there, detail }
    });
    let values = marketplace.values().into_iter().map(|name| {
        // What the npm client is set to is asked of it.
        let given = setup.config.discover.values.contains_key(&name);
        let (there, detail) = match (given, name.as_str()) {
            (true, _) => (true, format!("`discover.values.{name}`")),
            (false, "npm_registry") => (true, "as the npm client is set".to_owned()),
            (false, _) => (false, format!("`discover.values.{name}`; without it the marketplace is skipped")),
        };
        Want { thing: format!("value of {}", marketplace.id()), there, detail }
    });
    keys.chain(values).collect()
}

/// What the settings want: the variables of `[secrets]`, and that of the proxy.
pub(super) fn wants_of_settings(setup: &Setup) -> Vec<Want> {
    let secrets = setup.config.secrets.iter().map(|(name, variable)| {
        let thing = format!("secret {name}");
        if !is_variable(variable) {
            // It may be the secret itself.
            let detail = "is no name of a variable; the value itself belongs in no file".to_owned();
            return Want { thing, there: false, detail };
        }
        let there = set(variable).is_some();
        let without = if there { "" } else { "; servers that need it are skipped" };
        Want { thing, there, detail: format!("the variable `{variable}` holds it{without}") }
    });
    let proxy = Some(&setup.config.crawl.proxy_env).filter(|name| !name.is_empty()).map(|name| {
        let there = set(name).is_some();
        let without = if there { "" } else { "; hosts are asked directly" };
        Want { thing: "crawl proxy".to_owned(), there, detail: format!("the variable `{name}` holds its address{without}") }
    });
    secrets.chain(proxy).collect()
}

/// How hosts are asked and servers are run where that is not the default, each with what it means.
pub(super) fn choices(setup: &Setup) -> Vec<(String, String)> {
    let (crawl, harvest) = (&setup.config.crawl, &setup.config.harvest);
    let mut said = Vec::new();
    let mut say = |thing: &str, detail: String| said.push((thing.to_owned(), detail));
    if !crawl.contact.is_empty() {
        say("crawl contact", format!("{} stands in the user agent", crawl.contact));
    }
    if !crawl.allow_loopback.is_empty() {
        say("crawl loopback", format!("{} may be asked on this machine", crawl.allow_loopback.join(", ")));
    }
    if harvest.remote {
        say("remote servers", "are reached over HTTP (`harvest.remote`)".to_owned());
    }
    let open = setup.config.discover.marketplaces.iter();
    let open = open.filter(|id| setup.declarations.marketplace(id).is_ok_and(|m| m.network() == Network::Full));
    for id in open {
        say(&format!("network of {id}"), "full: its servers reach all that this machine reaches, its loopback included".into());
    }
    for (key, one) in &harvest.servers {
        let mut parts = Vec::new();
        match &one.network {
            Some(Network::Full) => parts.push("reaches all that this machine reaches, its loopback included".to_owned()),
            Some(Network::None) => parts.push("has no network".to_owned()),
            None => {}
        }
        parts.extend(one.sdist.words());
        parts.extend(Some(&one.python).filter(|v| !v.is_empty()).map(|version| format!("runs with Python {version}")));
        parts.extend(Some(&one.world).filter(|w| !w.is_empty()).map(|world| format!("has {} in its folder", world.join(", "))));
        say(&format!("server {key}"), parts.join("; "));
    }
    said
}
