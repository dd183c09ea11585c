//! The kinds of conversation beside the single call. What has several turns gets its values first, so that code can
//! hold every turn to them; answers of tools come in when the conversation is run.

use mcpmill_core::{
    edge::RecordedChat,
    record::{Message, Tool},
    schema::{Schema, required},
};
use serde_json::{Map, Value, json};

use super::{
    Profile, code, declines,
    evolve::text_of,
    forms,
    kinds::ENGLISH,
    language,
    slip::slip,
    spelling,
    steps::{Making, Talk, failure, object, wrong_request},
    there, values,
};
use crate::{
    ask::{AskFailure, Question, ask},
    card::{card, card_of, purpose, word},
    prompt::{Prompt, PromptFormat},
};

/// Characters of a tool's purpose where it only stands beside another.
pub(super) const BESIDE: usize = 120;

/// How often an answer is written that a judge does not take for one that declines.
pub(super) const DECLINED: u32 = 2;

impl Making<'_> {
    /// Several calls of one turn: values of all of them first, then a request that states them.
    pub(super) async fn parallel(&mut self) -> Result<Talk, AskFailure> {
        let prompt = self.prompts.parallel.clone();
        let tools: Vec<&Tool> = std::iter::once(&self.seed.tool).chain(&self.seed.others).collect();
        let keys: Vec<String> = (1..=tools.len()).map(|n| format!("call_{n}")).collect();
        let parts: Vec<(&str, Value)> = keys.iter().zip(&tools).map(|(key, tool)| (key.as_str(), needed(tool))).collect();
        let same = tools.iter().all(|tool| tool.id == self.seed.tool.id);
        let cards: Vec<String> = tools.iter().take(if same { 1 } else { tools.len() }).map(|tool| short(tool)).collect();
        let inputs = json!({
            "cards": cards.join("\n\n"), "at_hand": self.at_hand, "count": tools.len(), "same": same, "persona": self.other_persona(),
        });
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let (spoken, there) = (self.seed.language.as_str(), self.there(&self.seed.tool));
        let accept = |reply: &Map<String, Value>| {
            let calls: Vec<Map<String, Value>> = keys.iter().map(|key| part(reply, key)).collect();
            if same && calls.iter().enumerate().any(|(i, call)| calls[..i].contains(call)) {
                return Err("two calls are the same".into());
            }
            calls.iter().find_map(made_up).map_or(Ok(()), Err)?;
            let absent = calls.iter().zip(&tools).find_map(|(call, tool)| there::none_there(call, tool, &there));
            absent.map_or(Ok(()), |path| Err(there::refused(&path)))?;
            let request = request_of(reply, &names, (spoken, &calls))?;
            long_unsaid(&request, &calls).or_else(|| unsupported(&request, &calls)).map_or(Ok((calls, request)), Err)
        };
        let (calls, request) = self.composed(&prompt, inputs, ("calls", object_of(&parts)), accept).await?;
        let stated = stated_by(&tools, &calls);
        let request = self.stating(request, &stated).await?;
        let (request, _) = self.evolve(request, stated).await?;
        self.note("call", None, &json!(calls).to_string());
        let made = calls.into_iter().zip(&tools).enumerate().map(|(place, (call, tool))| self.made(tool, call, place)).collect();
        Ok(Talk {
            messages: vec![Message::user(request.clone()), Message::Assistant { content: None, tool_calls: made }],
            instruction: request,
            called: tools.iter().map(|tool| tool.id.clone()).collect(),
        })
    }

    /// The first turn of several; the others are written when it is run, with the answers in mind.
    pub(super) async fn multi_turn(&mut self, checker: &Schema) -> Result<Talk, AskFailure> {
        // A small model that is told of later turns asks for them at once.
        let small = self.settings.profile == Profile::Small;
        let request = if small { self.instruct().await? } else { self.opening().await? };
        let (request, stated) = self.fill_slots(request).await?;
        let (request, stated) = self.evolve(request, stated).await?;
        let arguments = self.call(&request, &stated, checker).await?;
        let call = self.made(&self.seed.tool, arguments, 0);
        let tools = std::iter::once(&self.seed.tool).chain(&self.seed.others);
        Ok(Talk {
            messages: vec![Message::user(request.clone()), Message::call(call)],
            called: tools.map(|tool| tool.id.clone()).collect(),
            instruction: request,
        })
    }

    /// A first request that leads to the later ones.
    async fn opening(&mut self) -> Result<String, AskFailure> {
        let prompt = self.prompts.multi_turn.clone();
        let model = self.role(&prompt);
        let later: Vec<String> = self.seed.others.iter().map(|tool| purpose(tool, BESIDE)).collect();
        let question = Question {
            prompt: &prompt,
            inputs: self.inputs(json!({
                "card": card(&self.seed.tool), "later": later, "at_hand": self.at_hand, "persona": self.other_persona(),
            })),
            schema: None,
            row: self.seed.id.as_str(),
        };
        let names: Vec<&str> = std::iter::once(&self.seed.tool).chain(&self.seed.others).map(|tool| tool.name.as_str()).collect();
        let spoken = self.seed.language.as_str();
        let accept =
            |reply: &str| text_of(reply).and_then(|text| wrong_request(&text, &names, (spoken, &[])).map_or(Ok(text), Err));
        let request = ask(&model, &question, &mut self.meter, accept).await?;
        self.note("multi-turn", Some((&prompt, &model)), &request);
        Ok(request)
    }

    /// A request for a tool that will not be offered, and an answer that says so.
    pub(super) async fn no_tool(&mut self) -> Result<Talk, AskFailure> {
        let request = self.instruct().await?;
        let stated = values::concrete(&request).into_iter().map(|text| values::Named::new("value", text));
        let (request, _) = self.evolve(request.clone(), stated.collect()).await?;
        let answer = self.declined(&request).await?;
        Ok(Talk {
            messages: vec![Message::user(request.clone()), Message::assistant(answer)],
            instruction: request,
            called: Vec::new(),
        })
    }

    /// An answer that says that the request cannot be fulfilled. Code reads English ones, a judge all others.
    async fn declined(&mut self, request: &str) -> Result<String, AskFailure> {
        let Some(language) = self.foreign() else { return self.decline(request, self.seed.id.as_str().to_owned()).await };
        let mut last = failure("no-tool: unusable-reply", "");
        for time in 0..DECLINED {
            let row = if time == 0 { self.seed.id.to_string() } else { format!("{}#{time}", self.seed.id) };
            let before = self.notes();
            let answer = self.decline(request, row).await?;
            let Err(why) = self.judged(request, &answer, language).await? else { return Ok(answer) };
            self.forget(before);
            last = AskFailure { raw: Some(answer), answered: true, ..failure("no-tool: unusable-reply", why) };
        }
        Err(last)
    }

    async fn decline(&mut self, request: &str, row: String) -> Result<String, AskFailure> {
        let prompt = self.prompts.no_tool.clone();
        let model = self.role(&prompt);
        let question = Question {
            prompt: &prompt,
            inputs: self.inputs(json!({"request": request, "purpose": purpose(&self.seed.tool, BESIDE)})),
            schema: None,
            row: &row,
        };
        let (name, spoken) = (self.seed.tool.name.as_str(), self.seed.language.as_str());
        let accept = |reply: &str| {
            let text = object(reply)?.get("answer").and_then(Value::as_str).unwrap_or_default().trim().to_owned();
            if !values::is_ended(&text) {
                return Err("the answer is cut off".into());
            }
            language::fits(&text, spoken, &[])?;
            if let Some(fault) = declines::fault(&text).filter(|_| spoken == ENGLISH) {
                return Err(fault);
            }
            if code::is_code_name(name) && values::states(&text, name) {
                return Err("the answer names the tool that is not there".into());
            }
            match values::invented(&text, &[request]) {
                Some(new) => Err(format!("the answer made up `{new}`")),
                None => Ok(text),
            }
        };
        let answer = ask(&model, &question, &mut self.meter, accept).await?;
        self.note("no-tool", Some((&prompt, &model)), &answer);
        Ok(answer)
    }

    /// Whether a judge takes an answer for one that declines, with the judge's reason where not.
    async fn judged(&mut self, request: &str, answer: &str, language: &str) -> Result<Result<(), String>, AskFailure> {
        let prompt = self.prompts.declines.clone();
        let model = self.role(&prompt);
        let inputs = json!({"request": request, "answer": answer, "language": language});
        let question = Question { prompt: &prompt, inputs, schema: None, row: self.seed.id.as_str() };
        ask(&model, &question, &mut self.meter, |reply| {
            let reply = object(reply)?;
            let declines = reply.get("declines").and_then(Value::as_bool).unwrap_or_default();
            let why = format!("a judge says that the answer does not decline: {}", text(&reply, "why"));
            Ok(if declines { Ok(()) } else { Err(why) })
        })
        .await
    }

    /// A request without one required value, the question for it, its answer, and the call.
    pub(super) async fn ask_back(&mut self) -> Result<Talk, AskFailure> {
        let prompt = self.prompts.ask.clone();
        let said = forms::said(&self.schema);
        let Some(left_out) = said.get(self.seed.index % said.len().max(1)).cloned() else {
            return Err(failure("ask: plan", "no required value could be left out"));
        };
        let (tool, schema, spoken) = (&self.seed.tool, self.schema.clone(), self.seed.language.as_str());
        let inputs = json!({
            "card": short(tool), "missing": word(&left_out), "at_hand": self.at_hand, "persona": self.other_persona(),
        });
        let accept = |reply: &Map<String, Value>| {
            let arguments = reply.get("arguments").and_then(Value::as_object).cloned().unwrap_or_default();
            made_up(&arguments).map_or(Ok(()), Err)?;
            let calls = std::slice::from_ref(&arguments);
            // Files are spelt out where they are spoken of by the end of their path.
            let (missing, others) = apart(&arguments, &left_out);
            let request = request_of(reply, &[&tool.name], (spoken, calls))?;
            let request = spelling::spelt_out(&request, &values::to_state(&others, &schema));
            let answer = spelling::spelt_out(&text(reply, "answer"), &values::all(&missing));
            let question = text(reply, "question");
            long_unsaid(&format!("{request}\n{answer}"), calls).map_or(Ok(()), Err)?;
            asks((&left_out, &schema), &arguments, [&request, &question, &answer], spoken)?;
            Ok((arguments, request, question, answer))
        };
        let composed = self.compose(&prompt, inputs, ("arguments", needed(tool)), accept).await;
        let ((arguments, request, question, answer), model) = composed?;
        self.note("ask", Some((&prompt, &model)), &request);
        self.note("ask:question", Some((&prompt, &model)), &question);
        self.note("ask:answer", Some((&prompt, &model)), &answer);
        self.note("call", None, &Value::Object(arguments.clone()).to_string());
        let call = self.made(tool, arguments, 0);
        Ok(Talk {
            messages: vec![
                Message::user(request.clone()),
                Message::assistant(question),
                Message::user(answer),
                Message::call(call),
            ],
            instruction: request,
            called: vec![tool.id.clone()],
        })
    }

    /// A call with one wrong value, and the right one after it. Between them stands the error, once it is run.
    pub(super) async fn recover(&mut self, checker: &Schema) -> Result<Talk, AskFailure> {
        let request = self.instruct().await?;
        let (request, stated) = self.fill_slots(request).await?;
        let (request, stated) = self.evolve(request, stated).await?;
        let right = self.call(&request, &stated, checker).await?;
        let breakable = forms::breakable(&self.schema);
        let able: Vec<&String> =
            breakable.iter().filter(|name| right.get(*name).is_some_and(|v| v.is_string() || v.is_number())).collect();
        let Some(name) = able.get(self.seed.index % able.len().max(1)) else {
            return Err(failure("recover: nothing-to-break", "the call holds no value that could be a wrong one"));
        };
        let mut wrong = right.clone();
        let value = self.wrong_value(&request, name, &right[*name]).await?;
        wrong.insert((*name).clone(), value);
        self.note("recover", None, &Value::Object(wrong.clone()).to_string());
        let (wrong, right) = (self.made(&self.seed.tool, wrong, 1), self.made(&self.seed.tool, right, 0));
        Ok(Talk {
            messages: vec![Message::user(request.clone()), Message::call(wrong), Message::call(right)],
            instruction: request,
            called: vec![self.seed.tool.id.clone()],
        })
    }

    /// A value that somebody in a hurry would put in by mistake: the model's, or where it has none, one made in code.
    async fn wrong_value(&mut self, request: &str, name: &str, right: &Value) -> Result<Value, AskFailure> {
        let prompt = self.prompts.recover.clone();
        let model = self.role(&prompt);
        let mut schema = json!({"type": "object", "required": ["wrong"], "additionalProperties": false});
        schema["properties"]["wrong"] = json!({"type": if right.is_string() { "string" } else { "integer" }});
        let question = Question {
            prompt: &prompt,
            inputs: json!({"card": card_of(&self.seed.tool, &[name.to_owned()]), "request": request, "name": word(name), "right": right}),
            schema: Some(schema),
            row: self.seed.id.as_str(),
        };
        let slipped = ask(&model, &question, &mut self.meter, |reply| {
            let wrong = object(reply)?.get("wrong").cloned().unwrap_or_default();
            let said = wrong.as_str().map_or_else(|| wrong.to_string(), str::to_owned);
            if said.trim().is_empty() || values::states(request, &said) || wrong == *right {
                return Err("the wrong value is the right one, or none".into());
            }
            values::placeholder(&said).map_or(Ok(wrong), |word| Err(format!("the wrong value holds `{word}`")))
        })
        .await;
        match AskFailure::tolerate(slipped)? {
            Some(wrong) => {
                self.note("recover:wrong", Some((&prompt, &model)), &wrong.to_string());
                Ok(wrong)
            }
            None => slip(right, self.seed.id.as_str())
                .ok_or_else(|| failure("recover: nothing-to-break", "the value cannot be got wrong")),
        }
    }

    /// Asks for values and a request in one reply: the values, bound to `slot`, come first.
    async fn compose<T>(
        &mut self,
        prompt: &Prompt,
        inputs: Value,
        (slot, bound): (&str, Value),
        accept: impl Fn(&Map<String, Value>) -> Result<T, String>,
    ) -> Result<(T, RecordedChat), AskFailure> {
        let model = self.role(prompt);
        let mut schema = match &prompt.format {
            PromptFormat::Json(schema) => schema.clone(),
            _ => json!({"type": "object"}),
        };
        schema["properties"][slot] = bound;
        let question = Question { prompt, inputs: self.inputs(inputs), schema: Some(schema), row: self.seed.id.as_str() };
        let composed = ask(&model, &question, &mut self.meter, |reply| accept(&object(reply)?)).await?;
        Ok((composed, model))
    }

    /// The same, noted in the lineage under the prompt's name.
    pub(super) async fn composed(
        &mut self,
        prompt: &Prompt,
        inputs: Value,
        slot: (&str, Value),
        accept: impl Fn(&Map<String, Value>) -> Result<(Vec<Map<String, Value>>, String), String>,
    ) -> Result<(Vec<Map<String, Value>>, String), AskFailure> {
        let ((calls, request), model) = self.compose(prompt, inputs, slot, accept).await?;
        self.note(&prompt.id, Some((prompt, &model)), &request);
        Ok((calls, request))
    }

    /// The request with all values in it, those it lacks woven in.
    pub(super) async fn stating(&mut self, request: String, stated: &[values::Named]) -> Result<String, AskFailure> {
        let missing = values::missing(stated, &request);
        if missing.is_empty() { Ok(request) } else { self.weave("weave", request, stated, &missing).await }
    }

    /// A person for another kind than the single call.
    pub(super) fn other_persona(&self) -> String {
        self.persona(self.seed.index + 3 * (self.seed.kind as usize))
    }
}

