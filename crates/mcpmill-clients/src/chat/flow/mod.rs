//! Flow control of one model: how many calls are in flight, how fast they follow each other, and what happens
//! when the provider is busy or down.
//!
//! A call enters, waits its turn, and holds a slot while it is under way; ending or dropping the slot gives back all
//! that it held. Nothing here knows of the network.

mod breaker;
mod bucket;
mod pace;

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, sleep, sleep_until},
};

use breaker::{Breaker, Change, Gate, Left};
use bucket::Bucket;
use pace::{Overload, Pace};

/// Retries that each first try of a call allows for.
const RETRY_SHARE: f64 = 0.2;
/// Retries that may be saved up, of calls that needed none.
const RETRIES_SAVED: f64 = 100.0;
/// Retries that are there at the start.
const RETRIES_FIRST: f64 = 20.0;

/// Pauses that a provider asks for and that people are told of.
const LONG_PAUSE: Duration = Duration::from_secs(10);
/// A longer pause is none that a provider means; a clock could not tell its end.
const LONGEST_PAUSE: Duration = Duration::from_secs(366 * 24 * 3600);

/// Told what people should know of a provider.
pub type Notes = Arc<dyn Fn(String) + Send + Sync>;

/// The bounds of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most calls in flight.
    pub(super) most: usize,
    /// Requests a minute, when limited.
    pub(super) requests_per_minute: Option<NonZeroU32>,
    /// Tokens a minute, when limited.
    pub(super) tokens_per_minute: Option<NonZeroU32>,
    /// How long calls wait for a provider that is down.
    pub(super) give_up_after: Duration,
}

/// Calls wait for the provider no more; says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GivenUp(pub(super) String);

/// How a call ended, as far as flow is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// With a reply that used so many tokens.
    Answered(u64),
    /// The provider answered, and did not take the question.
    Refused,
    /// The provider takes no calls, whatever they ask.
    Denied,
    /// The provider asked for fewer calls, perhaps for a pause.
    Busy(Option<Duration>),
    /// The provider failed, by itself or under its load.
    Failed {
        /// Whether fewer calls may help.
        overload: bool,
        /// The pause it asked for.
        pause: Option<Duration>,
    },
}

/// The flow of calls to one model.
pub(super) struct Flow {
    /// Names the model in notes.
    name: String,
    bounds: Bounds,
    slots: Semaphore,
    state: Mutex<State>,
    /// The breaker opened, closed or gave up, or a probe ended.
    changed: Notify,
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    retries: Bucket,
    notes: Option<Notes>,
}

struct State {
    pace: Pace,
    breaker: Breaker,
    /// Slots that exist, idle ones and held ones.
    slots: usize,
    /// Calls in flight that take long, and stand in the way of no other.
    slow: usize,
    most: usize,
    paused_until: Option<Instant>,
    /// The pause is so long that nobody waits for its end.
    pause_given_up: bool,
    /// What was wrong last.
    why: String,
}

impl State {
    /// Slots that there may be.
    fn limit(&self) -> usize {
        (self.pace.limit() + self.slow).min(self.most)
    }

    /// Why calls do not wait, where they do not.
    fn left(&self, now: Instant) -> Option<Left> {
        let alone = self.paused_until.filter(|until| self.pause_given_up && *until > now);
        alone.map(|until| Left::Alone(until - now)).or_else(|| self.breaker.left(now))
    }

    /// Notes a pause; whether it is one that people should know of.
    fn pause(&mut self, pause: Duration, patience: Duration, now: Instant) -> bool {
        let until = now + pause.min(LONGEST_PAUSE);
        let before = self.paused_until.filter(|before| *before > now);
        if before.is_some_and(|before| before >= until) {
            return false;
        }
        (self.paused_until, self.pause_given_up) = (Some(until), pause > patience);
        pause > LONG_PAUSE && before.is_none_or(|before| until > before + LONG_PAUSE)
    }
}

