//! Launch lines as `mcpServers` blocks write them, parsed into the package they run.
//!
//! Understood are the launchers of npm and PyPI packages in the forms that name a package of a public
//! registry. Nothing is ever given to a shell, and a form that is not understood is named, not guessed at.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::record::{EnvVar, Launch};

/// Where a package is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Registry {
    /// npm.
    Npm,
    /// PyPI.
    Pypi,
}

/// The package a launch line runs, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Package {
    /// Where it is published.
    pub registry: Registry,
    /// Its name, as written.
    pub name: String,
    /// The version, when the line pins exactly one.
    pub version: Option<String>,
    /// The whole requirement for the installer: `@scope/name@1.2.3`, `name[extra]>=1,<2`.
    pub requirement: String,
    /// Further requirements to install beside it.
    pub with: Vec<String>,
    /// The Python version it asks for.
    pub python: Option<String>,
    /// The program to run, when it is not the package's own.
    pub bin: Option<String>,
    /// Arguments of the program.
    pub args: Vec<String>,
}

impl Package {
    /// What settings call it, whatever its version: `npm:@scope/name`, `pypi:name`.
    pub fn key(&self) -> String {
        match self.registry {
            Registry::Npm => format!("npm:{}", self.name.to_lowercase()),
            Registry::Pypi => format!("pypi:{}", pypi_name(&self.name)),
        }
    }
}

/// A package name of PyPI as PyPI compares it: small letters, one dash for every run of `-`, `_` and `.`.
pub fn pypi_name(name: &str) -> String {
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// A launch line in a form that is not understood.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("failed to parse launch line `{line}`: {why}")]
pub struct LaunchError {
    /// The line.
    pub line: String,
    /// What about it.
    pub why: String,
}

/// Parses a launch line.
///
/// # Errors
/// The line is of a form that is not understood; the error names it.
pub fn parse(command: &str, args: &[String]) -> Result<Package, LaunchError> {
    let words: Vec<&str> = std::iter::once(command).chain(args.iter().map(String::as_str)).collect();
    let (launcher, rest) = launcher(&words);
    let parsed = match (launcher.as_str(), rest) {
        ("npx" | "bunx" | "pnpx", rest)
        | ("npm", ["exec" | "x", rest @ ..])
        | ("pnpm" | "yarn", ["dlx", rest @ ..])
        | ("bun", ["x", rest @ ..]) => npx(rest),
        ("uvx", rest) | ("uv", ["tool", "run", rest @ ..]) => uvx(rest),
        ("uv", ["run", rest @ ..]) => uv_run(rest),
        ("pipx", ["run", rest @ ..]) => pipx(rest),
        ("docker" | "podman", rest) => Err(match image(rest) {
            Some(image) => format!("it runs the container image `{image}`"),
            None => "it runs a container".to_owned(),
        }),
        ("sh" | "bash" | "zsh" | "cmd" | "powershell" | "pwsh", _) => Err("it is a line for a shell".to_owned()),
        ("node" | "deno" | "bun" | "tsx" | "ts-node" | "python" | "python3" | "uv", _) => {
            Err(format!("`{launcher}` runs a file or module of its own, and no package is named"))
        }
        _ => Err(format!("`{launcher}` is no launcher of npm or PyPI packages")),
    };
    parsed.map_err(|why| LaunchError { line: words.join(" "), why })
}

/// A launch line in the form a record keeps: a line that only bridges to a remote server is that remote
/// server, and a container is what it is.
pub fn normalised(command: &str, args: &[String]) -> Launch {
    let words: Vec<&str> = std::iter::once(command).chain(args.iter().map(String::as_str)).collect();
    let (launcher, rest) = launcher(&words);
    if matches!(launcher.as_str(), "docker" | "podman")
        && let Some(image) = image(rest)
    {
        return Launch::Unsupported { what: format!("oci image `{image}`") };
    }
    let bridge = parse(command, args).ok().filter(|package| package.name == "mcp-remote");
    bridge
        .and_then(|package| bridged(&package.args))
        .unwrap_or_else(|| Launch::Stdio { command: command.to_owned(), args: args.to_vec() })
}

/// What `mcp-remote URL [--header 'Name: value'] [--transport sse-only]` connects to.
fn bridged(args: &[String]) -> Option<Launch> {
    let url = args.iter().find(|arg| arg.starts_with("https://") || arg.starts_with("http://"))?.clone();
    let values = |option: &str| -> Vec<&str> {
        let spaced = args.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1].as_str());
        let joined = args.iter().filter_map(|arg| arg.strip_prefix(option)?.strip_prefix('='));
        spaced.chain(joined).collect()
    };
    let headers = values("--header").into_iter().filter_map(|header| {
        let (name, value) = header.split_once(':')?;
        Some(EnvVar { name: name.trim().to_owned(), value: Some(value.trim().to_owned()), secret: false, required: true })
    });
    let headers = headers.collect();
    let sse = values("--transport").first().is_some_and(|transport| transport.starts_with("sse"));
    Some(if sse { Launch::Sse { url, headers } } else { Launch::StreamableHttp { url, headers } })
}

