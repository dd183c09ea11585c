//! `explain`: prints what the program itself goes by: the embedded settings, the declarations, the stages.

use super::wants::{Want, wants_of};
use crate::{config, declarations::PROFILES, error::Failure, run::Setup, stage::Stage};

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
            print!("{}", state(setup, what));
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

/// Below the declaration of a marketplace, what it wants of this machine and whether it is there.
fn state(setup: &Setup, what: &str) -> String {
    let id = what.strip_prefix("marketplaces/").map(|id| id.trim_end_matches(".toml"));
    let wants = id.and_then(|id| Some(wants_of(setup, setup.declarations.marketplace(id).ok()?.as_ref())));
    let line = |want: Want| format!("# {}: {}, {}\n", want.thing, if want.there { "set" } else { "not set" }, want.detail);
    let lines: String = wants.into_iter().flatten().map(line).collect();
    if lines.is_empty() { lines } else { format!("\n# On this machine:\n{lines}") }
}

/// A section of the default settings (`generate`, `models.local`), one key of it, or a key that
/// stands in no section (`mode`), with its comments.
fn section(what: &str) -> Option<String> {
    let sections = sections();
    if let Some((_, text)) = sections.iter().find(|(name, _)| *name == what && Stage::parse(what).is_err()) {
        return Some((*text).to_owned());
    }
    let (name, key) = what.rsplit_once('.').unwrap_or(("", what));
    let (_, text) = sections.into_iter().find(|(section, _)| *section == name)?;
    let mut lines = text.lines().skip_while(|line| line.split([' ', '=']).next() != Some(key));
    let first = lines.next()?;
    // A value or comment may go on, indented.
    let rest = lines.take_while(|line| line.starts_with([' ', ']']));
    let title = if name.is_empty() { String::new() } else { format!("[{name}]\n") };
    Some(title + &std::iter::once(first).chain(rest).map(|line| format!("{line}\n")).collect::<String>())
}

