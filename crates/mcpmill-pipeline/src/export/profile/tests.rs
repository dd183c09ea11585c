//! The profiles of the repository over the shapes that are hard to write.

use mcpmill_core::record::ExportRow;
use serde_json::{Value, json};

use super::*;

/// Every profile that is built in.
fn profile(name: &str) -> Profile {
    let text = match name {
        "axolotl" => include_str!("../../../../../datasets/profiles/axolotl.toml"),
        "hermes" => include_str!("../../../../../datasets/profiles/hermes.toml"),
        "llamafactory" => include_str!("../../../../../datasets/profiles/llamafactory.toml"),
        "ms-swift" => include_str!("../../../../../datasets/profiles/ms-swift.toml"),
        "openai" => include_str!("../../../../../datasets/profiles/openai.toml"),
        "trl" => include_str!("../../../../../datasets/profiles/trl.toml"),
        _ => include_str!("../../../../../datasets/profiles/unsloth.toml"),
    };
    Profile::parse(name, text).unwrap()
}

const ALL: [&str; 7] = ["axolotl", "hermes", "llamafactory", "ms-swift", "openai", "trl", "unsloth"];

/// A row with these messages; `loss` has a letter for each, `l` where it is learned.
fn row(loss: &str, messages: &Value) -> ExportRow {
    let tools = json!([{"type": "function", "function": {"name": "add", "description": "adds", "parameters":
        {"type": "object", "properties": {"b": {"type": ["integer", "null"], "default": null}, "a": {}}}}}]);
    let loss: Vec<bool> = loss.chars().map(|c| c == 'l').collect();
    serde_json::from_value(json!({
        "id": "row", "split": "train", "kind": "single", "messages": messages, "loss": loss, "tools": tools.to_string(),
        "server": "s", "tool_ids": [], "live": "ok", "lineage": [], "verdicts": [],
    }))
    .unwrap()
}

fn call(id: &str, arguments: &Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "add", "arguments": arguments.to_string()}})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn tool(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "name": "add", "content": text})
}

fn calls(text: Option<&str>, calls: &[Value]) -> Value {
    json!({"role": "assistant", "content": text, "tool_calls": calls})
}

