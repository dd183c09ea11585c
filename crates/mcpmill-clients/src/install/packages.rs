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

/// The packages that uv says it found no wheel of.
pub(super) fn without_wheel(complaint: &str) -> BTreeSet<String> {
    let name = |line: &str| Some(pypi_name(line.split_once("Wheels are required for `")?.1.split_once('`')?.0));
    complaint.lines().filter_map(name).collect()
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
        let said = "error: No solution found\n  cause: Because b==1 has no usable wheels\n\n\
                    hint: Wheels are required for `B_x` because building from source is disabled\n\n\
                    hint: Wheels are required for `a` because building from source is disabled";
        assert_eq!(without_wheel(said).into_iter().collect::<Vec<_>>(), ["a", "b-x"]);
        assert!(without_wheel("error: it is not there").is_empty());
    }
}
