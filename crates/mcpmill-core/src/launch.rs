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
    /// Whether versions before their release are taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prerelease: bool,
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
    let Line { words, of_a_shell } = split(command, args);
    let (launcher, rest) = launcher(&words);
    if let Some(word) = of_a_shell {
        return Err(LaunchError { line: words.join(" "), why: format!("`{word}` in it is for a shell") });
    }
    let parsed = match (launcher.as_str(), rest) {
        ("npx" | "bunx" | "pnpx", rest)
        | ("npm", ["exec" | "x", rest @ ..])
        | ("pnpm" | "yarn", ["dlx", rest @ ..])
        | ("bun", ["x", rest @ ..]) => npx(rest),
        ("uvx", rest) | ("uv", ["tool", "run", rest @ ..]) => uvx(rest),
        ("uv", ["run", rest @ ..]) => uv_run(rest),
        ("pipx", ["run", rest @ ..]) => pipx(rest),
        ("deno", ["run" | "x", rest @ ..]) => deno(rest),
        ("docker" | "podman", rest) if is_compose(rest) => Err(format!("it runs a service of `{launcher} compose`")),
        ("docker-compose" | "podman-compose", _) => Err(format!("it runs a service of `{launcher}`")),
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
/// server, and a container is what it is. A line that needs a shell is kept as it is written: split, nothing
/// would tell its signs from arguments.
pub fn normalised(command: &str, args: &[String]) -> Launch {
    let Line { words, of_a_shell } = split(command, args);
    if of_a_shell.is_some() {
        return Launch::Stdio { command: command.to_owned(), args: args.to_vec() };
    }
    let (launcher, rest) = launcher(&words);
    if matches!(launcher.as_str(), "docker" | "podman")
        && !is_compose(rest)
        && let Some(image) = image(rest)
    {
        return Launch::Unsupported { what: format!("oci image `{image}`") };
    }
    let bridge = parse(command, args).ok().filter(|package| package.name == "mcp-remote");
    bridge.and_then(|package| bridged(&package.args)).unwrap_or_else(|| Launch::Stdio {
        command: words[0].to_owned(),
        args: words[1..].iter().map(|word| (*word).to_owned()).collect(),
    })
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

/// What a line is split into when all of it stands where its command should.
const LAUNCHERS: [&str; 15] =
    ["npx", "bunx", "pnpx", "npm", "pnpm", "yarn", "bun", "uvx", "uv", "pipx", "deno", "docker", "podman", "node", "python"];

/// A line in words.
struct Line<'a> {
    /// The command and its arguments.
    words: Vec<&'a str>,
    /// What of it means something else to a shell, where all of it was one text.
    of_a_shell: Option<&'a str>,
}

/// Command and arguments. A command with spaces that begins with a launcher is a whole line, split at its white
/// space, and so is what stands alone behind `cmd /c`.
fn split<'a>(command: &'a str, args: &'a [String]) -> Line<'a> {
    let is = |word: Option<&&str>, known: &[&str]| word.is_some_and(|word| known.contains(&launcher(&[*word]).0.as_str()));
    let mut words: Vec<&str> = command.split_whitespace().collect();
    if words.len() < 2 || !(is(words.first(), &LAUNCHERS) || is(words.first(), &["cmd"])) {
        words = vec![command];
    }
    let of_windows = is(words.first(), &["cmd"]);
    let for_shell = |word: &&str| is_of_a_shell(word) || (of_windows && word.contains(['%', '^']));
    // What was given as an argument is nobody's to read.
    let mut of_a_shell = words.iter().skip(1).copied().find(for_shell);
    words.extend(args.iter().map(String::as_str));
    if let [_, flag, line] = words[..]
        && of_windows
        && flag.eq_ignore_ascii_case("/c")
    {
        let inner: Vec<&str> = line.split_whitespace().collect();
        if is(inner.first(), &LAUNCHERS) {
            of_a_shell = of_a_shell.or_else(|| inner.iter().copied().find(for_shell));
            words.truncate(2);
            words.extend(inner);
        }
    }
    Line { words, of_a_shell }
}

/// Whether a word of a line that was split means something else to a shell: quotes, pipes, what ends a command,
/// what it would fill in or look up. `<redacted>`, `${NAME}` and `name@~1.2` do not.
fn is_of_a_shell(word: &str) -> bool {
    let variable = word.match_indices('$').any(|(at, _)| {
        word[at + 1..].starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '(' | '@' | '*' | '?' | '!'))
    });
    word.contains(['"', '\'', '`', '\\', '|', ';', '&', '*'])
        || variable
        || word.starts_with(['~', '#'])
        || word.contains("=~")
        || word.contains('<') != word.contains('>')
}

/// Whether it is a service of a compose file that is run.
fn is_compose(args: &[&str]) -> bool {
    args.iter().find(|arg| !arg.starts_with('-')).is_some_and(|command| *command == "compose")
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
            "--" => return args.next(),
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
            // `bunx --bun` says what runs it; here that is Node.
            (
                "--yes" | "--quiet" | "--silent" | "--prefer-online" | "--prefer-offline" | "--no-audit" | "--no-fund",
                "" | "true",
            )
            | ("--bun" | "--verbose" | "--no-update-notifier", "") => {}
            ("--loglevel", "") => drop(args.next().ok_or("`--loglevel` has no value")?),
            ("--loglevel", _) => {}
            ("-p" | "--package", "") => packages.push(npm_spec(args.next().ok_or("`--package` has no value")?)?),
            ("--package", spec) => packages.push(npm_spec(spec)?),
            ("--", "") => break args.next().ok_or("it names no package")?,
            _ if is_short(arg, "yqs") => {}
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
    Ok(Package { registry: Registry::Npm, name, version, requirement, with, python: None, prerelease: false, bin, args })
}

