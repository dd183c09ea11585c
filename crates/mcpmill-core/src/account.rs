//! Accounts: what calls used, prices, and the budget that ends a run.

use std::{
    collections::BTreeMap,
    fmt,
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::Notify;

use crate::record::Usage;

/// What one call used, or may use at most, and on whose account.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The model, or the kind of exchange where no model is asked.
    pub account: &'a str,
    /// Tokens and money.
    pub usage: Usage,
    /// Requests that were sent.
    pub attempts: u32,
}

/// What a run has used, by account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Accounts {
    /// Accounts by the name of their model.
    pub by_name: BTreeMap<String, Account>,
}

/// What was used on one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that ended without a reply.
    pub failed: u64,
    /// Requests beyond the first of their call.
    pub retried: u64,
    /// Calls that a kill cut off; `usage` has them at their most.
    pub cut_off: u64,
    /// Replies that came from the store.
    pub stored: u64,
    /// Tokens and money of all but the stored ones.
    #[serde(flatten)]
    pub usage: Usage,
}

impl Accounts {
    fn of(&mut self, charge: &Charge<'_>) -> &mut Account {
        let account = self.by_name.entry(charge.account.to_owned()).or_default();
        account.usage += charge.usage;
        account.retried += u64::from(charge.attempts.saturating_sub(1));
        account
    }

    /// Counts a call that was answered.
    pub fn answered(&mut self, used: &Charge<'_>) {
        self.of(used).answered += 1;
    }

    /// Counts a call that ended without a reply.
    pub fn failed(&mut self, used: &Charge<'_>) {
        self.of(used).failed += 1;
    }

    /// Counts a call of which nobody knows what it used, at its most.
    pub fn cut_off(&mut self, at_most: &Charge<'_>) {
        self.of(at_most).cut_off += 1;
    }

    /// Counts a reply that came from the store.
    pub fn stored(&mut self, account: &str) {
        self.by_name.entry(account.to_owned()).or_default().stored += 1;
    }

    /// Adds what other accounts count.
    pub fn add(&mut self, others: &Self) {
        for (name, other) in &others.by_name {
            *self.by_name.entry(name.clone()).or_default() += *other;
        }
    }

    /// What these accounts count beyond `earlier` ones of the same run.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let grown = |(name, now): (&String, &Account)| {
            let grown = now.since(earlier.by_name.get(name)?);
            (grown != Account::default()).then(|| (name.clone(), grown))
        };
        let new = |name: &String| !earlier.by_name.contains_key(name);
        let added = self.by_name.iter().filter(|(name, _)| new(name)).map(|(name, account)| (name.clone(), *account));
        Self { by_name: self.by_name.iter().filter_map(grown).chain(added).collect() }
    }

    /// Whether nothing was asked.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Tokens and money of all accounts.
    pub fn usage(&self) -> Usage {
        let mut all = Usage::default();
        self.by_name.values().for_each(|account| all += account.usage);
        all
    }
}

impl Account {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            answered: self.answered.saturating_sub(earlier.answered),
            failed: self.failed.saturating_sub(earlier.failed),
            retried: self.retried.saturating_sub(earlier.retried),
            cut_off: self.cut_off.saturating_sub(earlier.cut_off),
            stored: self.stored.saturating_sub(earlier.stored),
            usage: self.usage.since(&earlier.usage),
        }
    }
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.retried += other.retried;
        self.cut_off += other.cut_off;
        self.stored += other.stored;
        self.usage += other.usage;
    }
}

/// US dollars per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Prompt tokens.
    pub input: f64,
    /// Generated tokens.
    pub output: f64,
    /// Prompt tokens the provider had cached; without it they cost what others do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<f64>,
    /// Generated tokens that were reasoning; without it they cost what others do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<f64>,
    /// The share of all this that calls of a batch cost; half where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<f64>,
}

impl Price {
    /// US dollars for what a call used. Cached and reasoning tokens are part of the input and output tokens.
    pub fn of(&self, usage: &Usage) -> f64 {
        let cached = usage.cached_tokens.min(usage.input_tokens);
        let reasoning = usage.reasoning_tokens.min(usage.output_tokens);
        let dollars = (usage.input_tokens - cached) as f64 * self.input
            + cached as f64 * self.cached.unwrap_or(self.input)
            + (usage.output_tokens - reasoning) as f64 * self.output
            + reasoning as f64 * self.reasoning.unwrap_or(self.output);
        dollars / 1e6
    }

    /// The price of a call of a batch.
    #[must_use]
    pub fn of_batch(&self) -> Self {
        let share = self.batch.unwrap_or(0.5);
        let shared = |rate: f64| rate * share;
        Self {
            input: shared(self.input),
            output: shared(self.output),
            cached: self.cached.map(shared),
            reasoning: self.reasoning.map(shared),
            batch: Some(1.0),
        }
    }

