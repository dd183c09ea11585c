//! A bucket of requests or tokens that refills by the minute, and the budget of retries.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Fills up evenly to a minute's worth. Unlike governor's it takes back what an estimate had too much, and is in
/// debt for what it had too little.
#[derive(Debug)]
pub(super) struct Bucket {
    per_second: f64,
    full: f64,
    level: Mutex<Level>,
    /// Whoever waits, waits in turn: a large call is not overtaken by small ones for ever.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Level {
    there: f64,
    at: Instant,
}

impl Level {
    fn fill(&mut self, now: Instant, per_second: f64, full: f64) {
        let there = self.there + now.duration_since(self.at).as_secs_f64() * per_second;
        // What is above the brim was put there by someone else, and stays.
        self.there = there.min(full.max(self.there));
        self.at = now;
    }
}

impl Bucket {
    /// A full bucket.
    pub(super) fn per_minute(most: u32) -> Self {
        Self::new(f64::from(most) / 60.0, f64::from(most), f64::from(most))
    }

    /// A bucket that holds `there` and fills up to `full`.
    pub(super) fn new(per_second: f64, full: f64, there: f64) -> Self {
        let level = Mutex::new(Level { there, at: Instant::now() });
        Self { per_second, full, level, turn: tokio::sync::Mutex::default() }
    }

    /// Takes `amount` out, once it is there; all there can be, when it is more than that. Dropped before, it has taken
    /// nothing.
    pub(super) async fn take(&self, amount: f64) {
        let _turn = self.turn.lock().await;
        while let Err(wait) = self.try_take(amount) {
            sleep(wait).await;
        }
    }

    fn try_take(&self, amount: f64) -> Result<(), Duration> {
        let mut level = self.level();
        level.fill(Instant::now(), self.per_second, self.full);
        let missing = amount.min(self.full) - level.there;
        if missing > 1e-9 {
            return Err(Duration::from_secs_f64((missing / self.per_second).clamp(0.001, 3600.0)));
        }
        level.there -= amount;
        Ok(())
    }

    /// Puts `amount` back, or takes it out when it is below nothing.
    pub(super) fn correct(&self, amount: f64) {
        let mut level = self.level();
        level.there = (level.there + amount).min(self.full);
    }

    fn level(&self) -> MutexGuard<'_, Level> {
        self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_wait_for_their_share_and_estimates_are_corrected() {
        let bucket = Bucket::per_minute(60);
        let start = Instant::now();
        bucket.take(60.0).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "a minute's worth is there");
        bucket.take(5.0).await;
        assert_eq!(start.elapsed().as_secs(), 5);
        bucket.correct(4.0);
        bucket.take(4.0).await;
        assert_eq!(start.elapsed().as_secs(), 5, "what was estimated too much is there again");
        bucket.correct(-3.0);
        bucket.take(1.0).await;
        assert_eq!(start.elapsed().as_secs(), 9, "what was estimated too little is owed");
        bucket.take(600.0).await;
        assert_eq!(start.elapsed().as_secs(), 69, "more than it can hold waits until it is full");
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_waiting_has_taken_nothing() {
        let bucket = Bucket::per_minute(60);
        bucket.take(60.0).await;
        assert!(tokio::time::timeout(Duration::from_secs(2), bucket.take(10.0)).await.is_err());
        let start = Instant::now();
        bucket.take(3.0).await;
        assert_eq!(start.elapsed().as_secs(), 1);
    }
}