impl Flow {
    pub(super) fn new(name: &str, bounds: Bounds) -> Self {
        let most = bounds.most.clamp(1, Semaphore::MAX_PERMITS);
        let (pace, breaker) = (Pace::new(most, Instant::now()), Breaker::new(bounds.give_up_after));
        Self {
            name: name.to_owned(),
            bounds,
            slots: Semaphore::new(most),
            state: Mutex::new(State {
                pace,
                breaker,
                slots: most,
                slow: 0,
                most,
                paused_until: None,
                pause_given_up: false,
                why: String::new(),
            }),
            changed: Notify::new(),
            requests: bounds.requests_per_minute.map(|n| Bucket::per_minute(n.get())),
            tokens: bounds.tokens_per_minute.map(|n| Bucket::per_minute(n.get())),
            // A share of the calls, and some by time, so that every call comes to its end.
            retries: Bucket::new((most as f64 / 4.0).max(1.0), RETRIES_SAVED, RETRIES_FIRST),
            notes: None,
        }
    }

    pub(super) fn with_notes(mut self, notes: Notes) -> Self {
        self.notes = Some(notes);
        self
    }

    /// Says something to people.
    pub(super) fn note(&self, text: impl FnOnce(&str) -> String) {
        if let Some(notes) = &self.notes {
            notes(text(&self.name));
        }
    }

    /// Whether the provider is taken to be down.
    pub(super) fn is_down(&self) -> bool {
        self.state().breaker.is_open()
    }

    /// Why calls wait for the provider no more, where they do not.
    pub(super) fn given_up(&self) -> Option<GivenUp> {
        let state = self.state();
        let left = state.left(Instant::now())?;
        Some(GivenUp(in_words(left, &state.why)))
    }

    /// A call begins: it brings its share of retries.
    pub(super) fn begin(&self) {
        self.retries.correct(RETRY_SHARE);
    }

    /// Waits until the budget of retries allows one more.
    pub(super) async fn retry(&self) {
        self.retries.take(1.0).await;
    }

    /// Waits for a slot for a request of about `tokens`, and for all else that has to pass before it may be sent.
    ///
    /// # Errors
    /// The provider is down, and calls wait for it no more.
    pub(super) async fn enter(&self, tokens: u64) -> Result<Slot<'_>, GivenUp> {
        if let Ok(permit) = self.slots.acquire().await {
            // The slot gives it back, or takes it away when there are too many.
            permit.forget();
        }
        let mut slot = Slot { flow: self, probe: false, slow: false, sent: None, requests: 0.0, tokens: 0.0 };
        if let Some(requests) = &self.requests {
            requests.take(1.0).await;
            slot.requests = 1.0;
        }
        if let Some(bucket) = &self.tokens {
            bucket.take(tokens as f64).await;
            slot.tokens = tokens as f64;
        }
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let until = match self.gate() {
                Gate::Go => break,
                Gate::Probe => {
                    slot.probe = true;
                    break;
                }
                Gate::GivenUp(left) => return Err(GivenUp(in_words(left, &self.state().why))),
                Gate::Wait(until) => until,
            };
            match until {
                None => changed.await,
                Some(until) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(until) => {}
                },
            }
        }
        Ok(slot)
    }

    fn gate(&self) -> Gate {
        let (mut state, now) = (self.state(), Instant::now());
        match state.paused_until {
            Some(until) if until > now && state.pause_given_up => Gate::GivenUp(Left::Alone(until - now)),
            Some(until) if until > now => Gate::Wait(Some(until)),
            _ => state.breaker.gate(now),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, change: Change, why: &str) {
        self.changed.notify_waiters();
        let seconds = |time: Duration| time.as_secs();
        self.note(|name| match change {
            Change::Opened(_) => format!(
                "`{name}` does not answer ({why}): calls wait, one at a time tries again, for up to {} s",
                seconds(self.bounds.give_up_after)
            ),
            Change::Closed(down) => format!("`{name}` answers again, after {} s", seconds(down)),
            Change::GaveUp(left) => format!("`{name}`: {}", in_words(left, why)),
        });
    }

    /// Says that the provider asked for a long pause, and lets those who wait see it.
    fn tell_pause(&self, pause: Duration, why: &str) {
        self.changed.notify_waiters();
        let (seconds, patience) = (pause.as_secs(), self.bounds.give_up_after);
        self.note(|name| {
            let then = if pause > patience { "calls do not wait that long" } else { "calls wait for its end" };
            format!("`{name}` asks for a pause of {seconds} s ({why}): {then}")
        });
    }

    /// Puts a slot back, makes those that the pace allows for, or takes it away when there are too many.
    fn release(&self) {
        let mut state = self.state();
        let limit = state.limit();
        // The one that comes back is counted in `slots`.
        let add = (limit + 1).saturating_sub(state.slots);
        if add == 0 {
            let surplus = state.slots - 1 - limit;
            state.slots = state.slots - 1 - self.slots.forget_permits(surplus);
        } else {
            state.slots += add - 1;
            self.slots.add_permits(add);
        }
    }
}

