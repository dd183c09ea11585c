//! What a provider accepts of a tool's input schema, and the way back for arguments.
//!
//! The schema a server declares is kept verbatim; a [`View`] is derived from it when a provider is
//! asked. References are put in place, recursion is cut where it begins again, and what a provider
//! does not take is altered and said. The walk is bounded in depth and in nodes. A tool that cannot
//! be shown is [`Unshowable`], and only that tool: nothing is ever fetched.

mod finish;
mod restore;
mod rules;
#[cfg(test)]
mod tests;
mod walk;

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::record::Tool;

/// Whose rules a schema is made to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// OpenAI function calling and structured outputs with `strict: true`.
    #[serde(rename = "openai-strict")]
    OpenAiStrict,
    /// OpenAI function calling without it.
    #[serde(rename = "openai")]
    OpenAi,
    /// Gemini function declarations (`parameters`).
    Gemini,
    /// Anthropic tools (`input_schema`).
    Anthropic,
}

impl Provider {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::OpenAiStrict, Self::OpenAi, Self::Gemini, Self::Anthropic];

    /// The two whose schemas are a closed list of keywords: every value has a type there, and objects a list of properties.
    fn is_narrow(self) -> bool {
        matches!(self, Self::OpenAiStrict | Self::Gemini)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenAiStrict => "openai-strict",
            Self::OpenAi => "openai",
            Self::Gemini => "gemini",
            Self::Anthropic => "anthropic",
        })
    }
}

impl FromStr for Provider {
    type Err = String;

    /// Reads what [`Display`](fmt::Display) writes.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|provider| provider.to_string() == name).ok_or_else(|| {
            let known: Vec<String> = Self::ALL.iter().map(ToString::to_string).collect();
            format!("want one of {}", known.join(", "))
        })
    }
}

/// One thing that a view has other than the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alteration {
    /// JSON pointer to the place in the view; the root is empty.
    pub pointer: String,
    /// What was done there.
    pub change: Change,
}

/// What is done to a schema.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// An object had no `properties`; the view has an empty one.
    AddedProperties,
    /// A property stood in `required` only; the view declares it.
    AddedProperty(String),
    /// An array had no `items`.
    AddedItems,
    /// A schema had no `type`; the view says the one it can only have.
    AddedType(String),
    /// A schema takes values of any type; the view takes text, numbers and truth values.
    AnyToScalars,
    /// A list of types became a choice.
    TypeListToAnyOf,
    /// `null` among the types became `nullable`.
    Nullable,
    /// A keyword that is not taken, or whose value is none, was left out.
    RemovedKeyword(String),
    /// A value of an `enum` that is not taken was left out.
    RemovedEnumValue,
    /// The target of a reference stands in its place.
    InlinedRef,
    /// A reference to nothing takes any value.
    DanglingRef(String),
    /// A schema that holds itself ends here.
    CutRecursion,
    /// The schema is deeper than the view.
    CutDepth,
    /// An optional property must be given, and may be `null`.
    MadeRequiredNullable,
    /// An object takes no other properties.
    ClosedObject,
    /// A property has another name.
    RenamedProperty {
        /// Its own name.
        from: String,
    },
    /// A schema `true` or `false` takes any value.
    BooleanSchema,
    /// Something that is no schema takes any value.
    NoSchema,
    /// The root was not of type object.
    RootNotObject,
    /// The branches of `allOf` stand together.
    MergedAllOf,
    /// The branches of a choice at the root stand together, as optional properties.
    MergedRootChoice(String),
    /// `oneOf` became `anyOf`.
    OneOfToAnyOf,
    /// The places of a tuple became a choice for every place.
    TupleToItems,
    /// An object without a list of properties is given as JSON text.
    ObjectAsText,
    /// Values of an `enum` that are no text are given as text.
    EnumAsText,
    /// `const` became an `enum` of one.
    ConstToEnum,
}

impl Change {
    /// Its name in reports.
    pub fn name(&self) -> String {
        let name = match self {
            Self::AddedProperties => "added-properties",
            Self::AddedProperty(_) => "added-property",
            Self::AddedItems => "added-items",
            Self::AddedType(_) => "added-type",
            Self::AnyToScalars => "any-to-scalars",
            Self::TypeListToAnyOf => "type-list-to-any-of",
            Self::Nullable => "nullable",
            Self::RemovedKeyword(keyword) => return format!("removed-keyword {keyword}"),
            Self::RemovedEnumValue => "removed-enum-value",
            Self::InlinedRef => "inlined-ref",
            Self::DanglingRef(_) => "dangling-ref",
            Self::CutRecursion => "cut-recursion",
            Self::CutDepth => "cut-depth",
            Self::MadeRequiredNullable => "made-required-nullable",
            Self::ClosedObject => "closed-object",
            Self::RenamedProperty { .. } => "renamed-property",
            Self::BooleanSchema => "boolean-schema",
            Self::NoSchema => "no-schema",
            Self::RootNotObject => "root-not-object",
            Self::MergedAllOf => "merged-all-of",
            Self::MergedRootChoice(_) => "merged-root-choice",
            Self::OneOfToAnyOf => "one-of-to-any-of",
            Self::TupleToItems => "tuple-to-items",
            Self::ObjectAsText => "object-as-text",
            Self::EnumAsText => "enum-as-text",
            Self::ConstToEnum => "const-to-enum",
        };
        name.to_owned()
    }
}

/// A tool that cannot be shown to a provider; it is left out alone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("schema cannot be shown to {provider}: {reason}")]
pub struct Unshowable {
    /// Whose rules it breaks.
    pub provider: Provider,
    /// What stands against it.
    pub reason: Reason,
}

/// Why a tool cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    /// A reference leaves the schema; it is not followed.
    #[error("`{0}` refers to another document")]
    RemoteRef(String),
    /// The text is not JSON, or is nested deeper than the parser goes.
    #[error("its text cannot be read: {0}")]
    Unreadable(String),
    /// With its references in place it has more nodes than a view may.
    #[error("it has more than {0} nodes")]
    TooManyNodes(usize),
    /// A limit of the provider.
    #[error("it has {found} {what}, and {most} are taken")]
    OverLimit {
        /// What is counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many may be.
        most: usize,
    },
}

/// A schema as a provider takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Whose rules it fits.
    pub provider: Provider,
    /// The schema to send.
    pub schema: Value,
    /// What is other than in the tool's own, by place.
    pub alterations: Vec<Alteration>,
    /// What arguments need on their way back, by pointer into `schema`.
    ways: BTreeMap<String, restore::Way>,
}

/// The view of a schema for a provider: a pure function of both.
///
/// # Errors
/// The schema cannot be shown.
pub fn view(schema: &Value, provider: Provider) -> Result<View, Unshowable> {
    walk::Walk::new(schema, provider).view().map_err(|reason| Unshowable { provider, reason })
}

/// The view of a harvested tool's input schema.
///
/// # Errors
/// The schema cannot be read or shown.
pub fn view_of(tool: &Tool, provider: Provider) -> Result<View, Unshowable> {
    let unreadable = |e: serde_json::Error| Unshowable { provider, reason: Reason::Unreadable(e.to_string()) };
    view(&crate::json::of_text(&tool.input_schema).map_err(unreadable)?, provider)
}
