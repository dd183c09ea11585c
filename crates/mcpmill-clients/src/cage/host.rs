//! What of the host a caged program may need: interpreters, and where they live.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::process::Command;

use super::layout::is_shown;

/// Time an interpreter may take to say where it lives.
const ASKED_WITHIN: Duration = Duration::from_secs(20);
/// Prefixes of which every caged program sees what an interpreter needs,
const SYSTEM: [&str; 2] = ["/usr", "/usr/local"];
/// and folders that it sees as a whole, besides those of /usr.
const SHOWN: [&str; 5] = ["/bin", "/sbin", "/lib", "/lib64", "/nix/store"];

/// The interpreters of this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// The Python that `python3` is.
    pub python: Option<Interpreter>,
    /// The Node that `node` is.
    pub node: Option<Interpreter>,
}

/// An interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// The program itself, no shim.
    pub program: PathBuf,
    /// The folder that holds it and its standard library.
    pub prefix: PathBuf,
    /// Its version, `3.12.1`.
    pub version: String,
}

impl Host {
    /// Asks `python3` and `node` where they live. One that is missing is `None`.
    pub async fn discover() -> Self {
        let (python, node) = tokio::join!(ask_python(Path::new("python3")), ask_node());
        Self { python, node }
    }

    /// A Python of the version `wanted` (`3.12`, `3.12.1`): the default one when it fits, else one
    /// that is called `python3.12` or kept by pyenv or uv.
    pub async fn python(&self, wanted: Option<&str>) -> Option<Interpreter> {
        let Some(wanted) = wanted else { return self.python.clone() };
        let fits = |python: &Interpreter| python.version == wanted || python.version.starts_with(&format!("{wanted}."));
        if let Some(python) = self.python.as_ref().filter(|python| fits(python)) {
            return Some(python.clone());
        }
        for program in python_candidates(wanted) {
            if let Some(python) = ask_python(&program).await.filter(fits) {
                return Some(python);
            }
        }
        None
    }
}

impl Interpreter {
    /// What a caged program has to be shown to run this interpreter: nothing when it is part of the
    /// system, its whole prefix when that is a folder of its own (named by its version), and else only
    /// its program and library, because `~/.local` holds more than an interpreter.
    pub fn parts(&self) -> Vec<PathBuf> {
        let prefix = self.prefix.as_path();
        let shown = is_shown(prefix) || SHOWN.iter().any(|shown| prefix.starts_with(shown));
        if shown || SYSTEM.iter().any(|system| prefix == Path::new(system)) {
            return Vec::new();
        }
        let home = env::var_os("HOME").map(PathBuf::from);
        let holds_home = home.is_some_and(|home| home.starts_with(prefix));
        let named = prefix.file_name().is_some_and(|name| name.to_string_lossy().contains(|c: char| c.is_ascii_digit()));
        if named && !holds_home && prefix.components().count() > 2 {
            return vec![prefix.to_owned()];
        }
        let minor = self.version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
        let own = [
            "bin/npm".to_owned(),
            "bin/npx".to_owned(),
            "lib/node_modules/npm".to_owned(),
            "bin/python3".to_owned(),
            format!("bin/python{minor}"),
            format!("lib/python{minor}"),
        ];
        let libraries = fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
        let libraries =
            libraries.filter(|entry| entry.file_name().to_string_lossy().starts_with("libpython")).map(|entry| entry.path());
        let mut parts: Vec<PathBuf> =
            own.iter().map(|part| prefix.join(part)).chain(libraries).chain([self.program.clone()]).collect();
        parts.retain(|part| part.exists());
        parts.sort();
        parts.dedup();
        parts
    }

    /// The folder its program is in.
    pub fn bin(&self) -> Option<&Path> {
        self.program.parent()
    }
}

/// The files called `name` on the PATH that can be executed, in order.
pub(crate) fn on_path(name: &str) -> Vec<PathBuf> {
    use std::os::unix::fs::PermissionsExt;

    let paths = env::var_os("PATH").unwrap_or_default();
    let runs = |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    env::split_paths(&paths).map(|folder| folder.join(name)).filter(runs).collect()
}

fn python_candidates(wanted: &str) -> Vec<PathBuf> {
    let mut minor = wanted.split('.');
    let minor = [minor.next(), minor.next()].into_iter().flatten().collect::<Vec<_>>().join(".");
    let mut found = on_path(&format!("python{minor}"));
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let pyenv = env::var_os("PYENV_ROOT").map_or_else(|| home.join(".pyenv"), PathBuf::from);
    for folder in [pyenv.join("versions"), home.join(".local/share/uv/python")] {
        let mut kept: Vec<PathBuf> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        kept.sort();
        found.extend(
            kept.into_iter().map(|prefix| prefix.join("bin").join(format!("python{minor}"))).filter(|path| path.exists()),
        );
    }
    found
}

async fn ask_python(program: &Path) -> Option<Interpreter> {
    let script = "import platform, sys; print(sys.base_prefix); print(platform.python_version())";
    let said = ask(program, &["-I", "-c", script]).await?;
    let (prefix, version) = said.trim().split_once('\n')?;
    let prefix = PathBuf::from(prefix);
    let minor = version.rsplit_once('.')?.0;
    // The base program, not that of a virtual environment or a shim.
    let program = prefix.join("bin").join(format!("python{minor}"));
    let program = if program.exists() { program } else { prefix.join("bin/python3") };
    program.exists().then(|| Interpreter { program, prefix, version: version.to_owned() })
}

async fn ask_node() -> Option<Interpreter> {
    let said = ask(Path::new("node"), &["-p", "process.execPath + '\\n' + process.versions.node"]).await?;
    let (program, version) = said.trim().split_once('\n')?;
    let program = fs::canonicalize(program).ok()?;
    let prefix = program.parent()?.parent()?.to_owned();
    Some(Interpreter { program, prefix, version: version.to_owned() })
}

/// What a program of the user's own prints; these are asked outside the cage, as they shape it.
pub(crate) async fn ask(program: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(ASKED_WITHIN, command.output()).await.ok()?.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(prefix: &str) -> Interpreter {
        Interpreter { program: Path::new(prefix).join("bin/x"), prefix: prefix.into(), version: "1".into() }
    }

    #[test]
    fn only_what_is_an_interpreters_own_is_shown() {
        let home = env::var("HOME").unwrap();
        for system in ["/usr", "/usr/local", "/usr/lib/node-20"] {
            assert_eq!(at(system).parts(), Vec::<PathBuf>::new());
        }
        assert_eq!(at("/usr/python3.12").parts(), [Path::new("/usr/python3.12")], "which nobody sees otherwise");
        for prefix in ["/", "/opt", &home] {
            assert!(!at(prefix).parts().iter().any(|part| Path::new(prefix).starts_with(part)), "{prefix}");
        }
        let inner = format!("{home}/.pyenv/versions/3.12.1");
        assert_eq!(at(&inner).parts(), [Path::new(&inner)]);

        let shared =
            tempfile::Builder::new().prefix("local").rand_bytes(0).tempdir_in(tempfile::tempdir().unwrap().keep()).unwrap();
        for folder in ["bin", "share/keyrings", "lib/node_modules/npm", "lib/other"] {
            fs::create_dir_all(shared.path().join(folder)).unwrap();
        }
        fs::write(shared.path().join("bin/x"), "").unwrap();
        let parts = at(shared.path().to_str().unwrap()).parts();
        assert_eq!(parts, [shared.path().join("bin/x"), shared.path().join("lib/node_modules/npm")]);
        fs::remove_dir_all(shared.path().parent().unwrap()).unwrap();
    }
}
