//! `schema-valid`: the call names the labelled tool and its arguments validate against the schema
//! that the server declared. Costs nothing.

use async_trait::async_trait;
use mcpmill_core::{
    naming::alias,
    record::{Message, Verdict},
    schema::Schema,
};
use serde_json::{Value, json};

use super::{Bench, Case, Filter};
use crate::ask::Meter;

pub(super) struct SchemaValid {
    pub(super) name: String,
}

#[async_trait]
impl Filter for SchemaValid {
    fn name(&self) -> &str {
        &self.name
    }

    async fn judge(&self, case: &Case<'_>, _: &mut Meter) -> Verdict {
        let bench = Bench { subject: case.subject, filter: &self.name };
        let Some(call) = case.sample.messages.iter().flat_map(Message::tool_calls).next() else {
            return bench.drop("the sample makes no call");
        };
        if call.function.name != alias(&case.tool.name) {
            return bench.drop(format!("the call names `{}`, the labelled tool is `{}`", call.function.name, case.tool.name));
        }
        let schema = match Schema::compile(&case.tool.schema()) {
            Ok(schema) => schema,
            Err(error) => return bench.unjudged(error.to_string()),
        };
        let faults = schema.faults(&Value::Object(call.function.arguments.clone()), 5);
        match faults.first() {
            None => bench.keep("arguments validate"),
            Some(first) => Verdict { evidence: Some(json!({ "faults": faults }).to_string()), ..bench.drop(first.clone()) },
        }
    }
}
