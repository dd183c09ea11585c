//! How fast one host is asked: a token bucket, a number of slots, and pauses it has asked for.

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use mcpmill_core::edge::FetchErrorKind;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use super::{CrawlerSettings, robots::Robots};

/// What is known of a host. All requests to it share it.
pub(super) struct Host {
    /// Its robots.txt: the one for `http`, and the one for `https`.
    pub robots: [OnceCell<Robots>; 2],
    slots: Semaphore,
    bucket: Mutex<Bucket>,
    paused: Mutex<Option<Instant>>,
}

/// A token bucket that can be replaced by a slower one.
struct Bucket {
    /// Time in which one token comes; zero is no limit.
    interval: Duration,
    limiter: Option<Arc<DefaultDirectRateLimiter>>,
}

impl Bucket {
    fn new(interval: Duration, burst: u32) -> Self {
        let quota =
            Quota::with_period(interval).map(|quota| quota.allow_burst(NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN)));
        Self { interval, limiter: quota.map(|quota| Arc::new(RateLimiter::direct(quota))) }
    }
}

impl Host {
    pub fn new(settings: &CrawlerSettings) -> Self {
        Self {
            robots: [OnceCell::new(), OnceCell::new()],
            slots: Semaphore::new(settings.concurrency.clamp(1, Semaphore::MAX_PERMITS)),
            bucket: Mutex::new(Bucket::new(interval(settings.per_minute), settings.burst)),
            paused: Mutex::new(None),
        }
    }

    /// From now on at most one request per `interval`, unless the host is asked more slowly already.
    pub fn slow_to(&self, interval: Duration) {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        if interval > bucket.interval {
            *bucket = Bucket::new(interval, 1);
        }
    }

    /// Nothing is sent to the host for this long, or longer if it is paused for longer.
    pub fn pause(&self, pause: Duration) {
        let until = Instant::now().checked_add(pause);
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        *paused = (*paused).max(until);
    }

    /// The time until the host may be asked again.
    fn remaining(&self) -> Duration {
        let until = *self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        until.map(|until| until.saturating_duration_since(Instant::now())).unwrap_or_default()
    }

    /// Whether nothing would be forgotten with it.
    pub fn is_idle(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Waits for a slot, a token and the end of a pause. The slot is taken until it is dropped.
    ///
    /// # Errors
    /// The pause is longer than `longest`.
    pub async fn turn(&self, longest: Duration) -> Result<SemaphorePermit<'_>, FetchErrorKind> {
        let slot = self.slots.acquire().await.map_err(|e| FetchErrorKind::Network(e.to_string()))?;
        // Before the token, so as not to take one in vain; after it, as a pause may have begun meanwhile.
        self.sit_out(longest).await?;
        let limiter = self.bucket.lock().unwrap_or_else(PoisonError::into_inner).limiter.clone();
        if let Some(limiter) = limiter {
            limiter.until_ready().await;
        }
        self.sit_out(longest).await?;
        Ok(slot)
    }

    async fn sit_out(&self, longest: Duration) -> Result<(), FetchErrorKind> {
        loop {
            match self.remaining() {
                Duration::ZERO => return Ok(()),
                pause if pause > longest => return Err(FetchErrorKind::RateLimited(pause)),
                pause => tokio::time::sleep(pause).await,
            }
        }
    }
}

/// The time between two requests of so many a minute; none for 0, which is no limit.
pub(super) fn interval(per_minute: u32) -> Duration {
    Duration::from_secs(60).checked_div(per_minute).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(5);

    fn host(per_minute: u32, burst: u32, concurrency: usize) -> Host {
        Host::new(&CrawlerSettings { per_minute, burst, concurrency, ..CrawlerSettings::new("unused") })
    }

    async fn time_of(host: &Host, requests: usize) -> Duration {
        let start = Instant::now();
        for _ in 0..requests {
            drop(host.turn(LONG).await.unwrap());
        }
        start.elapsed()
    }

    #[tokio::test]
    async fn a_burst_is_free_and_the_rest_is_paced() {
        let host = host(300, 3, 1);
        assert!(time_of(&host, 3).await < Duration::from_millis(190));
        assert!(time_of(&host, 2).await >= Duration::from_millis(200));
        host.slow_to(Duration::from_millis(10));
        assert_eq!(host.bucket.lock().unwrap().interval, Duration::from_millis(200));
        host.slow_to(Duration::from_millis(300));
        assert!(time_of(&host, 2).await >= Duration::from_millis(280));
    }

    #[tokio::test]
    async fn without_a_rate_nothing_waits() {
        assert!(time_of(&host(0, 1, 1), 10_000).await < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_pause_holds_for_everybody_and_is_not_shortened() {
        let host = host(0, 1, 4);
        host.pause(Duration::from_millis(60));
        host.pause(Duration::from_millis(1));
        assert!(!host.is_idle());
        let start = Instant::now();
        let (one, two) = tokio::join!(host.turn(LONG), host.turn(LONG));
        assert!(one.is_ok() && two.is_ok() && start.elapsed() >= Duration::from_millis(60));
        host.pause(Duration::from_secs(3600));
        assert!(matches!(host.turn(LONG).await, Err(FetchErrorKind::RateLimited(pause)) if pause > Duration::from_secs(3500)));
    }

    #[tokio::test]
    async fn slots_are_given_back_when_dropped() {
        let host = host(0, 1, 1);
        let slot = host.turn(LONG).await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), host.turn(LONG)).await.is_err());
        drop(slot);
        assert!(host.turn(LONG).await.is_ok());
    }
}
