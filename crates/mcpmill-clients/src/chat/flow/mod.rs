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
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, sleep_until},
};

use breaker::{Breaker, Change, Gate};
use bucket::Bucket;
use pace::Pace;

/// Retries that each first try of a call allows for.
const RETRY_SHARE: f64 = 0.2;
/// Retries that may be saved up, of calls that needed none.
const RETRIES_SAVED: f64 = 100.0;
/// Retries that are there at the start.
const RETRIES_FIRST: f64 = 20.0;

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

/// The provider has been down for so long that calls wait no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenUp(pub(super) Duration);

/// How a call ended, as far as flow is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// With a reply that used so many tokens.
    Answered(u64),
    /// The provider answered, and did not take the question.
    Refused,
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
    paused_until: Option<Instant>,
}

impl Flow {
    pub(super) fn new(name: &str, bounds: Bounds) -> Self {
        let most = bounds.most.clamp(1, Semaphore::MAX_PERMITS);
        let (pace, breaker) = (Pace::new(most, Instant::now()), Breaker::new(bounds.give_up_after));
        Self {
            name: name.to_owned(),
            bounds,
            slots: Semaphore::new(most),
            state: Mutex::new(State { pace, breaker, slots: most, paused_until: None }),
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
        let mut slot = Slot { flow: self, probe: false, sent: None, requests: 0.0, tokens: 0.0 };
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
                Gate::GivenUp(down) => return Err(GivenUp(down)),
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
        slot.sent = Some(Instant::now());
        Ok(slot)
    }

    fn gate(&self) -> Gate {
        let (mut state, now) = (self.state(), Instant::now());
        match state.paused_until {
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
            Change::GaveUp(down) => format!("`{name}` has not answered for {} s ({why}): calls wait no more", seconds(down)),
        });
    }

    /// Puts a slot back, makes those that the pace allows for, or takes it away when there are too many.
    fn release(&self) {
        let mut state = self.state();
        let limit = state.pace.limit();
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
    sent: Option<Instant>,
    requests: f64,
    tokens: f64,
}

impl Slot<'_> {
    /// Whether this call finds out if the provider answers again.
    pub(super) fn is_probe(&self) -> bool {
        self.probe
    }

    /// The call ended; `why` says what was wrong with it.
    pub(super) fn end(mut self, ended: Ended, why: &str) {
        let now = Instant::now();
        let sent = self.sent.unwrap_or(now);
        let probe = std::mem::take(&mut self.probe);
        let mut state = self.flow.state();
        let (pause, change) = match ended {
            Ended::Answered(_) => {
                state.pace.answered(sent, now);
                (None, state.breaker.answered(now))
            }
            Ended::Refused => (None, state.breaker.answered(now)),
            Ended::Busy(pause) => {
                state.pace.overloaded(sent, now);
                (pause, state.breaker.answered(now))
            }
            Ended::Failed { overload, pause } => {
                if overload {
                    state.pace.overloaded(sent, now);
                }
                (pause, state.breaker.failed(now, probe))
            }
        };
        if let Some(pause) = pause {
            let until = now + pause.min(self.flow.bounds.give_up_after);
            state.paused_until = Some(state.paused_until.map_or(until, |other| other.max(until)));
        }
        drop(state);
        if let Some(bucket) = &self.flow.tokens {
            let used = match ended {
                Ended::Answered(used) => used as f64,
                Ended::Refused | Ended::Busy(_) => 0.0,
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
        self.flow.release();
    }
}

#[cfg(test)]
mod tests;
