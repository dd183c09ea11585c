//! A chat endpoint on loopback that answers every prompt of the line by rule, without any model.
//! It tests the mechanics of a run; what it writes is no data.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Map, Value, json};
use wiremock::{
    Mock, MockServer, Request, Respond, ResponseTemplate,
    matchers::{method, path, path_regex},
};

/// A running stand-in.
pub struct ScriptedEndpoint {
    server: MockServer,
    down: Arc<AtomicBool>,
}

impl ScriptedEndpoint {
    /// Starts it; every answer takes `delay`.
    pub async fn start(delay: Duration) -> Self {
        let server = MockServer::start().await;
        let down = Arc::new(AtomicBool::new(false));
        let rules = Rules { delay, down: Arc::clone(&down) };
        Mock::given(method("POST")).and(path("/v1/chat/completions")).respond_with(rules).mount(&server).await;
        let batches = Batches::default();
        for (verb, place) in [("POST", "^/v1/(files|batches)$"), ("GET", "^/v1/(files|batches)/.+$")] {
            Mock::given(method(verb)).and(path_regex(place)).respond_with(batches.clone()).mount(&server).await;
        }
        Self { server, down }
    }

    /// Starts one that says this to everything.
    pub async fn saying(content: &str) -> Self {
        let server = MockServer::start().await;
        let message = json!({ "role": "assistant", "content": content });
        let body = json!({
            "choices": [{ "finish_reason": "stop", "message": message }],
            "usage": { "prompt_tokens": 1, "completion_tokens": 1 },
        });
        Mock::given(method("POST")).respond_with(ResponseTemplate::new(200).set_body_json(body)).mount(&server).await;
        Self { server, down: Arc::default() }
    }

    /// Answers 503 to everything while it is down.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    /// What OPENAI_BASE_URL is set to.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.server.uri())
    }

    /// Requests it has answered.
    pub async fn requests(&self) -> usize {
        self.server.received_requests().await.map_or(0, |r| r.len())
    }
}

struct Rules {
    delay: Duration,
    down: Arc<AtomicBool>,
}

impl Respond for Rules {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        if self.down.load(Ordering::SeqCst) {
            return ResponseTemplate::new(503).set_body_string("the stand-in is down");
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        ResponseTemplate::new(200).set_body_json(reply_to(&body)).set_delay(self.delay)
    }
}

/// What the stand-in replies to a request body; also for who asks it by other means than HTTP.
pub fn reply_to(body: &Value) -> Value {
    let content = answer(body);
    let message = match body["tools"].as_array() {
        Some(tools) => json!({ "role": "assistant", "content": null, "tool_calls": [call(body, tools)] }),
        None => json!({ "role": "assistant", "content": content }),
    };
    json!({
        "choices": [{ "finish_reason": "stop", "message": message }],
        "usage": { "prompt_tokens": body.to_string().len() / 4, "completion_tokens": content.len() / 4 },
    })
}

/// The line of a batch's output that answers a line of its input, in OpenAI's shape.
pub fn batch_line(line: &str) -> String {
    let question: Value = serde_json::from_str(line).unwrap_or_default();
    let response = json!({ "status_code": 200, "request_id": "r", "body": reply_to(&question["body"]) });
    json!({ "id": "b", "custom_id": question["custom_id"], "response": response, "error": null }).to_string()
}

/// OpenAI's files and batches on loopback, in so far as a batch needs them. A batch is in progress the first time it is
/// looked at, and done the second time; one that was never handed in has failed.
#[derive(Clone, Default)]
struct Batches(Arc<Mutex<BatchState>>);

#[derive(Default)]
struct BatchState {
    files: Vec<String>,
    looks: usize,
}

impl Respond for Batches {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let place = request.url.path().trim_start_matches("/v1/");
        let reply = |value: Value| ResponseTemplate::new(200).set_body_json(value);
        let number = |id: &str| id.rsplit('-').next().and_then(|n| n.parse::<usize>().ok());
        match (request.method.as_str(), place.split('/').collect::<Vec<_>>().as_slice()) {
            ("POST", ["files"]) => {
                let form = String::from_utf8_lossy(&request.body);
                let lines: Vec<&str> = form.lines().filter(|line| line.starts_with('{')).collect();
                state.files.push(lines.join("\n"));
                reply(json!({ "id": format!("file-{}", state.files.len()), "purpose": "batch" }))
            }
            ("POST", ["batches"]) => {
                let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
                let file = body["input_file_id"].as_str().and_then(number);
                file.map_or_else(
                    || ResponseTemplate::new(400),
                    |file| reply(json!({ "id": format!("batch-{file}"), "status": "validating" })),
                )
            }
            ("GET", ["batches", id]) => {
                state.looks += 1;
                let Some(file) = number(id).and_then(|n| state.files.get(n.checked_sub(1)?)) else {
                    return reply(json!({ "id": id, "status": "failed" }));
                };
                let total = file.lines().count();
                let output = (state.looks > 1).then(|| id.replace("batch", "file"));
                let status = if output.is_some() { "completed" } else { "in_progress" };
                reply(json!({ "id": id, "status": status, "output_file_id": output, "request_counts": { "total": total } }))
            }
            ("GET", ["files", id, "content"]) => match number(id).and_then(|n| state.files.get(n - 1)) {
                Some(file) => ResponseTemplate::new(200)
                    .set_body_string(file.lines().map(|line| batch_line(line) + "\n").collect::<String>()),
                None => ResponseTemplate::new(404),
            },
            _ => ResponseTemplate::new(404),
        }
    }
}

