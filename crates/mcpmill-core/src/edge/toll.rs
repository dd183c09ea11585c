//! What is set aside and noted for a call, try by try.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use async_trait::async_trait;
use thiserror::Error;

use crate::{
    account::{Budget, Charge, Reached, Reservation},
    edge::{Exchanges, StoreError},
    record::Usage,
};

/// Asked before every try of a call that may cost something. Who waits for its turn has not asked yet, and costs nothing.
#[async_trait]
pub trait Toll: Send + Sync {
    /// Sets aside what one try may use at most, and notes that it is about to be sent. Waits while only calls in flight
    /// stand in the way.
    ///
    /// # Errors
    /// It must not be sent.
    async fn before(&self, at_most: Usage) -> Result<(), NotSent>;

    /// A try ended without a reply, and the call may go on; it has used so much.
    ///
    /// # Errors
    /// The store fails.
    async fn missed(&self, used: Usage) -> Result<(), NotSent>;

    /// When the last try has to have been sent.
    fn until(&self) -> Option<Instant>;
}

/// A try must not be sent.
#[derive(Debug, Error)]
pub enum NotSent {
    /// The run may use no more.
    #[error(transparent)]
    Budget(#[from] Reached),
    /// What cannot be noted is not sent.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// For calls that nobody counts.
pub struct Free;

#[async_trait]
impl Toll for Free {
    async fn before(&self, _: Usage) -> Result<(), NotSent> {
        Ok(())
    }

    async fn missed(&self, _: Usage) -> Result<(), NotSent> {
        Ok(())
    }

    fn until(&self) -> Option<Instant> {
        None
    }
}

/// One call of a run: what it has used, and what is set aside for the try in flight.
pub(super) struct Sending {
    store: Arc<dyn Exchanges>,
    budget: Option<Arc<Budget>>,
    key: String,
    account: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the store has a note of the call.
    noted: bool,
    /// What tries that ended have used.
    spent: Usage,
    /// Dropped unsettled it counts as used: nobody knows what the try cost.
    reserved: Option<Reservation>,
    /// What the store said when it failed.
    fault: Option<String>,
}

impl Sending {
    pub(super) fn new(store: Arc<dyn Exchanges>, budget: Option<Arc<Budget>>, key: &str, account: &str) -> Self {
        Self { store, budget, key: key.to_owned(), account: account.to_owned(), state: Mutex::default() }
    }

    /// The call has ended, and used so much in all. Says whether any of it was sent.
    pub(super) fn ended(&self, usage: Usage) -> bool {
        let mut state = self.state();
        if let Some(reserved) = state.reserved.take() {
            reserved.settle(usage.since(&state.spent));
        }
        state.noted
    }

    /// Why the store could not be told of the call.
    pub(super) fn fault(&self) -> Option<StoreError> {
        self.state().fault.clone().map(StoreError)
    }

    /// Tells the store what the call would have used at most, should it be cut off now.
    pub(super) async fn note(&self, at_most: Usage) -> Result<(), StoreError> {
        let charge = Charge { account: &self.account, usage: at_most, attempts: 0 };
        let noted = std::mem::replace(&mut self.state().noted, true);
        let told = if noted { self.store.note(&self.key, &charge).await } else { self.store.begin(&self.key, &charge).await };
        if let Err(StoreError(why)) = &told {
            self.state().fault = Some(why.clone());
        }
        told
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Toll for Sending {
    async fn before(&self, at_most: Usage) -> Result<(), NotSent> {
        let reserved = match &self.budget {
            Some(budget) => Some(budget.reserve(at_most).await?),
            None => None,
        };
        let mut most = {
            let mut state = self.state();
            state.reserved = reserved;
            state.spent
        };
        most += at_most;
        Ok(self.note(most).await?)
    }

    async fn missed(&self, used: Usage) -> Result<(), NotSent> {
        let spent = {
            let mut state = self.state();
            state.spent += used;
            if let Some(reserved) = state.reserved.take() {
                reserved.settle(used);
            }
            state.spent
        };
        Ok(self.note(spent).await?)
    }

    fn until(&self) -> Option<Instant> {
        self.budget.as_ref()?.until()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{account::Caps, edge::exchange::tests::Memory};

    fn usage(cost: f64) -> Usage {
        Usage { cost, ..Usage::default() }
    }

    #[tokio::test]
    async fn a_call_reserves_one_try_at_a_time_and_its_note_says_what_a_kill_would_cost() {
        let (store, caps) = (Arc::new(Memory::default()), Caps { cost: Some(1.0), ..Caps::default() });
        let budget = Budget::new(caps, Usage::default());
        let call = |key: &str| Sending::new(store.clone(), Some(Arc::clone(&budget)), key, "m");
        let one = call("one");
        assert_eq!(store.noted_at("one"), None, "who waits is not noted");
        one.before(usage(0.5)).await.unwrap();
        assert_eq!(store.noted_at("one"), Some(0.5));
        one.missed(usage(0.125)).await.unwrap();
        assert_eq!(store.noted_at("one"), Some(0.125), "between two tries it costs what it has used");
        one.before(usage(0.5)).await.unwrap();
        assert_eq!(store.noted_at("one"), Some(0.625));
        assert!(one.ended(usage(0.25)));

        // What is left is enough for one try, though not for two.
        let two = call("two");
        two.before(usage(0.75)).await.unwrap();
        assert!(two.ended(usage(0.5)));
        let three = call("three");
        assert!(matches!(three.before(usage(0.5)).await, Err(NotSent::Budget(_))));
        assert!(!three.ended(Usage::default()) && store.noted_at("three").is_none());
    }

    #[tokio::test]
    async fn a_call_that_is_let_go_counts_with_its_try_at_most() {
        let budget = Budget::new(Caps { cost: Some(1.0), ..Caps::default() }, Usage::default());
        let call = Sending::new(Arc::new(Memory::default()), Some(Arc::clone(&budget)), "k", "m");
        call.before(usage(0.75)).await.unwrap();
        drop(call);
        assert!(budget.reserve(usage(0.5)).await.is_err());
    }
}
