//! How this machine reaches the package registries, as its own clients say.

use std::{
    env,
    path::{Path, PathBuf},
};

use super::host::ask;

/// Variables that name a CA file, for the many libraries that installers use.
const CA_VARIABLES: [&str; 6] =
    ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "npm_config_cafile"];
/// Variables that name a proxy.
const PROXY_VARIABLES: [&str; 8] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"];

/// The registry the npm client is set to, when it can be asked.
pub async fn npm_registry() -> Option<String> {
    npm_value(ask(Path::new("npm"), &["config", "get", "registry"]).await).filter(|address| !carries_user_info(address))
}

/// What a program with the network gets of the host's network settings. It holds no secret: an address with
/// user information is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outside {
    /// Proxies and certificates.
    pub(super) env: Vec<(String, String)>,
    /// Where packages come from, for installers.
    pub(super) registries: Vec<(String, String)>,
    pub(super) files: Vec<PathBuf>,
}

impl Outside {
    /// Asks npm and pip, and reads the usual variables.
    pub(super) async fn discover() -> Self {
        let (registry, cafile, pip) = tokio::join!(
            ask(Path::new("npm"), &["config", "get", "registry"]),
            ask(Path::new("npm"), &["config", "get", "cafile"]),
            ask(Path::new("python3"), &["-m", "pip", "config", "list"]),
        );
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        Self::from(npm_value(registry).as_deref(), npm_value(cafile).as_deref(), &pip.unwrap_or_default(), variable)
    }

    fn from(registry: Option<&str>, cafile: Option<&str>, pip: &str, variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut found = Self::default();
        let index = variable("PIP_INDEX_URL").or_else(|| pip_value(pip, "index-url"));
        let extra = variable("PIP_EXTRA_INDEX_URL").or_else(|| pip_value(pip, "extra-index-url"));
        let addresses = [
            ("npm_config_registry", registry),
            ("PIP_INDEX_URL", index.as_deref()),
            ("UV_DEFAULT_INDEX", index.as_deref()),
            ("UV_INDEX", extra.as_deref()),
        ];
        found.registries.extend(addresses.into_iter().filter_map(|(name, value)| open(name, value)));
        found.env.extend(PROXY_VARIABLES.into_iter().filter_map(|name| open(name, variable(name).as_deref())));
        let any_ca = CA_VARIABLES
            .iter()
            .find_map(|name| variable(name))
            .or_else(|| pip_value(pip, "cert"))
            .or_else(|| cafile.map(str::to_owned));
        for name in CA_VARIABLES {
            let own = if name == "npm_config_cafile" { cafile.map(str::to_owned) } else { variable(name) };
            // uv and Node read variables only, so what pip or npm was told is told to them too.
            let told = if name == "SSL_CERT_FILE" || name == "NODE_EXTRA_CA_CERTS" { any_ca.clone() } else { None };
            if let Some(file) = own.or(told).filter(|file| Path::new(file).is_absolute() && Path::new(file).is_file()) {
                found.files.push(PathBuf::from(&file));
                found.env.push((name.to_owned(), file));
            }
        }
        found.files.sort();
        found.files.dedup();
        found
    }
}

/// A variable of addresses, when none of them carries a secret.
fn open(name: &str, value: Option<&str>) -> Option<(String, String)> {
    let value = value.filter(|value| !value.split_whitespace().any(carries_user_info))?;
    Some((name.to_owned(), value.to_owned()))
}

/// Whether an address holds a user name or a password before its host.
fn carries_user_info(address: &str) -> bool {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@'))
}

/// npm prints `null` or `undefined` for what is not set.
fn npm_value(said: Option<String>) -> Option<String> {
    let said = said?.trim().to_owned();
    (!said.is_empty() && said != "null" && said != "undefined").then_some(said)
}

/// The value of a key of `pip config list`, whose lines are `section.key='value'`.
fn pip_value(list: &str, key: &str) -> Option<String> {
    let line = list.lines().find(|line| {
        let name = line.split('=').next().unwrap_or_default();
        name.rsplit('.').next() == Some(key)
    })?;
    let value = line.split_once('=')?.1.trim_matches(['\'', '"']);
    (!value.is_empty()).then(|| value.replace("\\n", " ").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_secrets_stay_outside() {
        assert!(carries_user_info("https://user:pass@host/simple"));
        assert!(carries_user_info("user@proxy:8080"));
        assert!(!carries_user_info("https://host/@scope/simple"));
        let pip = "global.index-url='https://u:p@host/simple'\nglobal.extra-index-url='https://other/simple'";
        let found = Outside::from(Some("https://npm.host/"), None, pip, |_| None);
        let names: Vec<&str> = found.registries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["npm_config_registry", "UV_INDEX"]);
        assert!(found.env.is_empty(), "where packages come from is the installer's business");
    }

    #[test]
    fn a_certificate_pip_knows_is_told_to_uv_and_node() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let found = Outside::from(None, None, &format!(":env:.cert='{path}'\n"), |_| None);
        assert_eq!(found.files, [file.path()]);
        assert_eq!(found.env, [("SSL_CERT_FILE".into(), path.into()), ("NODE_EXTRA_CA_CERTS".into(), path.into())]);
    }

    #[test]
    fn unset_values_are_none() {
        assert_eq!(npm_value(Some("null\n".into())), None);
        assert_eq!(pip_value("global.timeout='9'", "index-url"), None);
    }
}