    /// US dollars for so many tokens at the highest rates.
    pub fn at_most(&self, input_tokens: u64, output_tokens: u64) -> f64 {
        let input = self.cached.map_or(self.input, |cached| cached.max(self.input));
        let output = self.reasoning.map_or(self.output, |reasoning| reasoning.max(self.output));
        (input_tokens as f64 * input + output_tokens as f64 * output) / 1e6
    }
}

/// What a run may use in all. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Caps {
    /// US dollars.
    pub cost: Option<f64>,
    /// Prompt and generated tokens together.
    pub tokens: Option<u64>,
    /// When the run has to have asked its last question.
    pub until: Option<Instant>,
}

/// The cap that ended a run.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[error("the budget is used up: {0}")]
pub struct Reached(pub Cap);

/// Which cap, and how much of it was used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cap {
    /// US dollars.
    Cost {
        /// The cap.
        cap: f64,
        /// Used so far.
        used: f64,
    },
    /// Tokens.
    Tokens {
        /// The cap.
        cap: u64,
        /// Used so far.
        used: u64,
    },
    /// Time.
    Time,
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost { cap, used } => {
                write!(f, "${used:.4} of ${cap:.4} spent or set aside, and the next call may cost more than is left")
            }
            Self::Tokens { cap, used } => {
                write!(f, "{used} of {cap} tokens used or set aside, and the next call may need more than are left")
            }
            Self::Time => write!(f, "its time is over"),
        }
    }
}

/// Keeps a run within its caps. A call reserves what it may use at most, and gives back what it did not; while
/// reservations of others stand in the way it waits, so that the caps are never exceeded.
#[derive(Debug)]
pub struct Budget {
    caps: Caps,
    state: Mutex<State>,
    settled: Notify,
}

#[derive(Debug, Default)]
struct State {
    used: Usage,
    reserved: Usage,
    in_flight: usize,
    reached: Option<Reached>,
}

impl Budget {
    /// A budget of which `used` is gone already.
    pub fn new(caps: Caps, used: Usage) -> Arc<Self> {
        Arc::new(Self { caps, state: Mutex::new(State { used, ..State::default() }), settled: Notify::new() })
    }

    /// The cap that was reached, if any. Time also passes while nobody reserves.
    pub fn reached(&self) -> Option<Reached> {
        let mut state = self.state();
        if state.reached.is_none() && self.is_late() {
            state.reached = Some(Reached(Cap::Time));
        }
        state.reached
    }

    /// When the last question has to have been asked.
    pub fn until(&self) -> Option<Instant> {
        self.caps.until
    }

    fn is_late(&self) -> bool {
        self.caps.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Sets `at_most` aside for a call. Waits while only calls in flight stand in the way.
    ///
    /// # Errors
    /// A cap is reached; from then on it always is.
    pub async fn reserve(self: &Arc<Self>, at_most: Usage) -> Result<Reservation, Reached> {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            {
                let mut state = self.state();
                match self.misses(&state, &at_most) {
                    None => {
                        state.reserved += at_most;
                        state.in_flight += 1;
                        return Ok(Reservation { budget: Arc::clone(self), at_most, settled: false });
                    }
                    Some(reached) if state.reached.is_some() || state.in_flight == 0 || reached.0 == Cap::Time => {
                        return Err(*state.reached.get_or_insert(reached));
                    }
                    Some(_) => {}
                }
            }
            settled.await;
        }
    }

    /// Counts `at_most` as used at once, for what is paid for later than this process lives.
    ///
    /// # Errors
    /// A cap does not allow for it; from then on it is reached.
    pub fn set_aside(&self, at_most: Usage) -> Result<(), Reached> {
        let mut state = self.state();
        match self.misses(&state, &at_most) {
            None => {
                state.used += at_most;
                Ok(())
            }
            Some(reached) => Err(*state.reached.get_or_insert(reached)),
        }
    }

    /// The cap that does not allow for `more`.
    fn misses(&self, state: &State, more: &Usage) -> Option<Reached> {
        if state.reached.is_some() {
            return state.reached;
        }
        let tokens = |usage: &Usage| usage.input_tokens + usage.output_tokens;
        let cost = self.caps.cost.filter(|cap| state.used.cost + state.reserved.cost + more.cost > *cap);
        let many = self.caps.tokens.filter(|cap| tokens(&state.used) + tokens(&state.reserved) + tokens(more) > *cap);
        let reached = match (cost, many, self.is_late()) {
            (Some(cap), ..) => Cap::Cost { cap, used: state.used.cost },
            (_, Some(cap), _) => Cap::Tokens { cap, used: tokens(&state.used) },
            (.., true) => Cap::Time,
            _ => return None,
        };
        Some(Reached(reached))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, at_most: Usage, used: Usage) {
        let mut state = self.state();
        state.used += used;
        state.in_flight -= 1;
        state.reserved.input_tokens -= at_most.input_tokens;
        state.reserved.output_tokens -= at_most.output_tokens;
        // Sums of fractions do not come back to nothing by themselves.
        state.reserved.cost = if state.in_flight == 0 { 0.0 } else { state.reserved.cost - at_most.cost };
        drop(state);
        self.settled.notify_waiters();
    }
}

