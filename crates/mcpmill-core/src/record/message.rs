//! Chat messages in the shape of OpenAI tool calling.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Message {
    /// Instructions to the model.
    System {
        /// Text.
        content: String,
    },
    /// What the user says.
    User {
        /// Text.
        content: String,
    },
    /// What the model says or calls.
    Assistant {
        /// Text, absent when the turn only calls tools.
        content: Option<String>,
        /// Calls, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    /// What a tool answered.
    Tool {
        /// The call that is answered.
        tool_call_id: String,
        /// Name of the tool.
        name: String,
        /// The answer as text.
        content: String,
    },
}

impl Message {
    /// A user turn.
    pub fn user(content: impl Into<String>) -> Self {
        Self::User { content: content.into() }
    }

    /// A system turn.
    pub fn system(content: impl Into<String>) -> Self {
        Self::System { content: content.into() }
    }

    /// An assistant turn of text.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::Assistant { content: Some(content.into()), tool_calls: Vec::new() }
    }

    /// An assistant turn that makes one call.
    pub fn call(call: ToolCall) -> Self {
        Self::Assistant { content: None, tool_calls: vec![call] }
    }

    /// The calls of this turn, empty for any but an assistant's.
    pub fn tool_calls(&self) -> &[ToolCall] {
        match self {
            Self::Assistant { tool_calls, .. } => tool_calls,
            _ => &[],
        }
    }
}

/// One call inside an assistant turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Ties the answer to the call; unique within a conversation.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: ToolCallKind,
    /// What is called.
    pub function: FunctionCall,
}

impl ToolCall {
    /// A function call with this id.
    pub fn new(id: impl Into<String>, function: FunctionCall) -> Self {
        Self { id: id.into(), kind: ToolCallKind::Function, function }
    }
}

/// The only kind of call the wire format has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolCallKind {
    /// A function call.
    Function,
}

/// A tool's name and its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The tool's name as it was offered.
    pub name: String,
    /// The arguments; a JSON string on the wire and in artifacts.
    #[serde(with = "crate::record::json_text")]
    pub arguments: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_call_has_the_openai_shape() {
        let arguments = json!({"path": "a.txt", "n": 1}).as_object().unwrap().clone();
        let message = Message::call(ToolCall::new("call_1", FunctionCall { name: "read".into(), arguments }));
        let wire = serde_json::to_value(&message).unwrap();
        assert_eq!(
            wire,
            json!({"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function",
                "function":{"name":"read","arguments":"{\"path\":\"a.txt\",\"n\":1}"}}]})
        );
        assert_eq!(serde_json::from_value::<Message>(wire).unwrap(), message);
    }

    #[test]
    fn arguments_that_are_no_object_are_refused() {
        let wire = json!({"name":"read","arguments":"[1]"});
        assert!(serde_json::from_value::<FunctionCall>(wire).is_err());
    }
}
