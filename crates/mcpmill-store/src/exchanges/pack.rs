//! Bodies as they lie in the store: JSON text, compressed.

use std::io::Read;

use mcpmill_core::edge::ExchangeKind;
use serde_json::Value;

use super::ExchangesErrorKind;

/// Bytes one body may have unpacked; a store handed over by somebody else must not fill memory.
const BODY_BYTES: u64 = 256 << 20;

/// The compressed text of a body.
pub(super) fn pack(body: &Value) -> Result<Vec<u8>, ExchangesErrorKind> {
    Ok(zstd::encode_all(body.to_string().as_bytes(), 3)?)
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
