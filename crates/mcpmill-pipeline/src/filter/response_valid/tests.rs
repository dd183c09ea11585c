//! Texts and fields that tell of a failure, and such that look like it and do not.

use mcpmill_core::record::{ResponseVerdict, ToolResult};
use serde_json::{Value, json};

use super::{
    forms::Asked,
    structure::{Found, Shape},
};

/// What structure says of an answer: a verdict's name, or `open`.
fn found(tool: &str, arguments: &Value, result: &ToolResult) -> &'static str {
    let asked = Asked { tool, arguments: arguments.as_object().unwrap() };
    match (Shape { result, asked, output_schema: None, longest: 20_000 }).found() {
        Found::Bad(verdict, _) => verdict.name(),
        Found::Sure(_) => ResponseVerdict::Ok.name(),
        Found::Open(_) => "open",
    }
}

fn text(text: &str) -> ToolResult {
    ToolResult { content: json!([{ "type": "text", "text": text }]), structured_content: None, is_error: false }
}

fn of_text(tool: &str, arguments: &Value, answer: &str) -> &'static str {
    found(tool, arguments, &text(answer))
}

#[test]
fn texts_that_report_a_failure_are_soft_errors() {
    for (tool, arguments, answer) in [
        ("query", json!({}), "Error executing query: Can't connect to the database"),
        ("read_note", json!({ "name": "a.md" }), "Error: no such note"),
        ("fetch", json!({}), "## Error\nError: the page could not be loaded"),
        ("run", json!({}), "Traceback (most recent call last):\n  File \"x.py\", line 1\nZeroDivisionError: division by zero"),
        ("run", json!({}), "TypeError: unsupported operand"),
        ("list_bills", json!({}), "Database error: no such table: bills"),
        ("read", json!({ "path": "x" }), "ENOENT: no such file or directory, open 'x'"),
        ("read", json!({ "path": "x" }), "open x: [Errno 13] Permission denied"),
        ("push", json!({}), "fatal: the current branch has no upstream"),
        ("show", json!({}), "Access denied: only files of the working folder are shown"),
        ("send", json!({}), "Failed to reach the mail server."),
        ("send", json!({}), "Could not send: the mailbox is full"),
        ("close_session", json!({ "id": "s9" }), "Session 's9' not found."),
        ("describe", json!({ "table": "bills" }), "relation \"bills\" does not exist"),
        ("list", json!({}), "<html><head><title>502 Bad Gateway</title></head></html>"),
        ("list", json!({}), "Request failed with status code 403"),
        ("execute", json!({ "command": "uptime" }), "Exit status: 1\n\nSTDERR:\nno route to host"),
        ("run_code", json!({ "code": "1/0" }), "Execution:\n\n--- Error ---\nZeroDivisionError: division by zero"),
        ("添加", json!({}), "错误: 文件不存在"),
        ("call", json!({}), "MCP error -32602: wrong arguments"),
        ("call", json!({}), "Error executing tool call"),
    ] {
        assert_eq!(of_text(tool, &arguments, answer), "soft-error", "{answer}");
    }
}

