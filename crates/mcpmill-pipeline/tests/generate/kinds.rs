//! Conversations of every kind: what they hold, and what is refused.

use std::collections::HashMap;

use mcpmill_core::{
    drive::Done,
    edge::ChatRequest,
    record::{Message, OutcomeKind, Sample, SampleKind, Tool},
};
use mcpmill_pipeline::{
    generate::{GenerateSettings, Kinds, Profile, generate},
    models::Models,
};
use mcpmill_testkit::{Kept, Scripted, context};
use serde_json::{Value, json};

use super::{city, prompts, settings, steps, text_of, usual};

fn of_kind(kind: SampleKind) -> GenerateSettings {
    GenerateSettings { kinds: Kinds::only(kind), ..settings(Profile::Small, 0) }
}

/// One sample of a kind, over `tools`, made by a model that answers by prompt kind.
async fn talk(
    tools: Vec<Tool>,
    settings: &GenerateSettings,
    script: impl Fn(&ChatRequest) -> Option<String> + Send + Sync + 'static,
) -> (Done<Sample>, Vec<String>) {
    let model = Scripted::new(script);
    let models = Models::new(model.recorded(), HashMap::new());
    let out = Kept::default();
    generate(tools, settings, &prompts(), &models, &context("3-generate"), &out).await.unwrap();
    let mut ends: Vec<Done<Sample>> = out.ends();
    ends.retain(|done| done.outcome.outcome != OutcomeKind::Skipped);
    assert_eq!(ends.len(), 1, "one sample is planned");
    (ends.remove(0), model.asked())
}

fn said(name: &'static str, reply: Value) -> impl Fn(&ChatRequest) -> Option<String> + Send + Sync + 'static {
    move |request: &ChatRequest| {
        assert_eq!(request.prompt_kind, name);
        Some(reply.to_string())
    }
}

fn failed_on(done: &Done<Sample>, reason: &str, cause: &str) {
    assert!(done.rows.is_empty(), "{:?}", done.rows);
    assert_eq!((done.outcome.outcome, done.outcome.reason.as_str()), (OutcomeKind::Failed, reason));
    assert!(done.outcome.cause.as_deref().unwrap().contains(cause), "{:?}", done.outcome.cause);
}

/// A text that no request holds word for word.
const LONG: &str = "A city in the mountains, with a wall around it and a lake below, where the trains end and the roads go on for a \
                    while, as it is told in /var/log/sky.txt and in the other files that are beside it in the folder.";

/// Two calls, or as many as are asked for, and a request.
fn cities(first: &'static str, second: &'static str, request: &'static str) -> impl Fn(&ChatRequest) -> Option<String> {
    move |asked: &ChatRequest| {
        assert_eq!(asked.prompt_kind, "parallel");
        let mut calls = json!({"call_1": {"city": first}, "call_2": {"city": second}});
        if text_of(asked).contains("The same tool 3 times") {
            calls["call_3"] = json!({"city": "Trento"});
        }
        Some(json!({"calls": calls, "request": request}).to_string())
    }
}

#[tokio::test]
async fn parallel_calls_state_all_their_values_in_one_request() {
    let parallel = of_kind(SampleKind::Parallel);
    let good = cities("Bergamo", "Lecco", "How is the weather in Bergamo and in Lecco, or else in Trento?");
    let (done, asked) = talk(vec![city()], &parallel, good).await;
    assert_eq!(asked, ["parallel"]);
    let sample = &done.rows[0];
    let calls = sample.messages[1].tool_calls();
    assert_eq!((sample.kind, sample.messages.len(), calls.len()), (SampleKind::Parallel, 2, sample.tool_ids.len()));
    assert!(calls.len() >= 2 && calls[0].id != calls[1].id && calls[0].function.arguments["city"] == "Bergamo");
    assert_eq!(steps(sample), ["parallel", "call"]);
    assert_eq!(sample.server_ids.len(), 1);

    for (first, second, request, cause) in [
        ("Bergamo", "Bergamo", "How is the weather in Bergamo, twice?", "two calls are the same"),
        ("Bergamo", "<city>", "How is it in Bergamo and there?", "placeholder"),
        ("Bergamo", " ", "How is it in Bergamo and where I am?", "empty"),
        ("Bergamo", "Lecco", "Use get_forecast for Bergamo and Lecco.", "names the tool"),
        ("Bergamo", "Lecco", "How is the weather in Bergamo and Lecco for 3 days?", "no call holds `3`"),
        ("Bergamo", LONG, "How is the weather in Bergamo, and there?", "a call holds `/var/log/sky.txt`, which nobody said"),
    ] {
        let (done, _) = talk(vec![city()], &parallel, cities(first, second, request)).await;
        failed_on(&done, "parallel: unusable-reply", cause);
    }

    // What the request lacks is woven in, and fails the sample where that cannot be done.
    let vague = |woven: &'static str| {
        move |asked: &ChatRequest| match asked.prompt_kind.as_str() {
            "weave" => Some(woven.to_owned()),
            _ => cities("Bergamo", "Lecco", "How will the weather be there, please?")(asked),
        }
    };
    let (done, _) = talk(vec![city()], &parallel, vague("How will it be in Bergamo, in Lecco, in Trento?")).await;
    assert!(steps(&done.rows[0]).contains(&"weave"));
    let (done, _) = talk(vec![city()], &parallel, vague("How will it be in the mountains?")).await;
    failed_on(&done, "weave: unusable-reply", "does not state");
}

