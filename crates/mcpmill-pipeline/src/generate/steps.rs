//! The steps of one sample: instruct, slots, weave, evolve, call. Each is a function from text to text.

use std::sync::{Mutex, PoisonError};

use mcpmill_core::{
    canonical::sha256_hex,
    drive::Done,
    edge::RecordedChat,
    id::{ServerId, ToolId},
    naming::alias,
    record::{FunctionCall, Message, Revision, Sample, SampleKind, Tool, ToolCall},
    schema::{Schema, required},
};
use serde_json::{Map, Value, json};

use super::{
    GeneratePrompts, GenerateSettings, Profile, Seed, code, forms,
    held::Held,
    kinds, language, spelling,
    there::{self, There},
    values,
};
use crate::{
    ask::{AskFailure, Meter, Question, ask, seed_of},
    card::{card, card_of},
    models::Models,
    prompt::{Prompt, PromptFormat},
};

/// What the steps of one sample share.
pub(super) struct Making<'a> {
    pub(super) seed: &'a Seed,
    pub(super) schema: Value,
    pub(super) at_hand: &'a str,
    pub(super) settings: &'a GenerateSettings,
    pub(super) prompts: &'a GeneratePrompts,
    models: &'a Models,
    pub(super) meter: Meter,
    lineage: Vec<Revision>,
}

/// A conversation in the making.
pub(super) struct Talk {
    /// What the user asks first.
    pub(super) instruction: String,
    /// All turns.
    pub(super) messages: Vec<Message>,
    /// Tools that are called, in order.
    pub(super) called: Vec<ToolId>,
}

/// Makes one sample, or says why not.
pub(super) async fn sample(seed: &Seed, settings: &GenerateSettings, prompts: &GeneratePrompts, models: &Models) -> Done<Sample> {
    let at_hand = settings.at_hand.get(&seed.tool.server_id).map(String::as_str).unwrap_or_default();
    let schema = seed.tool.schema();
    let mut making = Making { seed, schema, at_hand, settings, prompts, models, meter: Meter::default(), lineage: Vec::new() };
    let made = making.make().await;
    let meter = making.meter;
    match made {
        Ok(sample) => {
            let mut done = Done::kept(seed.id.as_str(), vec![sample]);
            done.outcome = meter.told(done.outcome);
            done
        }
        Err(failure) => Done::none(meter.told(failure.outcome(seed.id.as_str()))),
    }
}

pub(super) fn failure(reason: &str, cause: impl Into<String>) -> AskFailure {
    AskFailure { reason: reason.into(), cause: cause.into(), raw: None, answered: false, waits: None }
}