/// A call under way. Dropped without an end, it gives back its slot, and what it took of the buckets if it was not
/// sent.
pub(super) struct Slot<'a> {
    flow: &'a Flow,
    probe: bool,
    /// Whether it takes long, and another call has its place.
    slow: bool,
    sent: Option<Instant>,
    requests: f64,
    tokens: f64,
}

impl Slot<'_> {
    /// Whether this call finds out if the provider answers again.
    pub(super) fn is_probe(&self) -> bool {
        self.probe
    }

    /// Waits for `call`, which is sent now. When it takes far longer than is usual, another may go in its place, as long
    /// as there are no more than the most.
    pub(super) async fn send<T>(&mut self, call: impl Future<Output = T>) -> T {
        self.sent = Some(Instant::now());
        let patience = self.flow.state().pace.slow_after();
        tokio::pin!(call);
        tokio::select! {
            biased;
            done = &mut call => return done,
            () = sleep(patience) => self.give_way(),
        }
        call.await
    }

    fn give_way(&mut self) {
        let mut state = self.flow.state();
        self.slow = true;
        state.slow += 1;
        let add = state.limit().saturating_sub(state.slots);
        state.slots += add;
        self.flow.slots.add_permits(add);
    }

    /// The call ended; `why` says what was wrong with it.
    pub(super) fn end(mut self, ended: Ended, why: &str) {
        let now = Instant::now();
        let sent = *self.sent.get_or_insert(now);
        let probe = std::mem::take(&mut self.probe);
        let mut state = self.flow.state();
        let (pause, change) = match ended {
            Ended::Answered(_) => {
                state.pace.answered(sent, now);
                (None, state.breaker.answered(now))
            }
            Ended::Refused => (None, state.breaker.answered(now)),
            Ended::Denied => (None, state.breaker.denied(now, probe)),
            Ended::Busy(pause) => {
                state.pace.overloaded(Overload::Asked, sent, now);
                (pause, state.breaker.answered(now))
            }
            Ended::Failed { overload, pause } => {
                if overload {
                    state.pace.overloaded(Overload::Failed, sent, now);
                }
                (pause, state.breaker.failed(now, probe))
            }
        };
        if !why.is_empty() {
            why.clone_into(&mut state.why);
        }
        let long = pause.filter(|pause| state.pause(*pause, self.flow.bounds.give_up_after, now));
        drop(state);
        if let Some(pause) = long {
            self.flow.tell_pause(pause, why);
        }
        if let Some(bucket) = &self.flow.tokens {
            let used = match ended {
                Ended::Answered(used) => used as f64,
                Ended::Refused | Ended::Denied | Ended::Busy(_) => 0.0,
                // What it used nobody knows.
                Ended::Failed { .. } => self.tokens,
            };
            bucket.correct(self.tokens - used);
        }
        if let Some(change) = change {
            self.flow.tell(change, why);
        } else if probe {
            self.flow.changed.notify_waiters();
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if self.probe {
            self.flow.state().breaker.abandoned();
            self.flow.changed.notify_waiters();
        }
        if self.sent.is_none() {
            let give_back = |bucket: &Option<Bucket>, amount: f64| bucket.iter().for_each(|bucket| bucket.correct(amount));
            give_back(&self.flow.requests, self.requests);
            give_back(&self.flow.tokens, self.tokens);
        }
        if self.slow {
            self.flow.state().slow -= 1;
        }
        self.flow.release();
    }
}

/// Why calls wait no more.
fn in_words(left: Left, why: &str) -> String {
    match left {
        Left::Silent(down) => format!("the provider has not answered for {} s ({why}); calls wait no more", down.as_secs()),
        Left::Denied => format!("the provider turns calls away ({why}); calls wait no more"),
        Left::Alone(rest) => format!(
            "the provider wants no calls for another {} s ({why}), until {}; calls do not wait that long",
            rest.as_secs_f64().ceil(),
            httpdate::fmt_http_date(SystemTime::now() + rest)
        ),
    }
}

#[cfg(test)]
mod tests;
