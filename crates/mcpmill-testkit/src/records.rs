//! Records for tests of one stage.

use mcpmill_core::{
    id::{SampleId, ServerId},
    record::{FunctionCall, Launch, Message, Sample, SampleKind, ServerRecord, Tool, ToolCall, ToolDraft},
};
use serde_json::Value;

/// A server of which nothing is known but its name and how it is started.
pub fn server(name: &str, launch: Launch) -> ServerRecord {
    ServerRecord {
        id: ServerRecord::identify(&launch),
        name: name.to_owned(),
        title: None,
        description: None,
        version: None,
        launch,
        env: Vec::new(),
        licence: None,
        sources: Vec::new(),
        world: Vec::new(),
        flags: Vec::new(),
        categories: Vec::new(),
        listed_tools: None,
    }
}

/// A tool of the server `srv_<server>`.
pub fn tool(server: &str, name: &str, description: &str, input_schema: Value) -> Tool {
    let draft = ToolDraft {
        name: name.into(),
        title: None,
        description: Some(description.into()),
        input_schema,
        output_schema: None,
        annotations: None,
    };
    Tool::new(ServerId(format!("srv_{server}")), draft)
}

/// A sample that is labelled with `tool` and calls `called` with `arguments`, which must be an object.
pub fn sample(tool: &Tool, instruction: &str, called: &str, arguments: &Value) -> Sample {
    let arguments = arguments.as_object().cloned().expect("arguments are an object");
    let call = FunctionCall { name: called.into(), arguments };
    Sample {
        id: SampleId::of(&(&tool.id, instruction, &call)),
        kind: SampleKind::Single,
        tool_ids: vec![tool.id.clone()],
        withheld: Vec::new(),
        server_ids: vec![tool.server_id.clone()],
        language: "en".into(),
        instruction: instruction.into(),
        messages: vec![Message::user(instruction), Message::call(ToolCall::new("call_1", call))],
        lineage: Vec::new(),
    }
}
