//! Entries of marketplaces as server records.

mod block;
mod forms;
mod registry;

pub(super) use block::{balanced, configs, strip_comments, unescape as unescaped};
pub(super) use registry::withdrawn;

use mcpmill_core::{
    record::{EnvVar, Launch, ServerRecord, Source},
    secrets::names_a_secret,
    text::shown,
};
use serde_json::Value;

use super::{
    declare::{Declaration, Mapper},
    identity,
    marketplace::Listing,
    pick, redact,
};

/// Bytes of recorded tools that are kept of one server.
const MOST_TOOLS: usize = 2 << 20;
/// Characters of a text that are kept.
const MOST_TEXT: usize = 20_000;

/// What an entry says, before it goes through the door.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub name: String,
    pub title: Option<String>,
    pub description: Option<String>,
    pub version: Option<String>,
    pub licence: Option<String>,
    pub categories: Vec<String>,
    pub homepage: Option<String>,
    pub repository: Option<String>,
    pub subfolder: Option<String>,
    pub launch: Launch,
    /// Further ways to start it.
    pub also: Vec<Launch>,
    pub env: Vec<EnvVar>,
    pub tools: Option<Value>,
    pub own: bool,
}

impl Draft {
    /// A server of this name of which nothing else is known.
    pub(super) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            title: None,
            description: None,
            version: None,
            licence: None,
            categories: Vec::new(),
            homepage: None,
            repository: None,
            subfolder: None,
            launch: none(name),
            also: Vec::new(),
            env: Vec::new(),
            tools: None,
            own: false,
        }
    }

    /// The listing it makes in a marketplace.
    pub(super) fn listing(mut self, marketplace: &str) -> Listing {
        if let Some(repository) = self.repository.as_deref().filter(|_| self.launch == none(&self.name)) {
            // A name is no more than a name: another repository may have it, too.
            self.launch = identity::only_repository(repository, self.subfolder.as_deref());
        }
        let clip = |text: Option<String>| text.map(|text| mcpmill_core::text::clipped(&text, MOST_TEXT));
        let tools = self.tools.filter(Value::is_array).map(|tools| tools.to_string());
        let mut server = ServerRecord {
            id: ServerRecord::identify(&self.launch),
            name: mcpmill_core::text::clipped(&self.name, 500),
            title: clip(self.title),
            description: clip(self.description),
            version: clip(self.version),
            launch: self.launch,
            env: self.env,
            licence: clip(self.licence),
            categories: self.categories,
            sources: vec![Source { marketplace: marketplace.to_owned(), url: self.homepage.or_else(|| self.repository.clone()) }],
            world: Vec::new(),
            flags: Vec::new(),
            listed_tools: tools.filter(|tools| tools.len() > 2 && tools.len() <= MOST_TOOLS),
        };
        redact::clean(&mut server);
        let keys = identity::keys(&server, &self.also, self.repository.as_deref(), self.subfolder.as_deref());
        Listing { id: format!("{marketplace}#{}", server.name), server: Ok(server), keys, own: self.own }
    }
}

/// No way to start it is known.
pub(super) fn none(name: &str) -> Launch {
    Launch::Unsupported { what: format!("no launch information for `{name}`") }
}

