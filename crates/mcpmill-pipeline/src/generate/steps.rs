//! The steps of one sample: instruct, slots, weave, evolve, call. Each is a function from text to text.

use mcpmill_core::{
    canonical::sha256_hex,
    drive::Done,
    edge::RecordedChat,
    naming::alias,
    record::{FunctionCall, Message, Revision, Sample, SampleKind, ToolCall},
    schema::{Schema, required},
};
use serde_json::{Map, Value, json};

use super::{GenerateSettings, Profile, Seed, values};
use crate::{
    ask::{AskFailure, Meter, Question, ask, seed_of},
    card::{card, card_of, property_names},
    models::{Models, Role},
    prompt::Prompt,
};

/// The prompts of the stage.
#[derive(Clone, Debug)]
pub struct GeneratePrompts {
    /// Several requests a tool.
    pub instruct: Prompt,
    /// A value for every required parameter.
    pub slots: Prompt,
    /// A rewrite that states missing values.
    pub weave: Prompt,
    /// A sentence of context before the request.
    pub context: Prompt,
    /// A rewrite in a direction.
    pub evolve: Prompt,
    /// The call.
    pub call: Prompt,
}

/// WizardLM's directions, in our words.
const DIRECTIONS: [&str; 4] = [
    "add a constraint that the same single step can honour",
    "go deeper: say more exactly what is wanted and why",
    "replace a general word by a more concrete one",
    "say what the result is needed for, so that it takes more thought to see what is asked",
];

/// What the steps of one sample share.
struct Making<'a> {
    seed: &'a Seed,
    schema: Value,
    at_hand: &'a str,
    settings: &'a GenerateSettings,
    prompts: &'a GeneratePrompts,
    models: &'a Models,
    meter: Meter,
    lineage: Vec<Revision>,
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

fn failure(reason: &str, cause: impl Into<String>) -> AskFailure {
    AskFailure { reason: reason.into(), cause: cause.into(), raw: None, answered: false, waits: false }
}