/// A call of the offered tool whose description the request carries, else of the first.
fn call(body: &Value, tools: &[Value]) -> Value {
    let request = body["messages"][0]["content"].as_str().unwrap_or_default();
    let carried = |tool: &&Value| request.contains(&first_words(tool["function"]["description"].as_str().unwrap_or_default()));
    let tool = tools.iter().find(carried).unwrap_or(&tools[0]);
    json!({ "id": "call_1", "type": "function", "function": { "name": tool["function"]["name"], "arguments": "{}" } })
}

fn first_words(text: &str) -> String {
    text.split_whitespace().take(WORDS).collect::<Vec<_>>().join(" ")
}

/// The answer to a request body.
fn answer(body: &Value) -> String {
    let last = body["messages"].as_array().and_then(|m| m.last()).and_then(|m| m["content"].as_str()).unwrap_or_default();
    let format = &body["response_format"]["json_schema"];
    let schema = &format["schema"];
    match format["name"].as_str() {
        Some("instruct") => requests(last, schema),
        Some("call") => call_of(last, schema).to_string(),
        Some("evolve") => {
            let old = line_after(last, "Request: ");
            let more = ["Thank you.", "It matters to us.", "There is no hurry."].into_iter().find(|more| !old.contains(more));
            json!({ "request": format!("{old} {}", more.unwrap_or("Please do it well.")) }).to_string()
        }
        Some("breadth") => json!({ "request": wish(last, "Rarely") }).to_string(),
        Some("multi_turn") => json!({ "request": wish(last, "To begin with") }).to_string(),
        Some("parallel" | "chain") => several(last, schema).to_string(),
        Some("ask") => question(last, schema).to_string(),
        Some("no_tool") => json!({ "answer": "I can't do that with what I have here." }).to_string(),
        Some("pick") => json!({ "tool": pick(last, schema, 0) }).to_string(),
        // Nothing of the list is what the request is about, unless it says so.
        Some("none") => json!({ "tool": pick(last, schema, usize::MAX) }).to_string(),
        Some("declines") => json!({ "why": "it says so", "declines": true }).to_string(),
        Some("score") => graded(if fits(last) { 9 } else { 2 }).to_string(),
        Some("response") => json!({ "why": "it answers", "ok": true }).to_string(),
        Some("turn") => json!({ "why": "it follows or not", "ok": follows(last) }).to_string(),
        Some("answer") => json!({ "answer": TOLD }).to_string(),
        Some("user") => json!({ "request": GO_ON }).to_string(),
        Some(_) => instance(schema, schema, "value", 0).to_string(),
        None => line(last),
    }
}

/// A reply to the prompt `score` that says the same of all aspects.
pub fn graded(score: u32) -> Value {
    json!({
        "wants": "it", "fit": score, "says": "it", "grounded": score, "missing": "nothing", "clear": score, "natural": score,
        "issue": "none", "score": score,
    })
}

/// What the stand-in says of an answer.
const TOLD: &str = "That is what was found.";
/// What it asks for next.
const GO_ON: &str = "Please go on with all of it.";

/// A judge's rule that passes an exam: the request says all longer numbers of the arguments, and orders nobody about.
fn fits(prompt: &str) -> bool {
    let (_, asked) = prompt.split_once("Arguments: ").unwrap_or_default();
    let (arguments, request) = asked.split_once("\nRequest:\n").unwrap_or_default();
    let mut values = arguments.split(['"', ':', ',', '{', '}', '[', ']']).map(str::trim);
    let stated = |value: &str| value.chars().filter(char::is_ascii_digit).count() < 3 || request.contains(value);
    !request.contains("New order") && values.all(stated)
}

