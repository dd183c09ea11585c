use mcpmill_core::text::clipped;
use thiserror::Error;

use crate::assets::AssetError;

/// A package could not be installed.
#[derive(Debug, Error)]
#[error("failed to install `{package}`: {kind}")]
pub struct InstallError {
    /// The package, with its version.
    pub package: String,
    /// Why not.
    pub kind: InstallErrorKind,
}

/// Why a package could not be installed.
#[derive(Debug, Error)]
pub enum InstallErrorKind {
    /// There is no interpreter for it.
    #[error("there is no {0} on this machine")]
    NoInterpreter(String),
    /// Nothing may be fetched.
    #[error("it is not in the cache, and nothing may be fetched")]
    Offline,
    /// The installer is not to be had.
    #[error(transparent)]
    Installer(#[from] AssetError),
    /// The cage does not work.
    #[error("{0}")]
    Cage(String),
    /// The installer gave up.
    #[error("{step} ended with {end}{}", told(stderr))]
    Failed {
        /// What was done (`npm ci`).
        step: &'static str,
        /// How it ended.
        end: String,
        /// The beginning and the end of what it printed.
        stderr: String,
    },
    /// It needs packages that have no wheel, and may not be built from source.
    #[error("{} published as source only, and a build runs code of it, which is not allowed for this server", named(packages))]
    SourceOnly {
        /// The packages that are published as source only.
        packages: Vec<String>,
        /// All that would have to be allowed, these among them.
        needed: Vec<String>,
        /// What settings call the server.
        key: String,
        /// What the installer said.
        stderr: String,
    },
    /// The lock is for another package, or cannot be read.
    #[error("its lock does not fit: {0}")]
    Lock(String),
    /// It was installed but holds no program to run.
    #[error("{0}")]
    NoProgram(String),
    /// The disk.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl InstallError {
    /// The beginning and the end of the installer's output.
    pub fn stderr(&self) -> Option<&str> {
        match &self.kind {
            InstallErrorKind::Failed { stderr, .. } | InstallErrorKind::SourceOnly { stderr, .. } => Some(stderr),
            _ => None,
        }
    }

    /// What happened and, where the cause is known for certain, the way on.
    pub fn with_hint(&self) -> String {
        let guess = matches!(self.kind, InstallErrorKind::Failed { .. });
        self.hint().filter(|_| !guess).map_or_else(|| self.to_string(), |hint| format!("{self}; hint: {hint}"))
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match &self.kind {
            InstallErrorKind::NoInterpreter(what) => Some(format!("install {what} and put it on the PATH")),
            InstallErrorKind::Installer(error) => Some(error.hint()),
            InstallErrorKind::SourceOnly { needed, key, .. } => {
                Some(format!("in mcpmill.toml, under `[harvest.servers]`: \"{key}\" = {{ sdist = {needed:?} }}"))
            }
            InstallErrorKind::Offline => Some("run once without `--offline`".to_owned()),
            InstallErrorKind::Failed { .. } => {
                Some("check that npm and pip reach their registries (network, proxy, configuration)".to_owned())
            }
            _ => None,
        }
    }
}

fn named(packages: &[String]) -> String {
    let names: Vec<String> = packages.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ") + if names.len() == 1 { " is" } else { " are" }
}

/// The first line of an installer's complaint that says what is wrong.
fn told(complaint: &str) -> String {
    let line = |line: &str| {
        let rest = line.strip_prefix("npm error ").or_else(|| line.strip_prefix("error: "))?.trim();
        (!rest.is_empty() && !rest.starts_with("code ")).then(|| format!(": {}", clipped(rest, 200)))
    };
    complaint.lines().find_map(line).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_wheel_is_named_with_the_setting_that_allows_it() {
        let kind = InstallErrorKind::SourceOnly {
            packages: vec!["uuid".to_owned()],
            needed: vec!["other".to_owned(), "uuid".to_owned()],
            key: "pypi:a-server".to_owned(),
            stderr: String::new(),
        };
        let told = InstallError { package: "a-server==1".to_owned(), kind }.with_hint();
        assert!(told.starts_with("failed to install `a-server==1`: `uuid` is published as source only"), "{told}");
        let (_, setting) = told.split_once("`[harvest.servers]`: ").unwrap();
        assert_eq!(setting, r#""pypi:a-server" = { sdist = ["other", "uuid"] }"#);
    }

    #[test]
    fn what_an_installer_says_is_told() {
        let said = "npm warn x\nnpm error code EUSAGE\nnpm error\nnpm error `npm ci` can only install\nnpm error more\n";
        let kind = InstallErrorKind::Failed { step: "npm ci", end: "exit code 1".to_owned(), stderr: said.to_owned() };
        assert_eq!(kind.to_string(), "npm ci ended with exit code 1: `npm ci` can only install");
    }
}
