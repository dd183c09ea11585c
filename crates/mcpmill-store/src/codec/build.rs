//! The arrays of a schema while they grow, one value after the other.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, ListArray, StructArray,
    builder::{
        ArrayBuilder, BooleanBuilder, Float64Builder, Int64Builder, NullBufferBuilder, OffsetBufferBuilder, StringBuilder,
        UInt32Builder, UInt64Builder,
    },
};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};
use mcpmill_core::text::shown;
use serde_json::Value;

use super::{CodecError, CodecErrorKind, JSON_TEXT};

/// One growing array.
pub(super) enum Node {
    /// Text.
    Text(StringBuilder),
    /// The JSON text of any value.
    Json(StringBuilder),
    /// Truth values.
    Boolean(BooleanBuilder),
    /// Whole numbers.
    Int(Int64Builder),
    /// Whole numbers from 0.
    Uint(UInt64Builder),
    /// Whole numbers from 0 of 32 bits.
    Uint32(UInt32Builder),
    /// Numbers.
    Float(Float64Builder),
    /// Lists.
    List(Box<List>),
    /// Structs.
    Group(Box<Group>),
}

/// A growing array of lists.
pub(super) struct List {
    field: FieldRef,
    items: Node,
    offsets: OffsetBufferBuilder<i32>,
    nulls: NullBufferBuilder,
    lists: usize,
}

/// A growing array of structs.
pub(super) struct Group {
    fields: Fields,
    nodes: Vec<Node>,
    nulls: NullBufferBuilder,
    structs: usize,
    /// Where the next field is looked for first: records write theirs in one order.
    next: usize,
}

impl Node {
    /// An empty array for `field`.
    ///
    /// # Errors
    /// Its type has no builder.
    pub(super) fn new(field: &Field) -> Result<Self, CodecError> {
        Ok(match field.data_type() {
            DataType::Utf8 if field.metadata().contains_key(JSON_TEXT) => Self::Json(StringBuilder::new()),
            DataType::Utf8 => Self::Text(StringBuilder::new()),
            DataType::Boolean => Self::Boolean(BooleanBuilder::new()),
            DataType::Int64 => Self::Int(Int64Builder::new()),
            DataType::UInt64 => Self::Uint(UInt64Builder::new()),
            DataType::UInt32 => Self::Uint32(UInt32Builder::new()),
            DataType::Float64 => Self::Float(Float64Builder::new()),
            DataType::List(item) => Self::List(Box::new(List {
                field: item.clone(),
                items: Self::new(item)?,
                offsets: OffsetBufferBuilder::new(0),
                nulls: NullBufferBuilder::new(0),
                lists: 0,
            })),
            DataType::Struct(fields) => Self::Group(Box::new(Group::new(fields)?)),
            other => {
                let kind = CodecErrorKind::Arrow(format!("columns of type {other} are not supported"));
                return Err(CodecError::new(field.name(), kind));
            }
        })
    }

    /// Values so far.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Text(b) | Self::Json(b) => b.len(),
            Self::Boolean(b) => b.len(),
            Self::Int(b) => b.len(),
            Self::Uint(b) => b.len(),
            Self::Uint32(b) => b.len(),
            Self::Float(b) => b.len(),
            Self::List(list) => list.lists,
            Self::Group(group) => group.structs,
        }
    }

    /// Roughly the bytes of the values so far.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(b) | Self::Json(b) => b.values_slice().len(),
            Self::List(list) => list.items.bytes(),
            Self::Group(group) => group.nodes.iter().map(Self::bytes).sum(),
            other => 8 * other.len(),
        }
    }

    /// Adds a missing value.
    pub(super) fn push_null(&mut self) {
        match self {
            Self::Text(b) | Self::Json(b) => b.append_null(),
            Self::Boolean(b) => b.append_null(),
            Self::Int(b) => b.append_null(),
            Self::Uint(b) => b.append_null(),
            Self::Uint32(b) => b.append_null(),
            Self::Float(b) => b.append_null(),
            Self::List(list) => {
                list.offsets.push_length(0);
                list.nulls.append_null();
                list.lists += 1;
            }
            Self::Group(group) => group.end(false),
        }
    }

    /// Adds a value; JSON's null counts as missing.
    pub(super) fn push_value(&mut self, value: &Value) -> Result<(), CodecError> {
        match (&mut *self, value) {
            (_, Value::Null) => self.push_null(),
            (Self::Json(texts), value) => push_text(texts, &value.to_string())?,
            (Self::Text(texts), Value::String(text)) => push_text(texts, text)?,
            (Self::Boolean(b), Value::Bool(truth)) => b.append_value(*truth),
            (Self::List(list), Value::Array(items)) => {
                items.iter().try_for_each(|item| list.push(|node| node.push_value(item)))?;
                list.end(items.len())?;
            }
            (Self::Group(group), Value::Object(map)) => {
                map.iter().try_for_each(|(name, value)| group.push(name, |node| node.push_value(value)))?;
                group.end(true);
            }
            (_, Value::Number(number)) => {
                let fits = match (number.as_u64(), number.as_i64()) {
                    (Some(whole), _) => self.push_whole(whole.into()),
                    (_, Some(whole)) => self.push_whole(whole.into()),
                    _ => number.as_f64().is_some_and(|float| self.push_float(float)),
                };
                return if fits { Ok(()) } else { Err(self.wrong(value)) };
            }
            _ => return Err(self.wrong(value)),
        }
        Ok(())
    }

    /// Adds a whole number where the column takes it.
    pub(super) fn push_whole(&mut self, whole: i128) -> bool {
        match self {
            Self::Int(b) => i64::try_from(whole).map(|n| b.append_value(n)).is_ok(),
            Self::Uint(b) => u64::try_from(whole).map(|n| b.append_value(n)).is_ok(),
            Self::Uint32(b) => u32::try_from(whole).map(|n| b.append_value(n)).is_ok(),
            Self::Float(b) => {
                b.append_value(whole as f64);
                true
            }
            _ => false,
        }
    }

    /// Adds a number where the column takes it; what JSON cannot write is missing.
    pub(super) fn push_float(&mut self, float: f64) -> bool {
        match self {
            Self::Float(b) => b.append_option(float.is_finite().then_some(float)),
            _ => return false,
        }
        true
    }

    fn wrong(&self, found: &Value) -> CodecError {
        let expected = match self {
            Self::Text(_) | Self::Json(_) => "text",
            Self::Boolean(_) => "a boolean",
            Self::Int(_) => "a whole number",
            Self::Uint(_) => "a whole number from 0",
            Self::Uint32(_) => "a whole number from 0 of 32 bits",
            Self::Float(_) => "a number",
            Self::List(_) => "a list",
            Self::Group(_) => "an object",
        };
        let kind = match found {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "text",
            Value::Array(_) => "list",
            Value::Object(_) => "object",
        };
        let found = format!("{kind} `{}`", shown(&found.to_string(), 60));
        CodecError::new("", CodecErrorKind::WrongType { expected: expected.to_owned(), found })
    }

    /// The array, which leaves an empty one behind.
    pub(super) fn finish(&mut self) -> Result<ArrayRef, CodecError> {
        Ok(match self {
            Self::Text(b) | Self::Json(b) => Arc::new(b.finish()),
            Self::Boolean(b) => Arc::new(b.finish()),
            Self::Int(b) => Arc::new(b.finish()),
            Self::Uint(b) => Arc::new(b.finish()),
            Self::Uint32(b) => Arc::new(b.finish()),
            Self::Float(b) => Arc::new(b.finish()),
            Self::List(list) => list.finish()?,
            Self::Group(group) => Arc::new(group.finish()?),
        })
    }
}

