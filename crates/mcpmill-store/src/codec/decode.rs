//! From arrays to values, row by row.

use arrow_array::{
    Array, ArrayRef, RecordBatch, StructArray,
    cast::AsArray,
    types::{Float64Type, Int64Type, UInt32Type, UInt64Type},
};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use serde_json::{Map, Number, Value};

use super::{CodecError, CodecErrorKind, JSON_TEXT, inside};

/// The rows of a batch as objects, with the columns `schema` names; others are left out.
///
/// # Errors
/// A column is missing or of another type.
pub(crate) fn decode(schema: &Schema, batch: &RecordBatch) -> Result<Vec<Value>, CodecError> {
    let columns = columns(schema.fields(), |name| batch.column_by_name(name))?;
    (0..batch.num_rows()).map(|at| object(&columns, at)).collect()
}

/// Where a file's columns differ from the expected ones; extra ones in the file do not matter.
pub(crate) fn mismatch(expected: &Fields, found: &Fields) -> Result<(), CodecError> {
    expected.iter().try_for_each(|field| {
        let (_, other) = found.find(field.name()).ok_or_else(|| CodecError::new(field.name(), CodecErrorKind::Missing))?;
        mismatched(field.name(), field.data_type(), other.data_type())
    })
}

fn mismatched(path: &str, expected: &DataType, found: &DataType) -> Result<(), CodecError> {
    match (expected, found) {
        (DataType::List(a), DataType::List(b)) => mismatched(&format!("{path}[]"), a.data_type(), b.data_type()),
        (DataType::Struct(a), DataType::Struct(b)) => a.iter().try_for_each(|field| {
            let path = inside(path, field.name());
            let (_, other) = b.find(field.name()).ok_or_else(|| CodecError::new(path.as_str(), CodecErrorKind::Missing))?;
            mismatched(&path, field.data_type(), other.data_type())
        }),
        _ if expected == found => Ok(()),
        _ => Err(wrong(path, expected, found)),
    }
}

fn wrong(path: &str, expected: &DataType, found: &DataType) -> CodecError {
    CodecError::new(path, CodecErrorKind::WrongType { expected: expected.to_string(), found: found.to_string() })
}

/// A field and the array that holds it.
type Found<'a> = (&'a Field, &'a dyn Array);

fn columns<'a>(fields: &'a Fields, find: impl Fn(&str) -> Option<&'a ArrayRef>) -> Result<Vec<Found<'a>>, CodecError> {
    let found = |field: &'a FieldRef| match find(field.name()) {
        Some(array) => Ok((field.as_ref(), array.as_ref())),
        None => Err(CodecError::new(field.name(), CodecErrorKind::Missing)),
    };
    fields.iter().map(found).collect()
}

fn object(columns: &[Found], at: usize) -> Result<Value, CodecError> {
    let mut map = Map::new();
    for (field, array) in columns {
        if let Some(value) = cell(field, *array, at).map_err(|e| e.within(field.name()))? {
            map.insert(field.name().clone(), value);
        }
    }
    Ok(Value::Object(map))
}

/// One value, `None` for a null.
fn cell(field: &Field, array: &dyn Array, at: usize) -> Result<Option<Value>, CodecError> {
    if array.is_null(at) {
        return Ok(None);
    }
    let value = match field.data_type() {
        DataType::Utf8 => match array.as_string_opt::<i32>().map(|texts| texts.value(at)) {
            Some(text) if field.metadata().contains_key(JSON_TEXT) => Some(json(text)?),
            text => text.map(Value::from),
        },
        DataType::Boolean => array.as_boolean_opt().map(|a| Value::from(a.value(at))),
        DataType::Int64 => array.as_primitive_opt::<Int64Type>().map(|a| Value::from(a.value(at))),
        DataType::UInt64 => array.as_primitive_opt::<UInt64Type>().map(|a| Value::from(a.value(at))),
        DataType::UInt32 => array.as_primitive_opt::<UInt32Type>().map(|a| Value::from(a.value(at))),
        DataType::Float64 => array.as_primitive_opt::<Float64Type>().map(|a| finite(a.value(at))).transpose()?,
        DataType::List(item) => array.as_list_opt::<i32>().map(|a| list(item, a.value(at).as_ref())).transpose()?,
        DataType::Struct(fields) => array.as_struct_opt().map(|a| group(fields, a, at)).transpose()?,
        _ => None,
    };
    value.map(Some).ok_or_else(|| wrong("", field.data_type(), array.data_type()))
}

fn list(item: &Field, items: &dyn Array) -> Result<Value, CodecError> {
    let values = (0..items.len()).map(|at| Ok(cell(item, items, at)?.unwrap_or(Value::Null)));
    values.collect::<Result<_, CodecError>>().map(Value::Array).map_err(|e| e.within("[]"))
}

fn group(fields: &Fields, group: &StructArray, at: usize) -> Result<Value, CodecError> {
    object(&columns(fields, |name| group.column_by_name(name))?, at)
}

fn json(text: &str) -> Result<Value, CodecError> {
    serde_json::from_str(text).map_err(|e| CodecError::new("", CodecErrorKind::NotJson(e.to_string())))
}

fn finite(number: f64) -> Result<Value, CodecError> {
    let wrong = || CodecErrorKind::WrongType { expected: "a finite number".to_owned(), found: number.to_string() };
    Number::from_f64(number).map(Value::Number).ok_or_else(|| CodecError::new("", wrong()))
}
