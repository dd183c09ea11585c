//! Tests of the launch lines.

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
fn harmless_options_change_nothing() {
    use Registry::{Npm, Pypi};
    for line in [
        "npx -yq a",
        "npx -s -y a",
        "npx --silent --yes a",
        "npx --quiet -y a",
        "npx --yes=true a",
        "npx --loglevel=error a",
        "npx --loglevel error a",
        "bunx --bun a",
        "bun x --bun a",
        "npx.cmd -y a",
    ] {
        assert_eq!(check(line, (Npm, "a", None, "a")).args, Vec::<String>::new(), "{line}");
    }
    for option in [
        "--no-config",
        "--refresh",
        "--isolated",
        "--no-cache",
        "--upgrade",
        "-U",
        "-qn",
        "--prerelease=if-necessary-or-explicit",
    ] {
        let package = check(&format!("uvx {option} a x"), (Pypi, "a", None, "a"));
        assert_eq!((package.args.as_slice(), package.prerelease), (&["x".to_owned()][..], false), "{option}");
    }
    assert!(check("uvx --prerelease=allow a", (Pypi, "a", None, "a")).prerelease);
    assert!(check("uvx --prerelease allow --from a a", (Pypi, "a", None, "a")).prerelease);
    refused("npx --yes=false a", "option `--yes=false`");
    refused("npx -yc a", "option `-yc`");
    refused("npx --registry=https://h.example a", "option `--registry");
    refused("uvx --prerelease=explicit a", "`--prerelease explicit`");
    refused("uvx --offline a", "option `--offline`");
}

#[test]
fn npm_packages_run_by_deno_are_npm_packages() {
    use Registry::Npm;
    let package = check("deno run -A npm:@a/b@1.0.0 x", (Npm, "@a/b", Some("1.0.0"), "@a/b@1.0.0"));
    assert_eq!(package.args, ["x"]);
    check("deno run --allow-net=h.example --allow-env -q npm:/a", (Npm, "a", None, "a"));
    check("deno x npm:a", (Npm, "a", None, "a"));
    check("deno run --unstable -A --unstable-kv npm:a", (Npm, "a", None, "a"));
    let inner = check("deno run -A npm:@a/b@1.0.0/tool x -y", (Npm, "@a/b", Some("1.0.0"), "@a/b@1.0.0"));
    assert_eq!((inner.bin.as_deref(), inner.args.as_slice()), (Some("tool"), &["x".to_owned(), "-y".to_owned()][..]));
    assert_eq!(check("deno run npm:a/sub", (Npm, "a", None, "a")).bin.as_deref(), Some("sub"));
    refused("deno run -A jsr:@a/b", "no package of the npm registry");
    refused("deno run -A npm:a/../b", "no package of the npm registry");
    refused("deno run -A npm:-c x", "option `-c`");
    refused("deno run --import-map=x npm:a", "option `--import-map=x`");
    refused("deno run -A", "names no package");
    refused("deno task x", "a file or module of its own");
}

#[test]
fn a_whole_line_may_stand_where_its_command_should() {
    let line = |command: &str, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        (parse(command, &args), normalised(command, &args))
    };
    let (parsed, normal) = line("npx -y  @a/b@1.0.0 --key <redacted> ${X}", &[]);
    let package = parsed.unwrap();
    assert_eq!((package.name.as_str(), package.args.join(" ")), ("@a/b", "--key <redacted> ${X}".to_owned()));
    let args = ["-y", "@a/b@1.0.0", "--key", "<redacted>", "${X}"].map(str::to_owned).to_vec();
    assert_eq!(normal, Launch::Stdio { command: "npx".to_owned(), args });
    assert_eq!(line("uvx --from a==1", &["tool"]).0.unwrap().bin.as_deref(), Some("tool"));
    assert_eq!(line("docker run -i img", &[]).1, Launch::Unsupported { what: "oci image `img`".to_owned() });
    assert_eq!(line("npx -y a@~1.2 b=${HOME} c@^2 x?y=1", &[]).0.unwrap().args.len(), 3);
    assert!(line("/opt/my tools/npx x", &[]).0.unwrap_err().why.contains("no launcher"));
    assert!(line("sh -c x", &[]).0.is_err());
    // Given as arguments, they are no shell's.
    assert_eq!(line("npx", &["a", "b && c"]).0.unwrap().args, ["b && c"]);
    assert_eq!(line("npx -y a", &["b && c", "$HOME", "*"]).0.unwrap().args, ["b && c", "$HOME", "*"]);
}