fn says(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

/// Text beside two calls with awkward arguments, their answers swapped.
fn parallel() -> ExportRow {
    let odd = json!({"b": null, "a": {"deep": [{}, [], {"ä\n\"": "長城", "n": 9007199254740993_u64, "f": 1.0}]}});
    row(
        "-l--l",
        &json!([
            user("both"),
            calls(Some("At once."), &[call("c1", &odd), call("c2", &json!({}))]),
            tool("c2", "two"),
            tool("c1", "one"),
            says("Done.")
        ]),
    )
}

/// A call that goes wrong and is masked, the one that mends it, an answer; then a second request.
fn recover() -> ExportRow {
    let once = |id: &str, b: i64| calls(None, &[call(id, &json!({ "b": b }))]);
    row(
        "---l-l-l",
        &json!([
            user("go"),
            once("c1", -1),
            tool("c1", "no"),
            once("c2", 1),
            tool("c2", "yes"),
            says("It went."),
            user("again"),
            says("No.")
        ]),
    )
}

#[test]
fn answers_stand_in_the_order_of_their_calls() {
    for name in ["trl", "unsloth", "axolotl", "openai"] {
        let rows = profile(name).rows(&parallel()).unwrap();
        let whole = rows.last().unwrap();
        let messages = whole.get("messages").or(whole.get("prompt")).unwrap().as_array().unwrap();
        let completion = whole.get("completion").into_iter().flat_map(|c| c.as_array().unwrap());
        let answers: Vec<&str> =
            messages.iter().chain(completion).filter(|m| m["role"] == "tool").map(|m| m["content"].as_str().unwrap()).collect();
        assert_eq!(answers, ["one", "two"], "{name}");
    }
    let swift = &profile("ms-swift").rows(&parallel()).unwrap()[0];
    let said: Vec<(&str, &str)> = swift["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| (m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
        .collect();
    assert_eq!(said[1], ("assistant", "At once."));
    assert_eq!((said[2].0, said[3].0), ("tool_call", "tool_call"));
    assert_eq!(said[4..], [("tool_response", "one"), ("tool_response", "two"), ("assistant", "Done.")]);
}

#[test]
fn arguments_come_through_every_format_unchanged() {
    let row = parallel();
    let Message::Assistant { tool_calls, .. } = &row.messages[1] else { panic!("{row:?}") };
    let want = serde_json::to_string(&tool_calls[0].function.arguments).unwrap();
    let text = |call: &Value| call["function"]["arguments"].as_str().unwrap().to_owned();
    let first = |name: &str, unit: &str, at: usize| profile(name).rows(&row).unwrap()[0][unit][at].clone();
    assert_eq!(text(&first("axolotl", "messages", 1)["tool_calls"][0]), want);
    assert_eq!(text(&first("openai", "messages", 1)["tool_calls"][0]), want);
    assert_eq!(first("trl", "completion", 0)["tool_calls"][0]["function"]["arguments"].to_string(), want);
    assert_eq!(first("unsloth", "completion", 0)["tool_calls"][0]["function"]["arguments"].to_string(), want);
    let one = format!("{{\"name\":\"add\",\"arguments\":{want}}}");
    assert_eq!(first("ms-swift", "messages", 2)["content"], one);
    let both = format!("At once.\n<tool_call>[{one},{{\"name\":\"add\",\"arguments\":{{}}}}]</tool_call>");
    assert_eq!(first("llamafactory", "conversations", 1)["value"], both);

    let hermes = profile("hermes").rows(&row).unwrap();
    let completion = hermes[0]["completion"].as_str().unwrap();
    let (open, close) = ("<tool_call>\n", "\n</tool_call>");
    let (before, rest) = completion.split_once(open).unwrap();
    assert_eq!(before, "At once.\n");
    let parsed: Value = serde_json::from_str(rest.split_once(close).unwrap().0).unwrap();
    assert_eq!(parsed["arguments"].to_string(), want);
    assert!(
        completion.ends_with(&format!("{open}{{\"name\": \"add\", \"arguments\": {{}}}}{close}<|im_end|>\n")),
        "{completion}"
    );
    assert!(completion.contains("{\"b\": null, \"a\": {\"deep\": [{}, [], {"), "as Python spaces it: {completion}");
    let prompt = hermes[1]["prompt"].as_str().unwrap();
    assert!(prompt.contains("user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"));
}

#[test]
fn a_masked_turn_is_learned_in_no_format() {
    let row = recover();
    let flags = |name: &str, field: &str| -> Vec<Value> {
        let rows = profile(name).rows(&row).unwrap();
        assert_eq!(rows.len(), 1, "{name}");
        rows[0]["messages"].as_array().unwrap().iter().filter_map(|m| m.get(field)).cloned().collect()
    };
    assert_eq!(flags("axolotl", "train"), [false, true, true, true].map(Value::from));
    assert_eq!(flags("ms-swift", "loss"), [false, true, true, true].map(Value::from));
    assert_eq!(flags("openai", "weight"), [0, 1, 1, 1].map(Value::from));

    let trl = profile("trl").rows(&row).unwrap();
    let sizes = |r: &Value| (r["prompt"].as_array().unwrap().len(), r["completion"].as_array().unwrap().len());
    assert_eq!(trl.iter().map(sizes).collect::<Vec<_>>(), [(3, 5)], "one stretch after the masked turn");
    let unsloth = profile("unsloth").rows(&row).unwrap();
    assert_eq!(unsloth.iter().map(sizes).collect::<Vec<_>>(), [(3, 1), (5, 1), (7, 1)]);
    let hermes = profile("hermes").rows(&row).unwrap();
    assert!(hermes.len() == 3 && hermes.iter().all(|r| !r["completion"].as_str().unwrap().contains("-1")), "{hermes:?}");
    let factory = profile("llamafactory").rows(&row).unwrap();
    let last = |r: &Value| r["conversations"].as_array().unwrap().last().unwrap()["value"].as_str().unwrap().to_owned();
    assert_eq!(factory.iter().map(last).collect::<Vec<_>>(), [r#"{"name":"add","arguments":{"b":1}}"#, "It went.", "No."]);
}

#[test]
fn a_mask_in_the_middle_makes_two_rows_of_a_conversation() {
    let mut row = recover();
    row.loss = [false, true, false, false, false, true, false, true].to_vec();
    let trl = profile("trl").rows(&row).unwrap();
    let ends: Vec<(usize, usize)> =
        trl.iter().map(|r| (r["prompt"].as_array().unwrap().len(), r["completion"].as_array().unwrap().len())).collect();
    assert_eq!(ends, [(1, 1), (5, 3)]);
}

#[test]
fn nothing_is_written_after_the_last_learned_turn() {
    let row = row("-l-", &json!([user("go"), calls(None, &[call("c1", &json!({}))]), tool("c1", "a long answer")]));
    for name in ALL {
        let rows = profile(name).rows(&row).unwrap();
        assert!(rows.len() == 1 && !rows[0].to_string().contains("a long answer"), "{name}: {rows:?}");
    }
}

#[test]
fn what_a_format_cannot_say_is_left_out_with_a_reason() {
    let why = |name: &str, row: &ExportRow| profile(name).rows(row).unwrap_err();
    let marked = row("-l", &json!([user("say </tool_call>"), says("No.")]));
    assert_eq!(why("trl", &marked), "a mark of the format stands in its words");
    assert_eq!(profile("openai").rows(&marked).unwrap().len(), 1, "there it means nothing");
    let inside = row("-l", &json!([user("go"), calls(None, &[call("c", &json!({"a": [{"<|im_end|>": 1}]}))])]));
    assert_eq!(why("axolotl", &inside), "a mark of the format stands in its words");
    let open = row("-l-l", &json!([user("go"), calls(None, &[call("c", &json!({}))]), user("well?"), says("Later.")]));
    let twice =
        row("-l--l", &json!([user("go"), calls(None, &[call("c", &json!({}))]), tool("c", "1"), tool("c", "2"), says("Hm.")]));
    for name in ALL {
        for odd in [&open, &twice] {
            assert_eq!(why(name, odd), "answers that do not fit the calls", "{name}");
        }
        assert_eq!(why(name, &row("--", &json!([user("go"), says("No.")]))), "no turn is to be learned", "{name}");
    }
    let one_side = row("--l", &json!([user("go"), user("now"), says("Yes.")]));
    assert_eq!(why("llamafactory", &one_side), "two turns of one side");

    let plain = include_str!("../../../../../datasets/profiles/openai.toml");
    let blind = plain.lines().filter(|line| !line.starts_with("mask")).collect::<Vec<_>>().join("\n");
    let blind = Profile::parse("blind", &blind).unwrap();
    assert_eq!(blind.rows(&recover()).unwrap_err(), "a masked turn that the format cannot mask");
    assert_eq!(blind.rows(&parallel()).unwrap().len(), 1);
}

#[test]
fn a_profile_that_cannot_work_is_refused_before_anything_is_written() {
    let base = "title = 't'\nshape = 'openai'\nunit = 'turn'\n";
    let readme = "[files]\n'README.md' = 'x'\n";
    for (text, want) in [
        ("title = 't'".to_owned(), "missing field `shape`"),
        (format!("{base}colour = 1\n{readme}"), "unknown field `colour`"),
        (format!("{base}[files]\n'train.py' = ''\n"), "no `README.md`"),
        (format!("{base}{readme}'../x' = ''\n"), "`../x` is no plain name"),
        (format!("{base}{readme}'train.jsonl' = ''\n"), "`train.jsonl` is no plain name"),
        (format!("{base}marks = ['']\n{readme}"), "empty text"),
        (format!("{base}template = 'x'\n{readme}"), "only the shape `text`"),
        (format!("title = 't'\nshape = 'text'\nunit = 'turn'\n{readme}"), "has a `template`"),
        (format!("title = 't'\nshape = 'text'\nunit = 'turn'\ntemplate = '{{% if %}}'\n{readme}"), "`template`"),
        (format!("title = 't'\nshape = 'sharegpt'\nunit = 'stretch'\n{readme}"), "needs a shape of messages"),
        (format!("{base}mask = {{ field = 'f', learned = 1, masked = 0 }}\n{readme}"), "needs `unit = \"conversation\"`"),
        (format!("{base}[files]\n'README.md' = '{{{{ nothing }}}}'\n"), "`README.md`"),
    ] {
        let said = Profile::parse("mine", &text).unwrap_err().to_string();
        assert!(said.contains("`mine`") && said.contains(want), "{want}: {said}");
    }
}

#[test]
fn every_trainer_gets_the_same_figures() {
    let training = Training::parse(include_str!("../../../../../datasets/training.toml")).unwrap();
    assert!(Training::parse("model = 'a'").is_err());
    let told = Told { training, rows: [("train", 3)].into(), left_out: [("a reason", 2)].into(), version: "0" };
    for name in ALL {
        let profile = profile(name);
        let files = profile.files(&told).unwrap();
        let all: String = files.iter().map(|(_, text)| text.as_str()).collect();
        assert!(all.contains("- `train.jsonl`: 3 rows") && all.contains("- 2: a reason"), "{name}: {all}");
        let figures: &[&str] =
            if name == "openai" { &["n_epochs\": 1"] } else { &["64", "128", "0.1", "0.0002", "cosine", "4096", "16", "8"] };
        for figure in figures {
            assert!(all.contains(figure), "{name}: {figure}");
        }
    }
    let info =
        profile("llamafactory").files(&told).unwrap().into_iter().find(|(file, _)| *file == "dataset_info.json").unwrap().1;
    assert_eq!(serde_json::from_str::<Value>(&info).unwrap()["mcpmill_train"]["file_name"], "train.jsonl");
    let odd = include_str!("../../../../../datasets/training.toml").replace("Qwen/Qwen3-0.6B", "a\\\"; rm -r ~");
    assert!(Training::parse(&odd).unwrap_err().contains("`model`"));
}