/// Each of these holds a word of failure, and none is dropped for it. Where structure cannot tell, a judge is asked.
#[test]
fn texts_that_only_speak_of_failure_are_not_dropped() {
    for (tool, arguments, answer, want) in [
        ("run_code", json!({ "code": "print('Error: just a text')" }), "Error: just a text\n", "ok"),
        ("regress", json!({}), "Standard error: 0.12", "open"),
        ("job", json!({}), "Last error: none\nJobs done: 12", "open"),
        ("count", json!({}), "Failed: 0\nPassed: 31", "open"),
        ("docs", json!({ "topic": "errors" }), "Error handling: wrap the call and look at its code.", "open"),
        ("search_notes", json!({ "query": "heat" }), "'heat' was not found in 3 notes", "open"),
        ("read_file", json!({ "path": "a.log" }), "12:00 started\n12:01 ERROR disk full\n12:02 error: gave up", "ok"),
        ("list_sessions", json!({}), "No active sessions", "ok"),
        ("find_files", json!({ "pattern": "*.rs" }), "No files found.", "ok"),
        ("add_heading", json!({ "text": "Failed to start" }), "Heading 'Failed to start' added.", "ok"),
        ("run_code", json!({ "code": "x = 1" }), "Execution:\n\n--- Output ---\n(no output)", "ok"),
        ("run_tests", json!({}), "3 tests failed, 20 passed", "open"),
        ("error_rate", json!({}), "0.02", "ok"),
        ("read_note", json!({ "name": "bulbs" }), "Buy two.\nThe printer said: paper not found.\nCall Ada.", "ok"),
        ("execute", json!({ "command": ["cat", "a.md"] }), "# Errors\n- `404`: not found\n- `500`: ask Ada", "ok"),
        ("annotate", json!({ "type": "error" }), "Error: the text of it", "open"),
        ("get_text", json!({}), "The upload failed: error 12.\nIt was late.", "open"),
        ("run", json!({ "command": "cat a.log" }), "10:04 ERROR gone\n\nCommand completed with return code: 0", "ok"),
        ("convert", json!({}), "| name | failed |\n| --- | --- |\n| lamp | no |", "ok"),
        ("echo", json!({ "message": "not found" }), "You said: 'not found'", "ok"),
    ] {
        assert_eq!(of_text(tool, &arguments, answer), want, "{answer}");
    }
}

#[test]
fn plain_answers_need_no_judge() {
    for (tool, arguments, answer) in [
        ("add", json!({ "a": 40, "b": 2 }), "42"),
        ("today", json!({}), "2026-12-01"),
        ("find_files", json!({}), "src/main.rs\nsrc/lib.rs"),
        ("create_table", json!({ "sql": "create table t (x)" }), "Table created"),
        ("set_project", json!({ "path": "/srv/x" }), "Project set to /srv/x."),
        ("forecast", json!({ "city": "Chur" }), "Chur: Mon 12 C, Tue 15 C"),
        ("list_links", json!({}), "There are no active links. Use `connect` to make one."),
        ("list_files", json!({}), "[FILE] docs/errors.md\n[DIR] log\n[FILE] log/failed.txt"),
        ("read_query", json!({}), "[{'state': 'failed'}]"),
        ("get_week", json!({ "date": "2026-12-01" }), "The week of the year is 49."),
        ("environments", json!({}), "Environments:\n- main: 3.12\n- old: 3.9"),
    ] {
        assert_eq!(of_text(tool, &arguments, answer), "ok", "{answer}");
    }
    let image = ToolResult { content: json!([{ "type": "image", "data": "AA==", "mimeType": "image/png" }]), ..text("") };
    assert_eq!(found("draw", &json!({}), &image), "ok");
    let both = json!([{ "type": "text", "text": "Here it is." }, { "type": "image", "data": "AA==", "mimeType": "image/png" }]);
    assert_eq!(found("draw", &json!({}), &ToolResult { content: both, ..text("") }), "ok");
}

/// A sentence without a form is for a judge, whether it is good or not.
#[test]
fn sentences_are_left_open() {
    for answer in
        ["Job 314 has already been printed, there is nothing left to cancel.", "Only three timers may run at once.", "好的"]
    {
        assert_eq!(of_text("cancel_job", &json!({ "job": 314 }), answer), "open", "{answer}");
    }
}