#[tokio::test]
async fn a_tool_without_values_is_called_beside_another_of_its_server() {
    let timers = mcpmill_testkit::tool("1", "list_timers", "Shows timers.", json!({"type": "object"}));
    let lamps = mcpmill_testkit::tool("1", "list_lamps", "Shows lamps.", json!({"type": "object"}));
    let reply = json!({"calls": {"call_1": {}, "call_2": {}}, "request": "Which timers run, and which lamps are on?"});
    let (done, _) = talk(vec![timers, lamps], &of_kind(SampleKind::Parallel), said("parallel", reply)).await;
    let calls = done.rows[0].messages[1].tool_calls();
    assert_ne!(calls[0].function.name, calls[1].function.name);
    assert_ne!(done.rows[0].tool_ids[0], done.rows[0].tool_ids[1]);
}

#[tokio::test]
async fn a_chain_holds_its_first_call_and_names_what_comes_later() {
    let [find, mark] = find_and_mark();
    let chain = GenerateSettings { profile: Profile::Full, ..of_kind(SampleKind::Chain) };
    let reply = |words: &str, request: &str| json!({"calls": {"first": {"words": words}, "second": {"label": "billing"}}, "request": request});
    let good = reply("double invoice", "Find the ticket on the double invoice and put the label billing on it.");
    let (done, _) = talk(vec![find.clone(), mark.clone()], &chain, said("chain", good)).await;
    let sample = &done.rows[0];
    assert_eq!(sample.tool_ids, [find.id.clone(), mark.id.clone()]);
    assert_eq!((sample.server_ids.len(), sample.messages.len()), (2, 2));
    assert_eq!(sample.messages[1].tool_calls()[0].function.name, "search_tickets");
    assert_eq!(steps(sample), ["chain", "call", "later"]);
    let later: Value = serde_json::from_str(&sample.lineage[2].text).unwrap();
    assert_eq!(later, json!({"tool": mark.id, "from_answer": "ticket_id", "arguments": {"label": "billing"}}));

    let known = json!({"calls": {"first": {"words": "x"}, "second": {"label": "billing", "ticket_id": "7"}}, "request": "Find x and put billing on it."});
    let (done, _) = talk(vec![find.clone(), mark.clone()], &chain, said("chain", known)).await;
    failed_on(&done, "chain: unusable-reply", "ticket_id");
    let named = reply("double invoice", "Call search_tickets for double invoice, then billing.");
    let (done, _) = talk(vec![find, mark], &chain, said("chain", named)).await;
    failed_on(&done, "chain: unusable-reply", "names the tool");
}

