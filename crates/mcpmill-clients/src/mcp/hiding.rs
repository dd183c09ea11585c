//! Keeps the user's secrets out of what servers say.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use mcpmill_core::{
    edge::{ConnectError, Connector, ServerInfo, ToolError, ToolPage, ToolRunner, WorldSpec},
    record::{ServerRecord, ToolResult},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// A shorter value is in too many texts by chance.
const SHORTEST: usize = 6;

/// Replaces the values of secrets in everything that servers say by `<NAME>`, before anybody writes it
/// down: servers print their environment into errors, and some into the text of their tools.
pub struct HidingSecrets<C> {
    inner: C,
    secrets: Arc<Secrets>,
}

/// Values and what stands for them, the longest first.
struct Secrets(Vec<(String, String)>);

impl<C> HidingSecrets<C> {
    /// Servers of `inner`, which is given `secrets` by name.
    pub fn new(inner: C, secrets: &HashMap<String, String>) -> Self {
        let long = secrets.iter().filter(|(_, value)| value.len() >= SHORTEST);
        let mut all: Vec<_> = long.map(|(name, value)| (value.clone(), format!("<{name}>"))).collect();
        all.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
        Self { inner, secrets: Arc::new(Secrets(all)) }
    }
}

impl Secrets {
    fn text(&self, text: &mut String) {
        for (value, name) in &self.0 {
            if text.contains(value.as_str()) {
                *text = text.replace(value.as_str(), name);
            }
        }
    }

    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.value(field)),
            _ => {}
        }
    }

    fn holds(&self, text: &str) -> bool {
        self.0.iter().any(|(value, _)| text.contains(value.as_str()))
    }

    /// A record without the values. Property names are looked at as well: one that holds a secret ends
    /// up in the text of the whole.
    fn record<T: Serialize + DeserializeOwned>(&self, record: T) -> T {
        let Ok(mut value) = serde_json::to_value(&record) else { return record };
        self.value(&mut value);
        let mut text = value.to_string();
        if self.holds(&text) {
            self.text(&mut text);
            value = serde_json::from_str(&text).unwrap_or(value);
        }
        serde_json::from_value(value).unwrap_or(record)
    }
}

#[async_trait]
impl<C: Connector> Connector for HidingSecrets<C> {
    async fn connect(&self, server: &ServerRecord, world: &WorldSpec) -> Result<Box<dyn ToolRunner>, ConnectError> {
        if self.secrets.0.is_empty() {
            return self.inner.connect(server, world).await;
        }
        match self.inner.connect(server, world).await {
            Ok(runner) => {
                let info = self.secrets.record(runner.info().clone());
                Ok(Box::new(Hidden { runner, info, secrets: Arc::clone(&self.secrets) }))
            }
            Err(error) => Err(self.secrets.record(error)),
        }
    }
}

struct Hidden {
    runner: Box<dyn ToolRunner>,
    info: ServerInfo,
    secrets: Arc<Secrets>,
}

#[async_trait]
impl ToolRunner for Hidden {
    fn info(&self) -> &ServerInfo {
        &self.info
    }

    async fn list_tools(&self, cursor: Option<String>) -> Result<ToolPage, ToolError> {
        match self.runner.list_tools(cursor).await {
            Ok(mut page) => {
                page.tools = page.tools.into_iter().map(|tool| self.secrets.record(tool)).collect();
                page.refused.iter_mut().for_each(|why| self.secrets.text(why));
                Ok(page)
            }
            Err(error) => Err(self.secrets.record(error)),
        }
    }

    async fn call_tool(&self, name: &str, arguments: &Map<String, Value>) -> Result<ToolResult, ToolError> {
        let result = self.runner.call_tool(name, arguments).await;
        result.map(|result| self.secrets.record(result)).map_err(|error| self.secrets.record(error))
    }

    fn oddities(&self) -> Vec<String> {
        self.runner.oddities().into_iter().map(|text| self.secrets.record(text)).collect()
    }

    async fn close(self: Box<Self>) {
        self.runner.close().await;
    }
}

#[cfg(test)]
mod tests {
    use mcpmill_core::record::ToolDraft;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_hidden_wherever_they_stand_and_the_rest_stays() {
        let secrets = [("A_KEY".to_owned(), "s3cret-value".to_owned()), ("B".to_owned(), "x".to_owned())].into();
        let hiding = HidingSecrets::new((), &secrets);
        let draft = ToolDraft {
            name: "x".into(),
            title: None,
            description: Some("uses s3cret-value".into()),
            input_schema: json!({"properties": {"of s3cret-value": {"default": ["s3cret-value"]}}, "a": 1.0}),
            output_schema: None,
            annotations: None,
        };
        let hidden = hiding.secrets.record(draft);
        assert_eq!((hidden.name.as_str(), hidden.description.as_deref()), ("x", Some("uses <A_KEY>")));
        assert_eq!(hidden.input_schema.to_string(), r#"{"properties":{"of <A_KEY>":{"default":["<A_KEY>"]}},"a":1.0}"#);
    }
}