#[test]
fn fields_that_admit_a_failure_are_soft_errors() {
    for (tool, answer) in [
        ("get", json!({ "error": "fetch failed" })),
        ("get", json!({ "error": { "code": 7, "message": "gone" } })),
        ("get", json!({ "success": false })),
        ("get", json!({ "ok": false, "description": "Unauthorized" })),
        ("get", json!({ "isError": true, "message": "x" })),
        ("get", json!({ "status": "error", "message": "no index" })),
        ("get", json!({ "status": "failed", "raw": { "error": "outside of the folder" } })),
        ("get", json!({ "result": { "data": { "error": "too deep?" } } })),
        ("get", json!({ "result": "{\"error\": \"a text in a text\"}" })),
        ("get", json!({ "result": "Error: unknown link" })),
        ("get", json!({ "results": [{ "title": "Error searching docs: no network", "url": "", "rank": 1 }] })),
        ("get", json!({ "status": 503, "message": "overloaded" })),
        ("get", json!({ "summary": { "found": 0 }, "issues": [], "errors": ["servers: no connection"] })),
        ("run", json!({ "exit_code": 1, "stdout": "", "stderr": "no such program" })),
        ("update_customer", json!({ "customer": "K-2207", "updated": false })),
        ("get", json!({ "message": "Failed to read the file", "path": "a.txt" })),
    ] {
        assert_eq!(of_text(tool, &json!({ "path": "a.txt" }), &answer.to_string()), "soft-error", "{answer}");
        let structured = ToolResult { structured_content: Some(answer.clone()), ..text("see the fields") };
        assert_eq!(found(tool, &json!({ "path": "a.txt" }), &structured), "soft-error", "{answer}");
    }
    assert_eq!(of_text("get", &json!({}), "The call went wrong: {\"error\": \"gone\"}"), "soft-error");
}

/// The same names are data elsewhere.
#[test]
fn fields_of_data_are_not_dropped() {
    for (tool, answer, want) in [
        ("get", json!({ "error": null, "rows": [1] }), "ok"),
        ("get", json!({ "errors": [], "rows": [1] }), "ok"),
        ("get", json!({ "error": "", "rows": [1] }), "ok"),
        ("get", json!({ "error": "none", "rows": [1] }), "open"),
        ("get", json!({ "success": true, "error": "minor", "rows": [1] }), "open"),
        ("get_job", json!({ "id": 7, "status": "failed", "message": "disk full" }), "open"),
        ("lint", json!({ "errors": [{ "line": 3, "text": "unused" }], "files": 2 }), "open"),
        ("stats", json!({ "error": 0.02, "n": 50 }), "open"),
        ("logs", json!([{ "error": "a" }, { "level": "info", "text": "fine" }]), "ok"),
        ("check", json!({ "valid": false }), "ok"),
        ("check_language", json!({ "status": "error", "message": "Klingon is not loaded" }), "open"),
        ("check_language_available", json!({ "status": "error", "message": "Klingon is not available" }), "ok"),
        ("time", json!({ "timezone": "UTC", "is_dst": false }), "ok"),
        ("run", json!({ "exit_code": 1, "stdout": "2 of 3 tests passed", "stderr": "" }), "ok"),
    ] {
        assert_eq!(of_text(tool, &json!({}), &answer.to_string()), want, "{answer}");
    }
    let echoed = json!({ "error": "quota used up" });
    assert_eq!(of_text("set_text", &json!({ "text": "quota used up" }), &echoed.to_string()), "open", "the call put it there");
}

#[test]
fn empty_is_what_carries_nothing() {
    let structured = |value: Value| ToolResult { structured_content: Some(value), ..text("") };
    for empty in [
        text(""),
        text(" []\n"),
        text("null"),
        text("Unstaged changes:\n"),
        text("{\"nodes\": [], \"edges\": []}"),
        structured(json!({ "result": [] })),
        ToolResult { structured_content: Some(json!({ "result": "[]" })), ..text("[]") },
        ToolResult { content: json!([]), ..text("") },
    ] {
        assert_eq!(found("list", &json!({}), &empty), "empty", "{empty:?}");
    }
    for not in [
        text("0"),
        text("{\"accounts\": [], \"count\": 0}"),
        structured(json!({ "n": 0 })),
        text("{\"success\": true, \"url\": null}"),
    ] {
        assert_ne!(found("list", &json!({}), &not), "empty", "{not:?}");
    }
}

/// What comes from outside may be of any size and depth.
#[test]
fn hostile_answers_end() {
    let mut deep = json!({ "error": "gone" });
    for _ in 0..60 {
        deep = json!({ "result": deep });
    }
    assert_eq!(of_text("get", &json!({}), &deep.to_string()), "ok", "nobody wraps an answer sixty times");
    let long = "Error: ".repeat(2800);
    assert_ne!(of_text("get", &json!({}), &long), "ok");
    let braces = "{[".repeat(9000);
    assert_eq!(of_text("get", &json!({}), &braces), "ok", "it is a word");
}
