//! The tables of a run: which columns each kind of row has. Column names are the serde field
//! names of the records; a test holds the two together.
//!
//! A new artifact is one `impl Table` here, for a record of `mcpmill-core`, and one line in the test.

mod columns;

use mcpmill_core::record::{ExportRow, Outcome, Prediction, Row, Sample, ServerRecord, Tool, Trajectory, Twin, Verdict};
use serde::{Serialize, de::DeserializeOwned};

pub use columns::{Column, Columns};

/// A kind of row that has a file of its own.
pub trait Table: Serialize + DeserializeOwned + Send + 'static {
    /// The file is `<NAME>.parquet`.
    const NAME: &'static str;

    /// The text column its rows are sorted by; in the output of a stage it names the row.
    const KEY: &'static str;

    /// The columns: exactly the fields serde writes.
    fn columns() -> Columns;
}

/// A table that a stage reads or writes.
pub trait Artifact: Table + Row {}

impl<T: Table + Row> Artifact for T {}

impl Table for ServerRecord {
    const NAME: &'static str = "servers";
    const KEY: &'static str = "id";

    fn columns() -> Columns {
        Columns::new([
            Column::text("id"),
            Column::text("name"),
            Column::text("title"),
            Column::text("description"),
            Column::text("version"),
            Column::json("launch"),
            Column::groups(
                "env",
                [Column::text("name"), Column::text("value"), Column::boolean("secret"), Column::boolean("required")],
            ),
            Column::text("licence"),
            Column::texts("categories"),
            Column::groups("sources", [Column::text("marketplace"), Column::text("url")]),
            Column::texts("world"),
            Column::texts("flags"),
            Column::text("listed_tools"),
        ])
    }
}

impl Table for Tool {
    const NAME: &'static str = "tools";
    const KEY: &'static str = "id";

    fn columns() -> Columns {
        Columns::new(
            [
                "id",
                "server_id",
                "name",
                "title",
                "description",
                "input_schema",
                "output_schema",
                "annotations",
                "schema_hash",
                "cluster_id",
            ]
            .map(Column::text),
        )
    }
}

impl Table for Twin {
    const NAME: &'static str = "twins";
    const KEY: &'static str = "tool_id";

    fn columns() -> Columns {
        Columns::new([
            Column::text("tool_id"),
            Column::text("server_id"),
            Column::text("exact_id"),
            Column::text("near_id"),
            Column::text("server_cluster"),
            Column::boolean("keeper"),
        ])
    }
}

impl Table for Sample {
    const NAME: &'static str = "samples";
    const KEY: &'static str = "id";

    fn columns() -> Columns {
        Columns::new([
            Column::text("id"),
            Column::text("kind"),
            Column::texts("tool_ids"),
            Column::texts("withheld"),
            Column::texts("server_ids"),
            Column::text("language"),
            Column::text("instruction"),
            messages("messages"),
            lineage("lineage"),
        ])
    }
}

impl Table for Trajectory {
    const NAME: &'static str = "trajectories";
    const KEY: &'static str = "id";

    fn columns() -> Columns {
        Columns::new([
            Column::text("id"),
            Column::text("sample_id"),
            messages("messages"),
            Column::text("ended"),
            Column::text("cause"),
            policy(),
            Column::text("result"),
            Column::text("response_verdict"),
            Column::uint32s("masked"),
            lineage("lineage"),
        ])
    }
}

impl Table for Outcome {
    const NAME: &'static str = "outcomes";
    const KEY: &'static str = "input_id";

    fn columns() -> Columns {
        Columns::new([
            Column::text("input_id"),
            Column::text("outcome"),
            Column::text("reason"),
            Column::text("cause"),
            Column::text("raw"),
            Column::uint32("attempts"),
            Column::float("seconds"),
            Column::uint("input_tokens"),
            Column::uint("output_tokens"),
            Column::float("cost_usd"),
            Column::json("repairs"),
            Column::json("evolve_failed"),
        ])
    }
}

impl Table for Verdict {
    const NAME: &'static str = "verdicts";
    const KEY: &'static str = "subject_id";

    fn columns() -> Columns {
        Columns::new(verdict())
    }
}

impl Table for ExportRow {
    const NAME: &'static str = "rows";
    const KEY: &'static str = "id";

    fn columns() -> Columns {
        Columns::new([
            Column::text("id"),
            messages("messages"),
            Column::booleans("loss"),
            Column::text("tools"),
            Column::text("kind"),
            Column::text("language"),
            Column::text("server"),
            Column::text("server_version"),
            Column::texts("tool_ids"),
            Column::texts("withheld"),
            Column::text("licence"),
            Column::text("live"),
            policy(),
            lineage("lineage"),
            Column::groups("verdicts", verdict()),
            Column::text("split"),
        ])
    }
}

impl Table for Prediction {
    const NAME: &'static str = "predictions";
    const KEY: &'static str = "sample_id";

    fn columns() -> Columns {
        Columns::new([
            Column::text("sample_id"),
            Column::text("split"),
            Column::uint("candidates"),
            Column::texts("answers"),
            Column::text("chosen"),
            Column::boolean("correct"),
            Column::text("parse_failure"),
        ])
    }
}

fn verdict() -> [Column; 7] {
    [
        Column::text("subject_id"),
        Column::text("filter"),
        Column::text("judgement"),
        Column::text("reason"),
        Column::float("score"),
        Column::float("threshold"),
        Column::text("evidence"),
    ]
}

/// A column of conversations: a list of messages in the shape of OpenAI tool calling, arguments as JSON text.
pub fn messages(name: &str) -> Column {
    let function = Column::group("function", [Column::text("name"), Column::text("arguments")]);
    Column::groups(
        name,
        [
            Column::text("role"),
            Column::text("content"),
            Column::groups("tool_calls", [Column::text("id"), Column::text("type"), function]),
            Column::text("tool_call_id"),
            Column::text("name"),
        ],
    )
}

/// What the policy decided, as `policy`.
fn policy() -> Column {
    Column::group("policy", [Column::boolean("allowed"), Column::text("rule"), Column::text("why")])
}

/// A column of revisions: how an instruction came to be, oldest first.
pub fn lineage(name: &str) -> Column {
    Column::groups(name, ["step", "prompt", "model", "parent", "text"].map(Column::text))
}

#[cfg(test)]
mod tests {
    use serde_json::to_value;

    use super::*;
    use crate::codec::samples;

    fn check<T: Table>(record: &T) {
        let value = to_value(record).unwrap();
        let fields: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let columns = T::columns();
        assert_eq!(fields, columns.names().collect::<Vec<_>>(), "{}", T::NAME);
        assert!(fields.contains(&T::KEY), "{}", T::NAME);
    }

    #[test]
    fn columns_are_the_fields_of_the_records() {
        let mut dice = samples::Dice::new(1);
        check(&dice.server());
        check(&dice.tool());
        check(&dice.sample());
        check(&dice.trajectory());
        check(&dice.outcome());
        check(&dice.verdict());
        check(&dice.export_row());
        check(&dice.prediction());
    }
}
