//! `schema-valid`: every call names a labelled tool and its arguments validate against the schema that the
//! server declared. A call that is wrong on purpose is not looked at. Costs nothing.

use async_trait::async_trait;
use mcpmill_core::{
    record::{Message, SampleKind, Verdict},
    schema::Schema,
};
use serde_json::{Value, json};

use super::{Bench, Case, Filter, Plant};
use crate::ask::Meter;

pub(super) struct SchemaValid {
    pub(super) name: String,
}

#[async_trait]
impl Filter for SchemaValid {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_free(&self) -> bool {
        true
    }

    fn plants(&self) -> Vec<Plant> {
        vec![Plant::Missing, Plant::Mistyped]
    }

    async fn judge(&self, case: &Case<'_>, _: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let calls = case.calls();
        if case.sample.kind == SampleKind::NoTool {
            let says = matches!(case.sample.messages.last(), Some(Message::Assistant { content: Some(text), .. }) if !text.trim().is_empty());
            return match (calls.is_empty(), says) {
                (true, true) => bench.keep("not applicable: the sample calls no tool, and says so"),
                (true, false) => bench.drop("the sample neither calls a tool nor says anything"),
                (false, _) => bench.drop("the sample calls a tool where none fits"),
            };
        }
        if calls.is_empty() {
            return bench.drop("the sample makes no call");
        }
        for (i, (call, tool)) in calls.iter().enumerate() {
            let Some(tool) = tool else {
                return bench.drop(format!("the call names `{}`, the labelled tool is `{}`", call.name, case.tool.name));
            };
            let schema = match Schema::strict(&tool.schema()) {
                Ok(schema) => schema,
                Err(error) => return bench.unjudged(error.to_string()),
            };
            let faults = schema.faults(&Value::Object(call.arguments.clone()), 5);
            if let Some(first) = faults.first() {
                return Verdict {
                    evidence: Some(json!({ "faults": faults }).to_string()),
                    ..bench.drop(format!("{}{first}", which(i, calls.len(), &call.name)))
                };
            }
        }
        bench.keep("arguments validate")
    }
}

/// Which of several calls is meant; nothing where there is one.
fn which(at: usize, of: usize, name: &str) -> String {
    if of > 1 { format!("call {} (`{name}`): ", at + 1) } else { String::new() }
}
