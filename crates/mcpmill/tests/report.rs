//! The report of a run whose servers, requests and answers hold what should never run: `report.html`, `report.json` and
//! the dataset's card, with the real binary, and the page in a real browser where one is there.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{fs, path::Path, process::Command, time::Duration};

use common::{Folder, TWO_SERVERS, ok};
use mcpmill_testkit::ScriptedEndpoint;
use serde_json::Value;

/// A name that would run, close the front matter of a card and say another licence.
const EVIL: &str = "</title><script>document.title='owned'</script><img src=x onerror=document.title='owned'>\n---\nlicense: evil\n---\n| a | b |";

/// A run whose first server bears that name.
async fn run() -> Folder {
    let model = ScriptedEndpoint::start(Duration::ZERO).await;
    let folder = Folder::with(&TWO_SERVERS);
    let path = folder.path().join("marketplaces/few.toml");
    let mut listed: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
    let first = listed["server"].as_array_mut().unwrap()[0].as_table_mut().unwrap();
    for field in ["name", "title", "description", "category"] {
        first.insert(field.into(), EVIL.into());
    }
    fs::write(&path, toml::to_string(&listed).unwrap()).unwrap();
    ok(&mut folder.with_model(&model.base_url(), &["run"]));
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_tells_the_run_and_runs_nothing() {
    let folder = run().await;
    let page = fs::read_to_string(folder.run().join("report.html")).unwrap();
    assert!(page.contains("&lt;script&gt;document.title"), "the name is there to be read");
    assert!(!page.contains("<script") && !page.contains("<img"));
    assert!(!page.contains("has not come to its end"), "it is the page of the finished run");
    if let Some(seen) = in_a_browser(&folder.run().join("report.html")) {
        assert!(seen.contains("<title>") && !seen.contains("<title>owned"), "{}", &seen[..2000.min(seen.len())]);
        assert!(seen.contains("<svg"));
    }
    card_keeps_its_front_matter(&fs::read_to_string(folder.run().join("7-export/mcp-tool-calls/README.md")).unwrap());

    let told = ok(&mut folder.mcpmill(&["report", "--rows", "1", "--format", "json"]));
    let report: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(report, serde_json::from_str::<Value>(&fs::read_to_string(folder.run().join("report.json")).unwrap()).unwrap());
    counts_agree(&report);
    let fewer = fs::read_to_string(folder.run().join("report.html")).unwrap();
    assert!(fewer.matches("<article").count() < page.matches("<article").count(), "one row of each filter and judgement");
    let none = ok(&mut folder.mcpmill(&["report", "--rows", "0"]));
    assert!(String::from_utf8_lossy(&none.stdout).contains("servers that listed tools"));
    assert!(!fs::read_to_string(folder.run().join("report.html")).unwrap().contains("<article"));
}

/// What the report counts is what the stages counted.
fn counts_agree(report: &Value) {
    let stage = |name: &str| report["stages"].as_array().unwrap().iter().find(|stage| stage["stage"] == name).unwrap();
    let export = stage("7-export/mcp-tool-calls");
    for what in ["kinds", "splits", "live", "languages", "licences"] {
        let sum: u64 = export["numbers"][what].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert_eq!(export["output_rows"], sum, "{what}");
    }
    assert!(export["numbers"]["categories"].as_object().unwrap().contains_key(EVIL), "{}", export["numbers"]);
    let published = report["funnel"].as_array().unwrap().last().unwrap();
    assert_eq!(published["count"], export["output_rows"]);
    let filters = report["filters"].as_array().unwrap();
    for (name, folder) in [("schema-valid", "4-filter"), ("response-valid", "6-filter")] {
        let filter = filters.iter().find(|filter| filter["filter"] == name).unwrap();
        assert_eq!(filter["stage"], folder);
        assert_eq!(filter["exam"]["end"], "passed", "{name}");
        for judgement in ["keep", "drop", "unjudged"] {
            let counted = &stage(folder)["numbers"]["verdicts"][format!("{name}: {judgement}")];
            assert_eq!(filter[judgement].as_u64().unwrap(), counted.as_u64().unwrap_or_default(), "{name} {judgement}");
        }
    }
    let similarity = filters.iter().find(|filter| filter["filter"] == "embedding-similarity").unwrap();
    let columns = similarity["scores"]["columns"].as_array().unwrap();
    let drawn: u64 = columns.iter().flat_map(|column| column.as_array().unwrap()).filter_map(Value::as_u64).sum();
    assert_eq!(similarity["scores"]["rows"], drawn);
    let timeline = report["timeline"].as_array().unwrap();
    assert!(timeline.is_sorted_by_key(|point| point["seconds"].as_f64().unwrap()));
    assert!(timeline.last().unwrap()["output_tokens"].as_u64() > Some(0), "{timeline:?}");
    assert_eq!(report["servers"]["all"], 2);
}

/// The front matter ends where the card's own does, and says the dataset's own licence.
fn card_keeps_its_front_matter(card: &str) {
    let matter = card.strip_prefix("---\n").unwrap().split("\n---\n").next().unwrap();
    assert!(matter.contains("license: \"apache-2.0\"") && matter.contains("configs:"), "{matter}");
    assert!(!matter.contains("evil"), "{matter}");
    assert!(!card.contains("<script") && !card.contains("<img"), "{card}");
    assert!(!card.lines().any(|line| line == "license: evil"), "a name stays on its line");
}

/// The page after a browser opened it; `None` where there is no browser.
fn in_a_browser(page: &Path) -> Option<String> {
    let profile = tempfile::tempdir().unwrap();
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]);
    chromium.args(["--disable-component-update", "--disable-sync", "--disable-quic", "--virtual-time-budget=3000", "--dump-dom"]);
    chromium.arg(format!("--user-data-dir={}", profile.path().display())).arg(format!("file://{}", page.display()));
    match chromium.output() {
        Ok(output) => Some(String::from_utf8(output.stdout).unwrap()),
        Err(why) => {
            eprintln!("skipped: the page was opened in no browser: {why}");
            None
        }
    }
}
