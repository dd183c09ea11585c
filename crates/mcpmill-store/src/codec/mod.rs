//! Between serde's JSON values and Arrow arrays, driven by a schema alone.
//!
//! Text, booleans, numbers, lists and structs, all of them nullable. A null field of a struct is
//! left out of the value, which serde reads as `None` or as the default. What does not fit its
//! column is an error that names the column, and so is a field that no column takes: nothing turns
//! into null, and nothing is lost, in silence.

mod build;
mod decode;
mod encode;
#[cfg(test)]
pub(crate) mod samples;

pub(crate) use decode::{decode, mismatch};
pub(crate) use encode::Batch;
use thiserror::Error;

/// Marks a text column that holds the JSON text of any value.
pub(crate) const JSON_TEXT: &str = "mcpmill:json";

/// A value and its column do not fit.
#[derive(Debug, Error, PartialEq)]
#[error("failed to convert column `{column}`: {kind}")]
pub struct CodecError {
    /// The column; fields of structs after a dot, items of lists as `[]` (`messages[].role`).
    pub column: String,
    /// What is wrong.
    pub kind: CodecErrorKind,
}

impl CodecError {
    fn new(column: impl Into<String>, kind: CodecErrorKind) -> Self {
        Self { column: column.into(), kind }
    }

    /// The same fault, seen from the column (or the list, `[]`) around it.
    fn within(mut self, outer: &str) -> Self {
        self.column = if self.column.starts_with('[') { format!("{outer}{}", self.column) } else { inside(outer, &self.column) };
        self
    }
}

/// Ways in which a value and its column do not fit.
#[derive(Debug, Error, PartialEq)]
pub enum CodecErrorKind {
    /// A value of another type.
    #[error("expected {expected}, found {found}")]
    WrongType {
        /// What the column holds.
        expected: String,
        /// What was there, shortened.
        found: String,
    },
    /// The value has a field that no column takes.
    #[error("no such column")]
    Unknown,
    /// The value has a field twice.
    #[error("comes twice")]
    Twice,
    /// A row before was refused, and half of it is there.
    #[error("a row was refused before")]
    Broken,
    /// The table has no such column.
    #[error("the column is missing")]
    Missing,
    /// Text that should be JSON is not.
    #[error("no JSON: {0}")]
    NotJson(String),
    /// More than two gigabytes in one batch.
    #[error("too large")]
    TooLarge,
    /// Arrow refused.
    #[error("{0}")]
    Arrow(String),
}

