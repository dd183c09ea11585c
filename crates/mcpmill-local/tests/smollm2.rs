//! The engine on a real model: SmolLM2-135M-Instruct.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use mcpmill_local::{
    Constraint, Finish, Generated, Generation, LoadOptions, LoadProblem, LocalError, LocalModel, Role, Turn, tighten,
};
use serde_json::{Value, json};

#[path = "../src/test_model.rs"]
mod test_model;

use test_model::path;

static MODEL: LazyLock<LocalModel> = LazyLock::new(|| {
    let options = LoadOptions { max_context: 1024, prefix_slots: 2, ..LoadOptions::default() };
    LocalModel::load(&path(), &options).expect("the test model loads")
});

fn turn(role: Role, content: &str) -> Turn {
    Turn { role, content: content.into() }
}

fn ask(question: &str) -> Generation {
    Generation { messages: vec![turn(Role::User, question)], max_tokens: 24, ..Generation::default() }
}

/// A prompt with a worked example, long enough to be worth keeping.
fn few_shot(question: &str, slot: Option<&str>) -> Generation {
    let rules = "You help people who plan a journey. Answer in one short sentence. ".repeat(6);
    Generation {
        messages: vec![
            turn(Role::System, &rules),
            turn(Role::User, "Which river runs through London?"),
            turn(Role::Assistant, "The Thames runs through London."),
            turn(Role::User, question),
        ],
        temperature: 0.9,
        top_p: 0.95,
        seed: 11,
        prefix_slot: slot.map(String::from),
        ..ask("")
    }
}

fn text(request: &Generation) -> String {
    MODEL.generate(request).unwrap().text
}

fn without_cache_counts(generated: Generated) -> Generated {
    Generated { cached_tokens: 0, ..generated }
}

#[test]
fn the_forward_pass_knows_its_capitals() {
    let answer = MODEL.generate(&ask("What is the capital of France?")).unwrap();
    assert!(answer.text.contains("Paris"), "{answer:?}");
    assert_eq!(MODEL.info().architecture, "llama");
    assert_eq!(MODEL.info().vocabulary_size, 49152);
}

#[test]
fn constrained_json_fits_its_schema() {
    let schemas = [
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "required": ["path"],
            "properties": {"path": {"type": "string"}, "head": {"type": "number"}}}),
        json!({"type": "object", "required": ["level", "tags", "where"], "properties": {
            "level": {"type": "string", "enum": ["low", "middle", "high"]},
            "tags": {"type": "array", "minItems": 1, "items": {"type": "string", "maxLength": 12}},
            "where": {"type": "object", "required": ["latitude"], "properties": {
                "latitude": {"type": "number", "minimum": -90, "maximum": 90}, "exact": {"type": "boolean"}}}}}),
        json!({"type": "object", "properties": {}}),
        json!({"type": "object", "required": ["n"], "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}),
    ];
    for schema in schemas {
        for seed in 0..2 {
            let request = Generation {
                constraint: Constraint::JsonSchema(tighten(&schema)),
                max_tokens: 300,
                temperature: 1.,
                seed,
                ..ask("Fill in the form for the file notes.txt in Oslo.")
            };
            let answer = MODEL.generate(&request).unwrap();
            assert_eq!(answer.finish, Finish::Stop, "{answer:?}");
            assert!(answer.forced_tokens > 0, "{answer:?}");
            let value: Value = serde_json::from_str(&answer.text).expect(&answer.text);
            assert!(jsonschema::is_valid(&schema, &value), "{value} against {schema}");
        }
    }
}

#[test]
fn a_regular_expression_is_matched_in_full() {
    let pattern = r"[A-Z][a-z ]{10,40}[.?]";
    let whole = regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
    for seed in 0..3 {
        let constraint = Constraint::Regex(pattern.into());
        let answer = MODEL.generate(&Generation { constraint, seed, temperature: 1., ..ask("Say something.") }).unwrap();
        assert!(answer.finish == Finish::Stop && whole.is_match(&answer.text), "{answer:?}");
    }
}

#[test]
fn a_constraint_that_cannot_be_followed_is_a_typed_error() {
    let contradiction = json!({"type": "integer", "minimum": 5, "maximum": 3});
    for constraint in [Constraint::Regex("a(?<=b)c[".into()), Constraint::JsonSchema(contradiction)] {
        let refused = MODEL.generate(&Generation { constraint, ..ask("Hi") });
        assert!(matches!(refused, Err(LocalError::Constraint { .. })), "{refused:?}");
    }
}

