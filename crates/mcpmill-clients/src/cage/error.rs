use thiserror::Error;

/// The cage does not work on this machine.
#[derive(Debug, Error)]
#[error("failed to set up the cage: {detail}")]
pub struct CageError {
    /// What is missing.
    pub kind: CageErrorKind,
    /// What was tried and what came of it.
    pub detail: String,
}

/// What the cage lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CageErrorKind {
    /// There is no bubblewrap.
    Missing,
    /// The system does not let users make namespaces.
    NoNamespaces,
    /// Not Linux.
    UnsupportedSystem,
    /// Bubblewrap starts but does not do what it should.
    Broken,
}

impl CageError {
    pub(crate) fn new(kind: CageErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self.kind {
            CageErrorKind::Missing => {
                "install bubblewrap with the system's package manager (0.7 or later), or let mcpmill fetch its own"
            }
            CageErrorKind::NoNamespaces => {
                "allow unprivileged user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, \
                 kernel.apparmor_restrict_unprivileged_userns), or accept the risk with --unsandboxed"
            }
            CageErrorKind::UnsupportedSystem => {
                "run mcpmill on Linux or in a Linux container, or accept the risk with --unsandboxed"
            }
            CageErrorKind::Broken => "update bubblewrap to 0.7 or later, or accept the risk with --unsandboxed",
        }
    }
}
