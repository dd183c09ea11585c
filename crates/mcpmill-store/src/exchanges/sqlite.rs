//! The store itself.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use mcpmill_core::{
    account::{Account, Accounts, Charge},
    edge::{Exchange, ExchangeKind, Exchanges, StoreError, Stored},
};
use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};

use super::{
    ExchangesError, ExchangesErrorKind, Limits, Which, export,
    pack::{self, Packed},
    tables,
    writer::{self, Change, Writer},
};

/// Exchanges imported in one transaction, so that no import keeps other processes waiting.
const IMPORT_ROWS: usize = 500;

/// The exchanges in a SQLite file, opened for one run.
///
/// A reply that was put survives a kill of the process; after a loss of power the last ones may be
/// missing, the file stays whole.
pub struct SqliteExchanges {
    pub(super) path: PathBuf,
    run: String,
    connection: Mutex<Connection>,
    writer: Writer,
}

/// Says why an exchange must not be handed on.
pub type Check<'a> = &'a dyn Fn(&Exchange) -> Result<(), String>;

/// What an import did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Exchanges that are new in the store.
    pub added: u64,
    /// Exchanges the store had already; its own stay.
    pub present: u64,
}

/// What a store holds of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindStats {
    /// The kind.
    pub kind: ExchangeKind,
    /// Exchanges.
    pub exchanges: u64,
    /// Bytes of their compressed bodies.
    pub bytes: u64,
}