/// The launcher without folder and ending, and its arguments; what Windows puts before it is left out.
fn launcher<'a>(words: &'a [&'a str]) -> (String, &'a [&'a str]) {
    let name = |word: &str| {
        let file = word.rsplit(['/', '\\']).next().unwrap_or(word).to_ascii_lowercase();
        [".exe", ".cmd", ".bat"].iter().find_map(|ending| file.strip_suffix(ending)).unwrap_or(&file).to_owned()
    };
    match words {
        [first, flag, rest @ ..] if name(first) == "cmd" && flag.eq_ignore_ascii_case("/c") && !rest.is_empty() => {
            (name(rest[0]), &rest[1..])
        }
        [first, rest @ ..] => (name(first), rest),
        [] => (String::new(), words),
    }
}

/// The image of `run [options] image …`.
fn image<'a>(args: &[&'a str]) -> Option<&'a str> {
    /// Options without a value; all others take one.
    const FLAGS: [&str; 9] =
        ["--rm", "--init", "--interactive", "--tty", "--detach", "--privileged", "--quiet", "--read-only", "-q"];
    let mut args = args.iter().copied().skip_while(|&arg| arg != "run").skip(1);
    while let Some(arg) = args.next() {
        let short = arg.len() > 1 && arg[1..].chars().all(|c| "itd".contains(c));
        match arg {
            _ if !arg.starts_with('-') => return Some(arg),
            _ if FLAGS.contains(&arg) || arg.contains('=') || (arg.starts_with('-') && short) => {}
            _ => {
                args.next()?;
            }
        }
    }
    None
}

fn npx(args: &[&str]) -> Result<Package, String> {
    let mut packages = Vec::new();
    let mut args = args.iter().copied();
    let first = loop {
        let arg = args.next().ok_or("it names no package")?;
        match arg.split_once('=').unwrap_or((arg, "")) {
            ("-y" | "--yes" | "-q" | "--quiet" | "--prefer-online" | "--prefer-offline" | "--no-audit", "") => {}
            ("-p" | "--package", "") => packages.push(npm_spec(args.next().ok_or("`--package` has no value")?)?),
            ("--package", spec) => packages.push(npm_spec(spec)?),
            ("--", "") => break args.next().ok_or("it names no package")?,
            _ if arg.starts_with('-') => return Err(format!("option `{arg}` is not known")),
            _ => break arg,
        }
    };
    let bin = if packages.is_empty() {
        packages.push(npm_spec(first)?);
        None
    } else {
        Some(program(first)?)
    };
    let mut packages = packages.into_iter();
    let (name, version, requirement) = packages.next().ok_or("it names no package")?;
    let with = packages.map(|(_, _, requirement)| requirement).collect();
    let args = args.map(str::to_owned).collect();
    Ok(Package { registry: Registry::Npm, name, version, requirement, with, python: None, bin, args })
}

/// `uv run --with package [--python 3.12] program …`: the first package is the server's.
fn uv_run(args: &[&str]) -> Result<Package, String> {
    let mut first = None;
    let mut others = Vec::new();
    let mut rest = args.iter().copied();
    while let Some(arg) = rest.next() {
        match arg {
            "--with" if first.is_none() => first = rest.next(),
            "--no-project" | "--isolated" | "-q" | "--quiet" => {}
            "--directory" | "--project" | "--with-editable" | "-m" | "--script" => {
                return Err(format!("`{arg}` names files of its own, and no package"));
            }
            "--with" | "--python" | "-p" => others.extend([arg, rest.next().ok_or(format!("`{arg}` has no value"))?]),
            _ if arg.starts_with('-') => others.push(arg),
            _ => {
                others.push(arg);
                let given: Vec<&str> = rest.by_ref().collect();
                let runs_files = ["python", "python3", "mcp", "fastmcp"].contains(&arg);
                if let Some(file) = given.iter().find(|given| runs_files && (given.ends_with(".py") || given.contains('/'))) {
                    return Err(format!("`{file}` is a file of its own, and no package"));
                }
                others.extend(given);
            }
        }
    }
    let first = first.ok_or("it names no package")?;
    let program = others.iter().rev().find(|arg| !arg.starts_with('-'));
    if program.is_none_or(|program| program.ends_with(".py") && others.len() < 2) {
        return Err("it names no program of a package".to_owned());
    }
    uvx(&[&["--from", first], others.as_slice()].concat())
}