/// The path of a field inside the column `outer`.
fn inside(outer: &str, name: &str) -> String {
    match (outer, name) {
        ("", path) | (path, "") => path.to_owned(),
        _ => format!("{outer}.{name}"),
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Debug, sync::Arc};

    use arrow_array::{Array, BooleanArray, Float64Array, RecordBatch};
    use arrow_schema::{DataType, Field, Schema, SchemaRef};
    use mcpmill_core::record::{FunctionCall, Message, Sample, ToolCall};
    use serde::Serialize;
    use serde_json::{Value, json, to_value};

    use super::{samples::Dice, *};
    use crate::artifact::{Column, Columns, Table};

    fn encode<R: Serialize>(schema: &SchemaRef, rows: &[R]) -> Result<RecordBatch, CodecError> {
        let mut batch = Batch::new(schema)?;
        rows.iter().try_for_each(|row| batch.push(row))?;
        batch.finish()
    }

    /// Rows through a batch and back, in batches of every size from none.
    fn round_trip<T: Table + PartialEq + Debug>(make: impl Fn(&mut Dice) -> T) {
        for seed in 0..200 {
            let mut dice = Dice::new(seed);
            let rows: Vec<T> = (0..seed % 7).map(|_| make(&mut dice)).collect();
            let values: Vec<Value> = rows.iter().map(|r| to_value(r).unwrap()).collect();
            let columns = T::columns();
            let batch = encode(columns.schema(), &rows).unwrap();
            assert_eq!(batch, encode(columns.schema(), &values).unwrap(), "by way of a value, seed {seed}");
            let back = decode(columns.schema(), &batch).unwrap();
            let back: Vec<T> = back.into_iter().map(|v| serde_json::from_value(v).unwrap()).collect();
            assert_eq!(back, rows, "seed {seed}");
        }
    }

    #[test]
    fn every_record_comes_back() {
        round_trip(Dice::server);
        round_trip(Dice::tool);
        round_trip(Dice::sample);
        round_trip(Dice::trajectory);
        round_trip(Dice::outcome);
        round_trip(Dice::verdict);
        round_trip(Dice::export_row);
        round_trip(Dice::prediction);
    }

    #[test]
    fn a_call_without_text_has_null_content_and_a_text_turn_has_null_calls() {
        let arguments = json!({"q": "é", "n": [1, null]}).as_object().unwrap().clone();
        let call = ToolCall::new("call_1", FunctionCall { name: "find".into(), arguments });
        let mut sample = Dice::new(3).sample();
        sample.messages = vec![Message::call(call), Message::assistant("done")];
        let columns = Sample::columns();
        let batch = encode(columns.schema(), &[to_value(&sample).unwrap()]).unwrap();
        let messages = decode(columns.schema(), &batch).unwrap().remove(0)["messages"].take();
        let function = json!({"name": "find", "arguments": "{\"q\":\"é\",\"n\":[1,null]}"});
        assert_eq!(
            messages,
            json!([
                {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
                {"role": "assistant", "content": "done"},
            ])
        );
    }

    #[test]
    fn null_empty_and_filled_are_three_things() {
        let columns = Columns::new([Column::texts("t"), Column::group("g", [Column::int("n")]), Column::json("j")]);
        let rows = [
            json!({}),
            json!({"t": [], "g": {}, "j": {"b": 1, "a": [null]}}),
            json!({"t": ["x", null], "g": {"n": -5}, "j": "text"}),
        ];
        let batch = encode(columns.schema(), &rows).unwrap();
        assert_eq!(batch.column(1).null_count(), 1);
        assert_eq!(decode(columns.schema(), &batch).unwrap(), rows);
    }

    fn refused(column: Column, value: &Value) -> String {
        encode(Columns::new([column]).schema(), &[json!({ "c": value })]).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_type_names_its_column() {
        assert_eq!(refused(Column::text("c"), &json!(5)), "failed to convert column `c`: expected text, found number `5`");
        assert_eq!(
            refused(Column::groups("c", [Column::uint32("n")]), &json!([{"n": 1}, {"n": u64::from(u32::MAX) + 1}])),
            "failed to convert column `c[].n`: expected a whole number from 0 of 32 bits, found number `4294967296`"
        );
        for (column, value) in [
            (Column::int("c"), json!(1.5)),
            (Column::int("c"), json!(u64::MAX)),
            (Column::uint("c"), json!(-1)),
            (Column::float("c"), json!("1")),
            (Column::boolean("c"), json!(0)),
            (Column::texts("c"), json!("x")),
            (Column::texts("c"), json!([["x"]])),
            (Column::group("c", [Column::text("n")]), json!([])),
        ] {
            let message = refused(column, &value);
            assert!(message.starts_with("failed to convert column `c"), "{message}");
        }
    }

    #[test]
    fn a_field_without_a_column_is_refused_even_when_null() {
        let kind = |row| encode(Columns::new([Column::group("g", [Column::text("n")])]).schema(), &[row]).unwrap_err();
        assert_eq!(kind(json!({"g": {"n": "", "m": null}})), CodecError::new("g.m", CodecErrorKind::Unknown));
        assert_eq!(kind(json!({"h": 1})), CodecError::new("h", CodecErrorKind::Unknown));
        assert!(matches!(kind(json!(7)).kind, CodecErrorKind::WrongType { .. }));
    }

    #[test]
    fn decoding_names_what_is_missing_wrong_or_unreadable() {
        let found = Schema::new(vec![Field::new("b", DataType::Boolean, true), Field::new("f", DataType::Float64, true)]);
        let arrays: Vec<Arc<dyn Array>> =
            vec![Arc::new(BooleanArray::from(vec![true])), Arc::new(Float64Array::from(vec![f64::NAN]))];
        let batch = RecordBatch::try_new(Arc::new(found), arrays).unwrap();
        let read = |column| decode(Columns::new([column]).schema(), &batch).unwrap_err().to_string();
        assert_eq!(read(Column::text("x")), "failed to convert column `x`: the column is missing");
        assert_eq!(read(Column::text("b")), "failed to convert column `b`: expected Utf8, found Boolean");
        assert_eq!(read(Column::float("f")), "failed to convert column `f`: expected a finite number, found NaN");

        let broken = Columns::new([Column::text("j")]);
        let batch = encode(broken.schema(), &[json!({"j": "{"})]).unwrap();
        let error = decode(Columns::new([Column::json("j")]).schema(), &batch).unwrap_err();
        assert!(matches!(&error, CodecError { column, kind: CodecErrorKind::NotJson(_) } if column == "j"), "{error}");
    }
}
