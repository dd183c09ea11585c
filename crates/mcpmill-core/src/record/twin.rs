//! Copies among tools and servers.

use serde::{Deserialize, Serialize};

use crate::id::{ClusterId, ServerId, ToolId};

/// Which copies a tool has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Twin {
    /// The tool.
    pub tool_id: ToolId,
    /// Its server.
    pub server_id: ServerId,
    /// Shared by tools of equal name, description and canonical schema.
    pub exact_id: ClusterId,
    /// Shared by near tools; exact copies are near.
    pub near_id: ClusterId,
    /// Shared by near servers, named by the smallest id.
    pub server_cluster: ServerId,
    /// True for one tool of each near cluster: an open licence first, then the longest description and
    /// schema, then the smallest id.
    pub keeper: bool,
}