/// `pipx run [--spec requirement] program …`.
fn pipx(args: &[&str]) -> Result<Package, String> {
    let mut translated = Vec::new();
    let mut rest = args.iter().copied();
    while let Some(arg) = rest.next() {
        match arg.split_once('=').unwrap_or((arg, "")) {
            ("--spec", "") => translated.extend(["--from", rest.next().ok_or("`--spec` has no value")?]),
            ("--spec", spec) => translated.extend(["--from", spec]),
            ("--python", "") => translated.extend(["--python", rest.next().ok_or("`--python` has no value")?]),
            ("--no-cache" | "--quiet" | "-q" | "--verbose", "") => {}
            _ if arg.starts_with('-') => return Err(format!("option `{arg}` is not known")),
            _ => {
                // `pipx run name==1.2` is `uvx name==1.2`.
                translated.push(arg);
                translated.extend(rest.by_ref());
            }
        }
    }
    uvx(&translated)
}

/// Name, exact version and requirement of `name`, `name@version`, `@scope/name@version`.
fn npm_spec(spec: &str) -> Result<(String, Option<String>, String), String> {
    let unknown = || format!("`{spec}` is no package of the npm registry");
    let (name, version) = match spec.char_indices().skip(1).find(|&(_, c)| c == '@') {
        Some((at, _)) => (&spec[..at], Some(&spec[at + 1..])),
        None => (spec, None),
    };
    let parts: Vec<&str> = name.strip_prefix('@').unwrap_or(name).split('/').collect();
    let expected = if name.starts_with('@') { 2 } else { 1 };
    let fits = |part: &&str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-._~".contains(c))
    };
    // npm takes such a name for a file.
    let is_file = [".tgz", ".tar", ".tar.gz"].iter().any(|ending| name.ends_with(ending));
    if parts.len() != expected || !parts.iter().all(fits) || is_file {
        return Err(unknown());
    }
    let version = version.filter(|version| !version.is_empty() && *version != "latest");
    if version.is_some_and(|version| !version.chars().all(|c| c.is_ascii_alphanumeric() || ".-+_^~<>=*".contains(c))) {
        return Err(unknown());
    }
    let exact = version.filter(|version| exact_npm(version)).map(str::to_owned);
    let requirement = version.map_or_else(|| name.to_owned(), |version| format!("{name}@{version}"));
    Ok((name.to_owned(), exact, requirement))
}

/// Three numbers and what may follow them.
fn exact_npm(version: &str) -> bool {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3 && numbers.iter().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn uvx(args: &[&str]) -> Result<Package, String> {
    let (mut from, mut with, mut python) = (None, Vec::new(), None);
    let mut args = args.iter().copied();
    let first = loop {
        let arg = args.next().ok_or("it names no package")?;
        let (option, inline) = match arg.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, Some(value)),
            _ => (arg, None),
        };
        let mut value = || inline.or_else(|| args.next()).ok_or(format!("`{option}` has no value"));
        match option {
            "--from" => from = Some(pypi_spec(value()?)?),
            "-w" | "--with" => {
                for requirement in value()?.split(',').map(str::trim).fold(Vec::new(), join_specifiers) {
                    with.push(pypi_spec(&requirement)?.requirement());
                }
            }
            "-p" | "--python" => python = Some(python_version(value()?)?),
            "-q" | "--quiet" | "-v" | "--verbose" | "--isolated" | "--refresh" | "--no-cache" | "-n" | "--no-progress"
                if inline.is_none() => {}
            "--" => break args.next().ok_or("it names no package")?,
            _ if arg.starts_with('-') => return Err(format!("option `{arg}` is not known")),
            _ => break arg,
        }
    };
    let (spec, bin) = match from {
        Some(spec) => (spec, Some(program(first)?)),
        // `uvx name@1.2` means `uvx --from name==1.2 name`.
        None => match first.split_once('@') {
            Some((name, version)) if is_version(version) => {
                let version = if version == "latest" { String::new() } else { format!("=={version}") };
                (pypi_spec(&format!("{name}{version}"))?, None)
            }
            _ => (pypi_spec(first)?, None),
        },
    };
    let requirement = spec.requirement();
    let args = args.map(str::to_owned).collect();
    Ok(Package { registry: Registry::Pypi, version: spec.exact(), name: spec.name, requirement, with, python, bin, args })
}

