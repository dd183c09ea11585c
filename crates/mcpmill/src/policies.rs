//! What single servers and the servers of a marketplace are given: `[harvest.servers]`, and `network` of a
//! marketplace.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use mcpmill_clients::install::{PackageSettings, Packages, Sources};
use mcpmill_core::{
    edge::Network,
    id::ServerId,
    launch,
    record::{Launch, ServerRecord},
};
use serde::{Deserialize, Serialize};

use crate::{config::Config, declarations::Declarations, error::Failure};

/// One entry of `[harvest.servers]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSettings {
    /// What may be built from source for it.
    #[serde(skip_serializing_if = "Sdist::is_none")]
    pub sdist: Sdist,
    /// The version of Python it is installed for; empty for that of `harvest.python`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub python: String,
    /// What it reaches of the network; where it is not said, what its marketplaces say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Further world seeds, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub world: Vec<String>,
}

/// `sdist`: nothing, anything, or the packages that are named.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "`sdist` is true, false or a list of package names")]
pub enum Sdist {
    /// `true` or `false`.
    Whether(bool),
    /// Names of packages.
    Named(Vec<String>),
}

impl Default for Sdist {
    fn default() -> Self {
        Self::Whether(false)
    }
}

impl Sdist {
    fn is_none(&self) -> bool {
        match self {
            Self::Whether(all) => !all,
            Self::Named(names) => names.is_empty(),
        }
    }

    /// What it means, for people.
    pub fn words(&self) -> Option<String> {
        match self {
            Self::Whether(false) => None,
            Self::Whether(true) => Some("whatever it needs is built from source where there is no wheel".to_owned()),
            Self::Named(names) if names.is_empty() => None,
            Self::Named(names) => Some(format!("{} may be built from source", names.join(", "))),
        }
    }

    fn sources(&self) -> Sources {
        match self {
            Self::Whether(true) => Sources::All,
            Self::Named(names) if !names.is_empty() => Sources::named(names),
            _ => Sources::None,
        }
    }
}

/// The settings as the installer takes them.
pub fn packages(config: &Config) -> Packages {
    let settings = |one: &ServerSettings| PackageSettings {
        sources: one.sdist.sources(),
        python: Some(one.python.clone()).filter(|version| !version.is_empty()),
    };
    config.harvest.servers.iter().map(|(key, one)| (key.clone(), settings(one))).collect()
}

/// What is wrong with the settings of single servers; `worlds` are the seeds that are declared.
pub fn faults(config: &Config, worlds: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for (key, one) in &config.harvest.servers {
        let fault = |what: String| format!("`harvest.servers.\"{key}\"` {what}");
        let parsed = match key.split_once(':') {
            Some(("npm", name)) => launch::parse("npx", &[name.to_owned()]).ok(),
            Some(("pypi", name)) => launch::parse("uvx", &[name.to_owned()]).ok(),
            _ => None,
        };
        let Some(package) = parsed.filter(|package| package.version.is_none()) else {
            // A name is what a marketplace says; a package is what runs.
            faults.push(fault("names no package: write `npm:NAME` or `pypi:NAME`, without a version".into()));
            continue;
        };
        if package.key() != *key {
            faults.push(fault(format!("is written `{}`", package.key())));
        }
        if package.registry == launch::Registry::Npm && (!one.sdist.is_none() || !one.python.is_empty()) {
            faults.push(fault("is a package of npm: `sdist` and `python` are for those of PyPI".into()));
        }
        if !one.python.is_empty() && launch::parse("uvx", &["--python".into(), one.python.clone(), "x".into()]).is_err() {
            faults.push(fault(format!("has `python = \"{}\"`, which is no version such as `3.12`", one.python)));
        }
        let lost = one.world.iter().filter(|name| !worlds.contains(name));
        faults.extend(lost.map(|name| fault(format!("names the world `{name}`; there are {}", worlds.join(", ")))));
    }
    faults
}

/// What every server of a run is given.
#[derive(Debug, Default)]
pub struct Policies {
    servers: BTreeMap<String, ServerSettings>,
    marketplaces: BTreeMap<String, Network>,
}

/// The package a server is, as `[harvest.servers]` names it.
fn key_of(server: &ServerRecord) -> Option<String> {
    let Launch::Stdio { command, args } = &server.launch else { return None };
    Some(launch::parse(command, args).ok()?.key())
}

impl Policies {
    /// The policies of these settings and of the marketplaces they name.
    ///
    /// # Errors
    /// A declaration cannot be used.
    pub fn read(config: &Config, declarations: &Declarations) -> Result<Self, Failure> {
        let network = |id: &String| Ok((id.clone(), declarations.marketplace(id)?.network()));
        let marketplaces = config.discover.marketplaces.iter().map(network).collect::<Result<_, Failure>>()?;
        Ok(Self { servers: config.harvest.servers.clone(), marketplaces })
    }

    /// The settings of a server, by the package it runs.
    fn of(&self, server: &ServerRecord) -> Option<&ServerSettings> {
        self.servers.get(&key_of(server)?)
    }

    /// Packages that have settings, and that no server is.
    pub fn unmatched(&self, servers: &[ServerRecord]) -> Vec<&String> {
        let known: HashSet<String> = servers.iter().filter_map(key_of).collect();
        self.servers.keys().filter(|name| !known.contains(*name)).collect()
    }

    /// The server with the world seeds that its settings add.
    pub fn applied(&self, mut server: ServerRecord) -> ServerRecord {
        let more = self.of(&server).map(|own| own.world.clone()).unwrap_or_default();
        let new = more.into_iter().filter(|name| !server.world.contains(name)).collect::<Vec<_>>();
        server.world.extend(new);
        server
    }

