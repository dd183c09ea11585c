//! The store itself.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use async_trait::async_trait;
use mcpmill_core::{
    account::{Accounts, Charge},
    edge::{Exchange, ExchangeKind, Exchanges, StoreError, Stored},
};
use rusqlite::{Connection, ErrorCode, Row, Transaction, TransactionBehavior, params};

use super::{ExchangesError, ExchangesErrorKind, Limits, Which, export, pack};

/// The format this version writes (`user_version`).
const FORMAT: i64 = 2;

/// How long one process waits for another to end its transaction; they take milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Exchanges imported in one transaction, so that no import keeps other processes waiting.
const IMPORT_ROWS: usize = 500;

/// `run` is the run whose `put` stored the row: each run keeps the replies it was given, whatever
/// others hear later. `used` are the exchanges a run was given, `inflight` the requests it has sent
/// and not heard of, `repeated` how many of those it had to send again.
const TABLES: &str = "
    CREATE TABLE exchanges (
        key TEXT NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL, request BLOB NOT NULL, reply BLOB NOT NULL,
        created INTEGER NOT NULL DEFAULT (unixepoch()), PRIMARY KEY (key, run));
    CREATE TABLE used (run TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (run, key)) WITHOUT ROWID;
    CREATE TABLE inflight (run TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (run, key)) WITHOUT ROWID;
    CREATE TABLE repeated (run TEXT PRIMARY KEY NOT NULL, calls INTEGER NOT NULL) WITHOUT ROWID;
    PRAGMA user_version = 2;";

/// The exchanges in a SQLite file, opened for one run.
///
/// A reply that was put survives a kill of the process; after a loss of power the last ones may be
/// missing, the file stays whole.
pub struct SqliteExchanges {
    path: PathBuf,
    run: String,
    connection: Mutex<Connection>,
    accounts: Mutex<Accounts>,
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
        let connection = prepared(path).map_err(fail)?;
        Ok(Self { path: path.to_owned(), run: run.to_owned(), connection: Mutex::new(connection), accounts: Mutex::default() })
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
                AND (?2 OR key IN (SELECT key FROM used WHERE run = ?1)) ORDER BY key";
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
        let mut done = Imported::default();
        let mut lines = export::read(path, limits)?.peekable();
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

    fn connection(&self) -> MutexGuard<'_, Connection> {
        // A panic inside rolls its transaction back: the connection is whole.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One transaction that has the right to write from its start, so that it never fails half way
    /// because another process was faster.
    fn write<T>(&self, work: impl FnOnce(&Transaction) -> Result<T, ExchangesErrorKind>) -> Result<T, ExchangesErrorKind> {
        let mut connection = self.connection();
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = work(&tx)?;
        tx.commit()?;
        Ok(done)
    }

    fn stored(&self, key: &str) -> Result<Option<Stored>, ExchangesErrorKind> {
        const SQL: &str = "SELECT key, kind, request, reply, run = ?2,
            EXISTS (SELECT 1 FROM used WHERE used.run = ?2 AND used.key = exchanges.key) FROM exchanges WHERE key = ?1
            ORDER BY run = ?2 DESC, rowid DESC LIMIT 1";
        let connection = self.connection();
        let mut statement = connection.prepare(SQL)?;
        let mut rows = statement.query([key, &self.run])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let (own, used): (bool, bool) = (row.get(4)?, row.get(5)?);
        let exchange = exchange(row)?;
        if !used {
            connection.execute("INSERT OR IGNORE INTO used (run, key) VALUES (?1, ?2)", [&self.run, key])?;
        }
        Ok(Some(Stored { exchange, own }))
    }

    fn keep(&self, exchange: &Exchange) -> Result<(), ExchangesErrorKind> {
        self.write(|tx| {
            insert(tx, exchange, &self.run)?;
            tx.execute("INSERT OR IGNORE INTO used (run, key) VALUES (?1, ?2)", [&self.run, &exchange.key])?;
            tx.execute("DELETE FROM inflight WHERE run = ?1 AND key = ?2", [&self.run, &exchange.key])?;
            Ok(())
        })
    }