/// A comma separates requirements in `--with`, but also the bounds of one: `mcp>=1,<2`.
fn join_specifiers(mut whole: Vec<String>, part: &str) -> Vec<String> {
    match whole.last_mut() {
        Some(last) if part.starts_with(['<', '>', '=', '!', '~']) || last.matches('[').count() > last.matches(']').count() => {
            last.push(',');
            last.push_str(part);
        }
        _ => whole.push(part.to_owned()),
    }
    whole
}

struct PypiSpec {
    name: String,
    extras: String,
    bounds: String,
}

impl PypiSpec {
    fn requirement(&self) -> String {
        format!("{}{}{}", self.name, self.extras, self.bounds)
    }

    fn exact(&self) -> Option<String> {
        let version = self.bounds.strip_prefix("==")?;
        (!version.contains([',', '*', '='])).then(|| version.to_owned())
    }
}

fn pypi_spec(spec: &str) -> Result<PypiSpec, String> {
    let unknown = || format!("`{spec}` is no package of PyPI");
    let spec = spec.trim();
    let end = spec.find(|c: char| !(c.is_ascii_alphanumeric() || "-._".contains(c))).unwrap_or(spec.len());
    let (name, rest) = spec.split_at(end);
    // Spaces may stand around extras and bounds, and nowhere else: `foo bar` is not `foobar`.
    let spaced = |part: &str| part.split_whitespace().count() < 2;
    let (extras, bounds) = match rest.trim().split_once(']') {
        Some((extras, bounds)) if extras.starts_with('[') => (format!("{extras}]"), bounds.trim()),
        _ => (String::new(), rest.trim()),
    };
    let listed = |list: &str, fits: &dyn Fn(&str) -> bool| list.split(',').all(|part| spaced(part) && fits(part.trim()));
    let is_extra = |extra: &str| !extra.is_empty() && extra.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    let extras_fit = extras.is_empty() || listed(extras.trim_matches(['[', ']']), &is_extra);
    let bounds_fit = bounds.is_empty() || bounds.split(',').all(|bound| is_bound(bound.trim()));
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if !edge(name.chars().next()) || !edge(name.chars().last()) || !extras_fit || !bounds_fit {
        return Err(unknown());
    }
    let compact = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect();
    Ok(PypiSpec { name: name.to_owned(), extras: compact(&extras), bounds: compact(bounds) })
}

/// One bound of a requirement: an operator and a version.
fn is_bound(bound: &str) -> bool {
    let operators = ["===", "==", "~=", "!=", "<=", ">=", "<", ">"];
    operators.iter().find_map(|operator| bound.strip_prefix(operator)).is_some_and(|version| is_version(version.trim()))
}

/// What can be the version of a package, `1.*` and `latest` too.
fn is_version(version: &str) -> bool {
    version.starts_with(|c: char| c.is_ascii_alphanumeric())
        && version.chars().all(|c| c.is_ascii_alphanumeric() || ".+!*_-".contains(c))
}

/// `3.12` or `3.12.1`, with or without a `python` before it.
fn python_version(wanted: &str) -> Result<String, String> {
    let version = wanted.strip_prefix("python").unwrap_or(wanted).trim_start_matches("==");
    let numbers: Vec<&str> = version.split('.').collect();
    let fits = (2..=3).contains(&numbers.len()) && numbers.iter().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    if fits { Ok(version.to_owned()) } else { Err(format!("`{wanted}` is no Python version")) }
}

