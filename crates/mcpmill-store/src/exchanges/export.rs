//! Exchanges as a file: zstd-compressed JSON lines, sorted by key.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use mcpmill_core::{
    account::{Accounts, Charge},
    edge::{Exchange, Exchanges, StoreError, Stored},
};

use super::{ExchangesError, ExchangesErrorKind};
use crate::durable::Staged;

/// What a file of exchanges may take; it may come from a stranger.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one line, unpacked.
    pub line_bytes: u64,
    /// Bytes of the whole file, unpacked.
    pub total_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { line_bytes: 64 << 20, total_bytes: 16 << 30 }
    }
}

/// Prompts repeat themselves over megabytes; files are made rarely and read often.
const LEVEL: i32 = 15;

/// Writes a file; the order of `exchanges` is kept. Returns their number.
pub(super) fn write(
    path: &Path,
    exchanges: impl Iterator<Item = Result<Exchange, ExchangesErrorKind>>,
) -> Result<u64, ExchangesErrorKind> {
    let (staged, file) = Staged::create(path)?;
    let mut encoder = zstd::Encoder::new(file, LEVEL)?;
    let mut count = 0;
    for exchange in exchanges {
        serde_json::to_writer(&mut encoder, &exchange?).map_err(std::io::Error::from)?;
        encoder.write_all(b"\n")?;
        count += 1;
    }
    staged.place(encoder.finish()?)?;
    Ok(count)
}

/// The exchanges of a file, every key checked; an error is the last item.
pub(super) fn read(path: &Path, limits: Limits) -> Result<Lines, ExchangesError> {
    read_from(path, File::open(path).map_err(|e| ExchangesError::new(path, e))?, limits)
}

/// As [`read`], for bytes from elsewhere; `path` names them in errors.
pub(super) fn read_from(path: &Path, packed: impl Read + 'static, limits: Limits) -> Result<Lines, ExchangesError> {
    let decoder = zstd::Decoder::new(packed).map_err(|e| ExchangesError::new(path, e))?;
    let reader = BufReader::with_capacity(1 << 16, decoder);
    Ok(Lines { path: path.to_owned(), reader: Some(Box::new(reader)), limits, number: 0, total: 0 })
}

pub(super) struct Lines {
    path: PathBuf,
    reader: Option<Box<dyn BufRead>>,
    limits: Limits,
    number: u64,
    total: u64,
}

impl Lines {
    fn line(&mut self, mut reader: Box<dyn BufRead>) -> Result<Option<Exchange>, ExchangesErrorKind> {
        self.number += 1;
        let at = |detail: String| ExchangesErrorKind::Line { line: self.number, detail };
        let mut text = Vec::new();
        reader.by_ref().take(self.limits.line_bytes + 1).read_until(b'\n', &mut text).map_err(|e| at(e.to_string()))?;
        if text.is_empty() {
            return Ok(None);
        }
        if text.len() as u64 > self.limits.line_bytes {
            return Err(at(format!("more than {} bytes", self.limits.line_bytes)));
        }
        self.total += text.len() as u64;
        if self.total > self.limits.total_bytes {
            return Err(ExchangesErrorKind::TooLarge(self.limits.total_bytes));
        }
        // A reply may be nested deeper than the usual reader goes.
        let read = mcpmill_core::json::read(&text).filter(|read| !read.mended).ok_or_else(|| at("no JSON".to_owned()))?;
        let exchange: Exchange = serde_json::from_value(read.value).map_err(|e| at(e.to_string()))?;
        if Exchange::key(exchange.kind, &exchange.request) != exchange.key {
            return Err(at("the key is not that of the request".to_owned()));
        }
        self.reader = Some(reader);
        Ok(Some(exchange))
    }
}

impl Iterator for Lines {
    type Item = Result<Exchange, ExchangesError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Taken out and put back only on success, so that nothing follows an error.
        let reader = self.reader.take()?;
        self.line(reader).map_err(|kind| ExchangesError::new(&self.path, kind)).transpose()
    }
}

/// The exchanges of a file in memory, to replay a run from what it left. Nothing can be added.
pub struct ExchangeFile {
    path: PathBuf,
    exchanges: HashMap<String, Exchange>,
    accounts: Mutex<Accounts>,
}

impl ExchangeFile {
    /// Reads a file written by [`super::SqliteExchanges::export`].
    ///
    /// # Errors
    /// A line is no exchange, its key is not that of its request, or the file is beyond `limits`.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, ExchangesError> {
        let keyed = read(path, limits)?.map(|exchange| exchange.map(|e| (e.key.clone(), e)));
        Ok(Self { path: path.to_owned(), exchanges: keyed.collect::<Result<_, _>>()?, accounts: Mutex::default() })
    }

    /// Exchanges in the file.
    pub fn len(&self) -> usize {
        self.exchanges.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.exchanges.is_empty()
    }
}

#[async_trait]
impl Exchanges for ExchangeFile {
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        Ok(self.exchanges.get(key).map(|exchange| Stored { exchange: exchange.clone(), own: false }))
    }

    async fn reuse(&self, _key: &str, account: &str) -> Result<(), StoreError> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner).stored(account);
        Ok(())
    }

    async fn begin(&self, _key: &str, _: &Charge<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn repeated(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Those of this process: nothing but stored replies, as nobody is asked.
    fn accounts(&self) -> Result<Accounts, StoreError> {
        Ok(self.accounts.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn put(&self, exchange: &Exchange, _: &Charge<'_>) -> Result<(), StoreError> {
        Err(ExchangesError::new(&self.path, ExchangesErrorKind::ReadOnly(exchange.kind)).into())
    }

    async fn abandon(&self, _key: &str, _: &Charge<'_>) -> Result<(), StoreError> {
        Ok(())
    }
}
