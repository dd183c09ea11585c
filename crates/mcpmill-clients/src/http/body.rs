//! Reading a body: bounded on the wire and unpacked, whole or not at all.

use std::{
    error::Error,
    io::{self, Write},
};

use flate2::write::MultiGzDecoder;
use mcpmill_core::edge::FetchErrorKind;
use reqwest::{Response, header::CONTENT_ENCODING};
use thiserror::Error;

use super::address;

/// How much of a body is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caps {
    /// Bytes on the wire.
    pub wire: u64,
    /// Bytes after decompression.
    pub plain: u64,
    /// Whether a longer body is cut instead of refused.
    pub cut: bool,
}

/// Reads a body to its end.
pub(super) async fn read(mut response: Response, caps: Caps) -> Result<Vec<u8>, FetchErrorKind> {
    let mut body = unpacker(&response, caps.plain)?;
    if !caps.cut && response.content_length().is_some_and(|length| length > caps.wire) {
        return Err(FetchErrorKind::TooLarge(caps.wire));
    }
    let mut wire = 0;
    while let Some(chunk) = response.chunk().await.map_err(|e| failure(&e))? {
        wire += chunk.len() as u64;
        let outcome = if wire > caps.wire { Err(FetchErrorKind::TooLarge(caps.wire)) } else { body.take(&chunk) };
        match outcome {
            Err(FetchErrorKind::TooLarge(_)) if caps.cut => return Ok(body.so_far()),
            outcome => outcome?,
        }
    }
    body.whole(wire)
}

/// A failure of reqwest, told by its innermost cause: its own message only repeats the address.
pub(super) fn failure(error: &reqwest::Error) -> FetchErrorKind {
    if error.is_timeout() {
        return FetchErrorKind::TimedOut;
    }
    if let Some(refusal) = address::not_public(error) {
        return refusal;
    }
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    FetchErrorKind::Network(cause.to_string())
}

/// The way from the wire to the text.
enum Unpacker {
    Plain(Bounded),
    Gzip(Box<MultiGzDecoder<Bounded>>),
}

fn unpacker(response: &Response, cap: u64) -> Result<Unpacker, FetchErrorKind> {
    let bounded = Bounded { bytes: Vec::new(), cap };
    let codings: Vec<String> = response
        .headers()
        .get_all(CONTENT_ENCODING)
        .iter()
        .map(|v| String::from_utf8_lossy(v.as_bytes()).to_lowercase())
        .collect();
    match codings.join(",").trim() {
        "" | "identity" => Ok(Unpacker::Plain(bounded)),
        "gzip" | "x-gzip" => Ok(Unpacker::Gzip(Box::new(MultiGzDecoder::new(bounded)))),
        // Not named: it is the host's text, and might be a key.
        _ => Err(FetchErrorKind::Unreadable("it has a coding that was not asked for".into())),
    }
}

impl Unpacker {
    fn take(&mut self, chunk: &[u8]) -> Result<(), FetchErrorKind> {
        match self {
            Self::Plain(bounded) => bounded.write_all(chunk),
            Self::Gzip(decoder) => decoder.write_all(chunk),
        }
        .map_err(|e| broken(&e))
    }

    fn so_far(self) -> Vec<u8> {
        match self {
            Self::Plain(bounded) => bounded.bytes,
            Self::Gzip(decoder) => decoder.get_ref().bytes.clone(),
        }
    }

    /// All of it, once the wire has nothing more. A gzip stream that has not ended was cut off.
    fn whole(self, wire: u64) -> Result<Vec<u8>, FetchErrorKind> {
        match self {
            Self::Plain(bounded) => Ok(bounded.bytes),
            Self::Gzip(_) if wire == 0 => Ok(Vec::new()),
            Self::Gzip(decoder) => decoder.finish().map(|bounded| bounded.bytes).map_err(|e| match broken(&e) {
                FetchErrorKind::Unreadable(_) => FetchErrorKind::Network("the body was cut off".into()),
                kind => kind,
            }),
        }
    }
}

fn broken(error: &io::Error) -> FetchErrorKind {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(Overflow(cap)) => FetchErrorKind::TooLarge(*cap),
        None => FetchErrorKind::Unreadable(error.to_string()),
    }
}

/// Bytes up to a cap.
struct Bounded {
    bytes: Vec<u8>,
    cap: u64,
}

#[derive(Debug, Error)]
#[error("more than {0} bytes")]
struct Overflow(u64);

impl Write for Bounded {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        if (self.bytes.len() + chunk.len()) as u64 > self.cap {
            return Err(io::Error::other(Overflow(self.cap)));
        }
        self.bytes.extend_from_slice(chunk);
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
