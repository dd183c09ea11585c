//! `check`: reads every declaration, offline.

use std::{collections::BTreeSet, sync::Arc};

use mcpmill_core::{launch, record::Launch, toolbox::Toolbox};
use mcpmill_pipeline::{
    discover::Marketplace,
    export::{CardCounts, RunFacts, render_card},
    filter::{Chain, Parts},
    models::Role,
    policy::Policy,
};

use crate::{
    cli::Format,
    config::Model,
    declarations::PROFILES,
    edges::{is_variable, model_of},
    error::Failure,
    fixtures::{Tried, try_out},
    policies, prices,
    run::Setup,
};

/// One file and what is wrong with it.
struct Finding {
    file: String,
    faults: Vec<String>,
    /// What a marketplace's declaration made of its saved pages.
    tried: Vec<Tried>,
}

impl Finding {
    fn new(file: String, faults: Vec<String>) -> Self {
        Self { file, faults, tried: Vec::new() }
    }
}

/// Reads all declarations of the working folder or, where it has none, the built-in ones.
///
/// # Errors
/// Something is wrong; everything that is has been printed.
pub fn check(setup: &Setup) -> Result<(), Failure> {
    print(setup, &findings(setup, true))
}

/// The first fault of all that a run goes by, before anything is asked or fetched: found after an hour
/// of generation it would be a poor surprise.
///
/// # Errors
/// A setting or declaration is wrong.
pub fn ready(setup: &Setup) -> Result<(), Failure> {
    match findings(setup, false).into_iter().find(|finding| !finding.faults.is_empty()) {
        Some(finding) => Err(Failure::usage(format!("{}: {}", finding.file, finding.faults.join("; ")))
            .hint("`mcpmill check` reads all settings and declarations and lists every fault")),
        None => Ok(()),
    }
}

/// Faults by file. A single listing that cannot be read, or pages a declaration makes nothing of, are faults to be
/// told, but a run goes on without them: only a `thorough` reading looks for them.
fn findings(setup: &Setup, thorough: bool) -> Vec<Finding> {
    let all = &setup.declarations;
    let worlds = all.worlds();
    let known: Vec<String> = worlds.as_ref().map(|w| w.keys().cloned().collect()).unwrap_or_default();
    let worlds_read = worlds.is_ok();
    let mut faults = settings(setup);
    faults.extend(policies::faults(&setup.config, &known));
    let mut findings = vec![Finding::new("settings".into(), faults)];
    for id in all.ids("prompts", ".md") {
        findings.push(finding(format!("prompts/{id}.md"), all.prompt(&id).map(|_| Vec::new())));
    }
    findings.push(finding("marketplaces/worlds/".into(), worlds.map(|_| Vec::new())));
    for id in all.ids("marketplaces", ".toml") {
        let read = all.marketplace(&id);
        let tried = read.as_ref().map(|m| if thorough { tried(setup, m.as_ref()) } else { Vec::new() }).unwrap_or_default();
        // What no seed can be looked for in is told once, by the seeds.
        let looked = thorough && worlds_read;
        let read = read.map(|m| if looked { listings(m.as_ref(), &known) } else { Vec::new() });
        let mut found = finding(format!("marketplaces/{id}.toml"), read);
        let faults = tried.iter().filter_map(|t| t.fault.as_ref().map(|fault| format!("fixture `{}`: {fault}", t.fixture)));
        found.faults.extend(faults);
        findings.push(Finding { tried, ..found });
    }
    for id in all.ids("filters", ".toml") {
        findings.push(finding(format!("filters/{id}.toml"), chain(setup, &id).map(|()| Vec::new())));
    }
    let planted = crate::line::exam_rows(&setup.declarations).map(|_| Vec::new());
    findings.push(finding("filters/exams/planted.jsonl".into(), planted));
    for name in all.datasets() {
        let read = all.dataset(&name).and_then(|(dataset, card)| {
            let filled =
                render_card(card, &dataset, &CardCounts::default(), &RunFacts::default(), "check", env!("CARGO_PKG_VERSION"));
            filled.map(|_| Vec::new()).map_err(|e| Failure::usage(e.to_string()))
        });
        findings.push(finding(format!("datasets/{name}/"), read));
    }
    findings.push(finding("datasets/training.toml".into(), all.training().map(|_| Vec::new())));
    for id in all.ids(PROFILES, ".toml") {
        findings.push(finding(format!("{PROFILES}/{id}.toml"), all.profile(&id).map(|_| Vec::new())));
    }
    let held_out = all.held_out(&setup.config.filter.decontaminate).map(|held| held.fault().into_iter().collect());
    findings.push(finding("eval/sets/".into(), held_out));
    for id in all.ids("eval", ".toml") {
        let text = all.text(&format!("eval/{id}.toml")).unwrap_or_default();
        let faults = if id == prices::ID { prices::faults(text) } else { super::eval::fault(text).into_iter().collect() };
        findings.push(Finding::new(format!("eval/{id}.toml"), faults));
    }
    let rollout = &setup.config.rollout;
    let policy = Policy::new(rollout.refuse.clone()).and_then(|policy| policy.allowing(rollout.allow.clone(), rollout.changes));
    let faults = policy.err().map(|p| format!("the pattern `{p}` has no `/`")).into_iter().collect();
    findings.push(Finding::new("rollout.refuse, rollout.allow".into(), faults));
    findings
}