fn find_and_mark() -> [Tool; 2] {
    let string = |name: &str| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]});
    let label = json!({"type": "object", "properties": {"ticket_id": {"type": "string"}, "label": {"type": "string"}},
        "required": ["ticket_id", "label"]});
    let find = mcpmill_testkit::tool("1", "search_tickets", "Finds tickets.", string("words"));
    [find, mcpmill_testkit::tool("2", "mark", "Puts a label on it.", label)]
}

/// A small model's chain whose second half is this.
fn halves(label: &'static str, then: &'static str) -> impl Fn(&ChatRequest) -> Option<String> + Send + Sync + 'static {
    move |asked: &ChatRequest| {
        Some(match asked.prompt_kind.as_str() {
            "instruct" => json!({"requests": ["Which tickets speak of a double invoice?"]}).to_string(),
            "slots" if text_of(asked).contains("label") => json!({ "label": label }).to_string(),
            "slots" => json!({"words": "double invoice"}).to_string(),
            "call" => json!({"words": "double invoice"}).to_string(),
            "then" => then.to_owned(),
            other => panic!("`{other}` is not asked here"),
        })
    }
}

#[tokio::test]
async fn a_small_model_writes_a_chain_in_halves() {
    let chain = of_kind(SampleKind::Chain);
    let good = "Then put the label billing on the first one.";
    let (done, asked) = talk(find_and_mark().into(), &chain, halves("billing", good)).await;
    assert_eq!(asked, ["instruct", "slots", "call", "slots", "then"]);
    let sample = &done.rows[0];
    assert_eq!(sample.instruction, format!("Which tickets speak of a double invoice? {good}"));
    assert_eq!(sample.messages[0], Message::user(sample.instruction.clone()));
    assert_eq!(steps(sample), ["instruct", "call", "then", "later"]);
    let later: Value = serde_json::from_str(&sample.lineage[3].text).unwrap();
    assert_eq!((&later["from_answer"], &later["arguments"]), (&json!("ticket_id"), &json!({"label": "billing"})));

    for (label, then, cause) in [
        ("billing", "Then put a label on the first one.", "does not state `billing`"),
        ("billing", "Then put the label billing on 4821, the first one.", "brings `4821`"),
        ("billing", "Then put the label billing on search_tickets, the first one.", "search_tickets"),
        ("billing", "Then put billing on those that speak of \"double invoice\".", "brings `double invoice`"),
        ("billing", "Then tell Ada about billing.", "does not speak of what the first brings"),
        ("<label>", "Then put the label on it.", "placeholder"),
    ] {
        let (done, _) = talk(find_and_mark().into(), &chain, halves(label, then)).await;
        let failed = if cause == "placeholder" { "slots: unusable-reply" } else { "then: unusable-reply" };
        failed_on(&done, failed, cause);
    }
}

#[tokio::test]
async fn what_two_tools_of_a_server_both_take_is_one_thing() {
    let of = |names: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
        json!({"type": "object", "properties": properties, "required": names})
    };
    let list = mcpmill_testkit::tool("1", "list_files", "Lists files.", of(&["project"]));
    let read = mcpmill_testkit::tool("1", "read_file", "Reads one.", of(&["project", "file_path"]));
    let script = |asked: &ChatRequest| {
        Some(match asked.prompt_kind.as_str() {
            "instruct" => json!({"requests": ["Which files are in the project harbour?"]}).to_string(),
            "slots" | "call" => json!({"project": "harbour"}).to_string(),
            _ => "Then show me what the first one says.".to_owned(),
        })
    };
    let (done, asked) = talk(vec![list, read], &of_kind(SampleKind::Chain), script).await;
    assert_eq!(asked, ["instruct", "slots", "call", "then"], "nothing else has to be made up");
    let later: Value = serde_json::from_str(&done.rows[0].lineage.last().unwrap().text).unwrap();
    assert_eq!(later["arguments"], json!({"project": "harbour"}));
}

