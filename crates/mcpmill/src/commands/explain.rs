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

/// A section of the default settings (`generate`, `models.local`), one key of it, or a key that
/// stands in no section (`mode`), with its comments.
fn section(what: &str) -> Option<String> {
    if let Some(text) = slice(what).filter(|_| Stage::parse(what).is_err()) {
        return Some(text.to_owned());
    }
    let (title, text, key) = match what.rsplit_once('.') {
        Some((name, key)) => (format!("[{name}]\n"), slice(name)?, key),
        None => (String::new(), config::DEFAULT.split("\n[").next()?, what),
    };
    let mut lines = text.lines().skip_while(|line| line.split([' ', '=']).next() != Some(key));
    let first = lines.next()?;
    // A value or comment may go on, indented.
    let rest = lines.take_while(|line| line.starts_with([' ', ']']));
    Some(title + &std::iter::once(first).chain(rest).map(|line| format!("{line}\n")).collect::<String>())
}

/// The text of `[name]` in the default settings.
fn slice(name: &str) -> Option<&'static str> {
    let start = config::DEFAULT.find(&format!("[{name}]\n")).or_else(|| config::DEFAULT.find(&format!("[{name}] ")))?;
    let text = &config::DEFAULT[start..];
    Some(&text[..text[1..].find("\n[").map_or(text.len(), |end| end + 2)])
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
    if let Some(settings) = slice(stage.verb()) {
        out.push_str(&format!("\n\n{}", settings.trim_end()));
    }
    Some(out)
}

fn known(setup: &Setup) -> Vec<String> {
    let all = &setup.declarations;
    let mut names: Vec<String> = vec!["config".into()];
    names.extend(Stage::ALL.map(|s| s.folder().to_owned()));
    names.extend(Stage::ALL.map(|s| s.verb().to_owned()));
    names.extend(setting_names());
    for (folder, ending) in [("prompts", ".md"), ("filters", ".toml"), ("marketplaces", ".toml"), ("eval", ".toml")] {
        names.extend(all.ids(folder, ending).into_iter().map(|id| format!("{folder}/{id}")));
    }
    names.extend(all.folders("datasets"));
    names
}

/// Every key of the default settings, with its section.
fn setting_names() -> Vec<String> {
    let table: toml::Table = config::DEFAULT.parse().unwrap_or_default();
    let mut names = Vec::new();
    for (name, value) in &table {
        // `[models.local]` has a heading, `[models]` has none.
        if slice(name).is_some() || !value.is_table() {
            names.push(name.clone());
        }
        names.extend(value.as_table().into_iter().flat_map(|t| t.keys()).map(|key| format!("{name}.{key}")));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_explained() {
        for name in setting_names() {
            let shown = section(&name).or_else(|| stage(&name)).unwrap_or_else(|| panic!("{name}"));
            assert!(shown.contains(name.rsplit('.').next().unwrap()), "{name}: {shown}");
        }
        assert!(section("exchange_store").unwrap().contains("in replay"), "a comment that goes on is shown");
        assert!(section("rollout.refuse").unwrap().contains("ssh/*"));
        assert_eq!(section("generate.samplse"), None);
    }
}