/// The value that is left out, and the others.
fn apart(arguments: &Map<String, Value>, left_out: &str) -> (Map<String, Value>, Map<String, Value>) {
    arguments.clone().into_iter().partition(|(name, _)| name == left_out)
}

/// What is wrong with a request that leaves a value out, the question for it and its answer.
fn asks(
    (left_out, schema): (&str, &Value),
    arguments: &Map<String, Value>,
    [request, question, answer]: [&str; 3],
    language: &str,
) -> Result<(), String> {
    let (missing, others) = apart(arguments, left_out);
    let missing = values::all(&missing);
    if missing.is_empty() {
        return Err("the missing value is one that nobody says".into());
    }
    if let Some(value) =
        missing.iter().find(|value| values::states(request, &value.text) || values::states(question, &value.text))
    {
        return Err(format!("`{}` is said before it is asked for", value.text));
    }
    if let Some(value) = values::missing(&values::to_state(&others, schema), request).first() {
        return Err(format!("the request does not state `{}`", value.text));
    }
    if let Some(value) = values::missing(&missing, answer).first() {
        return Err(format!("the answer does not give `{}`", value.text));
    }
    let known: Vec<String> = values::texts(arguments);
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    if let Some(new) = [request, question, answer].into_iter().find_map(|text| values::invented(text, &known)) {
        return Err(format!("`{new}` belongs to no value"));
    }
    if !question.ends_with(['?', '？', '؟']) {
        return Err("the question asks nothing".into());
    }
    // A person is asked in words, not by the name that code has for it.
    if code::is_code_name(left_out) && values::states(question, left_out) {
        return Err(format!("the question holds the name `{left_out}`"));
    }
    for text in [question, answer] {
        language::fits(text, language, &known)?;
    }
    if language == ENGLISH && !names_what(question, left_out, &schema["properties"][left_out]) {
        return Err(format!("the question does not name `{left_out}`"));
    }
    if values::speaks_as_assistant(answer) || answer.ends_with('?') { Err("the answer is no person's".into()) } else { Ok(()) }
}