impl Making<'_> {
    async fn make(&mut self) -> Result<Sample, AskFailure> {
        let checker = Schema::compile(&self.schema).map_err(|e| failure("unusable-schema", e.to_string()))?;
        let request = self.instruct().await?;
        let (request, stated) = self.fill_slots(request).await?;
        let request = if self.settings.evolve { self.evolve(request, &stated).await? } else { request };
        let arguments = self.call(&request, &checker).await?;
        let tool = &self.seed.tool;
        let call = FunctionCall { name: alias(&tool.name), arguments };
        let call_id = format!("call_{}", &sha256_hex(self.seed.id.as_str())[..10]);
        Ok(Sample {
            id: self.seed.id.clone(),
            kind: SampleKind::Single,
            tool_ids: vec![tool.id.clone()],
            server_ids: vec![tool.server_id.clone()],
            messages: vec![Message::user(request.clone()), Message::call(ToolCall::new(call_id, call))],
            instruction: request,
            lineage: std::mem::take(&mut self.lineage),
        })
    }

    fn role(&self, prompt: &Prompt) -> RecordedChat {
        self.models.role(prompt.role).clone()
    }

    /// Notes a revision, and by name what had to be repaired for it; `by` is the prompt and model, `None` for a step
    /// made in code.
    fn note(&mut self, step: &str, by: Option<(&Prompt, &RecordedChat)>, text: &str) {
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

    /// A person for this tool and place.
    fn persona(&self, index: usize) -> String {
        let personas = self.prompts.instruct.list("personas");
        let start = seed_of(self.seed.tool.id.as_str()) as usize;
        personas.get((start + index) % personas.len().max(1)).cloned().unwrap_or_else(|| "a user".into())
    }

    /// Step 1. One call writes several requests; all samples of the batch ask the same question, so
    /// the exchange store answers all but the first.
    async fn instruct(&mut self) -> Result<String, AskFailure> {
        let prompt = self.prompts.instruct.clone();
        let model = self.role(&prompt);
        let per_call = self.settings.per_call.max(1);
        let batch = self.seed.index / per_call;
        let count = per_call.min(self.seed.of - batch * per_call);
        let personas: Vec<String> = (0..count).map(|i| self.persona(batch * per_call + i)).collect();
        let mut schema = match &prompt.format {
            crate::prompt::PromptFormat::Json(schema) => schema.clone(),
            _ => json!({"type": "object"}),
        };
        schema["properties"]["requests"]["minItems"] = json!(count);
        schema["properties"]["requests"]["maxItems"] = json!(count);
        let question = Question {
            prompt: &prompt,
            inputs: json!({"card": card(&self.seed.tool), "at_hand": self.at_hand, "count": count, "personas": personas}),
            schema: Some(schema),
            row: &format!("{}#{batch}", self.seed.tool.id),
        };
        let name = self.seed.tool.name.clone();
        let requests = ask(&model, &question, &mut self.meter, |reply| requests(reply, &name)).await?;
        let request = requests[self.seed.index % per_call].clone();
        self.note("instruct", Some((&prompt, &model)), &request);
        Ok(request)
    }

    /// Step 2. Every required parameter gets a value; values the request does not state are woven in.
    async fn fill_slots(&mut self, request: String) -> Result<(String, Vec<values::Named>), AskFailure> {
        let needed = required(&self.schema);
        if needed.is_empty() {
            return Ok((request, Vec::new()));
        }
        let slots = self.slots(&request, &needed).await?;
        let stated = values::to_state(&slots, &self.schema);
        let missing = values::missing(&stated, &request);
        let request = if missing.is_empty() { request } else { self.weave("weave", request, &stated, &missing).await? };
        Ok((request, stated))
    }

    async fn slots(&mut self, request: &str, parameters: &[String]) -> Result<Map<String, Value>, AskFailure> {
        let prompt = self.prompts.slots.clone();
        let model = self.role(&prompt);
        let question = Question {
            prompt: &prompt,
            inputs: json!({"card": card_of(&self.seed.tool, parameters), "at_hand": self.at_hand, "request": request}),
            schema: Some(only(&self.schema, parameters)),
            row: self.seed.id.as_str(),
        };
        ask(&model, &question, &mut self.meter, |reply| match values::placeholder(reply) {
            Some(word) => Err(format!("the values hold the placeholder `{word}`")),
            None => object(reply),
        })
        .await
    }

    /// Rewrites `request` so that it states `missing` too. Where the model loses a value, short ones
    /// are put behind the request in plain words; longer ones would read like no person, so the row fails.
    async fn weave(
        &mut self,
        step: &str,
        request: String,
        all: &[values::Named],
        missing: &[values::Named],
    ) -> Result<String, AskFailure> {
        let prompt = self.prompts.weave.clone();
        let model = self.role(&prompt);
        let listed: Vec<Value> = missing.iter().map(|v| json!({"name": v.name, "text": v.text})).collect();
        let question = Question {
            prompt: &prompt,
            inputs: json!({"request": request, "values": listed}),
            schema: None,
            row: self.seed.id.as_str(),
        };
        let rewritten = ask(&model, &question, &mut self.meter, |reply| {
            let lost = values::missing(all, reply);
            let refused = lost.first().map(|v| format!("the rewrite does not state `{}`", v.text));
            refused
                .or_else(|| values::placeholder(reply).map(|p| format!("the rewrite holds `{p}`")))
                .map_or(Ok(reply.to_owned()), Err)
        })
        .await;
        match rewritten {
            Ok(text) => {
                self.note(step, Some((&prompt, &model)), &text);
                Ok(text)
            }
            Err(failure) if failure.answered && missing.len() == 1 && values::is_plain(&missing[0]) => {
                let text = format!("{request} Use {} as the {}.", missing[0].text, missing[0].name.replace('_', " "));
                self.note("append", None, &text);
                Ok(text)
            }
            Err(failed) => Err(failed),
        }
    }

    /// Step 3. One evolution; where the model cannot do it the request stays as it is. A model that
    /// cannot be asked is another matter: the row fails.
    async fn evolve(&mut self, request: String, stated: &[values::Named]) -> Result<String, AskFailure> {
        let evolved = match self.settings.profile {
            Profile::Full => self.rewrite(&request, stated).await?,
            Profile::Small if seed_of(self.seed.id.as_str()).is_multiple_of(2) => match self.one_more(&request, stated).await? {
                Some(text) => Some(text),
                None => self.context(&request).await?,
            },
            Profile::Small => self.context(&request).await?,
        };
        Ok(evolved.unwrap_or(request))
    }

    async fn rewrite(&mut self, request: &str, stated: &[values::Named]) -> Result<Option<String>, AskFailure> {
        let prompt = self.prompts.evolve.clone();
        let model = self.role(&prompt);
        let kept: Vec<&str> = stated.iter().map(|v| v.text.as_str()).collect();
        let direction = DIRECTIONS[(seed_of(self.seed.id.as_str()) as usize) % DIRECTIONS.len()];
        let question = Question {
            prompt: &prompt,
            inputs: json!({"request": request, "direction": direction, "values": kept}),
            schema: None,
            row: self.seed.id.as_str(),
        };
        let rewritten = ask(&model, &question, &mut self.meter, |reply| {
            let text = object(reply)?.get("request").and_then(Value::as_str).unwrap_or_default().to_owned();
            match values::missing(stated, &text).first() {
                Some(lost) => Err(format!("the rewrite lost `{}`", lost.text)),
                None => Ok(text),
            }
        })
        .await;
        let Some(text) = AskFailure::tolerate(rewritten)? else { return Ok(None) };
        self.note("evolve:rewrite", Some((&prompt, &model)), &text);
        Ok(Some(text))
    }

    async fn context(&mut self, request: &str) -> Result<Option<String>, AskFailure> {
        let prompt = self.prompts.context.clone();
        let model = self.role(&prompt);
        let question = Question {
            prompt: &prompt,
            inputs: json!({"request": request, "persona": self.persona(self.seed.index)}),
            schema: None,
            row: self.seed.id.as_str(),
        };
        let accept = |reply: &str| {
            if reply.contains('?') {
                Err("the context asks something".into())
            } else if values::speaks_as_assistant(reply) {
                Err("the context is an assistant's, not a person's".into())
            } else {
                Ok(reply.to_owned())
            }
        };
        let answer = ask(&model, &question, &mut self.meter, accept).await;
        let Some(sentence) = AskFailure::tolerate(answer)? else { return Ok(None) };
        let text = format!("{sentence} {request}");
        self.note("evolve:context", Some((&prompt, &model)), &text);
        Ok(Some(text))
    }

    /// Weaves the value of one more, optional parameter in.
    async fn one_more(&mut self, request: &str, stated: &[values::Named]) -> Result<Option<String>, AskFailure> {
        let needed = required(&self.schema);
        let scalar = |name: &String| matches!(self.schema["properties"][name]["type"].as_str(), Some("string" | "integer"));
        let optional: Vec<String> =
            property_names(&self.schema).into_iter().filter(|n| !needed.contains(n) && scalar(n)).collect();
        let chosen = (seed_of(self.seed.id.as_str()) as usize / 2) % optional.len().max(1);
        let Some(name) = optional.get(chosen) else { return Ok(None) };
        let value = self.slots(request, std::slice::from_ref(name)).await;
        let Some(value) = AskFailure::tolerate(value)? else { return Ok(None) };
        let added = values::to_state(&value, &self.schema);
        let missing = values::missing(&added, request);
        if missing.is_empty() {
            return Ok(None);
        }
        let all: Vec<values::Named> = stated.iter().chain(&added).cloned().collect();
        AskFailure::tolerate(self.weave("evolve:optional", request.to_owned(), &all, &missing).await)
    }

    /// Step 4. The call of the known tool, bound to its schema.
    async fn call(&mut self, request: &str, checker: &Schema) -> Result<Map<String, Value>, AskFailure> {
        let prompt = self.prompts.call.clone();
        let model = self.role(&prompt);
        let question = Question {
            prompt: &prompt,
            inputs: json!({"card": card(&self.seed.tool), "request": request}),
            schema: Some(self.schema.clone()),
            row: self.seed.id.as_str(),
        };
        let arguments = ask(&model, &question, &mut self.meter, object).await?;
        self.note("call", Some((&prompt, &model)), &Value::Object(arguments.clone()).to_string());
        if self.settings.profile == Profile::Full {
            return Ok(arguments);
        }
        let pruned = values::prune(&arguments, &required(&self.schema), request);
        if pruned == arguments || !checker.accepts(&Value::Object(pruned.clone())) {
            return Ok(arguments);
        }
        self.note("prune", None, &Value::Object(pruned.clone()).to_string());
        Ok(pruned)
    }
}

