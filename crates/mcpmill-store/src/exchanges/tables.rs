//! The tables of the store, and files of earlier formats.

use std::{path::Path, thread, time::Duration};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::ExchangesErrorKind;

/// The format this version writes (`user_version`).
pub(super) const FORMAT: i64 = 3;

/// How long one process waits for another to end its transaction; they take milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// `run` is the run whose `put` stored the row: each run keeps the replies it was given, whatever
/// others hear later. `used` are the exchanges of others that a run was given, `repeated` how many requests
/// it had to send again.
const TABLES: &str = "
    CREATE TABLE exchanges (
        key TEXT NOT NULL, run TEXT NOT NULL, kind TEXT NOT NULL, request BLOB NOT NULL, reply BLOB NOT NULL,
        created INTEGER NOT NULL DEFAULT (unixepoch()), PRIMARY KEY (key, run));
    CREATE TABLE used (run TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (run, key)) WITHOUT ROWID;
    CREATE TABLE repeated (run TEXT PRIMARY KEY NOT NULL, calls INTEGER NOT NULL) WITHOUT ROWID;";

/// `inflight` are the requests a run has sent and not heard of, each with what it may use at most; `counted` once that
/// is in the accounts, because nobody waits for it any more. The defaults let a process of the earlier version go on
/// that has the file open while it is brought to this format.
const ACCOUNTS: &str = "
    CREATE TABLE inflight (
        run TEXT NOT NULL, key TEXT NOT NULL, account TEXT NOT NULL DEFAULT 'unknown',
        input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
        cached_tokens INTEGER NOT NULL DEFAULT 0, reasoning_tokens INTEGER NOT NULL DEFAULT 0,
        cost REAL NOT NULL DEFAULT 0, counted INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (run, key)) WITHOUT ROWID;
    CREATE TABLE accounts (
        run TEXT NOT NULL, account TEXT NOT NULL, answered INTEGER NOT NULL, failed INTEGER NOT NULL,
        retried INTEGER NOT NULL, cut_off INTEGER NOT NULL, stored INTEGER NOT NULL,
        input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
        reasoning_tokens INTEGER NOT NULL, cost REAL NOT NULL, PRIMARY KEY (run, account)) WITHOUT ROWID;
    PRAGMA user_version = 3;";

/// A connection to a store of the right format. Two processes may be making the same file: SQLite
/// does not always wait by itself while the journal mode changes.
pub(super) fn connect(path: &Path) -> Result<Connection, ExchangesErrorKind> {
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
    connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA cache_size = -4000")?;
    connection.query_row("PRAGMA wal_autocheckpoint = 4000", [], |_| Ok(()))?;
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    match recognise(&tx)? {
        0 => tx.execute_batch(&[TABLES, ACCOUNTS].concat())?,
        2 => migrate(&tx)?,
        _ => {}
    }
    Ok(tx.commit()?)
}

/// Brings a file of format 2 to this one. What was in flight in it has no known cost.
fn migrate(tx: &Connection) -> rusqlite::Result<()> {
    tx.execute_batch("ALTER TABLE inflight RENAME TO inflight_2")?;
    tx.execute_batch(ACCOUNTS)?;
    tx.execute_batch("INSERT INTO inflight (run, key) SELECT run, key FROM inflight_2; DROP TABLE inflight_2")
}

/// The format of the file, 0 for an empty one.
fn recognise(connection: &Connection) -> Result<i64, Refused> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let sql = "SELECT count(*), count(*) FILTER (WHERE name = 'exchanges') FROM sqlite_master WHERE type = 'table'";
    let (tables, ours): (i64, i64) = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    match (found, tables, ours) {
        (0, 0, _) => Ok(0),
        (2 | FORMAT, _, 1) => Ok(found),
        (found, _, 1) => Err(Refused::Kind(ExchangesErrorKind::Format { found, known: FORMAT })),
        _ => Err(Refused::Kind(ExchangesErrorKind::Foreign)),
    }
}
