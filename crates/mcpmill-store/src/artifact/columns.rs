//! How an artifact's columns are declared, in words of our own: Arrow stays inside this crate.

use std::{collections::HashMap, sync::Arc};

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

use crate::codec::JSON_TEXT;

/// The columns of a table, in order. Every column may be null.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns(SchemaRef);

impl Columns {
    /// A table of these columns.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self(Arc::new(Schema::new(fields(columns))))
    }

    /// These columns and more after them.
    pub fn and(&self, more: impl IntoIterator<Item = Column>) -> Self {
        let all = self.0.fields().iter().cloned().chain(more.into_iter().map(|c| Arc::new(c.0)));
        Self(Arc::new(Schema::new(all.collect::<Fields>())))
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.fields().iter().map(|f| f.name().as_str())
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.0
    }
}

/// One column, or one field inside a struct.
#[derive(Clone, Debug, PartialEq)]
pub struct Column(Field);

impl Column {
    /// Text.
    pub fn text(name: &str) -> Self {
        Self(Field::new(name, DataType::Utf8, true))
    }

    /// Any JSON value, kept as its text: a struct would union the keys of all rows and invent nulls.
    pub fn json(name: &str) -> Self {
        let mark = HashMap::from([(JSON_TEXT.to_owned(), String::new())]);
        Self(Field::new(name, DataType::Utf8, true).with_metadata(mark))
    }

    /// True or false.
    pub fn boolean(name: &str) -> Self {
        Self(Field::new(name, DataType::Boolean, true))
    }

    /// A signed whole number of 64 bits.
    pub fn int(name: &str) -> Self {
        Self(Field::new(name, DataType::Int64, true))
    }

    /// A whole number from 0 of 64 bits.
    pub fn uint(name: &str) -> Self {
        Self(Field::new(name, DataType::UInt64, true))
    }

    /// A whole number from 0 of 32 bits.
    pub fn uint32(name: &str) -> Self {
        Self(Field::new(name, DataType::UInt32, true))
    }

    /// A floating point number of 64 bits.
    pub fn float(name: &str) -> Self {
        Self(Field::new(name, DataType::Float64, true))
    }

    /// A struct of these fields.
    pub fn group(name: &str, columns: impl IntoIterator<Item = Column>) -> Self {
        Self(Field::new(name, DataType::Struct(fields(columns)), true))
    }

    /// A list of structs of these fields.
    pub fn groups(name: &str, columns: impl IntoIterator<Item = Column>) -> Self {
        Self::list(name, DataType::Struct(fields(columns)))
    }

    /// A list of texts.
    pub fn texts(name: &str) -> Self {
        Self::list(name, DataType::Utf8)
    }

    /// A list of truth values.
    pub fn booleans(name: &str) -> Self {
        Self::list(name, DataType::Boolean)
    }

    /// A list of whole numbers from 0 of 32 bits.
    pub fn uint32s(name: &str) -> Self {
        Self::list(name, DataType::UInt32)
    }

    fn list(name: &str, items: DataType) -> Self {
        // `element` is the name Parquet's specification gives to the items of a list.
        Self(Field::new(name, DataType::List(Arc::new(Field::new("element", items, true))), true))
    }
}

fn fields(columns: impl IntoIterator<Item = Column>) -> Fields {
    columns.into_iter().map(|c| c.0).collect()
}
