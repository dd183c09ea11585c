//! `server.json` of the official registry and of those that speak like it, in all its ages.

use mcpmill_core::{
    record::{EnvVar, Launch},
    secrets::names_a_secret,
    template::is_variable,
    text::shown,
};
use serde_json::Value;
use url::Url;

use super::{Draft, at, none, package, remote};
use crate::discover::pick;

/// Registry and vendor metadata, newest first.
const META: [&str; 4] = [
    "/_meta/io.modelcontextprotocol.registry~1official",
    "/_meta/com.pulsemcp~1server-version",
    "/x-io.modelcontextprotocol.registry",
    "/server/_meta/io.modelcontextprotocol.registry~1official",
];

pub(super) fn map(entry: &Value, mut draft: Draft) -> Result<Option<Draft>, String> {
    let server = entry.get("server").unwrap_or(entry);
    let Withdrawn { version, deleted, latest } = withdrawn(entry);
    if deleted || latest == Some(false) {
        return Ok(None);
    }
    draft.version = version;
    let repository = at(server, "repository");
    draft.repository = pick::member(repository, &["url"]).or(draft.repository);
    draft.subfolder = pick::member(repository, &["subfolder"]).or(draft.subfolder);
    draft.homepage = draft.homepage.or_else(|| draft.repository.clone());
    let packages = pick::list(server, &["packages"]).iter().map(|p| of_package(p, draft.version.as_deref()));
    let remotes = pick::list(server, &["remotes"]).iter().map(of_remote);
    let served: Vec<Launch> = pick::list(server, &["packages"]).iter().filter_map(served).collect();
    // The sort is stable: among equals the publisher's order counts.
    let mut forms: Vec<(Launch, Vec<EnvVar>)> = packages.chain(remotes).collect();
    forms.sort_by_key(|(launch, _)| rank(launch));
    let name = draft.name.clone();
    let mut forms = forms.into_iter();
    (draft.launch, draft.env) = forms.next().unwrap_or_else(|| (none(&name), Vec::new()));
    draft.also = forms.map(|(launch, _)| launch).chain(served).collect();
    let mut tools = pick::list(server, &["packages"]).iter().chain(pick::list(server, &["remotes"]));
    draft.tools = draft.tools.or_else(|| tools.find_map(|form| form.get("tools")).cloned());
    Ok(Some(draft))
}

/// What an entry says of its being listed no more.
pub(in crate::discover) struct Withdrawn {
    pub version: Option<String>,
    pub deleted: bool,
    /// Whether it is said to be the latest version; `None` when nothing is said.
    pub latest: Option<bool>,
}

/// Reads which version an entry is and what has become of it.
pub(in crate::discover) fn withdrawn(entry: &Value) -> Withdrawn {
    let server = entry.get("server").unwrap_or(entry);
    let meta = META.iter().find_map(|pointer| entry.pointer(pointer)).unwrap_or(&Value::Null);
    let detail = server.get("version_detail").unwrap_or(&Value::Null);
    let status = META.iter().find_map(|p| entry.pointer(p)?.get("status")).or_else(|| server.get("status"));
    let latest = [meta, detail].into_iter().find_map(|place| place.get("isLatest").or_else(|| place.get("is_latest")));
    Withdrawn {
        version: pick::member(server, &["version"]).or_else(|| pick::member(detail, &["version"])),
        deleted: status.and_then(Value::as_str) == Some("deleted"),
        latest: latest.and_then(Value::as_bool),
    }
}

pub(super) fn rank(launch: &Launch) -> u8 {
    match launch {
        Launch::Stdio { args, .. } => u8::from(!args.iter().any(|a| a.contains("==") || a.trim_start_matches('@').contains('@'))),
        Launch::StreamableHttp { .. } => 2,
        Launch::Sse { .. } => 3,
        Launch::Unsupported { .. } => 4,
    }
}

/// Registry, name and transport of a package, with the registry's address where that is none of the two that
/// everybody asks.
struct Published {
    kind: String,
    name: String,
    transport: Option<String>,
    elsewhere: Option<String>,
}

fn published(form: &Value) -> Published {
    let kind = pick::member(form, &["registryType", "registry_type", "registry_name"]).unwrap_or_default();
    let name = pick::member(form, &["identifier", "name"]).unwrap_or_default();
    let transport =
        pick::member(at(form, "transport"), &["type"]).or_else(|| pick::member(form, &["transport_type", "transport"]));
    let base = pick::member(form, &["registryBaseUrl", "registry_base_url"]);
    let elsewhere = base.filter(|base| matches!(kind.as_str(), "npm" | "pypi") && !is_public(&kind, base));
    Published { kind, name, transport: transport.filter(|transport| transport != "stdio"), elsewhere }
}

