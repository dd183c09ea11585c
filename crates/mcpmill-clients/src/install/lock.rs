//! Lock files: what a package's installation consists of, by version and hash.

use std::collections::BTreeSet;

use mcpmill_core::{
    canonical::sha256_hex,
    launch::{Package, Registry, pypi_name},
    text::shown,
};
use serde_json::Value;

/// What pip and uv call every package.
const ALL: &str = ":all:";

/// The lock of one package, as the files that its installer writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Lock {
    /// Of npm.
    Npm {
        /// `package.json`, which names the package.
        package: String,
        /// `package-lock.json`.
        lock: String,
    },
    /// Of PyPI.
    Pypi {
        /// `requirements.in`, which names the package and what goes with it.
        input: String,
        /// `requirements.txt` with a hash for every wheel.
        requirements: String,
    },
}

impl Lock {
    /// Whether it is the lock of this package: same name, same version where the package names one,
    /// and the same further requirements.
    pub fn fits(&self, package: &Package) -> bool {
        match self {
            Self::Npm { package: manifest, .. } => package.registry == Registry::Npm && npm_fits(manifest, package),
            Self::Pypi { input, .. } => package.registry == Registry::Pypi && pypi_fits(input, package),
        }
    }

    /// SHA-256 over its files.
    pub fn hash(&self) -> String {
        let (a, b) = match self {
            Self::Npm { package, lock } => (package, lock),
            Self::Pypi { input, requirements } => (input, requirements),
        };
        sha256_hex(format!("{}\n{}", sha256_hex(a), sha256_hex(b)))
    }

    /// The lock without optional dependencies that it does not pin itself: npm leaves out of a lock what a
    /// registry does not have for another system, and then refuses the lock for it.
    pub(super) fn tidied(self) -> Self {
        match self {
            Self::Npm { package, lock } => {
                let lock = without_unpinned(&lock).unwrap_or(lock);
                Self::Npm { package, lock }
            }
            pypi @ Self::Pypi { .. } => pypi,
        }
    }

    /// The packages that it has built from source.
    pub(super) fn built(&self) -> BTreeSet<String> {
        let Self::Pypi { requirements, .. } = self else { return BTreeSet::new() };
        let named = requirements.lines().filter_map(|line| line.trim_start().strip_prefix("--no-binary"));
        let named = named.flat_map(|names| names.split(['=', ' ', '\t', ',']).filter(|name| !name.is_empty()));
        named.map(|name| if name == ALL { ALL.to_owned() } else { pypi_name(name) }).collect()
    }

    /// What of a lock that was just made comes from a repository or an address of its own, or says where to
    /// look for packages, in words. Such a lock of npm names no address of the registry: every address in it
    /// is somebody's own.
    pub(super) fn of_no_registry(&self) -> Option<String> {
        match self {
            Self::Npm { lock, .. } => npm_of_no_registry(lock),
            Self::Pypi { requirements, .. } => {
                let odd = requirements.lines().map(str::trim).find(|line| !is_of_index(line))?;
                Some(format!("its lock says `{}`", shown(odd, 100)))
            }
        }
    }

    /// Its files by name.
    pub(super) fn files(&self) -> [(&'static str, &str); 2] {
        match self {
            Self::Npm { package, lock } => [("package.json", package), ("package-lock.json", lock)],
            Self::Pypi { input, requirements } => [("requirements.in", input), ("requirements.txt", requirements)],
        }
    }
}

/// The part of `requirements.txt` that comes as wheels, and the one that is built, which has the options.
pub(super) fn wheels_and_sources(requirements: &str, built: &BTreeSet<String>) -> (String, String) {
    let (mut wheels, mut sources, mut source) = (String::new(), String::new(), false);
    for line in requirements.lines() {
        // Hashes follow their requirement on indented lines.
        if line.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || "-._".contains(c))).unwrap_or(line.len());
            source = built.contains(ALL) || built.contains(&pypi_name(&line[..end]));
        }
        let part = if source || line.starts_with('-') { &mut sources } else { &mut wheels };
        part.push_str(line);
        part.push('\n');
    }
    (wheels, sources)
}

/// The lock without optional dependencies of which it holds no version; `None` when there are none.
fn without_unpinned(lock: &str) -> Option<String> {
    let mut read: Value = serde_json::from_str(lock).ok()?;
    let packages = read["packages"].as_object_mut()?;
    let pinned: BTreeSet<String> = packages.keys().cloned().collect();
    let mut left_out = false;
    for (path, entry) in packages {
        let Some(optional) = entry.get_mut("optionalDependencies").and_then(Value::as_object_mut) else { continue };
        let before = optional.len();
        optional.retain(|name, _| is_found(&pinned, path, name));
        left_out |= optional.len() < before;
    }
    left_out.then(|| format!("{read:#}\n"))
}

