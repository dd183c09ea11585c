//! What a run has used, and what it may.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use mcpmill_core::{
    account::{Accounts, Budget, Caps},
    edge::{Exchanges, Mode, Recorder, StoreError, Stored},
    event::Event,
};
use mcpmill_pipeline::models::Role;
use serde::{Deserialize, Serialize};

use super::Line;
use crate::{
    batch::Desk,
    config::{self, Config},
    declarations::Declarations,
    edges::model_of,
    error::{Exit, Failure},
    prices::Prices,
};

/// A longer span cannot be added to every clock; nobody notices its end.
const LONGEST_HOURS: f64 = 1e6;

/// What the store counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Calls made again because a kill cut off the first.
    pub repeated: u64,
    /// All calls.
    pub accounts: Accounts,
}

/// A recorder that keeps to the budget, of which is gone what earlier invocations of the run used, and what the questions
/// may use that they put off at `desk`.
///
/// # Errors
/// The budget is no such, or the store cannot be used.
pub(super) async fn recorder(
    config: &Config,
    declarations: &Declarations,
    store: Arc<dyn Exchanges>,
    desk: Option<&Desk>,
) -> Result<Recorder, Failure> {
    let caps = caps(&config.budget)?;
    let recorder = Recorder::new(Arc::clone(&store), config.mode);
    if config.mode == Mode::Replay {
        return Ok(recorder);
    }
    if caps.cost.is_some() {
        every_price_is_known(config, &Prices::load(declarations)?)?;
    }
    let fail = |e: StoreError| Failure::from_error(Exit::Unexpected, &e);
    recorder.cut_off().await.map_err(fail)?;
    let mut used = recorder.accounts().map_err(fail)?.usage();
    if let Some(desk) = desk {
        used += desk.outstanding(|key| is_answered(store.as_ref(), config.mode, key)).map_err(fail)?;
    }
    Ok(recorder.with_budget(Budget::new(caps, used)))
}

/// Whether the store has an answer that serves in `mode`.
pub fn is_answered(store: &dyn Exchanges, mode: Mode, key: &str) -> Result<bool, StoreError> {
    let serves = |stored: Stored| stored.own || (mode == Mode::Reuse && stored.exchange.reply.get("refused").is_none());
    Ok(store.get(key)?.is_some_and(serves))
}

fn caps(budget: &config::Budget) -> Result<Caps, Failure> {
    let wrong = |name: &str, value: f64| {
        Failure::usage(format!("`budget.{name}` is {value}, which is no cap")).hint("leave it out for no cap; 0 asks nobody")
    };
    for (name, value) in [("cost", budget.cost), ("hours", budget.hours)] {
        if let Some(value) = value.filter(|value| !value.is_finite() || *value < 0.0) {
            return Err(wrong(name, value));
        }
    }
    let until =
        budget.hours.filter(|hours| *hours < LONGEST_HOURS).map(|hours| Instant::now() + Duration::from_secs_f64(hours * 3600.0));
    Ok(Caps { cost: budget.cost, tokens: budget.tokens, until })
}

/// A cap on money says nothing of a model whose price nobody knows.
fn every_price_is_known(config: &Config, prices: &Prices) -> Result<(), Failure> {
    let mut unknown = BTreeSet::new();
    for role in Role::ALL {
        let named = model_of(config, role)?;
        if named.priced.is_some_and(|(model, own)| own.is_none() && prices.find(&model).is_none()) {
            unknown.insert(named.name);
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = unknown.iter().map(|name| format!("`{name}`")).collect();
    Err(Failure::usage(format!("`budget.cost` is set, and the price of {} is not known", names.join(", ")))
        .hint("set the `price` of the model, or cap `budget.tokens` in place of the cost"))
}

impl Line {
    /// What the run has used so far, over all invocations.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn counts(&self) -> Result<Counts, Failure> {
        let fail = |e: StoreError| Failure::from_error(Exit::Unexpected, &e);
        let recorder = &self.recorder;
        Ok(Counts { repeated: recorder.repeated().map_err(fail)?, accounts: recorder.accounts().map_err(fail)? })
    }

    /// Closes the accounts at the end of the work: what is still in flight was let go, and counts at its most.
    ///
    /// # Errors
    /// The store cannot be used.
    pub async fn settle(&self) -> Result<(), Failure> {
        self.recorder.cut_off().await.map_err(|e| Failure::from_error(Exit::Unexpected, &e))?;
        let accounts = self.counts()?.accounts;
        if self.has_worked() && !accounts.is_empty() {
            self.events.emit(Event::RunEnded { accounts });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_are_what_the_settings_say() {
        let budget = config::Budget { cost: Some(1.5), tokens: Some(7), hours: Some(2.0) };
        let caps = caps(&budget).unwrap();
        assert_eq!((caps.cost, caps.tokens), (Some(1.5), Some(7)));
        let left = caps.until.unwrap().duration_since(Instant::now()).as_secs_f64();
        assert!((7199.0..=7200.0).contains(&left), "{left}");
        for odd in [f64::NAN, -1.0, f64::INFINITY] {
            assert!(super::caps(&config::Budget { cost: Some(odd), ..config::Budget::default() }).is_err());
        }
        assert_eq!(super::caps(&config::Budget::default()).unwrap(), Caps::default());
    }
}