/// Settings that name what is not there, or lie outside their range.
fn settings(setup: &Setup) -> Vec<String> {
    let (config, all) = (&setup.config, &setup.declarations);
    let mut faults = Vec::new();
    for role in config.roles.keys().filter(|role| *role != "default" && !Role::ALL.iter().any(|r| r.as_str() == role.as_str())) {
        faults.push(format!("`roles.{role}` is no role; roles are default, {}", Role::ALL.map(Role::as_str).join(", ")));
    }
    for (role, model) in config.roles.iter().filter(|(_, model)| *model != "auto" && !config.models.contains_key(*model)) {
        faults.push(format!("`roles.{role}` names the model `{model}`, which is not declared"));
    }
    for (key, folder, names) in [
        ("discover.marketplaces", "marketplaces", &config.discover.marketplaces),
        ("export.datasets", "datasets", &config.export.datasets),
        ("export.profiles", PROFILES, &config.export.profiles),
    ] {
        let known = if folder == "datasets" { all.datasets() } else { all.ids(folder, ".toml") };
        // Without a profile there is still the Parquet.
        if names.is_empty() && folder != PROFILES {
            faults.push(format!("`{key}` is empty; there are {}", known.join(", ")));
        }
        let lost = names.iter().filter(|name| !known.contains(name));
        faults.extend(
            lost.map(|name| format!("`{key}` names `{name}`, which is not in {folder}/; there are {}", known.join(", "))),
        );
    }
    let local = model_of(config, Role::Generator).is_ok_and(|model| model.local);
    faults.extend(config.generate.shares(config.generate.profile.resolve(local)).err().map(|fault| fault.to_string()));
    // A model that is not declared is told above; what is wrong with a declared one is told once for all its roles.
    let declared = |role: &Role| {
        let name = config.roles.get(role.as_str()).or_else(|| config.roles.get("default"));
        name.is_none_or(|name| name == "auto" || config.models.contains_key(name))
    };
    let wrong = Role::ALL.into_iter().filter(declared).filter_map(|role| model_of(config, role).err());
    faults.extend(wrong.map(|fault| fault.to_string()).collect::<BTreeSet<_>>());
    for (name, model) in config.models.iter().filter(|(name, _)| config.roles.values().any(|used| used == *name)) {
        if let Model::Endpoint(endpoint) = model {
            let variable = endpoint.api_key_env.as_str();
            if !matches!(variable, "" | "OPENAI_API_KEY") && std::env::var_os(variable).is_none() {
                faults.push(format!("`models.{name}.api_key_env` names the variable `{variable}`, which is not set"));
            }
        }
    }
    // The value is not shown: it may be the secret itself.
    let held = config.secrets.iter().filter(|(_, variable)| !is_variable(variable));
    faults
        .extend(held.map(|(name, _)| format!("`secrets.{name}` is no name of a variable; the value itself belongs in no file")));
    let rates = [
        ("generate", config.generate.max_failure_rate),
        ("filter", config.filter.max_failure_rate),
        ("rollout", config.rollout.max_failure_rate),
    ];
    let odd = rates.into_iter().filter(|(_, rate)| !(0.0..=1.0).contains(rate));
    faults.extend(odd.map(|(section, rate)| format!("`{section}.max_failure_rate` is {rate}, and not between 0 and 1")));
    let counts = [
        ("generate.samples", config.generate.samples),
        ("harvest.concurrency", config.harvest.concurrency),
        ("harvest.max_pages", config.harvest.max_pages),
        ("harvest.max_tools", config.harvest.max_tools),
        ("rollout.concurrency", config.rollout.concurrency),
        ("embedding.threads", config.embedding.threads),
    ];
    faults.extend(
        counts.into_iter().filter(|(_, count)| *count == 0).map(|(key, _)| format!("`{key}` is 0, and has to be 1 or more")),
    );
    faults
}

