//! The language model inside the program, live: a real run of generate and filter with SmolLM2-135M, the smallest
//! model there is. It writes poor text; that it writes at all, within schemas, is what is tested.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::fs;

use common::{Folder, ok, rows, stage};
use mcpmill_core::{
    record::{Message, Outcome, OutcomeKind, Sample, Tool, Verdict},
    schema::Schema,
};
use mcpmill_store::artifact::Table;

/// A chain that asks the model little: an exam of the judge of quality takes minutes in a build for tests.
const CHAIN: &str = "on_failed_exam = \"unjudged\"\n[[step]]\nname = \"schema-valid\"\nkind = \"schema-valid\"\n\
    [[step]]\nname = \"tool-invocation\"\nkind = \"tool-invocation\"\nprompt = \"pick\"\nnone_prompt = \"none\"\n\
    verifiers = [\"verifier-a\"]\ndistractors = 2\ndrop_when = \"all-miss\"\n";

#[test]
fn a_run_without_any_endpoint_uses_the_model_inside_the_program() {
    let folder = Folder::with(&["calculator"]);
    fs::create_dir(folder.path().join("filters")).unwrap();
    folder.write("filters/function-call.toml", CHAIN);
    let output = ok(&mut folder.mcpmill(&[
        "run",
        "--to",
        "4-filter",
        "--set",
        "models.local.model=smollm2",
        "--set",
        "generate.samples=2",
        "--set",
        "generate.max_failure_rate=1.0",
    ]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("plan: 2 samples") && said.contains("local/smollm2@"), "{said}");
    assert!(said.contains("measured just now") && said.contains("to use an endpoint instead"), "{said}");

    let run = folder.run();
    let outcomes: Vec<Outcome> = rows(&run, "3-generate");
    assert_eq!(outcomes.len(), 2, "two samples of the one tool");
    for outcome in &outcomes {
        assert!(outcome.attempts > 0 && outcome.input_tokens > 100 && outcome.output_tokens > 5, "asked for real: {outcome:?}");
        assert_eq!(outcome.cost_usd, 0.0);
    }
    let tool = rows::<Tool>(&run, "2-harvest").remove(0);
    let schema = Schema::compile(&tool.schema()).unwrap();
    for sample in rows::<Sample>(&run, "3-generate") {
        let call = sample.messages.iter().flat_map(Message::tool_calls).next().unwrap();
        let arguments = serde_json::Value::Object(call.function.arguments.clone());
        assert_eq!(schema.faults(&arguments, 3), Vec::<String>::new());
        assert!(sample.lineage.iter().filter_map(|r| r.model.as_deref()).all(|m| m.starts_with("local/smollm2@")));
    }
    let kept = outcomes.iter().filter(|o| o.outcome == OutcomeKind::Kept).count();
    assert_eq!(stage(&run, "4-filter")["input_rows"], kept);
    let judged: Vec<Verdict> = rows(&run, "4-filter");
    assert!(judged.len() >= kept, "every sample met a filter");
}

/// The order in which samples are answered, and who is answered with whom, changes no row.
#[test]
fn samples_made_together_equal_those_made_one_by_one() {
    let made = |lockstep: &str| {
        let folder = Folder::with(&["calculator"]);
        let sets = [
            "models.local.model=smollm2",
            "generate.samples=2",
            "generate.per_tool=2",
            "generate.evolve=false",
            "generate.max_failure_rate=1.0",
            lockstep,
        ];
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        ok(&mut folder.mcpmill(&["run", "--to", "3-generate"].into_iter().chain(sets).collect::<Vec<_>>()));
        let outcomes: Vec<Outcome> = rows(&folder.run(), "3-generate");
        let mut ends: Vec<_> = outcomes.into_iter().map(|o| (o.input_id, o.outcome, o.reason, o.output_tokens)).collect();
        ends.sort_by(|a, b| a.0.cmp(&b.0));
        let file = folder.run().join("3-generate").join(Sample::NAME).with_extension("parquet");
        (format!("{ends:?}"), std::fs::read(file).unwrap())
    };
    let (ends, samples) = made("models.local.lockstep=1");
    let (ends_together, samples_together) = made("models.local.lockstep=2");
    assert_eq!(ends_together, ends);
    assert!(samples_together == samples, "the rows differ");
}
