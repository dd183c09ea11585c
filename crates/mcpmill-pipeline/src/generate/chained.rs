//! Requests that take one tool after another: written whole, or by a small model in halves.

use mcpmill_core::{
    record::{Message, Tool},
    schema::{Schema, required},
};
use serde_json::{Map, Value, json};

use super::{
    chain, forms,
    kinds::ENGLISH,
    spelling,
    steps::{Making, Talk, failure, wrong_request},
    there,
    turns::{BESIDE, long_unsaid, made_up, needed, object_of, part, request_of, short, stated_by, unsupported},
    values,
};
use crate::{
    ask::{AskFailure, Question, ask},
    card::{purpose, word},
};

impl Making<'_> {
    /// A request that takes one tool after another. The first call stands here; what follows needs its answer.
    pub(super) async fn chain(&mut self) -> Result<Talk, AskFailure> {
        let prompt = self.prompts.chain.clone();
        let (first, Some(next), Some(link)) = (&self.seed.tool, self.seed.others.first(), self.seed.link.as_ref()) else {
            return Err(failure("chain: plan", "a chain is planned without its second tool"));
        };
        let own: Vec<String> = required(&next.schema()).into_iter().filter(|name| name != link).collect();
        let parts = [("first", needed(first)), ("second", forms::exactly(&next.schema(), &own))];
        let inputs = json!({
            "first": short(first), "second": short(next), "link": word(link), "at_hand": self.at_hand, "persona": self.other_persona(),
        });
        let names = [first.name.as_str(), next.name.as_str()];
        let (spoken, there) = (self.seed.language.as_str(), [first, next].map(|tool| (tool, self.there(tool))));
        let accept = |reply: &Map<String, Value>| {
            let calls = vec![part(reply, "first"), part(reply, "second")];
            calls.iter().find_map(made_up).map_or(Ok(()), Err)?;
            let absent = calls.iter().zip(&there).find_map(|(call, (tool, there))| there::none_there(call, tool, there));
            absent.map_or(Ok(()), |path| Err(there::refused(&path)))?;
            if let Some(name) =
                calls[1].keys().find(|name| is_one_thing((first, next), link, name) && calls[0].get(*name) != calls[1].get(*name))
            {
                return Err(format!("the two calls have another `{name}`, though they are of one server"));
            }
            let request = request_of(reply, &names, (spoken, &calls))?;
            let wrong = long_unsaid(&request, &calls).or_else(|| unsupported(&request, &calls));
            wrong.or_else(|| written_over(&calls[0], next, link, &calls[1])).map_or(Ok((calls, request)), Err)
        };
        let (mut calls, request) = self.composed(&prompt, inputs, ("calls", object_of(&parts)), accept).await?;
        let stated = stated_by(&[first, next], &calls);
        let request = self.stating(request, &stated).await?;
        let (request, _) = self.evolve(request, stated).await?;
        let (second, first_call) = (calls.pop().unwrap_or_default(), calls.pop().unwrap_or_default());
        self.note("call", None, &Value::Object(first_call.clone()).to_string());
        Ok(self.chained((first, first_call), (next, second), link, request))
    }

    /// The same from two halves: a request for the first tool, then a sentence that goes on with what it brings.
    pub(super) async fn chain_in_halves(&mut self, checker: &Schema) -> Result<Talk, AskFailure> {
        let (first, Some(next), Some(link)) = (&self.seed.tool, self.seed.others.first(), self.seed.link.as_ref()) else {
            return Err(failure("chain: plan", "a chain is planned without its second tool"));
        };
        let request = self.instruct().await?;
        let (request, stated) = self.fill_slots(request).await?;
        let (request, stated) = self.evolve(request, stated).await?;
        let first_call = self.call(&request, &stated, checker).await?;
        let shared = |name: &String| first_call.get(name).filter(|_| is_one_thing((first, next), link, name));
        let own: Vec<String> = required(&next.schema()).into_iter().filter(|name| name != link).collect();
        let mut second: Map<String, Value> = own.iter().filter_map(|n| Some((n.clone(), shared(n)?.clone()))).collect();
        let open: Vec<String> = own.into_iter().filter(|name| !second.contains_key(name)).collect();
        if !open.is_empty() {
            second.extend(self.slots(next, &request, &open).await?);
        }
        let wrong = made_up(&second).or_else(|| written_over(&first_call, next, link, &second));
        wrong.map_or(Ok(()), |why| Err(failure("chain: unusable-reply", why)))?;
        let then = self.then((first, next), link, &request, &values::to_state(&second, &next.schema())).await?;
        let whole = format!("{request} {then}");
        let all = std::slice::from_ref(&second);
        long_unsaid(&whole, all).map_or(Ok(()), |why| Err(failure("chain: unusable-reply", why)))?;
        Ok(self.chained((first, first_call), (next, second), link, whole))
    }

    /// The sentence that asks for the second tool. It states the values and names nothing that is not known yet.
    async fn then(
        &mut self,
        (first, next): (&Tool, &Tool),
        link: &str,
        request: &str,
        stated: &[values::Named],
    ) -> Result<String, AskFailure> {
        let lacking = values::missing(stated, request);
        // The line of the prompt cannot hold what begins tags and queries.
        if let Some(value) = lacking.iter().find(|value| value.text.contains(['?', '<', '>', '{', '}', '`', '\n'])) {
            return Err(failure("then: unspoken", format!("nobody says `{}`", value.text)));
        }
        let prompt = self.line_of(&self.prompts.then);
        let model = self.role(&prompt);
        let listed: Vec<Value> = lacking.iter().map(|v| json!({"name": v.name, "text": v.text})).collect();
        let brings = forms::words(link).join(" ");
        let inputs = json!({"request": request, "brings": brings, "purpose": purpose(next, BESIDE), "values": listed});
        let question = Question { prompt: &prompt, inputs: self.inputs(inputs), schema: None, row: self.seed.id.as_str() };
        let (names, spoken) = ([first.name.as_str(), next.name.as_str()], self.seed.language.clone());
        let there = self.there(next);
        let texts: Vec<&str> = lacking.iter().map(|v| v.text.as_str()).collect();
        let then = ask(&model, &question, &mut self.meter, |reply| {
            let text = spelling::spelt_out(reply.trim(), &lacking);
            if let Some(lost) = values::missing(&lacking, &text).first() {
                return Err(format!("the second half does not state `{}`", lost.text));
            }
            // Who says the first half again wants nothing new.
            if let Some(new) = values::invented(&text, &texts) {
                return Err(format!("the second half brings `{new}`, which was not given"));
            }
            if spoken == ENGLISH && !points_back(&text) {
                return Err("the second half does not speak of what the first brings".into());
            }
            if let Some(path) = there::not_there(&text, next, &there) {
                return Err(there::refused(&path));
            }
            wrong_request(&text, &names, (&spoken, &texts)).map_or(Ok(text), Err)
        })
        .await?;
        self.note("then", Some((&prompt, &model)), &format!("{request} {then}"));
        Ok(then)
    }

    /// A chain whose parts are known.
    fn chained(
        &mut self,
        (first, first_call): (&Tool, Map<String, Value>),
        (next, second): (&Tool, Map<String, Value>),
        link: &str,
        request: String,
    ) -> Talk {
        // What the second call is known to hold, and what the first answer must bring, for whoever runs the chain.
        let later = json!({ "tool": next.id, "from_answer": link, "arguments": second });
        self.note("later", None, &later.to_string());
        let call = self.made(first, first_call, 0);
        Talk {
            messages: vec![Message::user(request.clone()), Message::call(call)],
            instruction: request,
            called: vec![first.id.clone(), next.id.clone()],
        }
    }
}

