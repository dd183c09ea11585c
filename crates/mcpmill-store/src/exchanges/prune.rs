//! Exchanges that no run needs any more, taken out.

use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::params;

use super::{ExchangesError, ExchangesErrorKind, SqliteExchanges};

/// What was taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Exchanges.
    pub exchanges: u64,
    /// Runs whose notes and accounts went too.
    pub runs: u64,
    /// Bytes by which the file became smaller; 0 while other processes have it open.
    pub bytes: u64,
}

impl SqliteExchanges {
    /// Takes out the exchanges that were recorded before `before` and that none of the runs `there` recorded or was
    /// given. Of runs that are not there and have no exchange left, the notes and accounts go too.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn prune(&self, there: &[String], before: SystemTime) -> Result<Pruned, ExchangesError> {
        self.take_out(there, before).map_err(|kind| ExchangesError::new(&self.path, kind))
    }

    fn take_out(&self, there: &[String], before: SystemTime) -> Result<Pruned, ExchangesErrorKind> {
        let before = before.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let size = || self.path.metadata().map_or(0, |file| file.len());
        let large = size();
        let (exchanges, runs) = self.write(|tx| {
            tx.execute_batch("CREATE TEMP TABLE there (run TEXT PRIMARY KEY) WITHOUT ROWID")?;
            for run in there {
                tx.execute("INSERT OR IGNORE INTO there VALUES (?1)", [run])?;
            }
            let sql = "DELETE FROM exchanges WHERE created < ?1 AND run NOT IN (SELECT run FROM there)
                AND key NOT IN (SELECT key FROM used WHERE run IN (SELECT run FROM there))";
            let exchanges = tx.execute(sql, params![before])?;
            let gone = "run NOT IN (SELECT run FROM there) AND run NOT IN (SELECT run FROM exchanges)";
            let runs = tx.execute(&format!("DELETE FROM accounts WHERE {gone}"), [])?;
            for table in ["used", "inflight", "repeated"] {
                tx.execute(&format!("DELETE FROM {table} WHERE {gone}"), [])?;
            }
            tx.execute_batch("DROP TABLE there")?;
            Ok((exchanges as u64, runs as u64))
        })?;
        if exchanges > 0 {
            // Room is given back only where nobody else has the file open; it is used again otherwise.
            let connection = self.connection();
            connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)").ok();
        }
        Ok(Pruned { exchanges, runs, bytes: large.saturating_sub(size()) })
    }
}
