//! What we are to a server.

use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability,
        FormElicitationCapability, Implementation, ProtocolVersion, RootsCapabilities,
    },
    service::RequestContext,
};
use serde_json::{Map, Value, json};

/// A client with one root, the world. It declines whatever else a server asks for, but for forms with
/// defaults where it may take these.
pub(super) struct Client {
    root: String,
    takes_defaults: bool,
    version: ProtocolVersion,
}

impl Client {
    /// `root` is the world as the server sees it.
    pub(super) fn new(root: &str, takes_defaults: bool) -> Self {
        Self { root: format!("file://{root}"), takes_defaults, version: ProtocolVersion::default() }
    }

    /// The version that is offered.
    pub(super) fn offering(self, version: ProtocolVersion) -> Self {
        Self { version, ..self }
    }

    /// Its roots, as a result.
    pub(super) fn roots(&self) -> Value {
        json!({ "roots": [{ "uri": self.root }] })
    }

    /// What it fills into a form; `None` when it declines.
    fn filled(&self, form: &Value) -> Option<Value> {
        if !self.takes_defaults {
            return None;
        }
        let fields = form["properties"].as_object()?;
        let defaults = fields.iter().filter_map(|(name, field)| Some((name.clone(), field.get("default")?.clone())));
        let filled: Map<String, Value> = defaults.collect();
        let required = form["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        required.iter().all(|name| name.as_str().is_some_and(|name| filled.contains_key(name))).then_some(Value::Object(filled))
    }

    /// Its answer to a form, as a result.
    pub(super) fn answer(&self, form: &Value) -> Value {
        match self.filled(form) {
            Some(content) => json!({ "action": "accept", "content": content }),
            None => json!({ "action": "decline" }),
        }
    }
}

#[allow(deprecated, reason = "servers in use ask for roots, and some offer fewer tools to a client that has none")]
impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.roots = Some(RootsCapabilities::default());
        capabilities.elicitation = self.takes_defaults.then(|| {
            let mut forms = ElicitationCapability::new();
            forms.form = Some(FormElicitationCapability::new());
            forms
        });
        let mut config = ClientConfig::new(capabilities, Implementation::new("mcpmill", env!("CARGO_PKG_VERSION")));
        config.protocol_version = self.version.clone();
        config
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Ok(rmcp::model::ListRootsResult::new(vec![rmcp::model::Root::new(self.root.clone())]))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let form = match request {
            ElicitRequestParams::FormElicitationParams { requested_schema, .. } => serde_json::to_value(requested_schema).ok(),
            _ => None,
        };
        Ok(match form.and_then(|form| self.filled(&form)) {
            Some(content) => ElicitResult::new(ElicitationAction::Accept).with_content(content),
            None => ElicitResult::new(ElicitationAction::Decline),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_declined_unless_every_field_that_counts_has_a_default() {
        let form = |required: Value| json!({"properties": {"a": {"default": 1}, "b": {}}, "required": required});
        let (client, careful) = (Client::new("/w", true), Client::new("/w", false));
        assert_eq!(client.answer(&form(json!(["a"]))), json!({"action": "accept", "content": {"a": 1}}));
        assert_eq!(client.answer(&form(Value::Null)), json!({"action": "accept", "content": {"a": 1}}));
        assert_eq!(client.answer(&form(json!(["a", "b"]))), json!({"action": "decline"}));
        assert_eq!(client.answer(&Value::Null), json!({"action": "decline"}));
        assert_eq!(careful.answer(&form(json!(["a"]))), json!({"action": "decline"}));
    }
}
