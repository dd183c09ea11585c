//! How many calls of a model are in flight: more with every window of answers, fewer when it is overloaded.

use std::time::Duration;

use tokio::time::Instant;

/// The share of calls that stay when a provider is busy.
const DECREASE: f64 = 0.7;
/// Windows of answers in which a limit climbs from nothing to the most.
const WINDOWS_TO_MOST: f64 = 16.0;
/// Answers of one window at least; fewer say little of latency.
const WINDOW: f64 = 8.0;
/// A provider whose answers take this many times its best is overloaded.
const SLOW: f64 = 4.0;
/// Latency below this is never called slow: it is this machine's own.
const QUICK: f64 = 0.5;
/// How far the best latency moves to the present one with every window: prompts change, and so do providers.
const DRIFT: f64 = 0.1;

/// Additive increase, multiplicative decrease.
#[derive(Debug)]
pub(super) struct Pace {
    most: f64,
    limit: f64,
    /// When it was lowered last: calls sent before say nothing new.
    lowered: Option<Instant>,
    answers: f64,
    seconds: f64,
    since: Instant,
    /// Mean latency of the best window, drifting.
    best: Option<f64>,
    /// Answers a second in the window before.
    rate: f64,
}

impl Pace {
    /// Begins with all: that is what the user asked for, and the provider says soon enough when it is too much.
    pub(super) fn new(most: usize, now: Instant) -> Self {
        let most = most.max(1) as f64;
        Self { most, limit: most, lowered: None, answers: 0.0, seconds: 0.0, since: now, best: None, rate: 0.0 }
    }

    /// Calls that may be in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// A call that was sent at `sent` was answered.
    pub(super) fn answered(&mut self, sent: Instant, now: Instant) {
        self.answers += 1.0;
        self.seconds += (now - sent).as_secs_f64();
        if self.answers < self.limit.max(WINDOW) {
            return;
        }
        let mean = self.seconds / self.answers;
        let rate = self.answers / (now - self.since).max(Duration::from_micros(1)).as_secs_f64();
        let best = self.best.map_or(mean, |best| best.min(mean));
        self.best = Some(best + (mean - best) * DRIFT);
        // More answers a second for the price of longer ones is what concurrency is for.
        if mean > QUICK && mean > best * SLOW && rate <= self.rate * 1.05 {
            // Never below a quarter for latency alone: long answers are no overload.
            self.limit = (self.limit * DECREASE).max((self.most / 4.0).min(self.limit)).max(1.0);
            self.lowered = Some(now);
        } else {
            self.limit = (self.limit + (self.most / WINDOWS_TO_MOST).max(1.0)).min(self.most);
        }
        self.rate = rate;
        (self.answers, self.seconds, self.since) = (0.0, 0.0, now);
    }

    /// The provider said that a call sent at `sent` was too much, or gave no answer in time.
    pub(super) fn overloaded(&mut self, sent: Instant, now: Instant) {
        // One burst of refusals is one event.
        if self.lowered.is_none_or(|lowered| sent > lowered) {
            self.limit = (self.limit * DECREASE).floor().max(1.0);
            self.lowered = Some(now);
            (self.answers, self.seconds, self.since) = (0.0, 0.0, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_refusals_lowers_once_and_answers_raise_again() {
        let start = Instant::now();
        let mut pace = Pace::new(100, start);
        for _ in 0..100 {
            pace.overloaded(start, start + secs(1.0));
        }
        assert_eq!(pace.limit(), 70);
        pace.overloaded(start + secs(2.0), start + secs(3.0));
        assert_eq!(pace.limit(), 49);
        let mut now = start + secs(3.0);
        for _ in 0..2000 {
            now += secs(0.01);
            pace.answered(now - secs(0.2), now);
        }
        assert_eq!(pace.limit(), 100, "never above what is configured");
        for n in 0..50 {
            pace.overloaded(now + secs(f64::from(n)), now + secs(f64::from(n)));
        }
        assert_eq!(pace.limit(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_take_long_without_being_more_lower_the_limit_to_a_quarter_at_most() {
        let mut pace = Pace::new(16, Instant::now());
        let mut now = Instant::now();
        let mut run = |pace: &mut Pace, answers: usize, latency: f64, apart: f64| {
            for _ in 0..answers {
                now += secs(apart);
                pace.answered(now - secs(latency), now);
            }
        };
        run(&mut pace, 64, 0.4, 0.1);
        assert_eq!(pace.limit(), 16);
        run(&mut pace, 64, 4.0, 0.3);
        assert!((4..16).contains(&pace.limit()), "{}", pace.limit());
        run(&mut pace, 2000, 4.0, 0.3);
        assert_eq!(pace.limit(), 16, "what stays is taken for its nature");
    }

    #[tokio::test(start_paused = true)]
    async fn quick_answers_are_never_called_slow() {
        let mut pace = Pace::new(16, Instant::now());
        let mut now = Instant::now();
        for latency in [0.001, 0.05] {
            for _ in 0..64 {
                now += secs(latency);
                pace.answered(now - secs(latency), now);
            }
        }
        assert_eq!(pace.limit(), 16);
    }
}