#[tokio::test]
async fn what_two_tools_write_is_not_one_thing() {
    let of = |names: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect();
        json!({"type": "object", "properties": properties, "required": names})
    };
    let make = mcpmill_testkit::tool("1", "create_ticket", "Makes a ticket.", of(&["text"]));
    let add = mcpmill_testkit::tool("1", "add_comment", "Adds a comment.", of(&["ticket_id", "text"]));
    let script = |asked: &ChatRequest| {
        let comment = text_of(asked).contains("Adds a comment");
        Some(match asked.prompt_kind.as_str() {
            "instruct" => json!({"requests": ["Open a ticket that says: the door squeaks."]}).to_string(),
            "slots" if comment => json!({"text": "since Monday"}).to_string(),
            "slots" | "call" => json!({"text": "the door squeaks"}).to_string(),
            _ => "Then add the comment \"since Monday\" to it.".to_owned(),
        })
    };
    let (done, _) = talk(vec![make, add], &of_kind(SampleKind::Chain), script).await;
    let later: Value = serde_json::from_str(&done.rows[0].lineage.last().unwrap().text).unwrap();
    assert_eq!(later["arguments"], json!({"text": "since Monday"}), "a comment is no ticket");

    // What is read of one file is written to another.
    let read = mcpmill_testkit::tool("1", "read_file", "Reads a file.", of(&["path"]));
    let write = mcpmill_testkit::tool("1", "write_file", "Writes a file.", of(&["path", "content"]));
    let script = |asked: &ChatRequest| {
        let copy = text_of(asked).contains("Writes a file");
        Some(match asked.prompt_kind.as_str() {
            "instruct" => json!({"requests": ["Read me notes/plan.md, please."]}).to_string(),
            "slots" if copy => json!({"path": "notes/copy.md"}).to_string(),
            "slots" | "call" => json!({"path": "notes/plan.md"}).to_string(),
            _ => "Then write all of it to notes/copy.md.".to_owned(),
        })
    };
    let (done, _) = talk(vec![read, write], &of_kind(SampleKind::Chain), script).await;
    let later: Value = serde_json::from_str(&done.rows[0].lineage.last().unwrap().text).unwrap();
    assert_eq!(later["arguments"], json!({"path": "notes/copy.md"}));

    // Written whole, both calls work in one place.
    let list = mcpmill_testkit::tool("1", "list_files", "Lists files.", of(&["project"]));
    let read = mcpmill_testkit::tool("1", "read_file", "Reads one.", of(&["project", "file_path"]));
    let full = GenerateSettings { profile: Profile::Full, ..of_kind(SampleKind::Chain) };
    let reply = |second: &str| {
        json!({"calls": {"first": {"project": "harbour"}, "second": {"project": second}},
            "request": "Look up the files of harbour and of the mill, and show me what the first one says."})
    };
    let (done, _) = talk(vec![list.clone(), read.clone()], &full, said("chain", reply("mill"))).await;
    failed_on(&done, "chain: unusable-reply", "another `project`");
    let (done, _) = talk(vec![list, read], &full, said("chain", reply("harbour"))).await;
    assert_eq!(done.rows.len(), 1, "{:?}", done.outcome);
}