/// The record of an entry; `None` when it is no server that is listed now (deleted, superseded).
///
/// # Errors
/// What is wrong with the entry.
pub(super) fn draft(declaration: &Declaration, entry: &Value) -> Result<Option<Draft>, String> {
    if !entry.is_object() {
        return Err(format!("an entry is no object: {}", shown(&entry.to_string(), 80)));
    }
    let fields = &declaration.fields;
    let name = pick::text(entry, &fields.name).ok_or("it has no name")?;
    let mut draft = Draft {
        title: pick::text(entry, &fields.title),
        description: pick::text(entry, &fields.description),
        version: pick::text(entry, &fields.version),
        licence: pick::text(entry, &fields.licence).filter(|l| !matches!(l.as_str(), "NOASSERTION" | "UNKNOWN" | "Unknown")),
        categories: pick::words(entry, &fields.category),
        homepage: pick::text(entry, &fields.homepage),
        repository: pick::text(entry, &fields.repository),
        subfolder: pick::text(entry, &fields.subfolder),
        tools: pick::value(entry, &fields.tools).map(forms::tools),
        ..Draft::named(&name)
    };
    draft.env = pick::value(entry, &fields.env_schema).map(forms::schema_variables).unwrap_or_default();
    match declaration.launch {
        Mapper::Registry => return registry::map(entry, draft),
        Mapper::Smithery => forms::smithery(entry, &mut draft),
        Mapper::McpServersBlock => block::map(entry, &mut draft),
        Mapper::NpmPackage => draft.launch = package("npm", &name, draft.version.as_deref(), &[], &[]),
        Mapper::Docker => forms::docker(entry, &mut draft),
        Mapper::Mcpm => forms::mcpm(entry, &mut draft),
        Mapper::Repository | Mapper::Url | Mapper::Pipedream => forms::plain(declaration, entry, &mut draft)?,
    }
    Ok(Some(draft))
}

/// How a package of a registry is started.
pub(super) fn package(registry: &str, name: &str, version: Option<&str>, runtime: &[String], args: &[String]) -> Launch {
    let usable = !name.is_empty() && !name.starts_with('-') && !name.contains(|c: char| c.is_whitespace() || c.is_control());
    let fits = |v: &&str| !v.is_empty() && v.chars().all(|c| c.is_ascii_alphanumeric() || ".-+!_".contains(c)) && *v != "latest";
    let version = version.filter(fits);
    let (command, first, spec) = match registry {
        _ if !usable => return Launch::Unsupported { what: format!("package of the unusable name `{}`", shown(name, 80)) },
        "npm" => ("npx", Some("-y".to_owned()), version.map(|v| format!("{name}@{v}"))),
        "pypi" => ("uvx", None, version.map(|v| format!("{name}=={v}"))),
        "oci" | "docker" => return Launch::Unsupported { what: format!("oci image `{name}`") },
        "nuget" | "mcpb" | "cargo" => {
            let what = if registry == "mcpb" { "bundle" } else { "package" };
            return Launch::Unsupported { what: format!("{registry} {what} `{name}`") };
        }
        other => return Launch::Unsupported { what: format!("package `{name}` of `{}`", shown(other, 40)) },
    };
    let spec = spec.unwrap_or_else(|| name.to_owned());
    // Some publish the package itself and `-y` as arguments of the runtime.
    let runtime = runtime.iter().filter(|arg| *arg != "-y" && *arg != "--yes" && **arg != name && **arg != spec).cloned();
    let args = first.into_iter().chain(runtime).chain([spec.clone()]).chain(args.iter().cloned()).collect();
    Launch::Stdio { command: command.to_owned(), args }
}

/// A remote server by what its transport is called.
pub(super) fn remote(transport: &str, url: &str, headers: Vec<EnvVar>) -> Launch {
    if !url.starts_with("https://") && !url.starts_with("http://") {
        return Launch::Unsupported { what: format!("remote server at `{}`", shown(url, 200)) };
    }
    let url = url.to_owned();
    match transport.to_lowercase().replace('_', "-").as_str() {
        "sse" => Launch::Sse { url, headers },
        "" | "http" | "streamable" | "streamable-http" | "streamablehttp" => Launch::StreamableHttp { url, headers },
        other => Launch::Unsupported { what: format!("transport `{}`", shown(other, 40)) },
    }
}

/// A variable of which only a name is known.
pub(super) fn variable(name: &str, required: bool) -> EnvVar {
    EnvVar { name: name.to_owned(), value: None, secret: names_a_secret(name), required }
}

/// A member of an object, or null.
pub(super) fn at<'a>(object: &'a Value, name: &str) -> &'a Value {
    static NULL: Value = Value::Null;
    object.get(name).unwrap_or(&NULL)
}