/// Another: a turn follows that has a number or a longer word with what stands before it, or is the stand-in's own.
fn follows(prompt: &str) -> bool {
    let (before, turn) = prompt.rsplit_once("Next turn, of the ").unwrap_or_default();
    // The call and the request repeat the words of both; the answer is what counts.
    let answer = before.rsplit_once("Answer of ").map_or(before, |(_, answer)| answer);
    turn.contains(TOLD) || turn.contains(GO_ON) || shared(answer, turn) > 0
}

/// Longer words and numbers that stand in both texts.
fn shared(a: &str, b: &str) -> usize {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| word.len() > 4 || word.parse::<f64>().is_ok());
        words.map(str::to_lowercase).collect()
    };
    let first = words(a);
    words(b).iter().filter(|word| first.contains(word)).count()
}

/// Words of a purpose that a request carries: enough to tell tools apart, too few to repeat it.
const WORDS: usize = 6;

/// Requests that carry the tool's purpose, so that `pick` can find it again.
fn requests(prompt: &str, schema: &Value) -> String {
    let count = schema["properties"]["requests"]["minItems"].as_u64().unwrap_or(1);
    let texts: Vec<String> = (1..=count).map(|n| wish(prompt, &format!("For case {n}"))).collect();
    json!({ "requests": texts }).to_string()
}

fn wish(prompt: &str, start: &str) -> String {
    let purpose = first_words(&line_after(prompt, "Purpose: "));
    // What is to be calculated is said at once: nobody can tell an expression from words that are said otherwise.
    let told = if prompt.contains("- expression (") { " The expression is 6 * 7." } else { "" };
    format!("{start} I want this: {purpose}, so that the report of the meeting in Lyon goes out in time.{told}")
}

/// Calls with values of their own, and a request that states them.
fn several(prompt: &str, schema: &Value) -> Value {
    let mut calls = instance(schema, &schema["properties"]["calls"], "calls", 0);
    let bound = calls.as_object_mut().into_iter().flatten();
    bound.enumerate().for_each(|(n, (_, call))| vary(call, n));
    let mut said = Vec::new();
    values(&calls, &mut said);
    // The purpose of the first of the shown tools.
    let purpose = prompt.split_once("Purpose: ").and_then(|(_, rest)| rest.lines().next()).unwrap_or_default();
    let request = format!("For all of these I want this: {} with {}.", first_words(purpose), said.join(" and "));
    json!({ "calls": calls, "request": request })
}

/// A call with the required values, and with those optional ones that the request states.
fn call_of(prompt: &str, schema: &Value) -> Value {
    let mut call = instance(schema, schema, "value", 0);
    let request = line_after(prompt, "Request: ");
    let states = |value: &Value| {
        let mut said = Vec::new();
        values(value, &mut said);
        let ends = |rest: &str| rest.starts_with([' ', ',']) || rest.trim_end() == ".";
        !said.is_empty()
            && said
                .iter()
                .all(|text| request.match_indices(&format!(" {text}")).any(|(at, found)| ends(&request[at + found.len()..])))
    };
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let plain = property["anyOf"].get(0).unwrap_or(property);
        let mut candidates: Vec<Value> = plain["enum"].as_array().cloned().unwrap_or_default();
        candidates.extend(plain["items"]["enum"].as_array().into_iter().flatten().map(|word| json!([word])));
        candidates.push(instance(schema, plain, name, 0));
        if matches!(plain["type"].as_str(), Some("integer" | "number")) {
            candidates.extend(["minimum", "maximum"].into_iter().filter_map(|bound| plain.get(bound).cloned()));
            candidates.extend((-20..=0).map(|number| json!(number)));
        }
        let words = name.to_lowercase().replace('_', " ");
        let on = (plain["type"] == "boolean" && request.to_lowercase().contains(&words)).then(|| json!(true));
        if let Some(value) = candidates.into_iter().find(|value| states(value)).or(on)
            && call.get(name).is_none()
        {
            call[name] = value;
        }
    }
    call
}

/// A conversation about a value that is missing at first.
fn question(prompt: &str, schema: &Value) -> Value {
    let mut arguments = instance(schema, &schema["properties"]["arguments"], "arguments", 0);
    let missing = line_after(prompt, "Missing: ");
    let missing = missing.split_once('.').map_or(missing.as_str(), |(name, _)| name);
    vary(&mut arguments, 1);
    let (mut told, mut others) = (Vec::new(), Vec::new());
    values(&arguments[missing], &mut told);
    let rest = arguments.as_object().into_iter().flatten().filter(|(name, _)| *name != missing);
    rest.for_each(|(_, value)| values(value, &mut others));
    json!({
        "arguments": arguments,
        "request": format!("{} All of it: {}.", wish(prompt, "This time"), others.join(" and ")),
        "question": format!("Which {missing} is it?"),
        "answer": format!("It is {}.", told.join(" and ")),
    })
}

