//! `language`: what the user says is in the language that the sample names. Costs nothing.

use async_trait::async_trait;
use mcpmill_core::record::{Message, Verdict};

use super::{Bench, Case, Filter, Plant};
use crate::{
    ask::Meter,
    generate::{language::fits, values::texts},
};

pub(super) struct Language {
    pub(super) name: String,
}

#[async_trait]
impl Filter for Language {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_free(&self) -> bool {
        true
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::OtherLanguage]
    }

    async fn judge(&self, case: &Case<'_>, _: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let calls = case.messages().iter().flat_map(Message::tool_calls);
        // Values belong to no language: a name, a path, a text that is to be written.
        let values: Vec<String> = calls.flat_map(|call| texts(&call.function.arguments)).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let code = &case.sample.language;
        match case.requests().into_iter().find_map(|text| fits(text, code, &values).err()) {
            Some(why) => bench.drop(format!("language: {why}")),
            None => bench.keep(format!("ok: nothing speaks against `{code}`")),
        }
    }
}