/// What a server works in: calls that go together name the same.
const SCOPES: [&str; 6] = ["project", "repo", "repository", "workspace", "database", "db"];
/// Where in it things lie: what is found in a file is gone on with there, and its text may go anywhere.
const PLACES: [&str; 7] = ["path", "file", "filename", "document", "workbook", "sheet", "branch"];

/// Whether a parameter that two tools of one server both need is one thing for both: where they work, not what they
/// write or how much of it. The second is handed `link`.
fn is_one_thing((first, next): (&Tool, &Tool), link: &str, name: &str) -> bool {
    let both = [first, next].into_iter().all(|tool| required(&tool.schema()).iter().any(|needed| needed == name));
    let words = forms::words(name);
    let has = |of: &[&str]| words.iter().any(|word| of.contains(&word.as_str()));
    first.server_id == next.server_id && both && (has(&SCOPES) || (has(&PLACES) && !chain::is_text(link)))
}

/// Verbs of tools that put a text in the place of what is there.
const REPLACING: [&str; 4] = ["write", "save", "create", "export"];

/// Why a text is not to be written where it was read: it would be put in its own place.
fn written_over(first: &Map<String, Value>, next: &Tool, link: &str, second: &Map<String, Value>) -> Option<String> {
    let replaces = chain::is_text(link) && forms::words(&next.name).iter().any(|word| REPLACING.contains(&word.as_str()));
    let read: Vec<&str> = first.values().filter_map(Value::as_str).collect();
    let over = second.values().filter_map(Value::as_str).find(|text| replaces && read.contains(text));
    over.map(|text| format!("what is read from `{text}` would be written over it"))
}

/// Words that point at something said before.
const POINTERS: [&str; 23] = [
    "it", "its", "that", "this", "them", "their", "those", "these", "they", "first", "second", "last", "top", "ones", "result",
    "results", "found", "each", "every", "all", "both", "most", "best",
];
/// Words in `est` that are no superlatives.
const NO_SUPERLATIVES: [&str; 4] = ["request", "guest", "forest", "interest"];

/// Whether an English sentence points at something said before.
fn points_back(text: &str) -> bool {
    let low = text.to_lowercase().replace("it is ", "").replace("it will ", "").replace("it was ", "");
    let superlative = |word: &str| word.len() > 4 && word.ends_with("est") && !NO_SUPERLATIVES.contains(&word);
    low.split(|c: char| !c.is_alphanumeric()).any(|word| POINTERS.contains(&word) || superlative(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_not_written_where_it_was_read() {
        let tool = |name: &str| mcpmill_testkit::tool("1", name, "d", json!({"type": "object"}));
        let of = |value: &Value| value.as_object().unwrap().clone();
        let over = |name: &str, link: &str, second: &str| {
            written_over(&of(&json!({"path": "a.md"})), &tool(name), link, &of(&json!({"file_path": second})))
        };
        assert!(over("write_file", "content", "a.md").unwrap().contains("`a.md`"));
        for (name, link, second) in
            [("write_file", "content", "b.md"), ("add_paragraph", "text", "a.md"), ("create_label", "note_id", "a.md")]
        {
            assert_eq!(over(name, link, second), None, "{name}");
        }
    }

    #[test]
    fn a_second_half_points_back_by_more_than_one_word() {
        for good in ["Then rate the cheapest song with 4.", "Then open the most recent page.", "Then send that to Ada."] {
            assert!(points_back(good), "{good}");
        }
        for bad in ["Then tell me how it is in Rome tomorrow.", "Then book a table for one.", "Then run the test."] {
            assert!(!points_back(bad), "{bad}");
        }
    }
}
