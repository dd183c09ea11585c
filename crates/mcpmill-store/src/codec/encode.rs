//! From rows to arrays: serde writes every field straight into the builder of its column.
//!
//! What serde writes as something else than structs, lists and scalars (maps, variants with content), and what does not
//! fit its column, goes by way of a JSON value, which an error can show.

use std::fmt::Display;

use arrow_array::{RecordBatch, RecordBatchOptions, cast::AsArray};
use arrow_schema::{DataType, Field, SchemaRef};
use serde::{
    Serialize, Serializer,
    ser::{Impossible, SerializeSeq, SerializeStruct, SerializeTuple, SerializeTupleStruct},
};

use super::{
    CodecError, CodecErrorKind,
    build::{Group, List, Node, arrow, push_text},
};

/// Rows on their way to a batch.
pub(crate) struct Batch {
    schema: SchemaRef,
    root: Node,
    broken: bool,
}

impl Batch {
    /// No rows yet.
    ///
    /// # Errors
    /// A column of a type that is not supported.
    pub(crate) fn new(schema: &SchemaRef) -> Result<Self, CodecError> {
        let root = Node::new(&Field::new("", DataType::Struct(schema.fields().clone()), false))?;
        Ok(Self { schema: schema.clone(), root, broken: false })
    }

    /// Adds a row: anything that serde writes as an object.
    ///
    /// # Errors
    /// A value of another type than its column, or a field without a column. Half a row is there then, and the
    /// batch cannot be had any more.
    pub(crate) fn push<R: Serialize + ?Sized>(&mut self, row: &R) -> Result<(), CodecError> {
        self.check()?;
        self.broken = true;
        put(&mut self.root, row)?;
        self.broken = false;
        Ok(())
    }

    /// Rows so far.
    pub(crate) fn len(&self) -> usize {
        self.root.len()
    }

    /// Roughly the bytes they take.
    pub(crate) fn bytes(&self) -> usize {
        self.root.bytes()
    }

    /// The rows since the last batch.
    ///
    /// # Errors
    /// A row was refused before.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch, CodecError> {
        self.check()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.len()));
        let rows = self.root.finish()?;
        let columns = rows.as_struct_opt().map(|rows| rows.columns().to_vec()).unwrap_or_default();
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(|e| arrow(&e))
    }

    fn check(&self) -> Result<(), CodecError> {
        if self.broken { Err(CodecError::new("", CodecErrorKind::Broken)) } else { Ok(()) }
    }
}

/// Adds any value to a column.
fn put<T: Serialize + ?Sized>(node: &mut Node, value: &T) -> Result<(), CodecError> {
    if let Node::Json(texts) = node {
        return match serde_json::to_string(value).map_err(|e| no_json(&e))?.as_str() {
            "null" => {
                texts.append_null();
                Ok(())
            }
            text => push_text(texts, text),
        };
    }
    match value.serialize(Cell(node)) {
        Ok(()) => Ok(()),
        Err(Fault::Codec(error)) => Err(error),
        Err(Fault::Odd) => node.push_value(&serde_json::to_value(value).map_err(|e| no_json(&e))?),
    }
}

fn no_json(error: &impl Display) -> CodecError {
    CodecError::new("", CodecErrorKind::NotJson(error.to_string()))
}

/// Why a value was not taken.
#[derive(Debug)]
enum Fault {
    /// It cannot be.
    Codec(CodecError),
    /// It is to go by way of a JSON value; nothing of it has been added.
    Odd,
}

impl Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Codec(error) => error.fmt(f),
            Self::Odd => f.write_str("a value of an unusual shape"),
        }
    }
}

impl std::error::Error for Fault {}

impl serde::ser::Error for Fault {
    fn custom<T: Display>(message: T) -> Self {
        Self::Codec(no_json(&message))
    }
}

impl From<CodecError> for Fault {
    fn from(error: CodecError) -> Self {
        Self::Codec(error)
    }
}

type Added = Result<(), Fault>;

/// Takes one value for a column.
struct Cell<'a>(&'a mut Node);

