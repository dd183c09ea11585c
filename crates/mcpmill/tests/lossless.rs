//! What stands in a row is what Python readers get: arguments and schemas to the letter, calls with their ids, answers in
//! their order, empty and missing content apart.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod common;

use std::{fs, path::Path, process::Command};

use mcpmill_core::record::ExportRow;
use mcpmill_store::{
    artifact::Table,
    parquet_file::{Writer, read_all},
};
use serde_json::{Value, json};

/// Arguments as a model may write them; each is read, kept and given out as it stands here.
const ARGUMENTS: [&str; 16] = [
    r#"{}"#,
    r#"{"theta":3.0}"#,
    r#"{"message":"hi","when":1690876800}"#,
    r#"{"message":"hi","when":"2025-08-01"}"#,
    r#"{"message":null}"#,
    r#"{"a":{"b":{"c":{"d":{"e":null}}}}}"#,
    r#"{"list":[],"object":{},"text":"","none":[null,[],{}]}"#,
    r#"{"one":1,"one_point":1.0,"minus":-0.0,"small":1e-7,"tenth":0.1}"#,
    r#"{"odd":9007199254740993,"most":18446744073709551615,"least":-9223372036854775808}"#,
    r#"{"z":1,"a":2,"m":{"y":1,"b":2}}"#,
    r#"{"text":"日本語 🦀 é \u0000\u001f \"quoted\" \\ /","key é":true}"#,
    r#"{"":"an empty name"}"#,
    r#"{"json":"{\"inner\":\"{}\"}"}"#,
    r#"{"text":"null","word":"true","number":"1"}"#,
    r#"{"code":"line\nline\ttab </tool_call>"}"#,
    r#"{"list":[1,"1",1.5,true,null,{"k":[0]}]}"#,
];

/// Schemas as servers may declare them.
const SCHEMA: &str = r##"{"type":"object","required":[],"properties":{"z":{"type":["string","null"],"default":null},"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"enum":[1,1.0,null,""]}},"additionalProperties":false}"##;

fn call(id: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": "do", "arguments": arguments } })
}

/// One row for each of the arguments, each with its own shape of conversation.
fn conversations() -> Vec<Value> {
    let answer = |id: &str, content: &str| json!({ "role": "tool", "tool_call_id": id, "name": "do", "content": content });
    let row = |(number, arguments): (usize, &&str)| {
        let user = json!({ "role": "user", "content": format!("number {number}") });
        let content = [Value::Null, json!(""), json!("I will call.")][number % 3].clone();
        let other = ARGUMENTS[(number + 1) % ARGUMENTS.len()];
        let calls = if number % 2 == 0 { vec![call("a", arguments)] } else { vec![call("a", arguments), call("b", other)] };
        let mut messages = vec![user, json!({ "role": "assistant", "content": content, "tool_calls": calls })];
        if number % 2 == 1 {
            // The second call is answered first.
            messages.push(answer("b", ""));
        }
        messages.extend([answer("a", "{\"content\":[]}"), json!({ "role": "assistant", "content": "done" })]);
        json!(messages)
    };
    ARGUMENTS.iter().enumerate().map(row).collect()
}

fn export_row(number: usize, messages: &Value) -> Value {
    let tools = format!(r#"[{{"type":"function","function":{{"name":"do","description":"é","parameters":{SCHEMA}}}}}]"#);
    json!({
        "id": format!("smp_{number:02}"), "messages": messages, "loss": vec![false; messages.as_array().unwrap().len()], "tools": tools,
        "kind": "single", "language": "en", "server": "s", "server_version": null, "tool_ids": ["tool_a"], "withheld": [], "licence": "MIT",
        "live": "ok", "lineage": [], "verdicts": [], "split": "train",
    })
}

/// What a reader must find: arguments and tools parsed, and their texts.
fn expected(row: &Value) -> String {
    let (mut messages, mut texts) = (row["messages"].clone(), Vec::new());
    for message in messages.as_array_mut().unwrap() {
        for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            texts.push(call["function"]["arguments"].take().as_str().unwrap().to_owned());
            // Left to Python: its numbers are not ours.
            call["function"]["arguments"] = json!(format!("@{}@", texts.len() - 1));
        }
    }
    let line = json!({ "messages": messages, "tools": "@tools@", "tools_text": row["tools"], "arguments": texts });
    let line = line.to_string().replace("\"@tools@\"", row["tools"].as_str().unwrap());
    texts.iter().enumerate().fold(line, |line, (at, text)| line.replace(&format!("\"@{at}@\""), text))
}

fn write(folder: &Path, rows: &[ExportRow]) -> Vec<u8> {
    let path = folder.join("data/train-00000-of-00001.parquet");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut writer = Writer::create(&path, &ExportRow::columns(), &[("mcpmill.schema", "1")]).unwrap();
    rows.iter().for_each(|row| writer.push(row).unwrap());
    writer.finish().unwrap();
    assert_eq!(read_all::<ExportRow>(&path).unwrap(), rows, "our own reader");
    fs::read(path).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn python_gets_what_was_written() {
    let values: Vec<Value> = conversations().iter().enumerate().map(|(number, talk)| export_row(number, talk)).collect();
    let rows: Vec<ExportRow> = values.iter().map(|value| serde_json::from_value(value.clone()).unwrap()).collect();
    let texts: Vec<String> = rows
        .iter()
        .flat_map(|row| &row.messages)
        .flat_map(mcpmill_core::record::Message::tool_calls)
        .map(|c| json!(c.function)["arguments"].as_str().unwrap().to_owned())
        .collect();
    assert!(ARGUMENTS.iter().all(|text| texts.iter().any(|found| found == text)), "{texts:?}");
    let folder = tempfile::tempdir().unwrap();
    let bytes = write(folder.path(), &rows);
    assert_eq!(bytes, write(folder.path(), &rows), "equal rows are equal bytes");
    fs::write(folder.path().join("expected.jsonl"), values.iter().map(|row| expected(row) + "\n").collect::<String>()).unwrap();
    let command = common::python().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lossless.py");
    let output = Command::new(&command[0]).args(&command[1..]).arg(script).arg(folder.path()).env("HF_HUB_OFFLINE", "1").output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for reader in ["pyarrow", "pandas", "datasets", "layout"] {
        assert!(said.contains(&format!("{reader} ok")), "{said}");
    }
}

#[test]
fn what_cannot_be_kept_is_refused_and_never_altered() {
    let talk = |arguments: &str| json!([{ "role": "assistant", "content": null, "tool_calls": [call("a", arguments)] }]);
    // Half of a pair of surrogates is no text, and a number beyond a float is none.
    for arguments in [r#"{"text":"\ud800"}"#, r#"{"n":1e400}"#, r#"["a"]"#, "null", "", r#"{"a":1"#] {
        assert!(serde_json::from_value::<ExportRow>(export_row(0, &talk(arguments))).is_err(), "{arguments}");
    }
}
