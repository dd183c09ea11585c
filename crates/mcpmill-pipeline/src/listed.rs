//! Tools as marketplaces recorded them: in place of those of a server that cannot be started here, and to compare.

use std::collections::BTreeMap;

use mcpmill_core::record::{ServerRecord, ToolDraft};
use serde_json::Value;

/// The tools a marketplace recorded of a server. Those without a schema are not among them: nothing can be called
/// by a name alone.
pub(crate) fn drafts(server: &ServerRecord) -> Vec<ToolDraft> {
    entries(server).iter().filter_map(draft).collect()
}

fn entries(server: &ServerRecord) -> Vec<Value> {
    let text = server.listed_tools.as_deref().unwrap_or_default();
    mcpmill_core::json::read(text.as_bytes()).and_then(|read| read.value.as_array().cloned()).unwrap_or_default()
}

fn draft(entry: &Value) -> Option<ToolDraft> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(ToolDraft {
        name: text("name").filter(|name| !name.is_empty())?,
        title: text("title"),
        description: text("description"),
        input_schema: schema(entry)?.clone(),
        output_schema: entry.get("outputSchema").filter(|schema| schema.is_object()).cloned(),
        annotations: entry.get("annotations").filter(|hints| hints.is_object()).cloned(),
    })
}

fn schema(entry: &Value) -> Option<&Value> {
    ["inputSchema", "input_schema"].iter().find_map(|name| entry.get(name)).filter(|schema| schema.is_object())
}

/// How the tools of a server differ from those its marketplace recorded, in words; `None` when they do not, or when
/// none were recorded. What was not recorded of a tool (its schema, its description) is not compared.
pub(crate) fn differences(server: &ServerRecord, live: &[ToolDraft]) -> Option<String> {
    let entries = entries(server);
    let listed: BTreeMap<&str, &Value> = entries.iter().filter_map(|entry| Some((entry.get("name")?.as_str()?, entry))).collect();
    if listed.is_empty() {
        return None;
    }
    let live: BTreeMap<&str, &ToolDraft> = live.iter().map(|tool| (tool.name.as_str(), tool)).collect();
    let gone = listed.keys().filter(|name| !live.contains_key(*name)).count();
    let new = live.keys().filter(|name| !listed.contains_key(*name)).count();
    let changed = listed.iter().filter(|(name, entry)| live.get(*name).is_some_and(|tool| is_changed(entry, tool))).count();
    if gone + new + changed == 0 {
        return None;
    }
    Some(format!("its marketplace recorded other tools: {gone} gone, {new} new, {changed} changed"))
}

fn is_changed(entry: &Value, tool: &ToolDraft) -> bool {
    let described = entry.get("description").and_then(Value::as_str);
    // Marketplaces trim what they show.
    let said = tool.description.as_deref().unwrap_or_default().trim();
    described.is_some_and(|described| described.trim() != said)
        || schema(entry).is_some_and(|schema| *schema != tool.input_schema)
}

#[cfg(test)]
pub(crate) mod tests {
    use mcpmill_core::record::Launch;
    use serde_json::json;

    use super::*;

    /// A server that cannot be started, with what was recorded of it.
    pub(crate) fn server(listed: Option<&Value>) -> ServerRecord {
        let launch = Launch::Unsupported { what: "oci image `x`".into() };
        ServerRecord { listed_tools: listed.map(Value::to_string), ..mcpmill_testkit::server("x", launch) }
    }

    #[test]
    fn recorded_tools_become_tools_when_they_have_a_schema() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        let listed = json!([
            { "name": "a", "description": "Does a", "inputSchema": schema, "annotations": { "readOnlyHint": true } },
            { "name": "b", "description": "Does b" }, { "name": "", "inputSchema": schema }, { "inputSchema": schema },
            { "name": "c", "input_schema": schema, "title": "C" }, { "name": "d", "inputSchema": "none" }, 7
        ]);
        let found = drafts(&server(Some(&listed)));
        assert_eq!(found.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!((found[0].description.as_deref(), found[1].title.as_deref()), (Some("Does a"), Some("C")));
        assert_eq!((&found[0].input_schema, &found[0].annotations), (&schema, &Some(json!({ "readOnlyHint": true }))));
        assert!(drafts(&server(None)).is_empty() && drafts(&server(Some(&json!({ "a": 1 })))).is_empty());
    }

    #[test]
    fn what_differs_from_the_record_is_counted() {
        let schema = json!({ "type": "object", "properties": {} });
        let listed = json!([
            { "name": "same", "description": "Same ", "inputSchema": schema }, { "name": "bare" }, { "name": "gone" },
            { "name": "said", "description": "Once" }, { "name": "shaped", "inputSchema": { "type": "object" } }
        ]);
        let live = |name: &str, description: &str| {
            let named = json!([{ "name": name, "description": description, "inputSchema": schema }]);
            drafts(&server(Some(&named))).remove(0)
        };
        let now = [live("same", "Same"), live("bare", "x"), live("said", "Now"), live("shaped", ""), live("new", "")];
        let differ = differences(&server(Some(&listed)), &now);
        assert_eq!(differ.as_deref(), Some("its marketplace recorded other tools: 1 gone, 1 new, 2 changed"));
        assert_eq!(differences(&server(None), &now), None);
        assert_eq!(differences(&server(Some(&json!([listed[0]]))), &now[..1]), None);
    }
}