/// The name of a program a package installs: never a path.
fn program(name: &str) -> Result<String, String> {
    let fits = !name.starts_with(['-', '.']) && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    if fits && !name.is_empty() { Ok(name.to_owned()) } else { Err(format!("`{name}` is no program of a package")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<Package, LaunchError> {
        let mut words = text.split(' ').map(|word| word.replace('_', " ").replace("\u{b7}", "_"));
        let command = words.next().unwrap();
        parse(&command, &words.collect::<Vec<_>>())
    }

    #[track_caller]
    fn check(text: &str, expected: (Registry, &str, Option<&str>, &str)) -> Package {
        let package = line(text).unwrap();
        let (registry, name, version, requirement) = expected;
        assert_eq!(package.registry, registry);
        assert_eq!((package.name.as_str(), package.version.as_deref()), (name, version));
        assert_eq!(package.requirement, requirement);
        package
    }

    #[track_caller]
    fn refused(text: &str, why: &str) {
        let error = line(text).unwrap_err();
        assert!(error.why.contains(why), "{error}");
        assert!(error.to_string().starts_with("failed to parse launch line `"), "{error}");
    }

    #[test]
    fn settings_call_a_package_by_its_registry_and_name() {
        assert_eq!(line("npx -y @Scope/Pkg@1.2.3 x").unwrap().key(), "npm:@scope/pkg");
        assert_eq!(line("uvx --from Acme\u{b7}\u{b7}Parcel.MCP==1 tool").unwrap().key(), "pypi:acme-parcel-mcp");
    }

    #[test]
    fn npx_forms() {
        use Registry::Npm;
        let plain = check("npx -y @scope/pkg@1.2.3 --stdio -p 9", (Npm, "@scope/pkg", Some("1.2.3"), "@scope/pkg@1.2.3"));
        assert_eq!(plain.args, ["--stdio", "-p", "9"]);
        assert_eq!(plain.bin, None);
        check("npx mcp-hello-world", (Npm, "mcp-hello-world", None, "mcp-hello-world"));
        check("npx --yes pkg@latest", (Npm, "pkg", None, "pkg"));
        check("npx -y pkg@^2.1", (Npm, "pkg", None, "pkg@^2.1"));
        check("npx -y pkg@1.0.0-beta.2", (Npm, "pkg", Some("1.0.0-beta.2"), "pkg@1.0.0-beta.2"));
        check("npx -y -- pkg a", (Npm, "pkg", None, "pkg"));
        let named = check("npx -y -p @a/b@1.0.0 --package=c@2.0.0 tool x", (Npm, "@a/b", Some("1.0.0"), "@a/b@1.0.0"));
        assert_eq!((named.bin.as_deref(), named.with.as_slice()), (Some("tool"), &["c@2.0.0".to_owned()][..]));
        assert_eq!(named.args, ["x"]);
    }

    #[test]
    fn npx_forms_that_are_not_understood() {
        refused("npx", "names no package");
        refused("npx -y", "names no package");
        refused("npx -c rm", "option `-c`");
        refused("npx -y github:user/repo", "no package of the npm registry");
        refused("npx -y user/repo", "no package of the npm registry");
        refused("npx -y ./local", "no package of the npm registry");
        refused("npx -y https://host/x.tgz", "no package of the npm registry");
        refused("npx -y pkg@npm:other", "no package of the npm registry");
        refused("npx -y @scope", "no package of the npm registry");
        refused("npx -p pkg ../bin", "no program");
        refused("npx foo.tgz", "no package of the npm registry");
        refused("npx ~foo", "no package of the npm registry");
    }

    #[test]
    fn uvx_forms() {
        use Registry::Pypi;
        check("uvx mcp-server-time", (Pypi, "mcp-server-time", None, "mcp-server-time"));
        check("uvx mcp-server-time@2026.10.19", (Pypi, "mcp-server-time", Some("2026.10.19"), "mcp-server-time==2026.10.19"));
        check("uvx mcp-server-time==1.2", (Pypi, "mcp-server-time", Some("1.2"), "mcp-server-time==1.2"));
        check("uvx pkg@latest", (Pypi, "pkg", None, "pkg"));
        check("uv tool run pkg[cli,x]==1.0 a", (Pypi, "pkg", Some("1.0"), "pkg[cli,x]==1.0"));
        let full = check(
            "uvx --python 3.12 --with mcp<2 --with=a,b>=1,<2 --from pkg==1 script --flag v",
            (Pypi, "pkg", Some("1"), "pkg==1"),
        );
        assert_eq!(full.with, ["mcp<2", "a", "b>=1,<2"]);
        assert_eq!((full.python.as_deref(), full.bin.as_deref()), (Some("3.12"), Some("script")));
        assert_eq!(full.args, ["--flag", "v"]);
        check("uvx --from pkg_>=_1.0 script", (Pypi, "pkg", None, "pkg>=1.0"));
    }

    #[test]
    fn uvx_forms_that_are_not_understood() {
        refused("uvx", "names no package");
        refused("uvx --from git+https://host/repo script", "no package of PyPI");
        refused("uvx pkg@https://host/x.whl", "no package of PyPI");
        refused("uvx ./folder", "no package of PyPI");
        refused("uvx --index-url https://host pkg", "option `--index-url`");
        refused("uvx --from", "has no value");
        refused("uvx --python pypy pkg", "no Python version");
        refused("uvx --from pkg ../script", "no program");
        // Not the packages `foobar` and `foo-rx`, nor bounds that bind nothing.
        for spec in ["foo_bar", "foo_-r_x", "foo@", "foo==", "foo@>=1", "foo==1.0==2", "foo==1<>2", "foo[]", "foo[a", "~foo"] {
            refused(&format!("uvx {spec}"), "no package of PyPI");
        }
        check("uvx --from foo_[_a,b_]_>=_1.0,_<_2 x", (Registry::Pypi, "foo", None, "foo[a,b]>=1.0,<2"));
    }

    #[test]
    fn other_launchers_mean_the_same() {
        use Registry::{Npm, Pypi};
        for line in [
            "pnpm dlx a@1.0.0",
            "yarn dlx a@1.0.0",
            "bunx a@1.0.0",
            "bun x a@1.0.0",
            "npm exec -y -- a@1.0.0",
            "cmd /c npx -y a@1.0.0",
        ] {
            check(line, (Npm, "a", Some("1.0.0"), "a@1.0.0"));
        }
        check("/usr/local/bin/npx -y a", (Npm, "a", None, "a"));
        check("C:\\tools\\npx.CMD a", (Npm, "a", None, "a"));
        let piped = check("pipx run --spec pkg[cli]==1.0 tool --flag", (Pypi, "pkg", Some("1.0"), "pkg[cli]==1.0"));
        assert_eq!((piped.bin.as_deref(), piped.args.as_slice()), (Some("tool"), &["--flag".to_owned()][..]));
        check("pipx run pkg==2.0", (Pypi, "pkg", Some("2.0"), "pkg==2.0"));
        let run = check("uv run --with pkg==1.0 --with mcp<2 --python 3.12 tool serve", (Pypi, "pkg", Some("1.0"), "pkg==1.0"));
        assert_eq!(
            (run.bin.as_deref(), run.with.as_slice(), run.args.as_slice()),
            (Some("tool"), &["mcp<2".to_owned()][..], &["serve".to_owned()][..])
        );
        refused("uv run --directory /x server", "files of its own");
        refused("uv run server.py", "names no package");
        refused("uv run --with mcp[cli] mcp run /home/me/server.py", "a file of its own");
        refused("uv run --with fastmcp fastmcp run server.py", "a file of its own");
        refused("uv run --with mcp python server.py", "a file of its own");
    }

    #[test]
    fn bridges_are_what_they_lead_to() {
        let normal = |line: &str| {
            let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
            normalised(&words[0], &words[1..])
        };
        let url = "https://host.example/mcp".to_owned();
        assert_eq!(
            normal("npx -y mcp-remote https://host.example/mcp"),
            Launch::StreamableHttp { url: url.clone(), headers: vec![] }
        );
        let Launch::Sse { headers, .. } =
            normal("npx mcp-remote@0.1.0 https://host.example/mcp --transport sse-only --header X:_1")
        else {
            panic!()
        };
        assert_eq!((headers[0].name.as_str(), headers[0].value.as_deref()), ("X", Some("1")));
        let image = |line: &str| match normal(line) {
            Launch::Unsupported { what } => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(image("docker run -i --rm -e KEY -v a:b --name=x mcp/time:1 --flag"), "oci image `mcp/time:1`");
        assert!(matches!(normal("npx -y a"), Launch::Stdio { .. }));
    }

    #[test]
    fn other_commands_are_named() {
        refused("docker run -i image", "container image `image`");
        refused("docker compose up", "a container");
        refused("node server.js", "a file or module of its own");
        refused("python -m server", "a file or module of its own");
        refused("bash -c evil", "a line for a shell");
        refused("cmd /c", "a line for a shell");
        refused("/opt/x/my-server --stdio", "`my-server` is no launcher");
        let error = parse("sh", &["-c".into(), "a b".into()]).unwrap_err();
        assert_eq!(error.line, "sh -c a b");
    }
}
