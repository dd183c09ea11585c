//! From values to arrays, column by column.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, RecordBatch, RecordBatchOptions, StringArray, StructArray,
    UInt32Array, UInt64Array,
    builder::{NullBufferBuilder, OffsetBufferBuilder},
};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, SchemaRef};
use mcpmill_core::text::shown;
use serde_json::Value;

use super::{CodecError, CodecErrorKind, JSON_TEXT, inside};

/// A value that may be missing; JSON's null counts as missing.
type Cell<'a> = Option<&'a Value>;

/// One batch of `rows`, each of them an object.
///
/// # Errors
/// A value of another type than its column, or a field without a column.
pub(crate) fn encode(schema: &SchemaRef, rows: &[Value]) -> Result<RecordBatch, CodecError> {
    let cells: Vec<Cell> = rows.iter().map(Some).collect();
    let arrays = members("", schema.fields(), &cells)?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(schema.clone(), arrays, &options).map_err(|e| arrow("", &e))
}

/// The arrays of the fields of structs.
fn members(path: &str, fields: &Fields, cells: &[Cell]) -> Result<Vec<ArrayRef>, CodecError> {
    let mut objects = Vec::with_capacity(cells.len());
    for cell in cells {
        let object = match cell {
            None => None,
            Some(Value::Object(map)) => Some(map),
            Some(other) => return Err(wrong(path, "an object", other)),
        };
        if let Some(stray) = object.and_then(|map| map.keys().find(|key| fields.find(key).is_none())) {
            return Err(CodecError::new(inside(path, stray), CodecErrorKind::Unknown));
        }
        objects.push(object);
    }
    let mut arrays = Vec::with_capacity(fields.len());
    for field in fields {
        let cells: Vec<Cell> = objects.iter().map(|o| o.and_then(|map| map.get(field.name())).filter(|v| !v.is_null())).collect();
        arrays.push(array(&inside(path, field.name()), field, &cells)?);
    }
    Ok(arrays)
}

fn array(path: &str, field: &Field, cells: &[Cell]) -> Result<ArrayRef, CodecError> {
    Ok(match field.data_type() {
        DataType::Utf8 if field.metadata().contains_key(JSON_TEXT) => {
            let texts: Vec<Option<String>> = cells.iter().map(|cell| cell.map(Value::to_string)).collect();
            texts_array(path, texts.iter().map(Option::as_deref))?
        }
        DataType::Utf8 => {
            let texts = scalars(path, "text", cells, Value::as_str)?;
            texts_array(path, texts.into_iter())?
        }
        DataType::Boolean => Arc::new(BooleanArray::from(scalars(path, "a boolean", cells, Value::as_bool)?)),
        DataType::Int64 => Arc::new(Int64Array::from(scalars(path, "a whole number", cells, Value::as_i64)?)),
        DataType::UInt64 => Arc::new(UInt64Array::from(scalars(path, "a whole number from 0", cells, Value::as_u64)?)),
        DataType::UInt32 => {
            let narrow = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
            Arc::new(UInt32Array::from(scalars(path, "a whole number from 0 of 32 bits", cells, narrow)?))
        }
        DataType::Float64 => Arc::new(Float64Array::from(scalars(path, "a number", cells, Value::as_f64)?)),
        DataType::List(item) => list_array(path, item, cells)?,
        DataType::Struct(fields) => {
            let arrays = members(path, fields, cells)?;
            let mut nulls = NullBufferBuilder::new(cells.len());
            cells.iter().for_each(|cell| nulls.append(cell.is_some()));
            let array = StructArray::try_new_with_length(fields.clone(), arrays, nulls.finish(), cells.len());
            Arc::new(array.map_err(|e| arrow(path, &e))?)
        }
        other => return Err(CodecError::new(path, CodecErrorKind::Arrow(format!("columns of type {other} are not supported")))),
    })
}

/// Every cell through `read`, which gives nothing for a value of another type.
fn scalars<'a, T>(
    path: &str,
    expected: &str,
    cells: &[Cell<'a>],
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Vec<Option<T>>, CodecError> {
    cells.iter().map(|cell| cell.map(|v| read(v).ok_or_else(|| wrong(path, expected, v))).transpose()).collect()
}

fn texts_array<'a>(path: &str, texts: impl Iterator<Item = Option<&'a str>> + Clone) -> Result<ArrayRef, CodecError> {
    // Arrow panics where the sum of the lengths leaves 31 bits.
    let bytes: usize = texts.clone().flatten().map(str::len).sum();
    if i32::try_from(bytes).is_err() {
        return Err(CodecError::new(path, CodecErrorKind::TooLarge));
    }
    Ok(Arc::new(texts.collect::<StringArray>()))
}

fn list_array(path: &str, item: &FieldRef, cells: &[Cell]) -> Result<ArrayRef, CodecError> {
    let mut items: Vec<Cell> = Vec::new();
    let mut offsets = OffsetBufferBuilder::<i32>::new(cells.len());
    let mut nulls = NullBufferBuilder::new(cells.len());
    for cell in cells {
        let list: &[Value] = match cell {
            None => &[],
            Some(Value::Array(list)) => list,
            Some(other) => return Err(wrong(path, "a list", other)),
        };
        items.extend(list.iter().map(|v| Some(v).filter(|v| !v.is_null())));
        offsets.push_length(list.len());
        nulls.append(cell.is_some());
    }
    if i32::try_from(items.len()).is_err() {
        return Err(CodecError::new(path, CodecErrorKind::TooLarge));
    }
    let values = array(&format!("{path}[]"), item, &items)?;
    let array = ListArray::try_new(item.clone(), offsets.finish(), values, nulls.finish());
    Ok(Arc::new(array.map_err(|e| arrow(path, &e))?))
}

fn wrong(path: &str, expected: &str, found: &Value) -> CodecError {
    let kind = match found {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    let found = format!("{kind} `{}`", shown(&found.to_string(), 60));
    CodecError::new(path, CodecErrorKind::WrongType { expected: expected.to_owned(), found })
}

fn arrow(path: &str, error: &ArrowError) -> CodecError {
    CodecError::new(path, CodecErrorKind::Arrow(error.to_string()))
}