fn npm_of_no_registry(lock: &str) -> Option<String> {
    let read: Value = serde_json::from_str(lock).ok()?;
    read["packages"].as_object()?.iter().find_map(|(path, entry)| {
        let name = path.rsplit("node_modules/").next().unwrap_or(path);
        let from = match &entry["resolved"] {
            Value::Null => return None,
            Value::String(from) => shown(from, 100),
            other => shown(&other.to_string(), 100),
        };
        Some(format!("`{}` comes from `{from}`", shown(name, 100)))
    })
}

/// Whether a line of `requirements.txt` is a version, a hash, a comment, or says what is built from source. A
/// build runs code beside the lock: it could have written whatever it likes.
fn is_of_index(line: &str) -> bool {
    if line.is_empty() || ["#", "--hash=sha", "--no-binary", "--only-binary"].iter().any(|begin| line.starts_with(begin)) {
        return true;
    }
    let pinned = line.split([' ', ';', '\\']).next().unwrap_or_default();
    let name = |c: char| c.is_ascii_alphanumeric() || "-._[],".contains(c);
    let version = |c: char| c.is_ascii_alphanumeric() || "-._+!".contains(c);
    pinned.split_once("==").is_some_and(|(named, number)| {
        line.starts_with(|c: char| c.is_ascii_alphanumeric()) && named.chars().all(name) && number.chars().all(version)
    })
}

/// Whether what the package at `path` calls `name` is among these, found as Node finds it: in its own
/// `node_modules`, or in one further out.
fn is_found(pinned: &BTreeSet<String>, path: &str, name: &str) -> bool {
    let mut folder = path;
    loop {
        let there = if folder.is_empty() { format!("node_modules/{name}") } else { format!("{folder}/node_modules/{name}") };
        if pinned.contains(&there) {
            return true;
        }
        if folder.is_empty() {
            return false;
        }
        folder = folder.rfind("/node_modules/").map_or("", |at| &folder[..at]);
    }
}

fn npm_fits(manifest: &str, package: &Package) -> bool {
    let Ok(manifest) = serde_json::from_str::<Value>(manifest) else { return false };
    let Some(dependencies) = manifest["dependencies"].as_object() else { return false };
    let locked = |name: &str| dependencies.get(name).and_then(Value::as_str);
    let right = match (locked(&package.name), &package.version) {
        (Some(locked), Some(version)) => locked == version,
        (locked, None) => locked.is_some(),
        (None, Some(_)) => false,
    };
    right && dependencies.len() == 1 + package.with.len()
}

fn pypi_fits(input: &str, package: &Package) -> bool {
    let mut lines = input.lines().map(requirement).filter(|line| !line.is_empty());
    let Some(first) = lines.next() else { return false };
    let name_of = |line: &str| line.split(['[', '<', '>', '=', '!', '~']).next().unwrap_or_default().to_owned();
    let right = match &package.version {
        Some(_) => first == requirement(&package.requirement),
        None => name_of(&first) == name_of(&requirement(&package.requirement)),
    };
    let mut rest: Vec<String> = lines.collect();
    let mut with: Vec<String> = package.with.iter().map(|line| requirement(line)).collect();
    rest.sort();
    with.sort();
    right && rest == with
}

/// A requirement without comments and white space, its name normalised.
fn requirement(line: &str) -> String {
    let line = line.split('#').next().unwrap_or_default();
    let compact: String = line.chars().filter(|c| !c.is_whitespace()).collect();
    let end = compact.find(|c: char| !(c.is_ascii_alphanumeric() || "-._".contains(c))).unwrap_or(compact.len());
    let (name, rest) = compact.split_at(end);
    name.to_ascii_lowercase().replace(['_', '.'], "-") + rest
}

/// The `package.json` of a folder into which nothing but this package is installed.
pub(super) fn npm_manifest(package: &Package) -> String {
    let mut dependencies = serde_json::Map::new();
    for requirement in std::iter::once(&package.requirement).chain(&package.with) {
        let at = requirement.char_indices().skip(1).find(|&(_, c)| c == '@').map(|(at, _)| at);
        let (name, version) = at.map_or((requirement.as_str(), "latest"), |at| (&requirement[..at], &requirement[at + 1..]));
        dependencies.insert(name.to_owned(), version.into());
    }
    format!("{:#}\n", serde_json::json!({ "name": "mcpmill-server", "private": true, "dependencies": dependencies }))
}