#[tokio::test]
async fn the_first_of_several_turns_names_the_tools_to_come() {
    let other = |name: &str| mcpmill_testkit::tool("1", name, &format!("Does {name}."), json!({"type": "object"}));
    let tools = vec![city(), other("list_alerts"), other("get_sunrise")];
    let script = |request: &ChatRequest| match request.prompt_kind.as_str() {
        "multi-turn" => Some(json!({"request": "What will the weather in Bergamo be like tomorrow?"}).to_string()),
        "slots" | "call" => {
            Some(if text_of(request).contains("- city") { json!({"city": "Bergamo"}) } else { json!({}) }.to_string())
        }
        other => panic!("`{other}` is not asked here"),
    };
    let full = GenerateSettings { kinds: Kinds::only(SampleKind::MultiTurn), ..settings(Profile::Full, 0) };
    let (done, asked) = talk(tools.clone(), &full, script).await;
    let sample = &done.rows[0];
    assert_eq!(asked[0], "multi-turn");
    assert!((2..=4).contains(&sample.tool_ids.len()) && sample.messages.len() == 2, "{sample:?}");
    let different: std::collections::HashSet<_> = sample.tool_ids.iter().collect();
    assert_eq!(different.len(), sample.tool_ids.len());
    let cut = |_: &ChatRequest| Some(json!({"request": "What will the weather in Bergamo be like on the day of"}).to_string());
    let (done, _) = talk(tools.clone(), &full, cut).await;
    failed_on(&done, "multi-turn: unusable-reply", "cut off");

    // A small model begins with a request that is there for itself.
    let alone = move |request: &ChatRequest| match request.prompt_kind.as_str() {
        "instruct" => Some(json!({"requests": ["What will the weather in Bergamo be like tomorrow?"]}).to_string()),
        _ => script(request),
    };
    let (done, asked) = talk(tools, &of_kind(SampleKind::MultiTurn), alone).await;
    assert_eq!((asked[0].as_str(), done.rows[0].tool_ids.len() > 1), ("instruct", true));
}

#[tokio::test]
async fn where_no_tool_fits_the_answer_says_so_and_makes_nothing_up() {
    let other = |name: &str| mcpmill_testkit::tool("1", name, &format!("Does {name}."), json!({"type": "object"}));
    let tools = vec![city(), other("list_alerts"), other("get_sunrise")];
    let answering = |answer: &'static str| {
        move |request: &ChatRequest| match request.prompt_kind.as_str() {
            "no-tool" => Some(json!({"answer": answer}).to_string()),
            _ => usual(request),
        }
    };
    let settings = of_kind(SampleKind::NoTool);
    let good = "I can't look up forecasts, so I don't know how Bergamo will be tomorrow.";
    let (done, asked) = talk(tools.clone(), &settings, answering(good)).await;
    let sample = &done.rows[0];
    assert_eq!(asked, ["instruct", "no-tool"]);
    assert!(sample.tool_ids.is_empty() && sample.withheld.len() == 1 && sample.server_ids.len() == 1);
    assert_eq!(sample.messages[1], Message::assistant(good));
    for (bad, cause) in [
        ("It will be sunny all day in Bergamo tomorrow.", "cannot be done"),
        ("I cannot complain: everything you asked for has been done and the file is deleted.", "cannot be done"),
        ("I can't look up forecasts, but the trip has been booked.", "claims success"),
        ("I can't look up forecasts. I can only tell you the time.", "offers something else"),
        ("I can't say, but most days have 24 degrees there.", "made up `24`"),
        ("I can't look up forecasts, so ask weather.example.org", "cut off"),
        ("I can't, as get_forecast, list_alerts and get_sunrise are missing.", ""),
    ] {
        let (done, _) = talk(tools.clone(), &settings, answering(bad)).await;
        failed_on(&done, "no-tool: unusable-reply", cause);
    }
}