impl SqliteExchanges {
    /// Opens the store at `path` for the run `run`, making it if it is not there. Other processes
    /// may have it open too.
    ///
    /// # Errors
    /// The file cannot be opened, is no store, is damaged, or was made by a later version.
    pub fn open(path: &Path, run: &str) -> Result<Self, ExchangesError> {
        let fail = |kind: ExchangesErrorKind| ExchangesError::new(path, kind);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|e| fail(e.into()))?;
        }
        let connection = tables::connect(path).map_err(fail)?;
        let writer = Writer::start(path, run).map_err(fail)?;
        Ok(Self { path: path.to_owned(), run: run.to_owned(), connection: Mutex::new(connection), writer })
    }

    /// Writes exchanges as zstd-compressed JSON lines `{key, kind, request, reply}`, sorted by key:
    /// equal exchanges are equal bytes. Of several replies to one request it writes this run's, else the
    /// newest. Returns their number.
    ///
    /// Each exchange is first shown to `check`, whose no ends it all: nothing is written.
    ///
    /// # Errors
    /// The store cannot be read, the file not be written, or an exchange is refused.
    pub fn export(&self, path: &Path, which: Which, check: Check<'_>) -> Result<u64, ExchangesError> {
        const SQL: &str = "SELECT key, kind, request, reply FROM exchanges e
            WHERE rowid = (SELECT rowid FROM exchanges WHERE key = e.key ORDER BY run = ?1 DESC, rowid DESC LIMIT 1)
                AND (?2 OR EXISTS (SELECT 1 FROM exchanges WHERE key = e.key AND run = ?1)
                    OR key IN (SELECT key FROM used WHERE run = ?1)) ORDER BY key";
        let connection = self.connection();
        let write = || -> Result<u64, ExchangesErrorKind> {
            let mut statement = connection.prepare(SQL)?;
            let mut rows = statement.query(params![self.run, which == Which::All])?;
            let exchanges = std::iter::from_fn(|| rows.next().transpose().map(|row| exchange(row?)));
            let exchanges = exchanges.map(|read| {
                let exchange = read?;
                match check(&exchange) {
                    Ok(()) => Ok(exchange),
                    Err(why) => Err(ExchangesErrorKind::Refused { key: exchange.key, why }),
                }
            });
            export::write(path, exchanges)
        };
        write().map_err(|kind| match kind {
            ExchangesErrorKind::Io(_) => ExchangesError::new(path, kind),
            _ => ExchangesError::new(&self.path, kind),
        })
    }

    /// Takes in a file written by [`SqliteExchanges::export`]. Every line is checked before the
    /// first is taken in; exchanges the store has already stay as they are.
    ///
    /// # Errors
    /// A line is no exchange, its key is not that of its request, or the file is beyond `limits`;
    /// the message names file and line.
    pub fn import(&self, path: &Path, limits: Limits) -> Result<Imported, ExchangesError> {
        for exchange in export::read(path, limits)? {
            exchange?;
        }
        self.take_in(export::read(path, limits)?)
    }

    /// Takes in exchanges that come with the program: the bytes of a file written by [`SqliteExchanges::export`], which
    /// errors call `name`.
    ///
    /// # Errors
    /// As those of [`SqliteExchanges::import`]; what stands before the line in question is taken in.
    pub fn take_in_shipped(&self, name: &str, packed: &'static [u8]) -> Result<Imported, ExchangesError> {
        self.take_in(export::read_from(Path::new(name), packed, Limits::default())?)
    }

    fn take_in(&self, lines: export::Lines) -> Result<Imported, ExchangesError> {
        let mut done = Imported::default();
        let mut lines = lines.peekable();
        while lines.peek().is_some() {
            let group: Vec<Exchange> = lines.by_ref().take(IMPORT_ROWS).collect::<Result<_, _>>()?;
            let all = group.len() as u64;
            let added = self.write(|tx| {
                let added = group.iter().map(|exchange| insert_new(tx, exchange));
                added.sum::<Result<usize, ExchangesErrorKind>>()
            });
            let added = added.map_err(|kind| ExchangesError::new(&self.path, kind))? as u64;
            done = Imported { added: done.added + added, present: done.present + all - added };
        }
        Ok(done)
    }

    /// What the store holds, by kind.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn stats(&self) -> Result<Vec<KindStats>, ExchangesError> {
        const SQL: &str =
            "SELECT kind, count(*), sum(length(request) + length(reply)) FROM exchanges GROUP BY kind ORDER BY kind";
        let connection = self.connection();
        let read = || -> Result<Vec<KindStats>, ExchangesErrorKind> {
            let mut statement = connection.prepare(SQL)?;
            let mut rows = statement.query([])?;
            let mut stats = Vec::new();
            while let Some(row) = rows.next()? {
                let (word, exchanges, bytes): (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
                let kind = pack::kind("", &word)?;
                stats.push(KindStats { kind, exchanges: exchanges.unsigned_abs(), bytes: bytes.unsigned_abs() });
            }
            Ok(stats)
        };
        read().map_err(|kind| ExchangesError::new(&self.path, kind))
    }

    pub(super) fn connection(&self) -> MutexGuard<'_, Connection> {
        // A panic inside rolls its transaction back: the connection is whole.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One transaction that has the right to write from its start, so that it never fails half way
    /// because another process was faster.
    pub(super) fn write<T>(
        &self,
        work: impl FnOnce(&Transaction) -> Result<T, ExchangesErrorKind>,
    ) -> Result<T, ExchangesErrorKind> {
        let mut connection = self.connection();
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = work(&tx)?;
        tx.commit()?;
        Ok(done)
    }

    fn stored(&self, key: &str) -> Result<Option<Stored>, ExchangesErrorKind> {
        const SQL: &str = "SELECT key, kind, request, reply, run = ?2 FROM exchanges WHERE key = ?1
            ORDER BY run = ?2 DESC, rowid DESC LIMIT 1";
        let connection = self.connection();
        let mut statement = connection.prepare_cached(SQL)?;
        let mut rows = statement.query([key, &self.run])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        Ok(Some(Stored { exchange: exchange(row)?, own: row.get(4)? }))
    }

    fn spent(&self) -> Result<Accounts, ExchangesErrorKind> {
        const SQL: &str = "SELECT account, answered, failed, retried, cut_off, stored,
            input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost FROM accounts WHERE run = ?1";
        let connection = self.connection();
        let mut statement = connection.prepare_cached(SQL)?;
        let mut rows = statement.query([&self.run])?;
        let mut accounts = Accounts::default();
        while let Some(row) = rows.next()? {
            let count = |column: usize| row.get::<_, i64>(column).map(|n| n.max(0) as u64);
            let account = Account {
                answered: count(1)?,
                failed: count(2)?,
                retried: count(3)?,
                cut_off: count(4)?,
                stored: count(5)?,
                usage: writer::usage(row, 6)?,
            };
            accounts.by_name.insert(row.get(0)?, account);
        }
        Ok(accounts)
    }

    async fn make(&self, change: Change) -> Result<(), StoreError> {
        self.writer.make(change).await.map_err(|kind| self.fail(kind))
    }

    fn fail(&self, kind: ExchangesErrorKind) -> StoreError {
        ExchangesError::new(&self.path, kind).into()
    }
}

