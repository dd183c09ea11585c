//! Bodies as they lie in the store: JSON text, compressed.

use std::{cell::RefCell, io::Read};

use mcpmill_core::edge::{Exchange, ExchangeKind};
use serde_json::Value;
use zstd::bulk::Compressor;

use super::ExchangesErrorKind;

/// Bytes one body may have unpacked; a store handed over by somebody else must not fill memory.
const BODY_BYTES: u64 = 256 << 20;

/// Bodies are a few kilobytes: higher levels cost much more time and save little.
const LEVEL: i32 = 1;

/// An exchange as it is written.
pub(super) struct Packed {
    pub key: String,
    pub kind: ExchangeKind,
    pub request: Vec<u8>,
    pub reply: Vec<u8>,
}

impl Packed {
    pub(super) fn of(exchange: &Exchange) -> Result<Self, ExchangesErrorKind> {
        let (request, reply) = (pack(&exchange.request)?, pack(&exchange.reply)?);
        Ok(Self { key: exchange.key.clone(), kind: exchange.kind, request, reply })
    }
}

/// The compressed text of a body.
fn pack(body: &Value) -> Result<Vec<u8>, ExchangesErrorKind> {
    // Setting up a compressor takes longer than its work on one body.
    thread_local!(static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) });
    let text = body.to_string();
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(LEVEL)?),
        };
        Ok(compressor.compress(text.as_bytes())?)
    })
}

/// The body of key `key` again.
pub(super) fn unpack(key: &str, bytes: &[u8]) -> Result<Value, ExchangesErrorKind> {
    let damaged = |detail: String| ExchangesErrorKind::Damaged(format!("the exchange `{key}` cannot be read: {detail}"));
    let mut text = Vec::new();
    let decoder = zstd::Decoder::with_buffer(bytes).map_err(|e| damaged(e.to_string()))?;
    decoder.take(BODY_BYTES + 1).read_to_end(&mut text).map_err(|e| damaged(e.to_string()))?;
    if text.len() as u64 > BODY_BYTES {
        return Err(damaged(format!("more than {BODY_BYTES} bytes")));
    }
    // Schemas of tools may be nested more deeply than the usual reader goes.
    let read = mcpmill_core::json::read(&text).filter(|read| !read.mended);
    read.map(|read| read.value).ok_or_else(|| damaged("it is no JSON".to_owned()))
}

/// The kind a word of the store stands for.
pub(super) fn kind(key: &str, word: &str) -> Result<ExchangeKind, ExchangesErrorKind> {
    let unknown = |_| ExchangesErrorKind::Damaged(format!("the exchange `{key}` is of the unknown kind `{word}`"));
    serde_json::from_value(Value::from(word)).map_err(unknown)
}
