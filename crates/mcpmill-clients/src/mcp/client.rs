//! What we are to a server.

use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{ClientCapabilities, ClientConfig, Implementation, ProtocolVersion, RootsCapabilities},
    service::RequestContext,
};

/// A client with one root, the world. It declines whatever else a server asks for.
pub(super) struct Client {
    root: String,
    version: ProtocolVersion,
}

impl Client {
    /// `root` is the world as the server sees it; `version` is what is offered.
    pub(super) fn new(root: &str, version: ProtocolVersion) -> Self {
        Self { root: format!("file://{root}"), version }
    }

    /// The address of its one root.
    pub(super) fn root(&self) -> &str {
        &self.root
    }
}

#[allow(deprecated, reason = "servers in use ask for roots, and some offer fewer tools to a client that has none")]
impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.roots = Some(RootsCapabilities::default());
        let mut config = ClientConfig::new(capabilities, Implementation::new("mcpmill", env!("CARGO_PKG_VERSION")));
        config.protocol_version = self.version.clone();
        config
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Ok(rmcp::model::ListRootsResult::new(vec![rmcp::model::Root::new(self.root.clone())]))
    }
}
