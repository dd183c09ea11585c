//! How many calls of a model are in flight: more with every window of answers, fewer when it is overloaded.

use std::time::Duration;

use tokio::time::Instant;

/// The share of calls that stay when a provider turns all of a window down.
const DECREASE: f64 = 0.7;
/// Windows of answers in which a limit climbs from nothing to the most.
const WINDOWS_TO_MOST: f64 = 16.0;
/// Answers of one window at least; fewer say little of latency.
const WINDOW: f64 = 8.0;
/// A provider whose answers take this many times its best is overloaded, and a call that takes as many times what is
/// usual is a slow one.
const SLOW: f64 = 4.0;
/// Latency below this is never called slow: it is this machine's own.
const QUICK: f64 = 0.5;
/// How far the best latency moves to the present one with every window, and the usual one with every answer: prompts
/// change, and so do providers.
const DRIFT: f64 = 0.1;
/// Calls that may always be in flight, so that one that hangs does not hold up the others.
const FEWEST: f64 = 2.0;
/// When a call is slow while nobody knows what is usual.
const UNKNOWN: Duration = Duration::from_secs(5);

/// What a provider says by an end that fewer calls may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overload {
    /// It asks for fewer calls.
    Asked,
    /// It failed, perhaps under its load.
    Failed,
}

/// Additive increase, multiplicative decrease, both by the share of a window that was turned down.
#[derive(Debug)]
pub(super) struct Pace {
    most: f64,
    limit: f64,
    /// When it was lowered last: calls sent before say nothing new.
    lowered: Option<Instant>,
    answers: f64,
    /// Ends of the window by which it asked for fewer calls.
    asked: f64,
    /// Ends of the window by which it failed.
    failed: f64,
    seconds: f64,
    since: Instant,
    /// Mean latency of the best window, drifting.
    best: Option<f64>,
    /// Latency of the last answers.
    usual: Option<f64>,
    /// Answers a second in the window before.
    rate: f64,
}

impl Pace {
    /// Begins with all: that is what the user asked for, and the provider says soon enough when it is too much.
    pub(super) fn new(most: usize, now: Instant) -> Self {
        let (most, zero) = (most.max(1) as f64, 0.0);
        Self {
            most,
            limit: most,
            lowered: None,
            answers: zero,
            asked: zero,
            failed: zero,
            seconds: zero,
            since: now,
            best: None,
            usual: None,
            rate: zero,
        }
    }

    /// Calls that may be in flight.
    pub(super) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// How long a call may take before it is a slow one.
    pub(super) fn slow_after(&self) -> Duration {
        self.usual.map_or(UNKNOWN, |usual| Duration::from_secs_f64((usual * SLOW).max(QUICK * 2.0)))
    }

    /// A call that was sent at `sent` was answered.
    pub(super) fn answered(&mut self, sent: Instant, now: Instant) {
        let seconds = (now - sent).as_secs_f64();
        self.answers += 1.0;
        self.seconds += seconds;
        self.usual = Some(self.usual.map_or(seconds, |usual| usual + (seconds - usual) * DRIFT));
        self.ended(now);
    }

    /// The provider said that a call sent at `sent` was too much, or gave no answer in time.
    pub(super) fn overloaded(&mut self, overload: Overload, sent: Instant, now: Instant) {
        // One burst of refusals is one event.
        if self.lowered.is_none_or(|lowered| sent > lowered) {
            match overload {
                Overload::Asked => self.asked += 1.0,
                Overload::Failed => self.failed += 1.0,
            }
            self.ended(now);
        }
    }