/// A record holds the line as `normalised` leaves it, and harvest parses what the record holds.
fn through_a_record(command: &str, args: &[&str]) -> Result<Package, LaunchError> {
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    match normalised(command, &args) {
        Launch::Stdio { command, args } => parse(&command, &args),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_line_for_a_shell_is_refused_with_all_of_it_after_it_was_recorded() {
    for command in [
        "npx -y a && rm x",
        "npx a 'b c'",
        "npx a \"b c\"",
        "npx a `id`",
        "npx a $(id)",
        "npx a > x",
        "uvx a <your key>",
        "npx a; b",
        "npx a | tee x",
        "npx a $HOME/docs",
        "npx a --at=$PWD",
        "npx a $@",
        "npx a ~/docs",
        "npx a --at=~/docs",
        "npx a *.md",
        "npx a # of mine",
        "npx a \\ b",
        "cmd /c npx a %APPDATA%",
    ] {
        let error = through_a_record(command, &[]).unwrap_err();
        assert!(error.why.ends_with("in it is for a shell") && error.line == command, "{error}");
    }
    let error = through_a_record("cmd", &["/c", "npx -y a & del x"]).unwrap_err();
    assert_eq!((error.line.as_str(), error.why.as_str()), ("cmd /c npx -y a & del x", "`&` in it is for a shell"));
    assert_eq!(through_a_record("npx -y a b", &["c | d"]).unwrap().args, ["b", "c | d"]);
}

#[test]
fn what_windows_is_given_in_one_argument_is_a_line() {
    for (command, args) in
        [("cmd", &["/c", "npx -y a@1.0.0 x"][..]), ("cmd.exe", &["/C", "npx.cmd -y a@1.0.0 x"]), ("cmd /c npx -y a@1.0.0 x", &[])]
    {
        let package = through_a_record(command, args).unwrap();
        assert_eq!((package.requirement.as_str(), package.args.join(" ")), ("a@1.0.0", "x".to_owned()), "{command}");
    }
    assert_eq!(through_a_record("cmd", &["/c", "npx", "-y", "a", "b & c"]).unwrap().args, ["b & c"]);
    assert!(through_a_record("cmd", &["/c", "dir /s"]).unwrap_err().why.contains("no launcher"));
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
    check("uvx --from pkg@1.0 script", (Pypi, "pkg", Some("1.0"), "pkg==1.0"));
    let windows = check("uvx --from awslabs.x@latest awslabs.x.exe", (Pypi, "awslabs.x", None, "awslabs.x"));
    assert_eq!(windows.bin.as_deref(), Some("awslabs.x"));
    check("uvx --from=pkg[cli]@latest script.EXE", (Pypi, "pkg", None, "pkg[cli]"));
}

#[test]
fn uvx_forms_that_are_not_understood() {
    refused("uvx", "names no package");
    refused("uvx --from git+https://host/repo script", "no package of PyPI");
    refused("uvx pkg@https://host/x.whl", "no package of PyPI");
    refused("uvx ./folder", "no package of PyPI");
    refused("uvx --index-url https://host pkg", "option `--index-url`");
    refused("uvx --from", "has no value");
    refused("uvx --from pkg@https://host/x.whl x", "no package of PyPI");
    refused("uvx --from pkg@>=1 x", "no package of PyPI");
    refused("uvx --from pkg .exe", "no program");
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
    let Launch::Sse { headers, .. } = normal("npx mcp-remote@0.1.0 https://host.example/mcp --transport sse-only --header X:_1")
    else {
        panic!()
    };
    assert_eq!((headers[0].name.as_str(), headers[0].value.as_deref()), ("X", Some("1")));
    let image = |line: &str| match normal(line) {
        Launch::Unsupported { what } => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(image("docker run -i --rm -e KEY -v a:b --name=x mcp/time:1 --flag"), "oci image `mcp/time:1`");
    assert_eq!(image("docker run -i -- img x"), "oci image `img`");
    assert!(matches!(normal("npx -y a"), Launch::Stdio { .. }));
    assert!(matches!(normal("docker compose run svc"), Launch::Stdio { .. }));
}

#[test]
fn other_commands_are_named() {
    refused("docker run -i image", "container image `image`");
    refused("docker run -i -- image", "container image `image`");
    refused("docker run --rm", "a container");
    refused("docker compose up", "a service of `docker compose`");
    refused("docker compose -f x.yml run svc", "a service of `docker compose`");
    refused("docker-compose run svc", "a service of `docker-compose`");
    refused("node server.js", "a file or module of its own");
    refused("python -m server", "a file or module of its own");
    refused("bash -c evil", "a line for a shell");
    refused("cmd /c", "a line for a shell");
    refused("/opt/x/my-server --stdio", "`my-server` is no launcher");
    let error = parse("sh", &["-c".into(), "a b".into()]).unwrap_err();
    assert_eq!(error.line, "sh -c a b");
}
