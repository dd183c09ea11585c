//! Offered tools in the shape an endpoint takes, and the way back for the calls it makes.

use std::collections::BTreeMap;

use mcpmill_core::{
    edge::{ChatReply, ToolSpec},
    schema_view::{Provider, View, view},
};
use serde_json::{Value, json};

/// The tools of one request.
#[derive(Default)]
pub(super) struct Shown {
    /// OpenAI's shape.
    pub(super) tools: Vec<Value>,
    views: BTreeMap<String, View>,
}

impl Shown {
    /// Tools with schemas as `provider` takes them, verbatim without one.
    ///
    /// # Errors
    /// A tool cannot be shown to the provider. The request is not sent without it: a choice among fewer
    /// tools than were offered would be another question.
    pub(super) fn of(tools: &[ToolSpec], provider: Option<Provider>) -> Result<Self, String> {
        let mut out = Self::default();
        for tool in tools {
            let mut function = json!(tool);
            if let Some(provider) = provider {
                let view = view(&tool.parameters, provider).map_err(|e| format!("tool `{}`: {e}", tool.name))?;
                function["parameters"] = view.schema.clone();
                if provider == Provider::OpenAiStrict {
                    function["strict"] = json!(true);
                }
                out.views.insert(tool.name.clone(), view);
            }
            out.tools.push(json!({ "type": "function", "function": function }));
        }
        Ok(out)
    }

    /// The reply with arguments as the tools themselves take them.
    pub(super) fn restore(&self, mut reply: ChatReply) -> ChatReply {
        for call in &mut reply.tool_calls {
            let function = &mut call.function;
            let Some(view) = self.views.get(&function.name) else { continue };
            // An object stays one under every view of a tool, whose root is an object.
            if let Value::Object(own) = view.restore(Value::Object(std::mem::take(&mut function.arguments))) {
                function.arguments = own;
            }
        }
        reply
    }
}