/// The default settings by section, the one without a heading first: each with the comments right above
/// its heading.
fn sections() -> Vec<(&'static str, &'static str)> {
    let mut starts = vec![("", 0)];
    let (mut at, mut comment) = (0, None);
    for line in config::DEFAULT.split_inclusive('\n') {
        if let Some((name, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            starts.push((name, comment.unwrap_or(at)));
        }
        comment = if line.starts_with('#') { comment.or(Some(at)) } else { None };
        at += line.len();
    }
    let ends = starts.iter().skip(1).map(|(_, start)| *start).chain([at]);
    starts.iter().zip(ends).map(|(&(name, start), end)| (name, &config::DEFAULT[start..end])).collect()
}

fn stage(what: &str) -> Option<String> {
    let stage = Stage::parse(what).ok()?;
    let text = match stage {
        Stage::Discover => {
            "reads marketplaces/*.toml; writes servers.parquet, one row a server. A listing that cannot be read is a failed row."
        }
        Stage::Harvest => {
            "installs every server from its lock, starts it in the cage, without a network unless its policy says otherwise\n\
             (`network` of its marketplace or in `[harvest.servers]`), and lists its tools page by page.\n\
             Writes tools.parquet (schemas verbatim). Outcomes of a server: ready, needs-credentials, unsupported, install-failed,\n\
             launch-failed, timed-out, protocol, no-tools. A server that does not start is an outcome, not an error."
        }
        Stage::Generate => {
            "plans samples over all servers in turn and makes each in steps: instruct (several requests in one call), slots (a value\n\
             for every required parameter), weave (missing values into the request), evolve (as deep as `generate.evolve_depth`\n\
             says; no value is lost, none made up), call (bound to the schema). Conversations of other kinds have a prompt each:\n\
             parallel, chain, multi-turn, no-tool, ask, recover. Their shares are `[generate.kinds]`; the kind is in the row.\n\
             Prompts: prompts/{instruct,slots,weave,context,evolve,breadth,call}.md and those of the kinds. Every revision is in\n\
             the row's lineage; how much the rows differ is in stage.json. With `generate.look` the planned servers are asked\n\
             first what there is, and prompts are told the names."
        }
        Stage::FilterSamples => {
            "runs samples through filters/function-call.toml; every row gets a verdict from every step it meets. Before that each\n\
             step is examined on planted rows (filters/exams/); one that is no better than chance leaves its rows unjudged.\n\
             Rows that a judge could not be asked about are unjudged, too: `filter --rejudge` judges them later."
        }
        Stage::Rollout => {
            "runs surviving conversations on the live servers, each with a fresh disposable folder in the cage a server. Calls\n\
             that `rollout.refuse` names are not run; the decision is stored with the row. Answers are kept verbatim. The later\n\
             turns of chain and multi-turn are written meanwhile, by prompts/{next,answer,user}.md, and hold nothing that was\n\
             neither said nor answered. A call that fails before it is mended is masked; a conversation that did not become what\n\
             it is called is dropped as `cut-short`, with the cause."
        }
        Stage::FilterTrajectories => {
            "runs trajectories through filters/trajectory.toml: ok, empty, soft-error, hard-error, schema-breach, timed-out.\n\
             Turns that were written while it was run and do not follow are masked."
        }
        Stage::Export => {
            "writes datasets/<name> as Parquet with a card: splits train, seen_tool, unseen_tool, unseen_server. Each of\n\
             `export.profiles` writes the same rows once more as its trainer reads them, with settings and a command that trains."
        }
    };
    let mut out = format!("{stage}: {text}");
    // Its own section and those below it, and what else it goes by.
    let below = format!("{}.", stage.verb());
    let also: &[&str] = match stage {
        Stage::Discover => &["crawl"],
        Stage::Harvest => &["secrets"],
        _ => &[],
    };
    for (name, settings) in sections() {
        if name == stage.verb() || name.starts_with(&below) || also.contains(&name) {
            out.push_str(&format!("\n\n{}", settings.trim_end()));
        }
    }
    Some(out)
}

fn known(setup: &Setup) -> Vec<String> {
    let all = &setup.declarations;
    let mut names: Vec<String> = vec!["config".into()];
    names.extend(Stage::ALL.map(|s| s.folder().to_owned()));
    names.extend(Stage::ALL.map(|s| s.verb().to_owned()));
    names.extend(setting_names());
    for (folder, ending) in [
        ("prompts", ".md"),
        ("filters", ".toml"),
        ("marketplaces", ".toml"),
        ("eval", ".toml"),
        ("datasets", ".toml"),
        (PROFILES, ".toml"),
    ] {
        names.extend(all.ids(folder, ending).into_iter().map(|id| format!("{folder}/{id}")));
    }
    names.extend(all.datasets().into_iter().map(|name| format!("datasets/{name}")));
    names
}

/// Every key of the default settings, with its section.
fn setting_names() -> Vec<String> {
    let table: toml::Table = config::DEFAULT.parse().unwrap_or_default();
    let mut names = Vec::new();
    for (name, value) in &table {
        // `[models.local]` has a heading, `[models]` has none.
        if !value.is_table() || sections().iter().any(|(section, _)| section == name) {
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

    #[test]
    fn a_section_has_the_comments_above_it_and_not_those_of_the_next() {
        let secrets = section("secrets").unwrap();
        assert!(secrets.starts_with("# Credentials that servers want") && !secrets.contains("models.openai"), "{secrets}");
        assert!(!section("roles").unwrap().contains("Credentials that servers want"));
        let servers = section("harvest.servers").unwrap();
        assert!(servers.contains("loopback included") && servers.contains("sdist"), "{servers}");
        let harvest = stage("harvest").unwrap();
        for part in ["memory_mb", "[harvest.servers]", "[secrets]"] {
            assert!(harvest.contains(part), "{part}");
        }
        assert!(stage("discover").unwrap().contains("longest_pause_s"), "how hosts are asked is told with discover");
        let text: String = sections().into_iter().map(|(_, text)| text).collect();
        assert_eq!(text, config::DEFAULT, "nothing is left out and nothing stands twice");
    }
}