    /// Judges the window when it is full.
    fn ended(&mut self, now: Instant) {
        let refused = self.asked + self.failed;
        let all = self.answers + refused;
        if all < self.limit.max(WINDOW) {
            return;
        }
        let before = self.limit;
        let quarter = (self.most / 4.0).max(FEWEST);
        if self.is_slow(now) {
            // Never below a quarter for latency alone: long answers are no overload.
            self.limit = (before * DECREASE).max(quarter.min(before));
        } else {
            let share = refused / all;
            let more = (self.most / WINDOWS_TO_MOST).max(1.0) * (1.0 - share).powi(2);
            // Nor for failures alone, which may come whatever the load; it may be asked for fewer.
            let least = if self.asked > self.failed { FEWEST } else { quarter };
            let limit = (before * (1.0 - (1.0 - DECREASE) * share) + more).max(least.min(before));
            self.limit = limit.min(self.most);
        }
        if self.limit < before {
            self.lowered = Some(now);
        }
        (self.answers, self.asked, self.failed, self.seconds, self.since) = (0.0, 0.0, 0.0, 0.0, now);
    }

    /// Whether the answers of the window took long without being more.
    fn is_slow(&mut self, now: Instant) -> bool {
        if self.answers == 0.0 {
            return false;
        }
        let mean = self.seconds / self.answers;
        let rate = self.answers / (now - self.since).max(Duration::from_micros(1)).as_secs_f64();
        let best = self.best.map_or(mean, |best| best.min(mean));
        self.best = Some(best + (mean - best) * DRIFT);
        // More answers a second for the price of longer ones is what concurrency is for.
        let slow = mean > QUICK && mean > best * SLOW && rate <= self.rate * 1.05;
        self.rate = rate;
        slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// So many windows in which `refused` of ten calls end so.
    fn windows(pace: &mut Pace, count: usize, refused: usize, overload: Overload, now: &mut Instant) {
        for n in 0..count * 100 {
            *now += secs(0.01);
            let sent = *now - secs(0.005);
            if n % 10 < refused { pace.overloaded(overload, sent, *now) } else { pace.answered(sent, *now) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_refusals_lowers_once_and_answers_raise_again() {
        let start = Instant::now();
        let mut pace = Pace::new(100, start);
        for _ in 0..150 {
            pace.overloaded(Overload::Asked, start, start + secs(1.0));
        }
        assert_eq!(pace.limit(), 70);
        let mut now = start + secs(3.0);
        windows(&mut pace, 20, 0, Overload::Asked, &mut now);
        assert_eq!(pace.limit(), 100, "never above what is configured");
        windows(&mut pace, 50, 10, Overload::Failed, &mut now);
        assert_eq!(pace.limit(), 25, "failures alone leave a quarter");
        windows(&mut pace, 50, 10, Overload::Asked, &mut now);
        assert_eq!(pace.limit(), 2, "and never one alone, which may hang");
        windows(&mut pace, 1, 10, Overload::Failed, &mut now);
        assert_eq!(pace.limit(), 2, "a failure raises nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_of_refusals_lowers_by_its_share() {
        let mut now = Instant::now();
        let limit = |pace: &mut Pace, refused, now: &mut Instant| {
            windows(pace, 60, refused, Overload::Asked, now);
            pace.limit()
        };
        let mut pace = Pace::new(64, now);
        let [none, few, some, most] = [0, 1, 4, 8].map(|refused| limit(&mut pace, refused, &mut now));
        assert!(none == 64 && few > 50, "{none} {few}");
        assert!((8..32).contains(&some) && (2..8).contains(&most), "{some} {most}");
        let one = Pace::new(1, now);
        assert_eq!(one.limit(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_slow_is_known_by_what_is_usual() {
        let mut now = Instant::now();
        let mut pace = Pace::new(16, now);
        assert_eq!(pace.slow_after(), UNKNOWN);
        windows(&mut pace, 1, 0, Overload::Asked, &mut now);
        assert_eq!(pace.slow_after(), secs(1.0), "a quick answer may take a second");
        (0..100).for_each(|_| pace.answered(now - secs(2.0), now));
        assert!((7.0..=8.0).contains(&pace.slow_after().as_secs_f64()), "{:?}", pace.slow_after());
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
