//! `check`: reads every declaration, offline.

use std::sync::Arc;

use mcpmill_core::{launch, record::Launch, toolbox::Toolbox};
use mcpmill_pipeline::{
    discover::Marketplace,
    filter::{Chain, Parts},
    policy::Policy,
};

use crate::{cli::Format, error::Failure, run::Setup};

/// One file and what is wrong with it.
struct Finding {
    file: String,
    faults: Vec<String>,
}

/// Reads all declarations of the working folder or, where it has none, the built-in ones.
///
/// # Errors
/// Something is wrong; everything that is has been printed.
pub fn check(setup: &Setup) -> Result<(), Failure> {
    let mut findings = Vec::new();
    let all = &setup.declarations;
    for id in all.ids("prompts", ".md") {
        findings.push(finding(format!("prompts/{id}.md"), all.prompt(&id).map(|_| Vec::new())));
    }
    let worlds = all.worlds();
    let known: Vec<String> = worlds.as_ref().map(|w| w.keys().cloned().collect()).unwrap_or_default();
    findings.push(finding("marketplaces/worlds/".into(), worlds.map(|_| Vec::new())));
    for id in all.ids("marketplaces", ".toml") {
        findings.push(finding(format!("marketplaces/{id}.toml"), all.marketplace(&id).map(|m| listings(m.as_ref(), &known))));
    }
    for id in all.ids("filters", ".toml") {
        findings.push(finding(format!("filters/{id}.toml"), chain(setup, &id).map(|()| Vec::new())));
    }
    for folder in all.folders("datasets") {
        let name = folder.trim_start_matches("datasets/").to_owned();
        findings.push(finding(format!("{folder}/"), all.dataset(&name).map(|_| Vec::new())));
    }
    for id in all.ids("eval", ".toml") {
        let text = all.text(&format!("eval/{id}.toml")).unwrap_or_default();
        findings.push(Finding { file: format!("eval/{id}.toml"), faults: super::eval::fault(text).into_iter().collect() });
    }
    let policy = Policy::new(setup.config.rollout.refuse.clone());
    findings.push(Finding {
        file: "rollout.refuse".into(),
        faults: policy.err().map(|p| format!("the pattern `{p}` has no `/`")).into_iter().collect(),
    });
    print(setup, &findings)
}

fn finding(file: String, read: Result<Vec<String>, Failure>) -> Finding {
    Finding { file, faults: read.unwrap_or_else(|failure| vec![failure.to_string()]) }
}

/// Entries that cannot be read, launch lines that cannot be parsed, worlds that nobody declares.
fn listings(marketplace: &dyn Marketplace, worlds: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    for listing in futures::executor::block_on(marketplace.listings()).unwrap_or_default() {
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
        prompt: &prompt,
    };
    Chain::parse(id, setup.declarations.chain(id)?, &parts).map(|_| ()).map_err(|e| Failure::usage(e.to_string()))
}

fn print(setup: &Setup, findings: &[Finding]) -> Result<(), Failure> {
    let wrong: Vec<&Finding> = findings.iter().filter(|f| !f.faults.is_empty()).collect();
    if setup.global.format == Format::Json {
        let rows: Vec<_> = findings.iter().map(|f| serde_json::json!({ "file": f.file, "faults": f.faults })).collect();
        println!("{}", serde_json::json!(rows));
    } else {
        for finding in &wrong {
            for fault in &finding.faults {
                println!("{}: {fault}", finding.file);
            }
        }
        println!("{} declarations read, {} with faults", findings.len(), wrong.len());
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::usage(format!("{} declarations have faults", wrong.len()))) }
}