/// A fault with what helps.
fn told(failure: &Failure) -> String {
    failure.hint.as_ref().map_or_else(|| failure.to_string(), |hint| format!("{failure} ({hint})"))
}

fn finding(file: String, read: Result<Vec<String>, Failure>) -> Finding {
    Finding::new(file, read.unwrap_or_else(|failure| vec![told(&failure)]))
}

/// What a declaration makes of its saved pages. Those that are neither here nor built in say nothing against it.
fn tried(setup: &Setup, marketplace: &dyn Marketplace) -> Vec<Tried> {
    let there = marketplace.fixtures().iter().filter_map(|name| Some((name, setup.declarations.fixture(name)?)));
    there.map(|(name, fixture)| try_out(marketplace, name, &fixture)).collect()
}

/// Entries that cannot be read, launch lines that cannot be parsed, worlds that nobody declares.
fn listings(marketplace: &dyn Marketplace, worlds: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for listing in marketplace.declared() {
        match &listing.server {
            Err(why) => faults.push(format!("{}: {why}", listing.id)),
            Ok(server) => {
                if let Launch::Stdio { command, args } = &server.launch {
                    faults.extend(launch::parse(command, args).err().map(|e| format!("{}: {e}", listing.id)));
                }
                let lost = server.world.iter().filter(|w| !worlds.contains(w));
                faults.extend(lost.map(|w| format!("{}: there is no world `{w}`", listing.id)));
            }
        }
    }
    faults
}

fn chain(setup: &Setup, id: &str) -> Result<(), Failure> {
    let prompt = |id: &str| setup.declarations.prompt(id).ok();
    let none = || Err::<_, String>("not needed to check".into());
    let parts = Parts {
        embedder: none(),
        models: Err("not needed to check".into()),
        toolbox: Arc::new(Toolbox::default()),
        programs: Err("not needed to check".into()),
        held_out: Arc::default(),
        prompt: &prompt,
    };
    Chain::parse(id, setup.declarations.chain(id)?, &parts).map(|_| ()).map_err(|e| Failure::usage(e.to_string()))
}

fn print(setup: &Setup, findings: &[Finding]) -> Result<(), Failure> {
    let wrong: Vec<&Finding> = findings.iter().filter(|f| !f.faults.is_empty()).collect();
    if setup.global.format == Format::Json {
        let row = |f: &Finding| match f.tried.is_empty() {
            true => serde_json::json!({ "file": f.file, "faults": f.faults }),
            false => serde_json::json!({ "file": f.file, "faults": f.faults, "fixtures": f.tried }),
        };
        let rows: Vec<_> = findings.iter().map(row).collect();
        println!("{}", serde_json::json!(rows));
    } else {
        // Of the built-in ones only what is wrong.
        for finding in findings.iter().filter(|f| setup.declarations.from_folder.contains(&f.file)) {
            for Tried { fixture, found, unreadable, .. } in finding.tried.iter().filter(|t| t.fault.is_none()) {
                println!(
                    "{}: fixture `{fixture}` has {}, {unreadable} more cannot be read",
                    finding.file,
                    counted(*found, "entry", "entries")
                );
            }
        }
        for finding in &wrong {
            for fault in &finding.faults {
                println!("{}: {fault}", finding.file);
            }
        }
        let read = counted(findings.len() - 1, "declaration", "declarations");
        println!("settings and {read} read, {} with faults", wrong.len());
    }
    match wrong.len() {
        0 => Ok(()),
        1 => Err(Failure::usage("1 declaration has faults")),
        count => Err(Failure::usage(format!("{count} declarations have faults"))),
    }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
