//! Ids: a prefix and a hash over the identifying fields, so the same thing has the same id in
//! every run and on every machine.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::canonical::content_hash;

/// Hex digits kept in an id: 80 bits, so two of a billion rows collide with odds of one in a million.
const DIGITS: usize = 20;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The id of whatever `fields` identify: same fields, same id.
            pub fn of<T: Serialize + ?Sized>(fields: &T) -> Self {
                Self(format!("{}_{}", $prefix, &content_hash(fields)[..DIGITS]))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// Names a server: hash of how it is launched (package and version, or URL).
    ServerId, "srv"
);
id!(
    /// Names a tool: hash of its server, name, description and schemas.
    ToolId, "tool"
);
id!(
    /// Names a group of tools that are copies of each other.
    ClusterId, "clu"
);
id!(
    /// Names a sample: hash of its tool, kind and place in the plan.
    SampleId, "smp"
);
id!(
    /// Names a trajectory: hash of its sample and the call that was made.
    TrajectoryId, "trj"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_carries_its_prefix_and_depends_on_every_field() {
        let id = ToolId::of(&("server", "name"));
        assert!(id.as_str().starts_with("tool_"));
        assert_eq!(id.as_str().len(), "tool_".len() + DIGITS);
        assert_ne!(id, ToolId::of(&("server", "other")));
        assert_eq!(id, ToolId::of(&("server", "name")));
    }
}