/// A card with the required parameters only: values of others are not asked for.
pub(super) fn short(tool: &Tool) -> String {
    card_of(tool, &required(&tool.schema()))
}

/// The schema of the required parameters.
pub(super) fn needed(tool: &Tool) -> Value {
    let schema = tool.schema();
    forms::exactly(&schema, &required(&schema))
}

/// An object of these fields, all of them required.
pub(super) fn object_of(parts: &[(&str, Value)]) -> Value {
    let properties: Map<String, Value> = parts.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    json!({ "type": "object", "properties": properties, "required": names, "additionalProperties": false })
}

/// One of the calls of a reply.
pub(super) fn part(reply: &Map<String, Value>, name: &str) -> Map<String, Value> {
    reply.get("calls").and_then(|calls| calls[name].as_object()).cloned().unwrap_or_default()
}

fn text(reply: &Map<String, Value>, name: &str) -> String {
    reply.get(name).and_then(Value::as_str).unwrap_or_default().trim().to_owned()
}

pub(super) fn request_of(
    reply: &Map<String, Value>,
    names: &[&str],
    (language, calls): (&str, &[Map<String, Value>]),
) -> Result<String, String> {
    let request = text(reply, "request");
    let known: Vec<String> = calls.iter().flat_map(values::texts).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    wrong_request(&request, names, (language, &known)).map_or(Ok(request), Err)
}