impl Cell<'_> {
    fn whole(self, whole: impl Into<i128>) -> Added {
        if self.0.push_whole(whole.into()) { Ok(()) } else { Err(Fault::Odd) }
    }

    fn float(self, float: f64) -> Added {
        if self.0.push_float(float) { Ok(()) } else { Err(Fault::Odd) }
    }

    fn missing(self) -> Added {
        self.0.push_null();
        Ok(())
    }
}

/// Whole and broken numbers of all widths, each by the method that takes the widest.
macro_rules! numbers {
    ($($name:ident: $of:ty => $by:ident),*) => {
        $(fn $name(self, number: $of) -> Added {
            self.$by(number)
        })*
    };
}

impl<'a> Serializer for Cell<'a> {
    type Ok = ();
    type Error = Fault;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Items<'a>;
    type SerializeTupleStruct = Items<'a>;
    type SerializeTupleVariant = Impossible<(), Fault>;
    type SerializeMap = Impossible<(), Fault>;
    type SerializeStruct = Members<'a>;
    type SerializeStructVariant = Impossible<(), Fault>;

    numbers!(
        serialize_i8: i8 => whole, serialize_i16: i16 => whole, serialize_i32: i32 => whole, serialize_i64: i64 => whole,
        serialize_u8: u8 => whole, serialize_u16: u16 => whole, serialize_u32: u32 => whole, serialize_u64: u64 => whole,
        serialize_f64: f64 => float
    );

    fn serialize_f32(self, number: f32) -> Added {
        self.float(number.into())
    }

    fn serialize_bool(self, truth: bool) -> Added {
        match self.0 {
            Node::Boolean(b) => b.append_value(truth),
            _ => return Err(Fault::Odd),
        }
        Ok(())
    }

    fn serialize_char(self, letter: char) -> Added {
        self.serialize_str(letter.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, text: &str) -> Added {
        match self.0 {
            Node::Text(texts) => Ok(push_text(texts, text)?),
            _ => Err(Fault::Odd),
        }
    }

    fn serialize_bytes(self, _: &[u8]) -> Added {
        Err(Fault::Odd)
    }

    fn serialize_none(self) -> Added {
        self.missing()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Added {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Added {
        self.missing()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Added {
        self.missing()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Added {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Added {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(self, _: &'static str, _: u32, _: &'static str, _: &T) -> Added {
        Err(Fault::Odd)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a>, Fault> {
        match self.0 {
            Node::List(list) => Ok(Items { list, length: 0 }),
            _ => Err(Fault::Odd),
        }
    }

    fn serialize_tuple(self, length: usize) -> Result<Items<'a>, Fault> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_struct(self, _: &'static str, length: usize) -> Result<Items<'a>, Fault> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Fault> {
        Err(Fault::Odd)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Fault> {
        Err(Fault::Odd)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Members<'a>, Fault> {
        match self.0 {
            Node::Group(group) => Ok(Members(group)),
            _ => Err(Fault::Odd),
        }
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Fault> {
        Err(Fault::Odd)
    }
}

/// Takes the items of a list.
struct Items<'a> {
    list: &'a mut List,
    length: usize,
}

impl SerializeSeq for Items<'_> {
    type Ok = ();
    type Error = Fault;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Added {
        self.length += 1;
        Ok(self.list.push(|node| put(node, value))?)
    }

    fn end(self) -> Added {
        Ok(self.list.end(self.length)?)
    }
}

impl SerializeTuple for Items<'_> {
    type Ok = ();
    type Error = Fault;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Added {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Added {
        SerializeSeq::end(self)
    }
}

impl SerializeTupleStruct for Items<'_> {
    type Ok = ();
    type Error = Fault;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Added {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Added {
        SerializeSeq::end(self)
    }
}

/// Takes the fields of a struct.
struct Members<'a>(&'a mut Group);

impl SerializeStruct for Members<'_> {
    type Ok = ();
    type Error = Fault;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Added {
        Ok(self.0.push(name, |node| put(node, value))?)
    }

    fn end(self) -> Added {
        self.0.end(true);
        Ok(())
    }
}