impl Making<'_> {
    async fn make(&mut self) -> Result<Sample, AskFailure> {
        let checker = Schema::compile(&self.schema).map_err(|e| failure("unusable-schema", e.to_string()))?;
        let talk = match self.seed.kind {
            SampleKind::Single => self.single(&checker).await?,
            SampleKind::Parallel => self.parallel().await?,
            // A small model that writes the whole forgets one of its halves.
            SampleKind::Chain if self.settings.profile == Profile::Small => self.chain_in_halves(&checker).await?,
            SampleKind::Chain => self.chain().await?,
            SampleKind::MultiTurn => self.multi_turn(&checker).await?,
            SampleKind::NoTool => self.no_tool().await?,
            SampleKind::Ask => self.ask_back().await?,
            SampleKind::Recover => self.recover(&checker).await?,
        };
        let withheld: Vec<&Tool> = if self.seed.kind == SampleKind::NoTool { vec![&self.seed.tool] } else { Vec::new() };
        let mut server_ids: Vec<ServerId> = Vec::new();
        for tool in std::iter::once(&self.seed.tool).chain(&self.seed.others) {
            if !server_ids.contains(&tool.server_id) {
                server_ids.push(tool.server_id.clone());
            }
        }
        Ok(Sample {
            id: self.seed.id.clone(),
            kind: self.seed.kind,
            tool_ids: talk.called,
            withheld: withheld.into_iter().map(|tool| tool.id.clone()).collect(),
            server_ids,
            language: self.seed.language.clone(),
            messages: talk.messages,
            instruction: talk.instruction,
            lineage: std::mem::take(&mut self.lineage),
        })
    }

    /// One request, one call.
    async fn single(&mut self, checker: &Schema) -> Result<Talk, AskFailure> {
        let request = self.instruct().await?;
        let (request, stated) = self.fill_slots(request).await?;
        let (request, stated) = self.evolve(request, stated).await?;
        let arguments = self.call(&request, &stated, checker).await?;
        let call = self.made(&self.seed.tool, arguments, 0);
        Ok(Talk {
            messages: vec![Message::user(request.clone()), Message::call(call)],
            instruction: request,
            called: vec![self.seed.tool.id.clone()],
        })
    }

    /// A call as it stands in the conversation; `place` tells the calls of one conversation apart.
    pub(super) fn made(&self, tool: &Tool, arguments: Map<String, Value>, place: usize) -> ToolCall {
        let id = &self.seed.id;
        let whole = if place == 0 { sha256_hex(id.as_str()) } else { sha256_hex(format!("{id}\n{place}")) };
        ToolCall::new(format!("call_{}", &whole[..10]), FunctionCall { name: alias(&tool.name), arguments })
    }

    /// The inputs of a prompt, with the language where it is not the one prompts are written in.
    pub(super) fn inputs(&self, mut inputs: Value) -> Value {
        if let Some(name) = self.foreign() {
            inputs["language"] = json!(name);
        }
        inputs
    }

    /// What a prompt calls the language of the sample, `None` for English.
    pub(super) fn foreign(&self) -> Option<&'static str> {
        (self.seed.language != kinds::ENGLISH).then(|| kinds::name(&self.seed.language)).flatten()
    }

    /// A prompt whose line is that of its file in English, which is one of Latin letters, and any line in others.
    pub(super) fn line_of(&self, prompt: &Prompt) -> Prompt {
        let mut prompt = prompt.clone();
        if self.foreign().is_some() {
            prompt.format = PromptFormat::Line(ANY_LINE.into());
        }
        prompt
    }

    pub(super) fn role(&self, prompt: &Prompt) -> RecordedChat {
        self.models.role(prompt.role).clone()
    }

    /// Notes a revision, and by name what had to be repaired for it; `by` is the prompt and model, `None` for a step
    /// made in code.
    pub(super) fn note(&mut self, step: &str, by: Option<(&Prompt, &RecordedChat)>, text: &str) {
        self.revision(step, by, text);
        for repair in self.meter.untold() {
            self.revision(&format!("repair:{}", repair.as_str()), None, text);
        }
    }

    fn revision(&mut self, step: &str, by: Option<(&Prompt, &RecordedChat)>, text: &str) {
        let parent = self.lineage.last().map(|r| sha256_hex(&r.text));
        self.lineage.push(Revision {
            step: step.into(),
            prompt: by.map(|(prompt, _)| prompt.hash.clone()),
            model: by.map(|(_, model)| model.model().to_owned()),
            parent,
            text: text.into(),
        });
    }

    /// The paths that are there for a tool.
    pub(super) fn there(&self, tool: &Tool) -> There {
        let at_hand = self.settings.at_hand.get(&tool.server_id).map(String::as_str).unwrap_or_default();
        There::new(at_hand, self.settings.files.get(&tool.server_id).map(Vec::as_slice).unwrap_or_default())
    }

    /// How many revisions there are.
    pub(super) fn notes(&self) -> usize {
        self.lineage.len()
    }

    /// Forgets the revisions after the first `count`: they came to nothing.
    pub(super) fn forget(&mut self, count: usize) {
        self.lineage.truncate(count);
    }

    /// A person for this tool and place.
    pub(super) fn persona(&self, index: usize) -> String {
        let personas = self.prompts.instruct.list("personas");
        let start = seed_of(self.seed.tool.id.as_str()) as usize;
        personas.get((start + index) % personas.len().max(1)).cloned().unwrap_or_else(|| "a user".into())
    }

    /// Step 1. One call writes several requests; all samples of the batch ask the same question, so
    /// the exchange store answers all but the first. A sample of another kind or language asks for itself.
    pub(super) async fn instruct(&mut self) -> Result<String, AskFailure> {
        let prompt = self.prompts.instruct.clone();
        let model = self.role(&prompt);
        let alone = self.seed.kind != SampleKind::Single || self.foreign().is_some();
        let per_call = if alone { 1 } else { self.settings.per_call.max(1) };
        let batch = self.seed.index / per_call;
        let count = per_call.min(self.seed.of - batch * per_call);
        // Other kinds let other people speak.
        let first = batch * per_call + 3 * (self.seed.kind as usize);
        let personas: Vec<String> = (0..count).map(|i| self.persona(first + i)).collect();
        let mut schema = match &prompt.format {
            PromptFormat::Json(schema) => schema.clone(),
            _ => json!({"type": "object"}),
        };
        schema["properties"]["requests"]["minItems"] = json!(count);
        schema["properties"]["requests"]["maxItems"] = json!(count);
        let row = if alone { self.seed.id.to_string() } else { format!("{}#{batch}", self.seed.tool.id) };
        let mut inputs = json!({"card": card(&self.seed.tool), "at_hand": self.at_hand, "count": count, "personas": personas});
        let words: Vec<Option<String>> = (0..count).map(|i| self.values_in_turn(first + i)).collect();
        if words.iter().any(Option::is_some) {
            inputs["words"] = words.into_iter().map(|words| words.unwrap_or_else(|| "anything".into())).collect();
        }
        let question = Question { prompt: &prompt, inputs: self.inputs(inputs), schema: Some(schema), row: &row };
        let name = self.seed.tool.name.clone();
        let spoken = self.seed.language.clone();
        let own = self.seed.index % per_call;
        let (seed, there) = (self.seed, self.there(&self.seed.tool));
        // A later reply may repeat what an earlier one gave to another sample of the batch.
        let given = Mutex::new(Vec::<String>::new());
        let accept = |reply: &str| {
            let mut given = given.lock().unwrap_or_else(PoisonError::into_inner);
            let before = given.len();
            given.extend(all_requests(reply).into_iter().enumerate().filter(|(at, _)| *at != own).map(|(_, text)| text));
            let request = request_of(reply, own, &name, &spoken)?;
            if given[..before].contains(&request) {
                return Err("the request was given before".into());
            }
            there::not_there(&request, &seed.tool, &there).map_or(Ok(request), |path| Err(there::refused(&path)))
        };
        let request = ask(&model, &question, &mut self.meter, accept).await?;
        self.note("instruct", Some((&prompt, &model)), &request);
        Ok(request)
    }

    /// Step 2. Every required parameter gets a value; values the request does not state are woven in.
    pub(super) async fn fill_slots(&mut self, request: String) -> Result<(String, Vec<values::Named>), AskFailure> {
        let needed = required(&self.schema);
        if needed.is_empty() {
            return Ok((request, Vec::new()));
        }
        let slots = self.slots(&self.seed.tool, &request, &needed).await?;
        let stated = values::to_state(&slots, &self.schema);
        let missing = values::missing(&stated, &request);
        let request = if missing.is_empty() { request } else { self.weave("weave", request, &stated, &missing).await? };
        Ok((request, stated))
    }

    /// What the `index`th request of the tool should want of what a call must hold: of every list of words one, so that
    /// all come to be asked for, and of numbers now and then one at the edge: `unit: celsius, days: 16`.
    fn values_in_turn(&self, index: usize) -> Option<String> {
        let start = seed_of(self.seed.tool.id.as_str()) as usize % 97;
        let next = |(place, name): (usize, &String)| {
            let property = forms::plain(&self.schema["properties"][name]);
            let words = property["enum"].as_array();
            let open = words.is_none_or(|words| words.len() > 1) && property["type"] != "array";
            // Two numbers do not lie at their edges together.
            let turn = start + index + if words.is_none() { place } else { 0 };
            let value = forms::value_in_turn(name, &property, turn).filter(|_| open)?;
            let said = value.as_str().map_or_else(|| value.to_string(), crate::card::word);
            Some(format!("{}: {said}", crate::card::word(name)))
        };
        let words: Vec<String> = required(&self.schema).iter().enumerate().filter_map(next).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// Values for some parameters of a tool, from a request or made up.
    pub(super) async fn slots(
        &mut self,
        tool: &Tool,
        request: &str,
        parameters: &[String],
    ) -> Result<Map<String, Value>, AskFailure> {
        let prompt = self.prompts.slots.clone();
        let model = self.role(&prompt);
        let question = Question {
            prompt: &prompt,
            inputs: self.inputs(json!({"card": card_of(tool, parameters), "at_hand": self.at_hand, "request": request})),
            schema: Some(forms::only(&tool.schema(), parameters)),
            row: self.seed.id.as_str(),
        };
        let there = self.there(tool);
        ask(&model, &question, &mut self.meter, |reply| {
            let values = object(reply)?;
            if let Some(word) = values::held(&values, &|_| true) {
                return Err(format!("the values hold the placeholder `{word}`"));
            }
            there::none_there(&values, tool, &there).map_or(Ok(values), |path| Err(there::refused(&path)))
        })
        .await
    }

    /// Rewrites `request` so that it states `missing` too. Files that it names by the end of their path are spelt out;
    /// for the rest a model is asked. Where it loses a value, short ones are put behind the request in plain words;
    /// longer ones would read like no person, so the row fails.
    pub(super) async fn weave(
        &mut self,
        step: &str,
        request: String,
        all: &[values::Named],
        missing: &[values::Named],
    ) -> Result<String, AskFailure> {
        let spelt = spelling::spelt_out(&request, missing);
        if spelt != request {
            self.note("spell-out", None, &spelt);
            let missing = values::missing(missing, &spelt);
            return if missing.is_empty() { Ok(spelt) } else { Box::pin(self.weave(step, spelt, all, &missing)).await };
        }
        let prompt = self.line_of(&self.prompts.weave);
        let model = self.role(&prompt);
        let listed: Vec<Value> = missing.iter().map(|v| json!({"name": v.name, "text": v.text})).collect();
        let question = Question {
            prompt: &prompt,
            inputs: self.inputs(json!({"request": request, "values": listed})),
            schema: None,
            row: self.seed.id.as_str(),
        };
        let texts: Vec<&str> = all.iter().map(|v| v.text.as_str()).collect();
        let known: Vec<&str> = texts.iter().copied().chain([request.as_str()]).collect();
        let spoken = self.seed.language.clone();
        let names: Vec<&str> = std::iter::once(&self.seed.tool).chain(&self.seed.others).map(|tool| tool.name.as_str()).collect();
        let rewritten = ask(&model, &question, &mut self.meter, |reply| {
            let lost = values::missing(all, reply);
            let refused = lost.first().map(|v| format!("the rewrite does not state `{}`", v.text));
            refused
                .or_else(|| values::invented(reply, &known).map(|v| format!("the rewrite brings `{v}`, which was not given")))
                .or_else(|| wrong_request(reply, &names, (&spoken, &texts)))
                .map_or(Ok(reply.to_owned()), Err)
        })
        .await;
        match rewritten {
            Ok(text) => {
                self.note(step, Some((&prompt, &model)), &text);
                Ok(text)
            }
            Err(failure)
                if failure.answered && self.foreign().is_none() && missing.len() == 1 && values::is_plain(&missing[0]) =>
            {
                let text = format!("{request} Use {} as the {}.", missing[0].text, missing[0].name.replace('_', " "));
                self.note("append", None, &text);
                Ok(text)
            }
            Err(failed) => Err(failed),
        }
    }

    /// Step 4. The call of the known tool, bound to its schema and held to the request: it has every one of the
    /// `stated` values and none that nobody said.
    pub(super) async fn call(
        &mut self,
        request: &str,
        stated: &[values::Named],
        checker: &Schema,
    ) -> Result<Map<String, Value>, AskFailure> {
        let prompt = self.prompts.call.clone();
        let model = self.role(&prompt);
        let question = Question {
            prompt: &prompt,
            inputs: json!({"card": card(&self.seed.tool), "request": request}),
            schema: Some(self.schema.clone()),
            row: self.seed.id.as_str(),
        };
        let held = Held { schema: &self.schema, request, stated, english: self.foreign().is_none() };
        let (arguments, kept) = ask(&model, &question, &mut self.meter, |reply| {
            let arguments = object(reply)?;
            let pruned = held.pruned(&arguments);
            let kept = if checker.accepts(&Value::Object(pruned.clone())) { pruned } else { arguments.clone() };
            // What stands in the request is said, however it looks.
            let said = request.to_lowercase();
            match values::held(&kept, &|word| !said.contains(word)) {
                Some(word) => Err(format!("the call holds the placeholder `{word}`")),
                None => held.fault(&kept).map_or(Ok((arguments, kept)), Err),
            }
        })
        .await?;
        self.note("call", Some((&prompt, &model)), &Value::Object(arguments.clone()).to_string());
        if kept != arguments {
            self.note("prune", None, &Value::Object(kept.clone()).to_string());
        }
        Ok(kept)
    }
}

