//! The one writer of a process: callers hand it their changes, and all that wait share one transaction.

use std::{
    path::Path,
    thread::{self, JoinHandle},
};

use mcpmill_core::{
    account::{Account, Accounts, Charge},
    record::Usage,
};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};
use tokio::sync::{mpsc, oneshot};

use super::{ExchangesErrorKind, checkpoint::Checkpoints, pack::Packed, tables};

/// Changes that may wait; beyond them callers wait to hand theirs over.
const QUEUE: usize = 1024;

/// Changes of one transaction, so that other processes get their turn.
const GROUP: usize = 512;

/// How often a transaction is tried to begin while another process holds the store, each time for as long as the
/// connection is patient: what was paid for is worth the wait.
const TRIES: usize = 5;

/// A change of the store, for its run.
pub(super) enum Change {
    /// A stored exchange was given to the run.
    Reuse { key: String, account: String },
    /// A request is about to be sent.
    Begin { key: String, at_most: Spent },
    /// It may by now use so much at most.
    Note { key: String, at_most: Spent },
    /// Its reply is here.
    Put { exchange: Packed, used: Spent },
    /// It ended without a reply.
    Abandon { key: String, used: Spent },
    /// Nobody waits any more for what is in flight.
    CutOff,
}

/// A [`Charge`] of its own.
pub(super) struct Spent {
    account: String,
    usage: Usage,
    attempts: u32,
}

impl Spent {
    fn charge(&self) -> Charge<'_> {
        Charge { account: &self.account, usage: self.usage, attempts: self.attempts }
    }
}

impl From<&Charge<'_>> for Spent {
    fn from(charge: &Charge<'_>) -> Self {
        Self { account: charge.account.to_owned(), usage: charge.usage, attempts: charge.attempts }
    }
}

struct Job {
    change: Change,
    done: oneshot::Sender<Result<(), ExchangesErrorKind>>,
}

/// The thread that writes. Dropped, it first writes what was handed over.
pub(super) struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts it over connections of its own.
    pub(super) fn start(path: &Path, run: &str) -> Result<Self, ExchangesErrorKind> {
        let (jobs, waiting) = mpsc::channel(QUEUE);
        let (connection, run) = (tables::connect(path)?, run.to_owned());
        connection.query_row("PRAGMA wal_autocheckpoint = 0", [], |_| Ok(()))?;
        let checkpoints = Checkpoints::start(tables::connect(path)?)?;
        let thread =
            thread::Builder::new().name("exchanges".into()).spawn(move || work(&connection, &run, waiting, checkpoints))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Makes a change, and returns when it is committed. A caller that is let go after it handed the change over
    /// does not take it back.
    pub(super) async fn make(&self, change: Change) -> Result<(), ExchangesErrorKind> {
        let gone = || ExchangesErrorKind::Sqlite("the writer has ended".to_owned());
        let (done, ended) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        // At once where there is room: what was paid for must not be lost to a cancellation.
        match jobs.try_send(Job { change, done }) {
            Err(mpsc::error::TrySendError::Full(job)) => jobs.send(job).await.map_err(|_| gone())?,
            sent => sent.map_err(|_| gone())?,
        }
        ended.await.map_err(|_| gone())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // A panic of the thread was told to the callers that waited.
        self.thread.take().map(JoinHandle::join);
    }
}

fn work(connection: &Connection, run: &str, mut waiting: mpsc::Receiver<Job>, mut checkpoints: Checkpoints) {
    let mut group = Vec::with_capacity(GROUP);
    loop {
        let changes = waiting.blocking_recv_many(&mut group, GROUP);
        if changes == 0 {
            return;
        }
        commit(connection, run, &mut group);
        checkpoints.committed(changes, connection);
    }
}

/// Makes the changes of a group in one transaction; one that cannot be made is told so and left out.
fn commit(connection: &Connection, run: &str, group: &mut Vec<Job>) {
    while !group.is_empty() {
        match together(connection, run, group) {
            Ok(()) => group.drain(..).for_each(|job| drop(job.done.send(Ok(())))),
            Err((Some(place), kind)) => drop(group.remove(place).done.send(Err(kind))),
            Err((None, kind)) => {
                let told = kind.to_string();
                let each = |job: Job| drop(job.done.send(Err(ExchangesErrorKind::Sqlite(told.clone()))));
                group.drain(..).for_each(each);
            }
        }
    }
}

/// An error comes with the place of the change that it belongs to, if it belongs to one.
fn together(connection: &Connection, run: &str, group: &[Job]) -> Result<(), (Option<usize>, ExchangesErrorKind)> {
    let whole = |e: rusqlite::Error| (None, e.into());
    // It has the right to write from its start, so that it never fails half way because another process was faster.
    let tx = begin_writing(connection).map_err(whole)?;
    let mut spent = Accounts::default();
    for (place, job) in group.iter().enumerate() {
        change(&tx, run, &job.change, &mut spent).map_err(|e| (Some(place), e.into()))?;
    }
    for (name, account) in &spent.by_name {
        add(&tx, run, name, account).map_err(whole)?;
    }
    tx.commit().map_err(whole)
}

fn begin_writing(connection: &Connection) -> rusqlite::Result<Transaction<'_>> {
    let mut tries = 1;
    loop {
        match Transaction::new_unchecked(connection, TransactionBehavior::Immediate) {
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && tries < TRIES => tries += 1,
            begun => return begun,
        }
    }
}

