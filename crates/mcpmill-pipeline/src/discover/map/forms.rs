//! Smaller forms of launch information.

use mcpmill_core::record::{EnvVar, Launch};
use serde_json::{Map, Value, json};

use super::{Draft, at, none, package, remote, variable};
use crate::discover::{
    declare::{Declaration, Mapper},
    identity, pick,
};

/// Tools as MCP writes them: `input_schema` is `inputSchema`, and flat lists of arguments are schemas.
pub(super) fn tools(listed: &Value) -> Value {
    listed.as_array().into_iter().flatten().filter_map(tool).collect()
}

fn tool(listed: &Value) -> Option<Value> {
    let mut tool = Map::new();
    tool.insert("name".into(), pick::member(listed, &["name"])?.into());
    if let Some(description) = pick::member(listed, &["description", "desc"]) {
        tool.insert("description".into(), description.into());
    }
    let schema = ["inputSchema", "input_schema"].iter().find_map(|name| listed.get(name)).filter(|schema| schema.is_object());
    if let Some(schema) = schema.cloned().or_else(|| flat(listed.get("arguments")?.as_array()?)) {
        tool.insert("inputSchema".into(), schema);
    }
    for extra in ["outputSchema", "annotations", "title"] {
        tool.extend(listed.get(extra).filter(|v| !v.is_null()).map(|value| (extra.to_owned(), value.clone())));
    }
    Some(Value::Object(tool))
}

/// The schema of a list of `{name, type, desc, optional}`.
fn flat(arguments: &[Value]) -> Option<Value> {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for argument in arguments {
        let name = pick::member(argument, &["name"])?;
        let mut property = Map::new();
        let known = ["string", "number", "integer", "boolean", "array", "object"];
        property
            .extend(pick::member(argument, &["type"]).filter(|t| known.contains(&t.as_str())).map(|t| ("type".into(), json!(t))));
        property.extend(pick::member(argument, &["desc", "description"]).map(|d| ("description".into(), json!(d))));
        if !pick::flag(argument, &["optional"]) {
            required.push(json!(name));
        }
        properties.insert(name, property.into());
    }
    Some(json!({ "type": "object", "properties": properties, "required": required }))
}

/// The properties of a schema as variables.
pub(super) fn schema_variables(schema: &Value) -> Vec<EnvVar> {
    let required: Vec<&str> = pick::list(schema, &["required"]).iter().filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let named = |(name, form): (&String, &Value)| {
        let plain = variable(name, required.contains(&name.as_str()));
        EnvVar { value: pick::member(form, &["default"]).filter(|_| !plain.secret), ..plain }
    };
    properties.map(named).collect()
}

pub(super) fn smithery(entry: &Value, draft: &mut Draft) {
    let mut forms: Vec<(u8, Launch, Vec<EnvVar>)> = Vec::new();
    for form in pick::list(entry, &["connections"]) {
        let env = schema_variables(at(form, "configSchema"));
        let bundle = pick::member(form, &["bundleUrl"]);
        match (pick::member(form, &["deploymentUrl", "url"]), bundle) {
            (Some(url), _) => forms.push((0, remote(&pick::member(form, &["type"]).unwrap_or_default(), &url, key()), env)),
            (None, Some(bundle)) => forms.push((1, Launch::Unsupported { what: format!("mcpb bundle `{bundle}`") }, env)),
            (None, None) => {}
        }
    }
    if let Some(url) = pick::member(entry, &["deploymentUrl"]) {
        forms.push((2, remote("http", &url, key()), Vec::new()));
    }
    forms.sort_by_key(|(rank, _, _)| *rank);
    match forms.into_iter().next() {
        Some((_, launch, env)) => (draft.launch, draft.env) = (launch, env),
        None => draft.launch = none(&draft.name),
    }
}

/// The header of a hosted server that wants a key of the user's.
fn key() -> Vec<EnvVar> {
    vec![EnvVar { name: "Authorization".into(), value: None, secret: true, required: true }]
}