/// A line of any script.
const ANY_LINE: &str = "[^\\s{}<>`][^\\n{}<>`]{7,380}[^\\s{}<>`]";

/// The request of one sample out of those of its batch. What is wrong with the others is theirs: one bad sentence does
/// not cost all.
fn request_of(reply: &str, own: usize, tool: &str, language: &str) -> Result<String, String> {
    let texts = all_requests(reply);
    let text = texts.get(own).ok_or_else(|| format!("there is no request {}", own + 1))?;
    if texts[..own].contains(text) {
        return Err("two requests are the same".into());
    }
    wrong_request(text, &[tool], (language, &[])).map_or_else(|| Ok(text.clone()), Err)
}

/// The requests of a reply; none where it is none.
fn all_requests(reply: &str) -> Vec<String> {
    let list = object(reply).ok().and_then(|mut reply| reply.remove("requests"));
    let texts = list.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    texts.map(|text| text.trim().to_owned()).collect()
}

/// Why a text is no request of a person who speaks this language; the values beside it belong to none.
pub(super) fn wrong_request(text: &str, tools: &[&str], (language, values): (&str, &[&str])) -> Option<String> {
    if let Some(word) = values::placeholder(text) {
        return Some(format!("a request holds the placeholder `{word}`"));
    }
    if tools.iter().any(|tool| code::is_code_name(tool) && values::states(text, tool)) {
        return Some("a request names the tool".into());
    }
    if !values::is_ended(text) {
        return Some("a request is cut off".into());
    }
    if values::speaks_as_assistant(text) {
        return Some("a request is an assistant's answer".into());
    }
    if let Some(words) = values::points_nowhere(text, values) {
        return Some(format!("a request speaks of `{words}`, which is not there"));
    }
    language::fits(text, language, values).err()
}

pub(super) fn object(reply: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(reply) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(format!("the reply is {other}, not an object")),
        Err(e) => Err(e.to_string()),
    }
}