/// The requests of a reply, or what is wrong with them.
fn requests(reply: &str, tool: &str) -> Result<Vec<String>, String> {
    let list = object(reply)?.get("requests").and_then(Value::as_array).cloned().unwrap_or_default();
    let texts: Vec<String> = list.iter().filter_map(|r| r.as_str()).map(|r| r.trim().to_owned()).collect();
    for (i, text) in texts.iter().enumerate() {
        if let Some(word) = values::placeholder(text) {
            return Err(format!("a request holds the placeholder `{word}`"));
        }
        if tool.contains(['_', '-']) && values::states(text, tool) {
            return Err("a request names the tool".into());
        }
        if !values::is_ended(text) {
            return Err("a request is cut off".into());
        }
        if values::speaks_as_assistant(text) {
            return Err("a request is an assistant's answer".into());
        }
        if texts[..i].contains(text) {
            return Err("two requests are the same".into());
        }
    }
    Ok(texts)
}

fn object(reply: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(reply) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(format!("the reply is {other}, not an object")),
        Err(e) => Err(e.to_string()),
    }
}

/// `schema` cut to these properties, all of them required.
fn only(schema: &Value, parameters: &[String]) -> Value {
    let mut cut = schema.clone();
    if let Some(properties) = cut["properties"].as_object_mut() {
        properties.retain(|name, _| parameters.contains(name));
    }
    cut["required"] = json!(parameters);
    cut
}

/// The roles the prompts of this stage speak to.
impl GeneratePrompts {
    /// How many questions a sample may ask one after the other, each with the answer to the one before: the most
    /// rounds of batches the stage can need.
    pub fn most_rounds(&self, profile: Profile, evolve: bool) -> u32 {
        let evolution = match profile {
            _ if !evolve => 0,
            Profile::Full => self.evolve.tries,
            Profile::Small => self.slots.tries + self.weave.tries + self.context.tries,
        };
        self.instruct.tries + self.slots.tries + self.weave.tries + evolution + self.call.tries
    }

    /// All prompts, for fingerprints and checks.
    pub fn all(&self) -> [&Prompt; 6] {
        [&self.instruct, &self.slots, &self.weave, &self.context, &self.evolve, &self.call]
    }

    /// The roles that are needed.
    pub fn roles(&self) -> Vec<Role> {
        let mut roles: Vec<Role> = self.all().iter().map(|p| p.role).collect();
        roles.sort_unstable();
        roles.dedup();
        roles
    }
}