    /// What a server reaches of the network: what its settings say, else the least that a marketplace which
    /// lists it says. One marketplace cannot open it to the servers of another.
    pub fn network(&self, server: &ServerRecord) -> Network {
        if matches!(server.launch, Launch::StreamableHttp { .. } | Launch::Sse { .. } | Launch::Unsupported { .. }) {
            return Network::None;
        }
        let listed = server.sources.iter().map(|s| self.marketplaces.get(&s.marketplace).copied().unwrap_or_default()).min();
        self.of(server).and_then(|own| own.network).or(listed).unwrap_or_default()
    }

    /// Those of the servers that have the network.
    pub fn networked<'a>(&self, servers: impl IntoIterator<Item = &'a ServerRecord>) -> BTreeSet<ServerId> {
        let open = servers.into_iter().filter(|server| self.network(server) == Network::Full);
        open.map(|server| server.id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mcpmill_core::record::Source;

    use super::*;

    fn config(sets: &[&str]) -> Result<Config, Failure> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Config::resolve(None, Path::new("/nonexistent"), &sets)
    }

    fn server(line: &str, marketplaces: &[&str]) -> ServerRecord {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let launch = Launch::Stdio { command: words[0].clone(), args: words[1..].to_vec() };
        let sources = marketplaces.iter().map(|id| Source { marketplace: (*id).to_owned(), url: None }).collect::<Vec<_>>();
        let text =
            serde_json::json!({ "id": ServerRecord::identify(&launch), "name": "s", "launch": launch, "sources": sources });
        serde_json::from_value(text).unwrap()
    }

    fn policies(sets: &[&str]) -> Policies {
        let marketplaces = [("open".to_owned(), Network::Full), ("shut".to_owned(), Network::None)].into();
        Policies { servers: config(sets).unwrap().harvest.servers, marketplaces }
    }

    #[test]
    fn a_server_comes_before_its_marketplaces_and_the_least_of_these_holds() {
        let by_default = policies(&[]);
        let network = |line: &str, marketplaces: &[&str]| by_default.network(&server(line, marketplaces));
        assert_eq!(network("npx -y a@1.0.0", &["shut"]), Network::None);
        assert_eq!(network("npx -y a@1.0.0", &["open"]), Network::Full);
        assert_eq!(network("npx -y a@1.0.0", &["open", "shut"]), Network::None);
        assert_eq!(network("npx -y a@1.0.0", &["open", "unheard-of"]), Network::None);
        assert_eq!(network("npx -y a@1.0.0", &[]), Network::None);

        let own = policies(&[r#"harvest.servers."npm:a".network=none"#, r#"harvest.servers."pypi:b".network=full"#]);
        assert_eq!(own.network(&server("npx -y a@1.0.0", &["open"])), Network::None);
        assert_eq!(own.network(&server("uvx B@2", &["shut"])), Network::Full);
        let both = [server("npx -y a@1.0.0", &["open"]), server("uvx b@2", &["shut"])];
        assert_eq!(own.networked(&both), BTreeSet::from([both[1].id.clone()]));
    }

    #[test]
    fn settings_add_seeds_once() {
        let own = policies(&[r#"harvest.servers."npm:a".world=["x", "y"]"#]);
        let mut listed = server("npx -y a@1.0.0", &[]);
        listed.world = vec!["y".to_owned()];
        assert_eq!(own.applied(listed).world, ["y", "x"]);
        assert!(own.applied(server("npx -y b@1.0.0", &[])).world.is_empty());
    }

    #[test]
    fn sources_are_named_or_all() {
        let all =
            config(&[r#"harvest.servers."pypi:a".sdist=true"#, r#"harvest.servers."pypi:b".sdist=["Proxy_Tools"]"#]).unwrap();
        let packages = packages(&all);
        assert_eq!(packages["pypi:a"].sources, Sources::All);
        assert_eq!(packages["pypi:b"].sources, Sources::named(["proxy-tools"]));
        let again: Config = toml::from_str(&all.to_toml()).unwrap();
        assert_eq!(again.harvest.servers, all.harvest.servers);
    }

    #[test]
    fn mistakes_are_told_with_a_way_on() {
        let unknown = config(&[r#"harvest.servers."npm:a".network=ful"#]).unwrap_err();
        assert!(unknown.to_string().contains("unknown variant `ful`"), "{unknown}");
        assert_eq!(unknown.hint.as_deref(), Some("did you mean `full`?"));
        assert_eq!(
            config(&[r#"harvest.servers."npm:a".netwrk=full"#]).unwrap_err().hint.as_deref(),
            Some("did you mean `network`?")
        );
        assert!(config(&[r#"harvest.servers."pypi:a".sdist=3"#]).unwrap_err().to_string().contains("list of package names"));
        let wrong = [
            (r#"harvest.servers.filesystem.network=full"#, "names no package"),
            (r#"harvest.servers."npm:a@1.0.0".network=full"#, "without a version"),
            (r#"harvest.servers."pypi:A_b".network=full"#, "is written `pypi:a-b`"),
            (r#"harvest.servers."npm:a".sdist=true"#, "those of PyPI"),
            (r#"harvest.servers."pypi:a".python=three"#, "no version such as"),
            (r#"harvest.servers."pypi:a".world=["lost"]"#, "there are notes"),
        ];
        for (set, words) in wrong {
            let told = faults(&config(&[set]).unwrap(), &["notes".to_owned()]);
            assert!(told.len() == 1 && told[0].contains(words), "{set}: {told:?}");
        }
    }
}
