//! The circuit breaker: whether a provider answers at all.

use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row after which a provider is taken to be down.
const FAILURES: u32 = 5;
/// Calls in a row that a provider turns away without looking at them, after which it is given up.
const DENIALS: u32 = 3;
/// Time to the first probe; doubles with every one that fails.
const FIRST_PROBE: Duration = Duration::from_secs(1);
/// Most time between two probes.
const LONGEST_INTERVAL: Duration = Duration::from_secs(30);

/// What a call has to do before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Nothing.
    Go,
    /// It goes as the one that finds out whether the provider answers again.
    Probe,
    /// Wait until something changes, or until this moment.
    Wait(Option<Instant>),
    /// It is not sent.
    GivenUp(Left),
}

/// Why a provider is waited for no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// It has not answered for so long.
    Silent(Duration),
    /// It turns calls away: the key, the credit or the model is not good.
    Denied,
    /// It wants to be left alone for so long from now.
    Alone(Duration),
}

/// A change that people are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The provider is down; it is tried again after this time.
    Opened(Duration),
    /// It answers again, after this time.
    Closed(Duration),
    /// Calls wait no more.
    GaveUp(Left),
}

/// Counts failures in a row; after some, calls wait but for one probe at growing intervals.
#[derive(Debug)]
pub(super) struct Breaker {
    give_up_after: Duration,
    failures: u32,
    denials: u32,
    /// When the first failure of the row came.
    since: Option<Instant>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    probe_at: Instant,
    interval: Duration,
    probing: bool,
    given_up: Option<GivenUp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    Silent,
    Denied,
}

impl Open {
    fn new(now: Instant, given_up: Option<GivenUp>) -> Self {
        Self { probe_at: now + FIRST_PROBE, interval: FIRST_PROBE, probing: false, given_up }
    }

    /// A probe was in vain; the next one comes later.
    fn missed(&mut self, now: Instant) {
        self.probing = false;
        self.interval = (self.interval * 2).min(LONGEST_INTERVAL);
        self.probe_at = now + self.interval;
    }
}

impl Breaker {
    pub(super) fn new(give_up_after: Duration) -> Self {
        Self { give_up_after, failures: 0, denials: 0, since: None, open: None }
    }

    /// Whether calls wait or are given up.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Why calls do not wait, where they do not.
    pub(super) fn left(&self, now: Instant) -> Option<Left> {
        let down = self.since.map_or(Duration::ZERO, |since| now - since);
        Some(match self.open.as_ref()?.given_up? {
            GivenUp::Silent => Left::Silent(down),
            GivenUp::Denied => Left::Denied,
        })
    }

    /// What a call that wants to be sent has to do. After [`Gate::Probe`] one of `failed`, `denied`, `answered` and
    /// `abandoned` has to follow.
    pub(super) fn gate(&mut self, now: Instant) -> Gate {
        let left = self.left(now);
        let Some(open) = &mut self.open else { return Gate::Go };
        if !open.probing && now >= open.probe_at {
            open.probing = true;
            return Gate::Probe;
        }
        match (left, open.probing) {
            (Some(left), _) => Gate::GivenUp(left),
            (None, true) => Gate::Wait(None),
            (None, false) => Gate::Wait(Some(open.probe_at)),
        }
    }

    /// The provider failed.
    pub(super) fn failed(&mut self, now: Instant, probe: bool) -> Option<Change> {
        let since = *self.since.get_or_insert(now);
        self.failures = self.failures.saturating_add(1);
        let patient = now - since < self.give_up_after;
        match &mut self.open {
            None if self.failures >= FAILURES => {
                // Without patience nothing waits, and the first probe comes with some later call.
                let given_up = self.give_up_after.is_zero().then_some(GivenUp::Silent);
                self.open = Some(Open::new(now, given_up));
                Some(given_up.map_or(Change::Opened(FIRST_PROBE), |_| Change::GaveUp(Left::Silent(now - since))))
            }
            Some(open) if probe => {
                open.missed(now);
                let gives_up = open.given_up.is_none() && !patient;
                if gives_up {
                    open.given_up = Some(GivenUp::Silent);
                }
                gives_up.then(|| Change::GaveUp(Left::Silent(now - since)))
            }
            // Sent before it was known that the provider is down.
            _ => None,
        }
    }

    /// The provider answered that it takes no calls, whatever they ask.
    pub(super) fn denied(&mut self, now: Instant, probe: bool) -> Option<Change> {
        self.since.get_or_insert(now);
        self.denials = self.denials.saturating_add(1);
        if self.denials < DENIALS && !probe {
            return None;
        }
        let open = self.open.get_or_insert_with(|| Open::new(now, None));
        if probe {
            open.missed(now);
        }
        let before = open.given_up.replace(GivenUp::Denied);
        (before != Some(GivenUp::Denied)).then_some(Change::GaveUp(Left::Denied))
    }