impl List {
    /// Adds an item to the list that is open.
    pub(super) fn push(&mut self, put: impl FnOnce(&mut Node) -> Result<(), CodecError>) -> Result<(), CodecError> {
        if i32::try_from(self.items.len()).is_err() {
            return Err(CodecError::new("[]", CodecErrorKind::TooLarge));
        }
        put(&mut self.items).map_err(|e| e.within("[]"))
    }

    /// Closes the list, which has `length` items.
    pub(super) fn end(&mut self, length: usize) -> Result<(), CodecError> {
        if i32::try_from(self.items.len()).is_err() {
            return Err(CodecError::new("[]", CodecErrorKind::TooLarge));
        }
        self.offsets.push_length(length);
        self.nulls.append_non_null();
        self.lists += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<ArrayRef, CodecError> {
        let items = self.items.finish().map_err(|e| e.within("[]"))?;
        let offsets = std::mem::replace(&mut self.offsets, OffsetBufferBuilder::new(0)).finish();
        self.lists = 0;
        let array = ListArray::try_new(self.field.clone(), offsets, items, self.nulls.finish());
        Ok(Arc::new(array.map_err(|e| arrow(&e))?))
    }
}

impl Group {
    pub(super) fn new(fields: &Fields) -> Result<Self, CodecError> {
        let nodes = fields.iter().map(|field| Node::new(field)).collect::<Result<_, _>>()?;
        Ok(Self { fields: fields.clone(), nodes, nulls: NullBufferBuilder::new(0), structs: 0, next: 0 })
    }

    /// Adds a field to the struct that is open.
    pub(super) fn push(&mut self, name: &str, put: impl FnOnce(&mut Node) -> Result<(), CodecError>) -> Result<(), CodecError> {
        let expected = self.fields.get(self.next).is_some_and(|field| field.name() == name);
        let found = if expected { Some(self.next) } else { self.fields.iter().position(|field| field.name() == name) };
        let Some(at) = found else {
            return Err(CodecError::new(name, CodecErrorKind::Unknown));
        };
        let node = &mut self.nodes[at];
        if node.len() > self.structs {
            return Err(CodecError::new(name, CodecErrorKind::Twice));
        }
        self.next = at + 1;
        put(node).map_err(|e| e.within(name))
    }

    /// Closes the struct, or adds a missing one; fields that were not given are missing.
    pub(super) fn end(&mut self, there: bool) {
        let structs = self.structs;
        self.nodes.iter_mut().filter(|node| node.len() == structs).for_each(Node::push_null);
        self.nulls.append(there);
        self.structs += 1;
        self.next = 0;
    }

    fn finish(&mut self) -> Result<StructArray, CodecError> {
        let named = self.fields.iter().zip(&mut self.nodes);
        let arrays = named.map(|(field, node)| node.finish().map_err(|e| e.within(field.name()))).collect::<Result<_, _>>()?;
        let length = std::mem::take(&mut self.structs);
        let array = StructArray::try_new_with_length(self.fields.clone(), arrays, self.nulls.finish(), length);
        array.map_err(|e| arrow(&e))
    }
}

/// Adds a text, unless the sum of the lengths would leave 31 bits, where Arrow panics.
pub(super) fn push_text(texts: &mut StringBuilder, text: &str) -> Result<(), CodecError> {
    if i32::try_from(texts.values_slice().len() + text.len()).is_err() {
        return Err(CodecError::new("", CodecErrorKind::TooLarge));
    }
    texts.append_value(text);
    Ok(())
}

pub(super) fn arrow(error: &ArrowError) -> CodecError {
    CodecError::new("", CodecErrorKind::Arrow(error.to_string()))
}