/// A concrete value of a request that no call holds, in words.
pub(super) fn unsupported(request: &str, calls: &[Map<String, Value>]) -> Option<String> {
    let known: Vec<String> = calls.iter().flat_map(values::texts).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    values::invented(request, &known).map(|value| format!("no call holds `{value}`, of which the request speaks"))
}

/// Numbers that count the points of a list in a text.
const LIST_POINTS: u32 = 9;

/// A text of a call that is too long to be said and makes something up, in words.
pub(super) fn long_unsaid(said: &str, calls: &[Map<String, Value>]) -> Option<String> {
    let long = |text: &&str| !values::is_short(text) && !code::looks_like_code(text);
    let texts = calls.iter().flat_map(values::texts);
    let texts: Vec<String> = texts.collect();
    let points: Vec<String> = (1..=LIST_POINTS).map(|n| n.to_string()).collect();
    let known: Vec<&str> = points.iter().map(String::as_str).chain([said]).collect();
    let mut made = texts.iter().map(String::as_str).filter(long).filter_map(|text| values::invented(text, &known));
    made.next().map(|value| format!("a call holds `{value}`, which nobody said"))
}

/// The placeholder among values, in words; also a text that is empty.
pub(super) fn made_up(call: &Map<String, Value>) -> Option<String> {
    if call.values().any(|value| value.as_str().is_some_and(|text| text.trim().is_empty())) {
        return Some("a value is empty".into());
    }
    values::held(call, &|_| true).map(|word| format!("the values hold the placeholder `{word}`"))
}