/// Whether an address is on the site of the public registry of this kind.
fn is_public(kind: &str, base: &str) -> bool {
    let site = if kind == "npm" { ["npmjs", "org"] } else { ["pypi", "org"] };
    let host = Url::parse(base).ok().and_then(|url| Some(url.host_str()?.to_owned()));
    host.is_some_and(|host| host.rsplit('.').take(2).eq(site.into_iter().rev()))
}

/// A package that is not spoken to as one is launched: its name still says which server it is.
fn served(form: &Value) -> Option<Launch> {
    let Published { kind, name, transport, elsewhere } = published(form);
    (transport.is_some() && elsewhere.is_none()).then(|| package(&kind, &name, None, &[], &[]))
}

fn of_package(form: &Value, version: Option<&str>) -> (Launch, Vec<EnvVar>) {
    let Published { kind, name, transport, elsewhere } = published(form);
    let own = pick::member(form, &["version"]);
    let mut env: Vec<EnvVar> =
        pick::list(form, &["environmentVariables", "environment_variables"]).iter().filter_map(input).collect();
    // In the public registry somebody else may have the name.
    if let Some(base) = elsewhere {
        let what = format!("{kind} package `{}` of the registry `{}`", shown(&name, 80), shown(&base, 200));
        return (Launch::Unsupported { what }, env);
    }
    if let Some(transport) = transport {
        return (Launch::Unsupported { what: format!("package `{name}` that serves {transport}") }, env);
    }
    let runtime = arguments(pick::list(form, &["runtimeArguments", "runtime_arguments"]), &mut env);
    let args = arguments(pick::list(form, &["packageArguments", "package_arguments"]), &mut env);
    (package(&kind, &name, own.as_deref().or(version), &runtime, &args), env)
}

fn of_remote(form: &Value) -> (Launch, Vec<EnvVar>) {
    let kind = pick::member(form, &["type", "transport_type", "transport"]).unwrap_or_default();
    let url = pick::member(form, &["url"]).unwrap_or_default();
    let headers = pick::list(form, &["headers"]).iter().filter_map(input).collect();
    let mut env = Vec::new();
    variables(form, &mut env);
    (remote(&kind, &url, headers), env)
}

/// A variable or header with what it is filled with.
fn input(form: &Value) -> Option<EnvVar> {
    let name = pick::member(form, &["name"])?;
    let secret = pick::flag(form, &["isSecret", "is_secret"]) || names_a_secret(&name);
    let value = pick::member(form, &["value", "default"]).filter(|value| !secret || is_variable(value, true));
    Some(EnvVar { name, value, secret, required: pick::flag(form, &["isRequired", "is_required"]) })
}

/// The members of `variables`, which stand in braces in a value or an address.
fn variables(form: &Value, env: &mut Vec<EnvVar>) {
    for (name, form) in form.get("variables").and_then(Value::as_object).into_iter().flatten() {
        let secret = pick::flag(form, &["isSecret", "is_secret"]) || names_a_secret(name);
        let value = pick::member(form, &["value", "default"]).filter(|_| !secret);
        env.push(EnvVar { name: name.clone(), value, secret, required: pick::flag(form, &["isRequired", "is_required"]) });
    }
}

/// Arguments as words. What the user has to fill in is `{hint}` and a variable of that name; what nobody
/// has to give is left out.
fn arguments(forms: &[Value], env: &mut Vec<EnvVar>) -> Vec<String> {
    let mut words = Vec::new();
    for form in forms {
        variables(form, env);
        let name = pick::member(form, &["name"]);
        let hint = pick::member(form, &["valueHint", "value_hint"]).or_else(|| name.clone());
        let required = pick::flag(form, &["isRequired", "is_required"]);
        let value = pick::member(form, &["value", "default"]);
        let named = form.get("type").and_then(Value::as_str) == Some("named");
        let wanted = value.is_none().then(|| hint.filter(|_| required)).flatten();
        if let Some(hint) = &wanted {
            let hint = hint.trim_start_matches('-');
            let secret = pick::flag(form, &["isSecret", "is_secret"]) || names_a_secret(hint);
            env.push(EnvVar { name: hint.to_owned(), value: None, secret, required: true });
        }
        let value = value.or_else(|| wanted.map(|hint| format!("{{{}}}", hint.trim_start_matches('-'))));
        let bare = named && pick::member(form, &["format"]).as_deref() == Some("boolean");
        match (name.filter(|_| named), value) {
            (Some(name), Some(value)) if bare && value == "true" => words.push(name),
            (Some(_), Some(value)) if bare && value == "false" => {}
            (Some(name), Some(value)) => words.extend([name, value]),
            (Some(name), None) if form.get("value").is_some() || required => words.push(name),
            (None, Some(value)) => words.push(value),
            _ => {}
        }
    }
    words
}