/// Whether it is nothing but short options of these letters: `-y`, `-yq`.
fn is_short(arg: &str, letters: &str) -> bool {
    arg.strip_prefix('-').is_some_and(|given| !given.is_empty() && given.chars().all(|letter| letters.contains(letter)))
}

/// `deno run [-A] npm:package …`; what it may do is the cage's business.
fn deno(args: &[&str]) -> Result<Package, String> {
    let allows = |arg: &str| is_short(arg, "ARWENSqr") || arg.starts_with("--allow-") || arg.starts_with("--no-prompt");
    let known = ["--quiet", "--no-check", "--no-config", "--no-lock", "--reload", "--node-modules-dir"];
    let of_deno = |arg: &str| known.contains(&arg.split('=').next().unwrap_or(arg)) || arg.starts_with("--unstable");
    let at = args.iter().position(|arg| !allows(arg) && !of_deno(arg));
    let at = at.ok_or("it names no package")?;
    match args[at].strip_prefix("npm:") {
        Some(package) => npx_of_deno(package.trim_start_matches('/'), &args[at + 1..]),
        None if args[at].starts_with('-') => Err(format!("option `{}` is not known", args[at])),
        None => Err(format!("`{}` is no package of the npm registry", args[at])),
    }
}

/// `npm:package/program` is `npx --package package program`. What names a file is left to npm's own check.
fn npx_of_deno(package: &str, args: &[&str]) -> Result<Package, String> {
    let scope = if package.starts_with('@') { package.find('/').map_or(0, |at| at + 1) } else { 0 };
    match package[scope..].split_once('/') {
        Some((name, bin)) if !bin.is_empty() && !bin.contains(['/', '.']) => {
            npx(&[&["--package", &package[..scope + name.len()], "--", bin], args].concat())
        }
        _ => npx(&[&[package], args].concat()),
    }
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
    let (mut from, mut with, mut python, mut prerelease) = (None, Vec::new(), None, false);
    let mut args = args.iter().copied();
    let first = loop {
        let arg = args.next().ok_or("it names no package")?;
        let (option, inline) = match arg.split_once('=') {
            Some((option, value)) if option.starts_with("--") => (option, Some(value)),
            _ => (arg, None),
        };
        let mut value = || inline.or_else(|| args.next()).ok_or(format!("`{option}` has no value"));
        match option {
            "--from" => from = Some(named_spec(value()?)?),
            "-w" | "--with" => {
                for requirement in value()?.split(',').map(str::trim).fold(Vec::new(), join_specifiers) {
                    with.push(pypi_spec(&requirement)?.requirement());
                }
            }
            "-p" | "--python" => python = Some(python_version(value()?)?),
            "--prerelease" => prerelease = takes_prereleases(value()?)?,
            _ if inline.is_none() && (PLAIN_UVX.contains(&option) || is_short(option, "qvnU")) => {}
            "--" => break args.next().ok_or("it names no package")?,
            _ if arg.starts_with('-') => return Err(format!("option `{arg}` is not known")),
            _ => break arg,
        }
    };
    let (spec, bin) = match from {
        Some(spec) => (spec, Some(program(first)?)),
        None => (named_spec(first)?, None),
    };
    let requirement = spec.requirement();
    let args = args.map(str::to_owned).collect();
    Ok(Package {
        registry: Registry::Pypi,
        version: spec.exact(),
        name: spec.name,
        requirement,
        with,
        python,
        prerelease,
        bin,
        args,
    })
}

/// Options of uvx without a value that change nothing about what is run here: every server is installed anew, into a
/// place of its own.
const PLAIN_UVX: [&str; 11] = [
    "--quiet",
    "--verbose",
    "--isolated",
    "--refresh",
    "--reinstall",
    "--upgrade",
    "--no-cache",
    "--no-progress",
    "--no-config",
    "--no-env-file",
    "--no-python-downloads",
];

/// Whether `--prerelease` of this value takes versions before their release.
fn takes_prereleases(value: &str) -> Result<bool, String> {
    match value {
        "allow" => Ok(true),
        "if-necessary-or-explicit" => Ok(false),
        other => Err(format!("`--prerelease {other}` is not known")),
    }
}

/// A package as `uvx` names it: a requirement, or `name@1.2` for `name==1.2` and `name@latest` for `name`.
fn named_spec(spec: &str) -> Result<PypiSpec, String> {
    match spec.split_once('@') {
        Some((name, "latest")) => pypi_spec(name),
        Some((name, version)) if is_version(version) => pypi_spec(&format!("{name}=={version}")),
        _ => pypi_spec(spec),
    }
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

/// The name of a program a package installs: never a path, and without the ending it has on Windows.
fn program(name: &str) -> Result<String, String> {
    let ending = name.len().checked_sub(4).filter(|at| name.get(*at..).is_some_and(|end| end.eq_ignore_ascii_case(".exe")));
    let name = ending.map_or(name, |at| &name[..at]);
    let fits = !name.starts_with(['-', '.']) && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    if fits && !name.is_empty() { Ok(name.to_owned()) } else { Err(format!("`{name}` is no program of a package")) }
}

#[cfg(test)]
mod tests;
