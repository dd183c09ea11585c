//! Which program of an installed package is the server.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use mcpmill_core::launch::Package;
use serde_json::Value;

/// Bytes of a file that says what programs a package has.
const LARGEST: u64 = 4 << 20;

/// The script or program of an npm package below `node_modules`.
///
/// As npx chooses: the one that is asked for, else the only one, else the one called as the package.
pub(super) fn npm(package: &Package, prefix: &Path) -> Result<PathBuf, String> {
    let modules = prefix.join("node_modules");
    let home = modules.join(&package.name);
    let manifest = read_small(&home.join("package.json")).map_err(|e| format!("its package.json cannot be read: {e}"))?;
    let manifest: Value = serde_json::from_str(&manifest).map_err(|e| format!("its package.json cannot be read: {e}"))?;
    let short = package.name.rsplit('/').next().unwrap_or(&package.name);
    let programs: Vec<(&str, &str)> = match &manifest["bin"] {
        Value::String(path) => vec![(short, path)],
        Value::Object(map) => map.iter().filter_map(|(name, path)| Some((name.as_str(), path.as_str()?))).collect(),
        _ => Vec::new(),
    };
    let wanted = package.bin.as_deref();
    let chosen = match (wanted, programs.as_slice()) {
        (None, [only]) => Some(only),
        (wanted, programs) => programs.iter().find(|(name, _)| *name == wanted.unwrap_or(short)),
    };
    let path = match (chosen, wanted) {
        (Some((_, path)), _) => home.join(path),
        // With several packages the program may be another one's.
        (None, Some(wanted)) => modules.join(".bin").join(wanted),
        (None, None) => return Err(none(short, &programs.iter().map(|(name, _)| *name).collect::<Vec<_>>())),
    };
    inside(prefix, &path)
}

/// The script of a Python package in a virtual environment.
///
/// As uvx chooses: the one that is asked for or called as the package, else the only one it declares.
pub(super) fn pypi(package: &Package, venv: &Path) -> Result<PathBuf, String> {
    let bin = venv.join("bin");
    let wanted = package.bin.as_deref().unwrap_or(&package.name);
    let direct = bin.join(wanted);
    if direct.exists() {
        return inside(venv, &direct);
    }
    let declared = console_scripts(package, venv);
    match (package.bin.as_deref(), declared.as_slice()) {
        (None, [only]) => inside(venv, &bin.join(only)),
        _ => Err(none(wanted, &declared.iter().map(String::as_str).collect::<Vec<_>>())),
    }
}

fn none(wanted: &str, there: &[&str]) -> String {
    let there = if there.is_empty() { "none".to_owned() } else { there.join("`, `") };
    format!("it has no program `{wanted}`; there is `{there}`")
}

/// `path` with links resolved, which must not lead out of the prefix.
fn inside(prefix: &Path, path: &Path) -> Result<PathBuf, String> {
    let lost = |e: std::io::Error| format!("its program `{}` is missing: {e}", path.display());
    let real = fs::canonicalize(path).map_err(lost)?;
    let root = fs::canonicalize(prefix).map_err(lost)?;
    match real.strip_prefix(&root) {
        // A pipe would keep waiting whoever opens it.
        Ok(_) if !real.is_file() => Err(format!("its program `{}` is no file", path.display())),
        Ok(relative) => Ok(prefix.join(relative)),
        Err(_) => Err(format!("its program `{}` is outside its own folder", path.display())),
    }
}

/// The text of a file of the package. What was built from source may have left anything there: a link to
/// elsewhere, a pipe, or a file without end.
fn read_small(path: &Path) -> std::io::Result<String> {
    let meta = fs::symlink_metadata(path)?;
    if !meta.is_file() || meta.len() > LARGEST {
        return Err(std::io::Error::other(format!("it is no file of at most {} MB", LARGEST >> 20)));
    }
    fs::read_to_string(path)
}

/// Names under `[console_scripts]` of the package's own metadata.
fn console_scripts(package: &Package, venv: &Path) -> Vec<String> {
    let normal = |name: &str| name.to_ascii_lowercase().replace(['-', '.'], "_");
    let wanted = normal(&package.name);
    let libraries =
        fs::read_dir(venv.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path().join("site-packages"));
    let metadata = libraries.flat_map(|library| fs::read_dir(library).into_iter().flatten().flatten()).map(|entry| entry.path());
    let own = metadata.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".dist-info"));
        name.and_then(|name| name.rsplit_once('-')).is_some_and(|(name, _)| normal(name) == wanted)
    });
    let text: String = own.filter_map(|path| read_small(&path.join("entry_points.txt")).ok()).collect();
    let section = text.lines().map(str::trim).skip_while(|line| *line != "[console_scripts]").skip(1);
    let entries = section.take_while(|line| !line.starts_with('[')).filter_map(|line| line.split_once('='));
    entries.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Whether `interpreter` is to be given the file; else it is a program of its own.