/// Other texts and numbers for the `n`th call.
fn vary(value: &mut Value, n: usize) {
    match value {
        Value::String(text) if text.ends_with("seven") => text.push_str(&" on".repeat(n)),
        Value::Number(number) => *value = json!(number.as_u64().unwrap_or_default() + n as u64),
        Value::Array(items) => items.iter_mut().for_each(|item| vary(item, n)),
        Value::Object(map) => map.values_mut().for_each(|item| vary(item, n)),
        _ => {}
    }
}

/// All texts and numbers in `value`.
fn values(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::String(text) => out.push(text.clone()),
        Value::Number(number) => out.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| values(item, out)),
        Value::Object(map) => map.values().for_each(|item| values(item, out)),
        _ => {}
    }
}

/// The candidate whose purpose the request carries, else the one at `otherwise` or the last.
fn pick(prompt: &str, schema: &Value, otherwise: usize) -> String {
    let request = line_after(prompt, "Request: ");
    let found = prompt
        .lines()
        .filter_map(|l| l.strip_prefix("- ")?.split_once(": "))
        .find(|(_, purpose)| request.contains(&first_words(purpose)));
    let names: Vec<&str> =
        schema["properties"]["tool"]["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let other = names.get(otherwise).or(names.last()).copied().unwrap_or_default();
    // What has words in common, where the whole purpose is not carried.
    let lines = prompt.lines().filter_map(|l| l.strip_prefix("- ")?.split_once(": ")).filter(|_| otherwise == 0);
    let nearest = lines.map(|(name, purpose)| (shared(&request, purpose), name)).filter(|(words, _)| *words > 0);
    let nearest = nearest.max_by_key(|(words, _)| *words).map(|(_, name)| name);
    found.map(|(name, _)| name).or(nearest).unwrap_or(other).to_owned()
}

/// One line of text: a rewrite that states the values it is given, or a sentence of context.
fn line(prompt: &str) -> String {
    let request = line_after(prompt, "Request: ");
    let values: Vec<&str> = prompt.lines().filter_map(|l| l.strip_prefix("- ")?.split_once(": ").map(|(_, v)| v)).collect();
    if values.is_empty() {
        "I have to finish this before noon.".into()
    } else {
        format!("{request} With {}.", values.join(" and "))
    }
}

fn line_after(text: &str, mark: &str) -> String {
    text.rsplit_once(mark).and_then(|(_, rest)| rest.lines().next()).unwrap_or_default().trim().to_owned()
}

/// A value that validates against most schemas servers declare.
fn instance(root: &Value, schema: &Value, name: &str, depth: usize) -> Value {
    if let Some(path) = schema["$ref"].as_str().and_then(|r| r.strip_prefix('#')) {
        return root.pointer(path).filter(|_| depth < 6).map_or(Value::Null, |s| instance(root, s, name, depth + 1));
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    if let Some(first) = schema["anyOf"].get(0).or_else(|| schema["oneOf"].get(0)) {
        return instance(root, first, name, depth + 1);
    }
    match schema["type"].as_str() {
        Some("object") => {
            let wanted = schema["required"].as_array().cloned().unwrap_or_default();
            let member = |key: &str| (key.to_owned(), instance(root, &schema["properties"][key], key, depth + 1));
            Value::Object(wanted.iter().filter_map(Value::as_str).map(member).collect::<Map<_, _>>())
        }
        Some("array") => json!([instance(root, &schema["items"], name, depth + 1)]),
        Some("integer" | "number") => schema["minimum"].as_i64().map_or(json!(7), |least| json!(least.max(7))),
        Some("boolean") => json!(true),
        _ if name == "expression" => json!("6 * 7"),
        _ => json!(format!("{name} seven")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_fill_required_properties() {
        let schema = json!({"type":"object","properties":{"a":{"$ref":"#/$defs/x"},"b":{"type":"integer","minimum":9},"c":{}},
            "required":["a","b"],"$defs":{"x":{"enum":["one"]}}});
        assert_eq!(instance(&schema, &schema, "", 0), json!({"a":"one","b":9}));
    }

    #[test]
    fn picks_the_tool_whose_purpose_the_request_carries() {
        let prompt =
            "Request: I want this: Reads a file from disk\n--- x ---\n- a: Writes a file\n- b: Reads a file from disk\n--- x ---";
        assert_eq!(pick(prompt, &json!({}), 0), "b");
        let names = json!({"properties": {"tool": {"enum": ["c", "d"]}}});
        assert_eq!((pick("Request: x", &names, 0).as_str(), pick("Request: x", &names, usize::MAX).as_str()), ("c", "d"));
    }
}