fn change(tx: &Transaction, run: &str, change: &Change, spent: &mut Accounts) -> rusqlite::Result<()> {
    let forget = |key: &str| {
        let mut gone = tx.prepare_cached("DELETE FROM inflight WHERE run = ?1 AND key = ?2")?;
        gone.execute([run, key]).map(drop)
    };
    match change {
        Change::Reuse { key, account } => {
            let sql = "INSERT OR IGNORE INTO used (run, key) SELECT ?1, ?2
                WHERE NOT EXISTS (SELECT 1 FROM exchanges WHERE key = ?2 AND run = ?1)";
            tx.prepare_cached(sql)?.execute([run, key])?;
            spent.stored(account);
        }
        Change::Begin { key, at_most } => begin(tx, run, key, at_most, spent)?,
        Change::Note { key, at_most } => note(tx, run, key, at_most)?,
        Change::Put { exchange, used } => {
            insert(tx, exchange, run)?;
            forget(&exchange.key)?;
            spent.answered(&used.charge());
        }
        Change::Abandon { key, used } => {
            forget(key)?;
            spent.failed(&used.charge());
        }
        Change::CutOff => {
            let sql = "SELECT account, input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost FROM inflight
                WHERE run = ?1 AND counted = 0";
            let mut statement = tx.prepare_cached(sql)?;
            let mut rows = statement.query([run])?;
            while let Some(row) = rows.next()? {
                spent.cut_off(&noted(row)?.charge());
            }
            tx.execute("UPDATE inflight SET counted = 1 WHERE run = ?1", [run])?;
        }
    }
    Ok(())
}

/// Notes a request. A note that is there already was left by a kill: its call is made again.
fn begin(tx: &Transaction, run: &str, key: &str, at_most: &Spent, spent: &mut Accounts) -> rusqlite::Result<()> {
    let sql = "SELECT account, input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost, counted FROM inflight
        WHERE run = ?1 AND key = ?2";
    let before = tx.prepare_cached(sql)?.query_row([run, key], |row| Ok((noted(row)?, row.get::<_, bool>(6)?))).optional()?;
    if let Some((cut_off, counted)) = before {
        if !counted {
            spent.cut_off(&cut_off.charge());
        }
        let sql = "INSERT INTO repeated VALUES (?1, 1) ON CONFLICT (run) DO UPDATE SET calls = calls + 1";
        tx.execute(sql, [run])?;
    }
    note(tx, run, key, at_most)
}

/// Writes down what a request may use at most, in place of what was written of it before.
fn note(tx: &Transaction, run: &str, key: &str, at_most: &Spent) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO inflight
        (run, key, account, input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost, counted)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0)";
    let usage = &at_most.usage;
    tx.prepare_cached(sql)?.execute(params![
        run,
        key,
        at_most.account,
        usage.input_tokens as i64,
        usage.output_tokens as i64,
        usage.cached_tokens as i64,
        usage.reasoning_tokens as i64,
        usage.cost
    ])?;
    Ok(())
}

/// The charge in the first six columns.
fn noted(row: &rusqlite::Row) -> rusqlite::Result<Spent> {
    Ok(Spent { account: row.get(0)?, usage: usage(row, 1)?, attempts: 0 })
}

/// Tokens and money in five columns from `first` on.
pub(super) fn usage(row: &rusqlite::Row, first: usize) -> rusqlite::Result<Usage> {
    let count = |column: usize| row.get::<_, i64>(first + column).map(|n| n.max(0) as u64);
    Ok(Usage {
        input_tokens: count(0)?,
        output_tokens: count(1)?,
        cached_tokens: count(2)?,
        reasoning_tokens: count(3)?,
        cost: row.get(first + 4)?,
    })
}

fn add(tx: &Transaction, run: &str, name: &str, account: &Account) -> rusqlite::Result<()> {
    let sql = "INSERT INTO accounts VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
        ON CONFLICT (run, account) DO UPDATE SET
            answered = answered + ?3, failed = failed + ?4, retried = retried + ?5, cut_off = cut_off + ?6,
            stored = stored + ?7, input_tokens = input_tokens + ?8, output_tokens = output_tokens + ?9,
            cached_tokens = cached_tokens + ?10, reasoning_tokens = reasoning_tokens + ?11, cost = cost + ?12";
    let Account { answered, failed, retried, cut_off, stored, usage } = *account;
    let mut statement = tx.prepare_cached(sql)?;
    statement.execute(params![
        run,
        name,
        answered as i64,
        failed as i64,
        retried as i64,
        cut_off as i64,
        stored as i64,
        usage.input_tokens as i64,
        usage.output_tokens as i64,
        usage.cached_tokens as i64,
        usage.reasoning_tokens as i64,
        usage.cost
    ])?;
    Ok(())
}

/// Keeps an exchange as the run's, in place of an older one of its own.
pub(super) fn insert(tx: &Transaction, exchange: &Packed, run: &str) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO exchanges (key, run, kind, request, reply) VALUES (?1, ?2, ?3, ?4, ?5)";
    let Packed { key, kind, request, reply } = exchange;
    tx.prepare_cached(sql)?.execute(params![key, run, kind.as_str(), request, reply])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    #[test]
    fn a_store_that_another_process_holds_is_waited_for_more_than_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.sqlite");
        let (own, other) = (tables::connect(&path).unwrap(), tables::connect(&path).unwrap());
        own.busy_timeout(Duration::from_millis(100)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let held = thread::spawn(move || {
            thread::sleep(Duration::from_millis(250));
            other.execute_batch("COMMIT").unwrap();
            other
        });
        begin_writing(&own).unwrap().commit().unwrap();
        let other = held.join().unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let error = begin_writing(&own).unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy), "not for ever");
    }
}