/// What a request must state so that all calls follow from it.
pub(super) fn stated_by(tools: &[&Tool], calls: &[Map<String, Value>]) -> Vec<values::Named> {
    let mut stated: Vec<values::Named> = Vec::new();
    for value in tools.iter().zip(calls).flat_map(|(tool, call)| values::to_state(call, &tool.schema())) {
        if !stated.contains(&value) {
            stated.push(value);
        }
    }
    stated
}

/// Whether a question speaks of a parameter: a word of its name, or one of its description.
fn names_what(question: &str, name: &str, property: &Value) -> bool {
    let asked: Vec<String> = question.split_whitespace().flat_map(forms::words).collect();
    let described = property["description"].as_str().unwrap_or_default();
    let described = described.split_whitespace().flat_map(forms::words).filter(|word| word.chars().count() > 3);
    forms::words(name).into_iter().chain(described).any(|word| asked.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_may_count_its_points() {
        let memo = "Please see to all of this before the guests come back from their walk along the river and up the hill: 1. Order \
                    the flour. 2. Clean the oven. 3. Count the trays, also those in the cellar.";
        let call = |text: &str| [json!({ "text": text }).as_object().unwrap().clone()];
        assert_eq!(long_unsaid("Write the memo for the bakery.", &call(memo)), None);
        let other = memo.replace("the trays", "57 trays");
        assert!(long_unsaid("Write the memo for the bakery.", &call(&other)).unwrap().contains("`57`"));
    }

    #[test]
    fn what_a_query_holds_can_be_spoken_of() {
        let call = json!({"query": "INSERT INTO sales (sold_on, units) VALUES ('2023-04-01', 50);"});
        let calls = [call.as_object().unwrap().clone()];
        assert_eq!(unsupported("Add a sale with sold_on 2023-04-01 and 50 units.", &calls), None);
        assert!(unsupported("Add a sale with store_id 2.", &calls).unwrap().contains("`store_id`"));
    }
}