/// What is set aside for one call. Dropped without being settled it counts as used: the call was cut off, and
/// nobody knows what it cost.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    at_most: Usage,
    settled: bool,
}

impl Reservation {
    /// Puts what was used in its place.
    pub fn settle(mut self, used: Usage) {
        self.settled = true;
        self.budget.settle(self.at_most, used);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.settled {
            self.budget.settle(self.at_most, self.at_most);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn usage(cost: f64, tokens: u64) -> Usage {
        Usage { cost, output_tokens: tokens, ..Usage::default() }
    }

    #[test]
    fn prices_know_cached_and_reasoning_tokens() {
        let price = Price { input: 2.0, output: 8.0, cached: Some(0.5), ..Price::default() };
        let used = Usage {
            input_tokens: 1_000_000,
            cached_tokens: 400_000,
            output_tokens: 100_000,
            reasoning_tokens: 50_000,
            cost: 0.0,
        };
        assert!((price.of(&used) - (1.2 + 0.2 + 0.8)).abs() < 1e-9);
        assert!((price.at_most(1_000_000, 100_000) - 2.8).abs() < 1e-9);
        assert!(price.of(&used) <= price.at_most(used.input_tokens, used.output_tokens));
    }

    #[test]
    fn accounts_grow_by_what_was_added() {
        let mut first = Accounts::default();
        first.answered(&Charge { account: "a", usage: usage(0.5, 3), attempts: 2 });
        let mut both = first.clone();
        let mut more = Accounts::default();
        more.failed(&Charge { account: "a", usage: usage(0.25, 1), attempts: 1 });
        more.cut_off(&Charge { account: "b", usage: usage(1.0, 9), attempts: 0 });
        more.stored("b");
        both.add(&more);
        assert_eq!(both.since(&first), more);
        assert!(both.since(&both).is_empty());
        assert_eq!((both.usage().cost, both.by_name["a"].retried), (1.75, 1));
    }

    #[tokio::test]
    async fn a_call_waits_for_reservations_and_not_for_what_is_used() {
        let budget = Budget::new(Caps { cost: Some(1.0), ..Caps::default() }, usage(0.2, 0));
        let first = budget.reserve(usage(0.6, 0)).await.unwrap();
        let waiting = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.reserve(usage(0.6, 0)).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waiting.is_finished() && budget.reached().is_none());
        first.settle(usage(0.1, 0));
        let second = waiting.await.unwrap().unwrap();
        drop(second);
        let reached = budget.reserve(usage(0.2, 0)).await.unwrap_err();
        assert!(matches!(reached.0, Cap::Cost { cap, used } if cap == 1.0 && (used - 0.9).abs() < 1e-9), "{reached}");
        assert!(budget.reserve(usage(0.0, 0)).await.is_err(), "what is reached stays reached");
    }

    #[test]
    fn what_is_set_aside_is_gone() {
        let budget = Budget::new(Caps { cost: Some(1.0), ..Caps::default() }, usage(0.5, 0));
        budget.set_aside(usage(0.25, 0)).unwrap();
        assert!(budget.reached().is_none() && budget.set_aside(usage(0.5, 0)).is_err());
        assert!(budget.reached().is_some() && budget.set_aside(usage(0.0, 0)).is_err(), "what is reached stays reached");
    }

    #[tokio::test]
    async fn tokens_and_time_are_capped() {
        let tokens = Budget::new(Caps { tokens: Some(10), ..Caps::default() }, usage(0.0, 4));
        tokens.reserve(usage(0.0, 6)).await.unwrap().settle(usage(0.0, 5));
        assert!(matches!(tokens.reserve(usage(0.0, 2)).await.unwrap_err().0, Cap::Tokens { cap: 10, used: 9 }));
        let over = Budget::new(Caps { until: Some(Instant::now()), ..Caps::default() }, Usage::default());
        assert_eq!(over.reached(), Some(Reached(Cap::Time)), "also when nobody asks for more");
        assert_eq!(over.reserve(Usage::default()).await.unwrap_err(), Reached(Cap::Time));
    }
}