/// The `requirements.in` of this package.
pub(super) fn pypi_input(package: &Package) -> String {
    std::iter::once(&package.requirement).chain(&package.with).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use mcpmill_core::launch;

    use super::*;

    fn package(line: &str) -> Package {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        launch::parse(&words[0], &words[1..]).unwrap()
    }

    #[test]
    fn an_npm_lock_fits_its_package_only() {
        let manifest = r#"{"dependencies":{"@a/b":"1.2.3"}}"#;
        let lock = Lock::Npm { package: manifest.into(), lock: String::new() };
        assert!(lock.fits(&package("npx -y @a/b@1.2.3 x")));
        assert!(lock.fits(&package("npx -y @a/b")));
        assert!(!lock.fits(&package("npx -y @a/b@1.2.4")));
        assert!(!lock.fits(&package("npx -y -p @a/b@1.2.3 -p c@1.0.0 tool")));
        assert!(!lock.fits(&package("uvx b==1.2.3")));
    }

    #[test]
    fn a_pypi_lock_fits_its_package_only() {
        let lock = Lock::Pypi { input: "My_Pkg==1.0\nmcp<2\n".into(), requirements: String::new() };
        assert!(lock.fits(&package("uvx --with mcp<2 my-pkg==1.0")));
        assert!(lock.fits(&package("uvx --with mcp<2 my-pkg")));
        assert!(!lock.fits(&package("uvx my-pkg==1.0")));
        assert!(!lock.fits(&package("uvx --with mcp<2 my-pkg==1.1")));
    }

    #[test]
    fn what_npm_left_out_of_its_own_lock_is_left_out_of_its_entries() {
        let lock = serde_json::json!({ "packages": {
            "": { "dependencies": { "a": "1" } },
            "node_modules/a": { "optionalDependencies": { "b": "1", "c": "1", "gone": "1" } },
            "node_modules/a/node_modules/b": { "optionalDependencies": { "c": "1", "@s/gone": "1" } },
            "node_modules/c": { "version": "1" },
        }});
        let untidy = Lock::Npm { package: "{}".into(), lock: lock.to_string() };
        let Lock::Npm { lock: text, .. } = untidy.clone().tidied() else { panic!() };
        let read: Value = serde_json::from_str(&text).unwrap();
        let optional = |path: &str| read["packages"][path]["optionalDependencies"].clone();
        assert_eq!(optional("node_modules/a"), serde_json::json!({"b": "1", "c": "1"}));
        assert_eq!(optional("node_modules/a/node_modules/b"), serde_json::json!({"c": "1"}));
        let tidy = untidy.tidied();
        assert_eq!(tidy.clone().tidied(), tidy, "a tidy lock keeps its hash");
    }

    #[test]
    fn what_comes_from_elsewhere_is_named() {
        let lock = |from: &str| {
            let lock = serde_json::json!({ "packages": { "": {}, "node_modules/a": {}, "node_modules/a/node_modules/@s/b": { "resolved": from } } });
            Lock::Npm { package: "{}".into(), lock: lock.to_string() }.of_no_registry()
        };
        let from_elsewhere =
            ["git+ssh://git@host.example/a/b.git#0", "https://host.example/b.tgz", "file:../b", "http://host.example/x/-/b.tgz"];
        for from in from_elsewhere {
            assert_eq!(lock(from), Some(format!("`@s/b` comes from `{from}`")));
        }
        let none = serde_json::json!({ "packages": { "": {}, "node_modules/a": { "version": "1", "integrity": "sha512-x" } } });
        assert_eq!(Lock::Npm { package: "{}".into(), lock: none.to_string() }.of_no_registry(), None);

        let pypi = |requirements: &str| Lock::Pypi { input: "x".into(), requirements: requirements.into() }.of_no_registry();
        let made = "--no-binary b\n--only-binary :all:\n\na-b==1!2.0+x \\\n    --hash=sha256:0 \\\n    --hash=sha256:1\n# via\nc[d]==3 ; python_version < '4' \\\n";
        assert_eq!(pypi(made), None);
        for odd in
            ["a @ http://host.example/a.whl", "--index-url http://host.example", "-r other.txt", "a==1@http://h", "./a", "a>=1"]
        {
            assert_eq!(pypi(&format!("{made}{odd}")), Some(format!("its lock says `{odd}`")));
        }
    }

    #[test]
    fn a_lock_says_what_it_builds() {
        let lock = |requirements: &str| Lock::Pypi { input: "x".into(), requirements: requirements.into() };
        let built = lock("--no-binary uuid\n--no-binary=:all:\n--only-binary :all:\n\nuuid==1 --hash=sha256:0\n");
        assert_eq!(built.built().into_iter().collect::<Vec<_>>(), [ALL, "uuid"]);
        assert!(lock("uuid==1 --hash=sha256:0\n").built().is_empty());

        let all = "--no-binary b-c\n--only-binary :all:\n\na==1 \\\n    --hash=sha256:0\nB_c==2 \\\n    --hash=sha256:1\nd==3 --hash=sha256:2\n";
        let (wheels, sources) = wheels_and_sources(all, &["b-c".to_owned()].into());
        assert_eq!(wheels, "\na==1 \\\n    --hash=sha256:0\nd==3 --hash=sha256:2\n");
        assert_eq!(sources, "--no-binary b-c\n--only-binary :all:\nB_c==2 \\\n    --hash=sha256:1\n");
    }

    #[test]
    fn manifests_name_the_package() {
        let manifest = npm_manifest(&package("npx -y -p @a/b@1.2.3 -p c tool"));
        let json: Value = serde_json::from_str(&manifest).unwrap();
        assert_eq!(json["dependencies"], serde_json::json!({"@a/b": "1.2.3", "c": "latest"}));
        assert_eq!(pypi_input(&package("uvx --with mcp<2 x==1")), "x==1\nmcp<2\n");
    }
}