    fn used(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
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

    async fn begin(&self, key: &str, _: &Charge<'_>) -> Result<(), StoreError> {
        let note = |tx: &Transaction| {
            let new = tx.execute("INSERT OR IGNORE INTO inflight (run, key) VALUES (?1, ?2)", [&self.run, key])?;
            if new == 0 {
                let sql = "INSERT INTO repeated VALUES (?1, 1) ON CONFLICT (run) DO UPDATE SET calls = calls + 1";
                tx.execute(sql, [&self.run])?;
            }
            Ok(())
        };
        self.write(note).map_err(|kind| self.fail(kind))
    }

    fn repeated(&self) -> Result<u64, StoreError> {
        let sql = "SELECT coalesce(sum(calls), 0) FROM repeated WHERE run = ?1";
        let calls = self.connection().query_row(sql, [&self.run], |row| row.get::<_, i64>(0));
        calls.map(i64::unsigned_abs).map_err(|e| self.fail(e.into()))
    }

    fn accounts(&self) -> Result<Accounts, StoreError> {
        Ok(self.used().clone())
    }

    async fn put(&self, exchange: &Exchange, used: &Charge<'_>) -> Result<(), StoreError> {
        self.used().answered(used);
        self.keep(exchange).map_err(|kind| self.fail(kind))
    }

    async fn abandon(&self, key: &str, used: &Charge<'_>) -> Result<(), StoreError> {
        self.used().failed(used);
        let gone = self.connection().execute("DELETE FROM inflight WHERE run = ?1 AND key = ?2", [&self.run, key]);
        gone.map(drop).map_err(|e| self.fail(e.into()))
    }
}

/// A connection to a store of the right format. Two processes may be making the same file: SQLite
/// does not always wait by itself while the journal mode changes.
fn prepared(path: &Path) -> Result<Connection, ExchangesErrorKind> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    let mut attempts = 0;
    loop {
        match prepare(&mut connection) {
            Err(Refused::Sqlite(e)) if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && attempts < 200 => {
                attempts += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(Refused::Sqlite(e)) => return Err(e.into()),
            Err(Refused::Kind(kind)) => return Err(kind),
            Ok(()) => return Ok(connection),
        }
    }
}

enum Refused {
    Sqlite(rusqlite::Error),
    Kind(ExchangesErrorKind),
}

impl From<rusqlite::Error> for Refused {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn prepare(connection: &mut Connection) -> Result<(), Refused> {
    // Looked at before anything is changed: the file may be somebody else's. In one transaction, so
    // that what another process makes just now is seen as a whole or not at all.
    let tx = connection.transaction()?;
    recognise(&tx)?;
    tx.finish()?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.execute_batch("PRAGMA synchronous = NORMAL")?;
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if recognise(&tx)? == 0 {
        tx.execute_batch(TABLES)?;
    }
    Ok(tx.commit()?)
}

/// The format of the file, 0 for an empty one.
fn recognise(connection: &Connection) -> Result<i64, Refused> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let sql = "SELECT count(*), count(*) FILTER (WHERE name = 'exchanges') FROM sqlite_master WHERE type = 'table'";
    let (tables, ours): (i64, i64) = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    match (found, tables, ours) {
        (0, 0, _) => Ok(0),
        (FORMAT, _, 1) => Ok(FORMAT),
        (found, _, 1) => Err(Refused::Kind(ExchangesErrorKind::Format { found, known: FORMAT })),
        _ => Err(Refused::Kind(ExchangesErrorKind::Foreign)),
    }
}

/// Keeps an exchange as the run's, in place of an older one of its own.
fn insert(tx: &Transaction, exchange: &Exchange, run: &str) -> Result<(), ExchangesErrorKind> {
    let sql = "INSERT OR REPLACE INTO exchanges (key, run, kind, request, reply) VALUES (?1, ?2, ?3, ?4, ?5)";
    let (request, reply) = (pack::pack(&exchange.request)?, pack::pack(&exchange.reply)?);
    tx.execute(sql, params![exchange.key, run, exchange.kind.as_str(), request, reply])?;
    Ok(())
}

/// Keeps an exchange as nobody's, unless there is one of its key. Returns how many were added.
fn insert_new(tx: &Transaction, exchange: &Exchange) -> Result<usize, ExchangesErrorKind> {
    let there: bool =
        tx.query_row("SELECT EXISTS (SELECT 1 FROM exchanges WHERE key = ?1)", [&exchange.key], |row| row.get(0))?;
    if there {
        return Ok(0);
    }
    insert(tx, exchange, "")?;
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