pub(super) fn is_script(path: &Path, interpreter: &str, extensions: &[&str]) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    if extension.is_some_and(|extension| extensions.contains(&extension)) {
        return true;
    }
    let mut head = [0; 256];
    let read = fs::File::open(path).and_then(|mut file| file.read(&mut head)).unwrap_or_default();
    let first = head[..read].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    // Long paths are started through the shell: `#!/bin/sh` and `'''exec' …python`.
    first.starts_with("#!")
        && (first.contains(interpreter) || String::from_utf8_lossy(&head[..read]).contains(&format!("/{interpreter}")))
}

#[cfg(test)]
mod tests {
    use mcpmill_core::launch;

    use super::*;

    fn package(line: &str) -> Package {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        launch::parse(&words[0], &words[1..]).unwrap()
    }

    fn write(path: &Path, content: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[test]
    fn npm_programs_are_chosen_as_npx_does() {
        let prefix = tempfile::tempdir().unwrap();
        let home = prefix.path().join("node_modules/@a/b");
        write(&home.join("x.js"), "");
        write(&home.join("package.json"), r#"{"bin":"x.js"}"#);
        assert_eq!(npm(&package("npx @a/b"), prefix.path()).unwrap(), home.join("x.js"));
        write(&home.join("package.json"), r#"{"bin":{"other":"x.js"}}"#);
        assert_eq!(npm(&package("npx @a/b"), prefix.path()).unwrap(), home.join("x.js"));
        write(&home.join("package.json"), r#"{"bin":{"c":"y.js","b":"x.js"}}"#);
        assert_eq!(npm(&package("npx @a/b"), prefix.path()).unwrap(), home.join("x.js"));
        write(&home.join("package.json"), r#"{"bin":{"c":"y.js","d":"x.js"}}"#);
        assert_eq!(npm(&package("npx -p @a/b d"), prefix.path()).unwrap(), home.join("x.js"));
        assert_eq!(npm(&package("npx @a/b"), prefix.path()).unwrap_err(), "it has no program `b`; there is `c`, `d`");
    }

    #[test]
    fn links_and_pipes_are_no_files() {
        let venv = tempfile::tempdir().unwrap();
        let info = venv.path().join("lib/python3.12/site-packages/my_pkg-1.0.dist-info");
        fs::create_dir_all(&info).unwrap();
        fs::create_dir_all(venv.path().join("bin")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", info.join("entry_points.txt")).unwrap();
        assert_eq!(pypi(&package("uvx my-pkg"), venv.path()).unwrap_err(), "it has no program `my-pkg`; there is `none`");
        let pipe = venv.path().join("bin/my-pkg");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert!(pypi(&package("uvx my-pkg"), venv.path()).unwrap_err().contains("is no file"));
    }

    #[test]
    fn a_program_outside_the_prefix_is_refused() {
        let prefix = tempfile::tempdir().unwrap();
        write(&prefix.path().join("node_modules/b/package.json"), r#"{"bin":"../../../../../bin/sh"}"#);
        assert!(npm(&package("npx b"), prefix.path()).is_err());
    }

    #[test]
    fn python_scripts_are_chosen_as_uvx_does() {
        let venv = tempfile::tempdir().unwrap();
        write(&venv.path().join("bin/my-server"), "#!/x/python\n");
        let metadata = venv.path().join("lib/python3.12/site-packages/my_pkg-1.0.dist-info/entry_points.txt");
        write(&metadata, "[console_scripts]\nmy-server = my:main\n\n[other]\nx = y:z\n");
        let script = venv.path().join("bin/my-server");
        assert_eq!(pypi(&package("uvx my-pkg"), venv.path()).unwrap(), script);
        assert_eq!(pypi(&package("uvx --from my-pkg my-server"), venv.path()).unwrap(), script);
        let error = pypi(&package("uvx --from my-pkg absent"), venv.path()).unwrap_err();
        assert_eq!(error, "it has no program `absent`; there is `my-server`");
        assert!(is_script(&script, "python", &["py"]));
    }
}