    /// The provider answered, whatever it said.
    pub(super) fn answered(&mut self, now: Instant) -> Option<Change> {
        (self.failures, self.denials) = (0, 0);
        let since = self.since.take();
        self.open.take().map(|_| Change::Closed(since.map_or(Duration::ZERO, |since| now - since)))
    }

    /// The probe was dropped before it ended; another may go.
    pub(super) fn abandoned(&mut self) {
        if let Some(open) = &mut self.open {
            open.probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn broken(give_up_after: Duration, now: Instant) -> Breaker {
        let mut breaker = Breaker::new(give_up_after);
        for _ in 1..FAILURES {
            assert_eq!(breaker.failed(now, false), None);
            assert_eq!(breaker.gate(now), Gate::Go);
        }
        assert!(breaker.failed(now, false).is_some());
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_goes_at_growing_intervals_and_an_answer_lets_all_go() {
        let start = Instant::now();
        let mut breaker = broken(secs(60), start);
        assert_eq!(breaker.gate(start), Gate::Wait(Some(start + secs(1))));
        assert_eq!(breaker.gate(start + secs(1)), Gate::Probe);
        assert_eq!(breaker.gate(start + secs(1)), Gate::Wait(None), "one at a time");
        assert_eq!(breaker.failed(start + secs(1), true), None);
        assert_eq!(breaker.gate(start + secs(2)), Gate::Wait(Some(start + secs(3))));
        assert_eq!(breaker.gate(start + secs(3)), Gate::Probe);
        breaker.abandoned();
        assert_eq!(breaker.gate(start + secs(3)), Gate::Probe, "a dropped probe leaves its place to another");
        assert_eq!(breaker.answered(start + secs(4)), Some(Change::Closed(secs(4))));
        assert_eq!(breaker.gate(start + secs(4)), Gate::Go);
        assert_eq!(breaker.failed(start + secs(5), false), None, "the count begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_stays_down_is_given_up_and_looked_at_now_and_then() {
        let start = Instant::now();
        let mut breaker = broken(secs(5), start);
        let mut now = start;
        let gave_up = loop {
            now += secs(1);
            if breaker.gate(now) == Gate::Probe
                && let Some(change) = breaker.failed(now, true)
            {
                break change;
            }
        };
        assert_eq!(gave_up, Change::GaveUp(Left::Silent(secs(7))));
        assert_eq!(breaker.gate(now), Gate::GivenUp(Left::Silent(secs(7))));
        assert_eq!(breaker.gate(now + LONGEST_INTERVAL), Gate::Probe);
        assert_eq!(breaker.gate(now + LONGEST_INTERVAL), Gate::GivenUp(Left::Silent(secs(37))), "nobody waits for that probe");
        assert!(breaker.answered(now + secs(40)).is_some());
        assert_eq!(breaker.gate(now + secs(40)), Gate::Go);
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_turns_calls_away_is_given_up_at_once_and_looked_at_now_and_then() {
        let start = Instant::now();
        let mut breaker = Breaker::new(secs(300));
        assert_eq!(breaker.denied(start, false), None);
        assert_eq!(breaker.answered(start), None);
        assert_eq!([(); 3].map(|()| breaker.denied(start, false)), [None, None, Some(Change::GaveUp(Left::Denied))]);
        assert_eq!(breaker.denied(start, false), None, "told once");
        assert_eq!(breaker.gate(start), Gate::GivenUp(Left::Denied));
        assert_eq!(breaker.gate(start + secs(1)), Gate::Probe);
        assert_eq!(breaker.denied(start + secs(1), true), None);
        assert_eq!(breaker.gate(start + secs(2)), Gate::GivenUp(Left::Denied));
        assert_eq!(breaker.gate(start + secs(3)), Gate::Probe);
        assert_eq!(breaker.answered(start + secs(4)), Some(Change::Closed(secs(4))));

        let mut silent = broken(secs(60), start);
        assert_eq!(silent.gate(start + secs(1)), Gate::Probe);
        assert_eq!(silent.denied(start + secs(1), true), Some(Change::GaveUp(Left::Denied)), "it is there, and takes no calls");
    }

    #[tokio::test(start_paused = true)]
    async fn without_patience_nobody_waits() {
        let start = Instant::now();
        assert!(matches!(broken(Duration::ZERO, start).gate(start), Gate::GivenUp(_)));
    }
}