#[async_trait]
impl Exchanges for SqliteExchanges {
    /// The reply this run put, else the newest of other runs.
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
        self.stored(key).map_err(|kind| self.fail(kind))
    }

    async fn reuse(&self, key: &str, account: &str) -> Result<(), StoreError> {
        self.make(Change::Reuse { key: key.to_owned(), account: account.to_owned() }).await
    }

    async fn cut_off(&self) -> Result<(), StoreError> {
        self.make(Change::CutOff).await
    }

    async fn begin(&self, key: &str, at_most: &Charge<'_>) -> Result<(), StoreError> {
        self.make(Change::Begin { key: key.to_owned(), at_most: at_most.into() }).await
    }

    async fn note(&self, key: &str, at_most: &Charge<'_>) -> Result<(), StoreError> {
        self.make(Change::Note { key: key.to_owned(), at_most: at_most.into() }).await
    }

    fn repeated(&self) -> Result<u64, StoreError> {
        let sql = "SELECT coalesce(sum(calls), 0) FROM repeated WHERE run = ?1";
        let calls = self.connection().query_row(sql, [&self.run], |row| row.get::<_, i64>(0));
        calls.map(i64::unsigned_abs).map_err(|e| self.fail(e.into()))
    }

    fn accounts(&self) -> Result<Accounts, StoreError> {
        self.spent().map_err(|kind| self.fail(kind))
    }

    async fn put(&self, exchange: &Exchange, used: &Charge<'_>) -> Result<(), StoreError> {
        let exchange = Packed::of(exchange).map_err(|kind| self.fail(kind))?;
        self.make(Change::Put { exchange, used: used.into() }).await
    }

    async fn abandon(&self, key: &str, used: &Charge<'_>) -> Result<(), StoreError> {
        self.make(Change::Abandon { key: key.to_owned(), used: used.into() }).await
    }
}

/// Keeps an exchange as nobody's, unless there is one of its key. Returns how many were added.
fn insert_new(tx: &Transaction, exchange: &Exchange) -> Result<usize, ExchangesErrorKind> {
    let there: bool =
        tx.query_row("SELECT EXISTS (SELECT 1 FROM exchanges WHERE key = ?1)", [&exchange.key], |row| row.get(0))?;
    if there {
        return Ok(0);
    }
    writer::insert(tx, &Packed::of(exchange)?, "")?;
    Ok(1)
}

/// The exchange in the columns key, kind, request, reply.
fn exchange(row: &Row) -> Result<Exchange, ExchangesErrorKind> {
    let key: String = row.get(0)?;
    let kind: String = row.get(1)?;
    let (request, reply): (Vec<u8>, Vec<u8>) = (row.get(2)?, row.get(3)?);
    let (kind, request, reply) = (pack::kind(&key, &kind)?, pack::unpack(&key, &request)?, pack::unpack(&key, &reply)?);
    Ok(Exchange { key, kind, request, reply })
}