pub(super) fn docker(entry: &Value, draft: &mut Draft) {
    let server = entry.get("server").unwrap_or(entry);
    let config = at(server, "config");
    for secret in pick::list(config, &["secrets"]) {
        let name = pick::member(secret, &["env", "name"]);
        draft.env.extend(name.map(|name| EnvVar { name, value: None, secret: true, required: true }));
    }
    for plain in pick::list(config, &["env"]) {
        let value = pick::member(plain, &["value"]).filter(|v| !v.contains("{{"));
        draft.env.extend(pick::member(plain, &["name"]).map(|name| EnvVar { value, ..variable(&name, false) }));
    }
    let far = at(server, "remote");
    draft.launch = match (pick::member(far, &["url"]), pick::member(server, &["image"])) {
        (Some(url), _) => {
            let headers = far.get("headers").and_then(Value::as_object).into_iter().flatten();
            let headers = headers.map(|(name, _)| variable(name, true)).collect();
            remote(&pick::member(far, &["transport_type"]).unwrap_or_default(), &url, headers)
        }
        (None, Some(image)) => package("oci", &image, None, &[], &[]),
        (None, None) => none(&draft.name),
    };
}

pub(super) fn mcpm(entry: &Value, draft: &mut Draft) {
    let entry = entry.get("server").unwrap_or(entry);
    let installations = entry.get("installations").and_then(Value::as_object);
    let mut forms: Vec<&Value> = installations.into_iter().flatten().map(|(_, form)| form).collect();
    let rank = |form: &&Value| match pick::member(form, &["command"]).as_deref() {
        Some("npx" | "uvx") => 0,
        None if form.get("url").is_some() => 1,
        Some(_) => 2,
        None => 3,
    };
    forms.sort_by_key(|form| (rank(form), !pick::flag(form, &["recommended"])));
    let Some(form) = forms.first() else { return };
    let block = json!({ draft.name.clone(): form });
    if let Some(config) = super::block::configs(&block).into_iter().next() {
        (draft.launch, draft.env) = (config.launch, config.env);
    }
    let arguments = at(entry, "arguments");
    for variable in &mut draft.env {
        variable.required = arguments.get(&variable.name).map_or(variable.required, |form| pick::flag(form, &["required"]));
    }
}

/// A package, a remote server or a repository, where the declaration says they stand.
pub(super) fn plain(declaration: &Declaration, entry: &Value, draft: &mut Draft) -> Result<(), String> {
    let fields = &declaration.fields;
    let listed = pick::text(entry, &fields.remote);
    let filled = declaration.remote_template.as_ref().map(|template| pick::fill(template, entry, &draft.name));
    let url = listed.map(Ok).or(filled).transpose()?;
    let transport = pick::text(entry, &fields.transport).unwrap_or_default();
    let listed = pick::value(entry, &fields.remotes).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let remotes = listed.iter().filter_map(|form| {
        let transport = pick::member(form, &["transport", "type"]).unwrap_or_default();
        Some(remote(&transport, &pick::member(form, &["url_direct", "url"])?, Vec::new()))
    });
    let named = pick::text(entry, &fields.package).map(|name| {
        let registry = pick::text(entry, &fields.package_registry).unwrap_or_else(|| "npm".into());
        package(&registry.to_lowercase(), &name, draft.version.as_deref(), &[], &[])
    });
    let mut forms: Vec<Launch> = named.into_iter().chain(remotes).collect();
    if !forms.is_empty() {
        forms.sort_by_key(super::registry::rank);
        draft.launch = forms.remove(0);
        draft.also = forms;
        return Ok(());
    }
    draft.launch = match (url, &draft.repository) {
        (Some(url), _) if declaration.launch == Mapper::Pipedream => {
            let variables = url.split('{').skip(1).filter_map(|part| part.split_once('}'));
            draft.env.extend(variables.map(|(name, _)| variable(name, true)));
            remote(if transport.is_empty() { "sse" } else { &transport }, &url, Vec::new())
        }
        (Some(url), _) => remote(&transport, &url, Vec::new()),
        (None, _) if declaration.launch == Mapper::Url => return Err("it has no address".into()),
        (None, Some(repository)) => identity::only_repository(repository, draft.subfolder.as_deref()),
        (None, None) => none(&draft.name),
    };
    Ok(())
}