#[tokio::test]
async fn a_judge_reads_whether_an_answer_in_another_language_declines() {
    let other = |name: &str| mcpmill_testkit::tool("1", name, &format!("Does {name}."), json!({"type": "object"}));
    let tools = vec![city(), other("list_alerts"), other("get_sunrise")];
    let settings = GenerateSettings { languages: toml::from_str("de = 1").unwrap(), ..of_kind(SampleKind::NoTool) };
    let claim = "Klar, ich habe die Tabelle angelegt und alles verschickt.";
    let good = "Das kann ich leider nicht nachsehen, mir fehlt das Werkzeug dafür.";
    for obstinate in [false, true] {
        let written = std::sync::atomic::AtomicUsize::new(0);
        let script = move |request: &ChatRequest| match request.prompt_kind.as_str() {
            "instruct" => Some(json!({"requests": ["Wie wird das Wetter in Bergamo morgen, bitte?"]}).to_string()),
            "no-tool" => {
                let first = written.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
                Some(json!({"answer": if first || obstinate { claim } else { good }}).to_string())
            }
            "declines" => {
                let claimed = text_of(request).contains(claim);
                Some(json!({"why": "as it says", "declines": !claimed}).to_string())
            }
            other => panic!("`{other}` is not asked here"),
        };
        let (done, asked) = talk(tools.clone(), &settings, script).await;
        assert_eq!(asked, ["instruct", "no-tool", "declines", "no-tool", "declines"]);
        if obstinate {
            failed_on(&done, "no-tool: unusable-reply", "does not decline");
            assert_eq!(done.outcome.raw.as_deref(), Some(claim));
        } else {
            assert_eq!(done.rows[0].messages[1], Message::assistant(good));
            assert_eq!(steps(&done.rows[0]), ["instruct", "no-tool"]);
        }
    }
}

#[tokio::test]
async fn a_missing_value_is_asked_for_and_given_before_the_call() {
    let reply = |request: &str, question: &str, answer: &str| json!({"arguments": {"city": "Bergamo"}, "request": request, "question": question, "answer": answer});
    let settings = of_kind(SampleKind::Ask);
    let (request, question, answer) = ("Will it rain where we marry tomorrow?", "Which city is it?", "In Bergamo.");
    let (done, asked) = talk(vec![city()], &settings, said("ask", reply(request, question, answer))).await;
    let sample = &done.rows[0];
    assert_eq!(asked, ["ask"]);
    assert_eq!(sample.messages[..3], [Message::user(request), Message::assistant(question), Message::user(answer)]);
    assert_eq!(sample.messages[3].tool_calls()[0].function.arguments["city"], "Bergamo");
    assert_eq!(steps(sample), ["ask", "ask:question", "ask:answer", "call"]);
    for (request, question, answer, cause) in [
        ("Will it rain in Bergamo tomorrow?", question, answer, "before it is asked for"),
        (request, "Is the city Bergamo?", answer, "before it is asked for"),
        (request, question, "In the north.", "does not give `Bergamo`"),
        (request, "Where is it?", answer, "does not name `city`"),
        (request, "Tell me the city.", answer, "asks nothing"),
        (request, "Which city, and is 24 degrees fine?", answer, "`24` belongs to no value"),
        (request, question, "In Bergamo, on Friday.", "`Friday` belongs to no value"),
        (request, question, "Sure, it is Bergamo.", "no person's"),
        ("Will it rain where we marry in 3 days?", question, answer, "`3` belongs to no value"),
    ] {
        let (done, asked) = talk(vec![city()], &settings, said("ask", reply(request, question, answer))).await;
        failed_on(&done, "ask: unusable-reply", cause);
        assert_eq!(asked.len(), 3, "it is asked for again: {cause}");
    }

    // A file that is named by the end of its path is spelt out.
    let file = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
    let file = mcpmill_testkit::tool("1", "count_lines", "Counts the lines of a file.", file);
    let reply = json!({"arguments": {"path": "/home/ada/notes/plan.md"}, "request": "How long is my plan by now?",
        "question": "What is the path of the file?", "answer": "It is plan.md."});
    let (done, _) = talk(vec![file], &settings, said("ask", reply)).await;
    assert_eq!(done.rows[0].messages[2], Message::user("It is /home/ada/notes/plan.md."));
}

