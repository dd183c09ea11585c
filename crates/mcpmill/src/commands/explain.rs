//! `explain`: prints what the program itself goes by: the embedded settings, the declarations, the stages.

use crate::{config, error::Failure, run::Setup, stage::Stage};

/// Prints what is known of `what`.
///
/// # Errors
/// Nothing of that name is known; the nearest name is suggested.
pub fn explain(setup: &Setup, what: &str) -> Result<(), Failure> {
    if what == "config" {
        print!("{}", config::DEFAULT);
        return Ok(());
    }
    if let Some(section) = section(what) {
        print!("{section}");
        return Ok(());
    }
    if let Some(text) = stage(what) {
        println!("{text}");
        return Ok(());
    }
    for ending in ["", ".md", ".toml", "/dataset.toml"] {
        if let Some(text) = setup.declarations.text(&format!("{what}{ending}")) {
            print!("{text}");
            return Ok(());
        }
    }
    let failure = Failure::usage(format!("nothing is known of `{what}`"));
    let nearest =
        known(setup).into_iter().map(|name| (strsim::jaro_winkler(what, &name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((near, name)) if near > 0.75 => Err(failure.hint(format!("did you mean `{name}`?"))),
        _ => {
            Err(failure
                .hint("try `config`, a stage such as `harvest`, or a file such as `prompts/call` or `filters/function-call`"))
        }
    }
}

/// A section of the default settings (`generate`, `models.local`), or one key of it, with its comments.
fn section(what: &str) -> Option<String> {
    let (name, key) = what.rsplit_once('.').unwrap_or((what, ""));
    let find = |name: &str| {
        let start = config::DEFAULT.find(&format!("[{name}]"))?;
        let text = &config::DEFAULT[start..];
        Some(&text[..text[1..].find("\n[").map_or(text.len(), |end| end + 2)])
    };
    if let Some(text) = find(what).filter(|_| Stage::parse(what).is_err()) {
        return Some(text.to_owned());
    }
    let lines: Vec<&str> = find(name)?.lines().filter(|l| l.split([' ', '=']).next() == Some(key)).collect();
    (!lines.is_empty()).then(|| format!("[{name}]\n{}\n", lines.join("\n")))
}

fn stage(what: &str) -> Option<String> {
    let stage = Stage::parse(what).ok()?;
    let text = match stage {
        Stage::Discover => {
            "reads marketplaces/*.toml; writes servers.parquet, one row a server. A listing that cannot be read is a failed row."
        }
        Stage::Harvest => {
            "installs every server from its lock, starts it in the cage without a network, lists its tools page by page.\n\
             Writes tools.parquet (schemas verbatim). Outcomes of a server: ready, needs-credentials, unsupported, install-failed,\n\
             launch-failed, timed-out, protocol, no-tools. A server that does not start is an outcome, not an error."
        }
        Stage::Generate => {
            "plans samples over all servers in turn and makes each in steps: instruct (several requests in one call), slots (a value\n\
             for every required parameter), weave (missing values into the request), evolve (one step), call (bound to the schema).\n\
             Prompts: prompts/{instruct,slots,weave,context,evolve,call}.md. Every revision is in the row's lineage."
        }
        Stage::FilterSamples => {
            "runs samples through filters/function-call.toml; every row gets a verdict from every step it meets."
        }
        Stage::Rollout => {
            "runs the calls of surviving samples on the live servers, each in a fresh disposable folder in the cage. Calls that\n\
             `rollout.refuse` names are not run; the decision is stored with the row. The answer is kept verbatim."
        }
        Stage::FilterTrajectories => {
            "runs trajectories through filters/trajectory.toml: ok, empty, soft-error, hard-error, schema-breach, timed-out."
        }
        Stage::Export => "writes datasets/<name> as Parquet with a card: splits train, seen_tool, unseen_tool, unseen_server.",
    };
    let mut out = format!("{stage}: {text}");
    if let Some(settings) = config_section(stage) {
        out.push_str(&format!("\n\n{}", settings.trim_end()));
    }
    Some(out)
}

fn config_section(stage: Stage) -> Option<&'static str> {
    let start = config::DEFAULT.find(&format!("[{}]", stage.verb()))?;
    let text = &config::DEFAULT[start..];
    Some(&text[..text[1..].find("\n[").map_or(text.len(), |end| end + 2)])
}

fn known(setup: &Setup) -> Vec<String> {
    let all = &setup.declarations;
    let mut names: Vec<String> = vec!["config".into()];
    names.extend(Stage::ALL.map(|s| s.folder().to_owned()));
    names.extend(Stage::ALL.map(|s| s.verb().to_owned()));
    for (folder, ending) in [("prompts", ".md"), ("filters", ".toml"), ("marketplaces", ".toml"), ("eval", ".toml")] {
        names.extend(all.ids(folder, ending).into_iter().map(|id| format!("{folder}/{id}")));
    }
    names.extend(all.folders("datasets"));
    names
}
