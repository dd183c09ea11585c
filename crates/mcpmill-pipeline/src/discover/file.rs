//! Kind `file`: the servers stand in the declaration itself, launched as `mcpServers` configs write it.

use std::collections::BTreeMap;

use async_trait::async_trait;
use mcpmill_core::{
    edge::Network,
    record::{EnvVar, Launch, ServerRecord, Source},
    secrets,
};
use serde::Deserialize;

use super::{
    identity,
    marketplace::{Counts, CrawlContext, CrawlError, Listing, Marketplace},
    redact,
};

/// Entries that are read; a longer file is a mistake or an attack.
const MOST_SERVERS: usize = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Declaration {
    #[serde(rename = "kind")]
    _kind: String,
    /// One line for people.
    #[serde(rename = "title")]
    _title: String,
    #[serde(default)]
    network: Network,
    #[serde(default)]
    server: Vec<toml::Value>,
}

/// One `[[server]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    title: Option<String>,
    description: Option<String>,
    version: Option<String>,
    licence: Option<String>,
    category: Option<String>,
    homepage: Option<String>,
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Names of variables whose values must come from the user.
    #[serde(default)]
    secrets: Vec<String>,
    #[serde(default)]
    world: Vec<String>,
    /// Said to the user before the first run.
    #[serde(rename = "download_mb")]
    _download_mb: Option<f64>,
}

/// A marketplace that is a file.
pub(super) struct FileMarketplace {
    id: String,
    network: Network,
    listings: Vec<Listing>,
}

impl FileMarketplace {
    pub(super) fn parse(id: &str, text: &str) -> Result<Self, String> {
        let declaration: Declaration = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        if declaration.server.len() > MOST_SERVERS {
            return Err(format!("{} servers, more than {MOST_SERVERS}", declaration.server.len()));
        }
        let listings = declaration.server.into_iter().enumerate().map(|(i, value)| listing(id, i, value)).collect();
        Ok(Self { id: id.to_owned(), network: declaration.network, listings })
    }
}

#[async_trait]
impl Marketplace for FileMarketplace {
    fn id(&self) -> &str {
        &self.id
    }

    fn declared(&self) -> &[Listing] {
        &self.listings
    }

    fn is_own_file(&self) -> bool {
        true
    }

    fn network(&self) -> Network {
        self.network
    }

    async fn crawl(&self, _: &CrawlContext, out: &mut (dyn FnMut(Listing) + Send + Sync)) -> Result<Counts, CrawlError> {
        self.listings.iter().cloned().for_each(out);
        Ok(Counts { added: self.listings.len() as u64, ..Counts::default() })
    }
}

fn listing(marketplace: &str, index: usize, value: toml::Value) -> Listing {
    let name = value.get("name").and_then(|n| n.as_str()).map_or_else(|| index.to_string(), str::to_owned);
    let entry: Result<Entry, _> = value.try_into();
    let server = entry.map(|e| record(marketplace, e)).map_err(|e| e.to_string());
    let keys = server.as_ref().map(|server| identity::keys(server, &[], None, None)).unwrap_or_default();
    Listing { id: format!("{marketplace}#{name}"), server, keys, own: true }
}

fn record(marketplace: &str, entry: Entry) -> ServerRecord {
    let launch = Launch::Stdio { command: entry.command, args: entry.args };
    // A value under such a name is taken for a secret and left at the door.
    let (hidden, open): (Vec<_>, Vec<_>) = entry.env.into_iter().partition(|(name, _)| secrets::names_a_secret(name));
    let plain = open.into_iter().map(|(name, value)| EnvVar { name, value: Some(value), secret: false, required: false });
    let hidden = hidden.into_iter().map(|(name, _)| name);
    let secret = entry.secrets.into_iter().chain(hidden).map(|name| EnvVar { name, value: None, secret: true, required: true });
    let mut server = ServerRecord {
        id: ServerRecord::identify(&launch),
        name: entry.name,
        title: entry.title,
        description: entry.description,
        version: entry.version,
        launch,
        env: plain.chain(secret).collect(),
        licence: entry.licence,
        categories: entry.category.into_iter().collect(),
        sources: vec![Source { marketplace: marketplace.to_owned(), url: entry.homepage }],
        world: entry.world,
        flags: Vec::new(),
        listed_tools: None,
    };
    redact::clean(&mut server);
    server
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const HEAD: &str = "kind = \"file\"\ntitle = \"mine\"\n";

    #[test]
    fn reads_entries_and_reports_the_broken_one() {
        let text = format!(
            "{HEAD}[[server]]\nname = \"time\"\ncommand = \"uvx\"\nargs = [\"mcp-server-time@1\"]\nenv = {{ A = \"1\", A_TOKEN = \"t0p\" }}\nsecrets = [\"KEY\"]\n\
             [[server]]\nname = \"odd\"\ncommand = \"npx\"\ncolour = \"red\"\n"
        );
        let listings = parse("mine", &text).unwrap().declared().to_vec();
        let server = listings[0].server.as_ref().unwrap();
        assert_eq!(listings[0].id, "mine#time");
        assert_eq!(server.env[1], EnvVar { name: "KEY".into(), value: None, secret: true, required: true });
        assert_eq!(server.env[2], EnvVar { name: "A_TOKEN".into(), value: None, secret: true, required: true });
        assert_eq!(listings[1].id, "mine#odd");
        assert!(listings[1].server.as_ref().unwrap_err().contains("colour"));
    }

    #[test]
    fn unknown_kinds_and_keys_are_refused() {
        assert!(parse("x", "kind = \"carrier-pigeon\"\n").err().unwrap().to_string().contains("`x`"));
        let network =
            |value: &str| parse("x", &format!("{HEAD}network = {value}\n")).map(|m| m.network()).map_err(|e| e.to_string());
        assert_eq!(network("\"full\"").unwrap(), Network::Full);
        let told = network("\"all\"").unwrap_err();
        assert!(told.contains("unknown variant `all`, expected `none` or `full`"), "{told}");
        assert!(parse("x", &format!("{HEAD}speed = 1\n")).err().unwrap().to_string().contains("speed"));
    }
}