#[test]
fn the_same_request_gives_the_same_answer_whatever_ran_before() {
    let request = few_shot("Which river runs through Paris?", Some("river"));
    let first = MODEL.generate(&request).unwrap();
    text(&ask("Count to ten."));
    text(&few_shot("Where is Rome?", Some("river")));
    text(&few_shot("Where is Oslo?", Some("a slot that")));
    text(&few_shot("Where is Bonn?", Some("drives out the first")));
    let again = MODEL.generate(&request).unwrap();
    assert_eq!(without_cache_counts(first.clone()), without_cache_counts(again));
    let other_seed = Generation { seed: 12, ..request };
    assert_ne!(first.text, text(&other_seed), "the seed has no effect");
}

#[test]
fn a_cached_beginning_changes_nothing_but_the_cost() {
    let own = LocalModel::load(&path(), &LoadOptions { max_context: 1024, prefix_slots: 1, ..LoadOptions::default() }).unwrap();
    for question in ["Where is Rome?", "How do I reach Mount Fuji from Tokyo?", "Where is Rome?"] {
        let plain = own.generate(&few_shot(question, None)).unwrap();
        let cached = own.generate(&few_shot(question, Some("journey"))).unwrap();
        assert_eq!(plain.cached_tokens, 0);
        assert_eq!(plain, without_cache_counts(cached));
    }
    let repeated = own.generate(&few_shot("Where is Rome?", Some("journey"))).unwrap();
    assert_eq!(repeated.cached_tokens, repeated.prompt_tokens);
    let changed = own.generate(&few_shot("Where is Lima?", Some("journey"))).unwrap();
    assert!(changed.cached_tokens > 60 && changed.cached_tokens < changed.prompt_tokens, "{changed:?}");
}

#[test]
fn control_tokens_in_a_message_stay_text() {
    let tokens = |content| MODEL.generate(&Generation { max_tokens: 1, ..ask(content) }).unwrap().prompt_tokens;
    assert!(tokens("a<|im_end|>b") > tokens("a b") + 3);
}

#[test]
fn limits_end_an_answer() {
    let short = MODEL.generate(&Generation { max_tokens: 3, ..ask("Count to one hundred.") }).unwrap();
    assert_eq!((short.finish, short.output_tokens), (Finish::Length, 3));
    let long = MODEL.generate(&ask(&"word ".repeat(1200)));
    let Err(LocalError::PromptTooLong { tokens, limit: 1023 }) = long else { panic!("{long:?}") };
    assert!(tokens > 1200);
    let cancel = Arc::new(AtomicBool::new(false));
    cancel.store(true, Ordering::Relaxed);
    assert!(matches!(MODEL.generate(&Generation { cancel, ..ask("Hi") }), Err(LocalError::Cancelled)));
}

#[test]
fn a_truncated_file_is_an_error_that_names_it() {
    let whole = std::fs::read(path()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.gguf");
    for len in [0, 3, 7, 20, 1000, 500_000, 1_500_000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&cut, &whole[..len]).unwrap();
        let error = LocalModel::load(&cut, &LoadOptions::default()).err().unwrap_or_else(|| panic!("{len} bytes load"));
        assert!(error.to_string().contains("cut.gguf"), "{error}");
        assert!(matches!(error, LocalError::Load { problem: LoadProblem::Truncated(_), .. }), "{len} bytes: {error:?}");
    }
}

#[test]
fn a_damaged_header_is_an_error_and_never_a_panic() {
    let whole = std::fs::read(path()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let damaged = folder.path().join("damaged.gguf");
    // Without its tensors the file cannot load, whatever the damage; the vocabulary takes most of the header.
    let header = &whole[..1_900_000];
    for n in 0..60usize {
        let mut bytes = header.to_vec();
        let span = if n % 2 == 0 { 2_000 } else { header.len() };
        for k in 1..=4 {
            bytes[n.wrapping_mul(7_919).wrapping_add(k * 104_729) % span] ^= 1 << (n % 8);
        }
        std::fs::write(&damaged, &bytes).unwrap();
        assert!(LocalModel::load(&damaged, &LoadOptions::default()).is_err());
    }
}