#[tokio::test]
async fn names_of_code_stand_neither_in_a_request_nor_in_a_question() {
    let find = mcpmill_testkit::tool(
        "1",
        "findEntity",
        "Finds a person.",
        json!({"type": "object", "properties": {"entityName": {"type": "string"}}, "required": ["entityName"]}),
    );
    let reply = |request: &str, question: &str| json!({"arguments": {"entityName": "Nadia"}, "request": request, "question": question, "answer": "It is Nadia."});
    let settings = of_kind(SampleKind::Ask);
    let request = "Find the person who called.";
    let good = reply(request, "What is the name of the entity?");
    let (done, _) = talk(vec![find.clone()], &settings, said("ask", good)).await;
    assert_eq!(done.rows.len(), 1);
    for (request, question, cause) in [
        (request, "Which entityName is it?", "holds the name `entityName`"),
        ("Use findEntity for the person who called.", "What is the name of the entity?", "names the tool"),
    ] {
        let (done, _) = talk(vec![find.clone()], &settings, said("ask", reply(request, question))).await;
        failed_on(&done, "ask: unusable-reply", cause);
    }
}

#[tokio::test]
async fn a_recovery_holds_the_wrong_call_and_then_the_right_one() {
    let read = |name: &str| {
        mcpmill_testkit::tool(
            "1",
            "read_note",
            "Reads a note.",
            json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}),
        )
    };
    let wrong = |value: &'static str| {
        move |request: &ChatRequest| match request.prompt_kind.as_str() {
            "instruct" => Some(json!({"requests": ["Show me notes/april.md, please."]}).to_string()),
            "slots" | "call" => Some(json!({"path": "notes/april.md"}).to_string()),
            "recover" => Some(json!({"wrong": value}).to_string()),
            other => panic!("`{other}` is not asked here"),
        }
    };
    let settings = of_kind(SampleKind::Recover);
    let arguments = |sample: &Sample, at: usize| sample.messages[at].tool_calls()[0].function.arguments["path"].clone();
    let (done, _) = talk(vec![read("path")], &settings, wrong("april-notes.md")).await;
    let sample = &done.rows[0];
    assert_eq!((arguments(sample, 1), arguments(sample, 2)), (json!("april-notes.md"), json!("notes/april.md")));
    assert_ne!(sample.messages[1].tool_calls()[0].id, sample.messages[2].tool_calls()[0].id);
    assert_eq!(steps(sample), ["instruct", "call", "recover:wrong", "recover"]);
    // A value that is right, or stands in the request, is none; code makes a slip then.
    for bad in ["notes/april.md", "april.md", "", "path/to/file"] {
        let (done, asked) = talk(vec![read("path")], &settings, wrong(bad)).await;
        let sample = &done.rows[0];
        let slipped = arguments(sample, 1);
        assert!(slipped != "notes/april.md" && slipped != bad, "{slipped}");
        assert_eq!(asked.iter().filter(|kind| *kind == "recover").count(), 2, "{bad}");
        assert_eq!(steps(sample), ["instruct", "call", "recover"]);
    }
}

#[tokio::test]
async fn a_model_that_is_down_fails_the_rows_of_every_kind() {
    let string = |name: &str| json!({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]});
    let tools = vec![
        mcpmill_testkit::tool("1", "search_notes", "Finds notes.", string("folder")),
        mcpmill_testkit::tool("1", "read_note", "Reads a note.", string("note_id")),
        mcpmill_testkit::tool("1", "drop_note", "Drops a note.", string("note_path")),
    ];
    for kind in SampleKind::ALL {
        let (done, asked) = talk(tools.clone(), &of_kind(kind), |_| None).await;
        assert!(done.outcome.reason.ends_with("model-failed"), "{kind:?}: {:?}", done.outcome);
        assert_eq!(asked.len(), 1);
    }
}
