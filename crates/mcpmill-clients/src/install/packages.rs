//! What the user allows single packages.

use std::collections::{BTreeMap, BTreeSet};

use mcpmill_core::launch::{Package, pypi_name};

/// Settings of packages, by [`Package::key`].
pub type Packages = BTreeMap<String, PackageSettings>;

/// Settings of the installation of one package.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackageSettings {
    /// What of it may be built from source.
    pub sources: Sources,
    /// The version of Python it is installed for (`3.12`), when its launch line asks for none.
    pub python: Option<String>,
}

/// Packages that may be built from source when there is no wheel of them. A build runs code of theirs, in
/// the cage, with the network.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Sources {
    /// None: wheels only.
    #[default]
    None,
    /// These, among all that are installed for a server.
    Named(BTreeSet<String>),
    /// Whatever a server needs.
    All,
}

impl Sources {
    /// These packages, their names as people write them.
    pub fn named<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::Named(names.into_iter().map(|name| pypi_name(name.as_ref())).collect())
    }

    /// Whether a package may be built.
    pub(super) fn allow(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::Named(names) => names.contains(&pypi_name(name)),
            Self::All => true,
        }
    }
}

/// The settings of a package; those of none when nobody set any.
pub(super) fn settings_of(packages: &Packages, package: &Package) -> PackageSettings {
    packages.get(&package.key()).cloned().unwrap_or_default()
}

/// The packages that uv says it found no wheel of, the one that its reasoning begins with first: where
/// versions of another are only out of reach because of it, that other one need not be built.
pub(super) fn without_wheel(complaint: &str) -> Vec<String> {
    let name = |line: &str| Some(pypi_name(line.split_once("Wheels are required for `")?.1.split_once('`')?.0));
    let mut names: Vec<String> = complaint.lines().filter_map(name).collect();
    names.sort();
    names.dedup();
    names.sort_by_key(|name| place(complaint, name).unwrap_or(usize::MAX));
    names
}

/// Where a package is first spoken of.
fn place(complaint: &str, name: &str) -> Option<usize> {
    let whole = |at: usize| {
        let own = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let (before, after) = (complaint[..at].chars().next_back(), complaint[at + name.len()..].chars().next());
        !before.is_some_and(own) && !after.is_some_and(own)
    };
    complaint.match_indices(name).map(|(at, _)| at).find(|&at| whole(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_as_pypi_does() {
        let sources = Sources::named(["Proxy_Tools"]);
        assert!(sources.allow("proxy-tools") && !sources.allow("other"));
        assert!(Sources::All.allow("other") && !Sources::None.allow("other"));
    }

    #[test]
    fn what_has_no_wheel_is_read_from_the_complaint() {
        let said = "error: No solution found\n  cause: Because b-x==1 has no usable wheels\n\n\
                    hint: Wheels are required for `b-x` because building from source is disabled\n\n\
                    hint: Wheels are required for `a` because building from source is disabled";
        assert_eq!(without_wheel(said), ["b-x", "a"]);
        let root = "cause: Because all versions of z have no usable wheels and a.z>=1 depends on z, and a<1 has none:\n\
                    hint: Wheels are required for `a` because\nhint: Wheels are required for `z` because";
        assert_eq!(without_wheel(root), ["z", "a"]);
        assert!(without_wheel("error: it is not there").is_empty());
    }
}
