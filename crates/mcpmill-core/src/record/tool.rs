//! Tools as servers declare them, verbatim.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    canonical::content_hash,
    id::{ClusterId, ServerId, ToolId},
    json::of_text,
    record::Row,
};

/// What a server says of one tool, before it has an id. Names are those of MCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolDraft {
    /// Name, as declared.
    pub name: String,
    /// Name for people.
    pub title: Option<String>,
    /// Description, as declared.
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the structured result.
    pub output_schema: Option<Value>,
    /// The server's own hints (`readOnlyHint`, …): hints, not truth.
    pub annotations: Option<Value>,
}

/// One harvested tool. Schemas are JSON text, key order and all, as the server sent them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Hash of server, name, description and schemas.
    pub id: ToolId,
    /// The server that offers it.
    pub server_id: ServerId,
    /// Name, as declared.
    pub name: String,
    /// Name for people.
    pub title: Option<String>,
    /// Description, as declared.
    pub description: Option<String>,
    /// JSON Schema of the arguments, verbatim.
    pub input_schema: String,
    /// JSON Schema of the structured result, verbatim.
    pub output_schema: Option<String>,
    /// The server's own hints, verbatim.
    pub annotations: Option<String>,
    /// Hash of the canonical input schema.
    pub schema_hash: String,
    /// Shared by byte-identical copies (name, description, input schema) on any server.
    pub cluster_id: ClusterId,
}

impl Tool {
    /// Gives a declared tool its ids.
    pub fn new(server_id: ServerId, draft: ToolDraft) -> Self {
        let schema_hash = content_hash(&draft.input_schema);
        Self {
            id: ToolId::of(&(&server_id, &draft)),
            cluster_id: ClusterId::of(&(&draft.name, &draft.description, &schema_hash)),
            server_id,
            name: draft.name,
            title: draft.title,
            description: draft.description,
            input_schema: draft.input_schema.to_string(),
            output_schema: draft.output_schema.map(|s| s.to_string()),
            annotations: draft.annotations.map(|a| a.to_string()),
            schema_hash,
        }
    }

    /// The input schema as a value. A schema that came through [`Tool::new`] always parses.
    pub fn schema(&self) -> Value {
        of_text(&self.input_schema).unwrap_or(Value::Null)
    }

    /// The description, empty when the server gave none.
    pub fn description_text(&self) -> &str {
        self.description.as_deref().unwrap_or_default()
    }
}

impl Row for Tool {
    fn row_id(&self) -> &str {
        self.id.as_str()
    }
}

/// What a tool call came back with. Names are those of MCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// Content blocks, verbatim.
    pub content: Value,
    /// Structured result, verbatim.
    pub structured_content: Option<Value>,
    /// True when the tool says that it failed.
    pub is_error: bool,
}

impl ToolResult {
    /// The text blocks joined by new lines; other blocks stand as `[image]`, `[resource]`, ….
    pub fn text(&self) -> String {
        let blocks = self.content.as_array().map(Vec::as_slice).unwrap_or_default();
        let parts: Vec<String> = blocks
            .iter()
            .map(|block| match (block["type"].as_str(), block["text"].as_str()) {
                (Some("text"), Some(text)) => text.to_owned(),
                (Some(kind), _) => format!("[{kind}]"),
                _ => "[unknown]".to_owned(),
            })
            .collect();
        parts.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn draft(schema: &str) -> ToolDraft {
        ToolDraft {
            name: "read".into(),
            title: None,
            description: Some("Reads a file".into()),
            input_schema: serde_json::from_str(schema).unwrap(),
            output_schema: None,
            annotations: None,
        }
    }

    #[test]
    fn schema_text_keeps_the_servers_key_order() {
        let text = r#"{"type":"object","properties":{"z":{"type":"string"},"a":{"minimum":1}},"required":["z"]}"#;
        let tool = Tool::new(ServerId("srv_1".into()), draft(text));
        assert_eq!(tool.input_schema, text);
    }

    #[test]
    fn a_schema_of_any_depth_that_is_kept_comes_back() {
        let deep = (0..500).fold(json!({"type": "string"}), |items, _| json!({"items": items}));
        let tool = Tool::new(ServerId("srv_1".into()), ToolDraft { input_schema: deep.clone(), ..draft("{}") });
        assert_eq!(tool.schema(), deep);
    }

    #[test]
    fn twins_on_two_servers_share_a_cluster_but_not_an_id() {
        let a = Tool::new(ServerId("srv_1".into()), draft(r#"{"a":1,"b":2}"#));
        let b = Tool::new(ServerId("srv_2".into()), draft(r#"{"b":2,"a":1}"#));
        assert_eq!(a.cluster_id, b.cluster_id);
        assert_ne!(a.id, b.id);
    }

    #[test]
    fn text_of_mixed_content() {
        let result = ToolResult {
            content: json!([{"type":"text","text":"a"},{"type":"image","data":"…"},{"type":"text","text":"b"}]),
            structured_content: None,
            is_error: false,
        };
        assert_eq!(result.text(), "a\n[image]\nb");
    }
}
