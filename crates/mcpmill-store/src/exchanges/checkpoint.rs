//! Carries what is written from SQLite's log into the file, beside the writer: that waits for the disk.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use rusqlite::Connection;

/// Changes between two checkpoints.
const EVERY: usize = 1000;

/// Pages in the log after which the writer itself carries over the rest, so that the log begins anew. While it
/// writes, there is always a rest.
const LONG: i64 = 8000;

/// The thread that carries over.
pub(super) struct Checkpoints {
    due: Option<mpsc::SyncSender<()>>,
    long: Arc<AtomicBool>,
    changes: usize,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    /// Starts it over a connection of its own.
    pub(super) fn start(connection: Connection) -> std::io::Result<Self> {
        let (due, asked) = mpsc::sync_channel(1);
        let long = Arc::new(AtomicBool::new(false));
        let is_long = Arc::clone(&long);
        let carry = move || {
            while asked.recv().is_ok() {
                if pages(&connection).is_some_and(|pages| pages > LONG) {
                    is_long.store(true, Ordering::Relaxed);
                }
            }
        };
        let thread = thread::Builder::new().name("checkpoints".into()).spawn(carry)?;
        Ok(Self { due: Some(due), long, changes: 0, thread: Some(thread) })
    }

    /// To be told of every commit, with the connection that made it.
    pub(super) fn committed(&mut self, changes: usize, writer: &Connection) {
        if self.long.swap(false, Ordering::Relaxed) {
            pages(writer);
        }
        self.changes += changes;
        if self.changes >= EVERY
            && let Some(due) = &self.due
        {
            self.changes = 0;
            // One that is due already is enough.
            due.try_send(()).ok();
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        drop(self.due.take());
        self.thread.take().map(JoinHandle::join);
    }
}

/// Carries over what no reader needs in the log any more, waiting for nobody. Returns the pages in the log; what goes
/// wrong stays in the log and is carried over the next time.
fn pages(connection: &Connection) -> Option<i64> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1)).ok()
}
