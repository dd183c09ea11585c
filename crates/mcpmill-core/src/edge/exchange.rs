//! Recorded exchanges: every reply from outside is written down before it is used, keyed by what
//! was asked, so that no crash pays twice and a run can be replayed.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::{
    account::{Accounts, Budget, Charge, Reached},
    canonical::{canonical, sha256_hex},
    edge::toll::{Sending, Toll},
    record::Usage,
};

/// What kind of outside an exchange was with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeKind {
    /// A language model.
    Chat,
    /// An embedding model.
    Embed,
    /// A server's tool list.
    Harvest,
    /// A live tool call.
    Call,
    /// A page of a marketplace.
    Fetch,
    /// What a crawl started from: its time, and what the crawl before had found.
    Crawl,
}

impl ExchangeKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [Self::Chat, Self::Embed, Self::Harvest, Self::Call, Self::Fetch, Self::Crawl];

    /// The word used in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Embed => "embed",
            Self::Harvest => "harvest",
            Self::Call => "call",
            Self::Fetch => "fetch",
            Self::Crawl => "crawl",
        }
    }

    /// Whether a stored reply may stand for a new one outside `replay`. Servers and their worlds
    /// change, so live answers are asked for again; models are asked the same thing once.
    fn reusable(self) -> bool {
        matches!(self, Self::Chat | Self::Embed)
    }
}

/// One request and its reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// SHA-256 over kind and canonical request.
    pub key: String,
    /// What was talked to.
    pub kind: ExchangeKind,
    /// What was asked.
    pub request: Value,
    /// What came back.
    pub reply: Value,
}

impl Exchange {
    /// The key of a request.
    pub fn key(kind: ExchangeKind, request: &Value) -> String {
        sha256_hex(format!("{}\n{}", kind.as_str(), canonical(request)))
    }
}

/// A stored exchange and whose it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The exchange.
    pub exchange: Exchange,
    /// True when the run this store was opened for recorded it.
    pub own: bool,
}

/// A durable store of exchanges, opened for one run. What is awaited survives a kill of the process on return; many
/// callers may share one write.
#[async_trait]
pub trait Exchanges: Send + Sync {
    /// The stored exchange of this key: this run's own, else the newest of other runs. Short; may block.
    fn get(&self, key: &str) -> Result<Option<Stored>, StoreError>;

    /// Notes that the stored exchange of this key was given to the run in place of a call: it is one of the run's from
    /// then on, and counts as stored.
    async fn reuse(&self, _key: &str, _account: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Notes that a request is about to be sent, with what it may use at most. When the same run noted it before and
    /// no answer came, a kill lies between: the call counts as a repeated one, and the cut-off one at its most.
    async fn begin(&self, key: &str, at_most: &Charge<'_>) -> Result<(), StoreError>;

    /// Changes the note of [`Exchanges::begin`] to what the call may now have used at most when it ends here.
    async fn note(&self, _key: &str, _at_most: &Charge<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Keeps an exchange as this run's, adds what it used to the run's accounts and forgets its note. Other runs keep
    /// theirs.
    async fn put(&self, exchange: &Exchange, used: &Charge<'_>) -> Result<(), StoreError>;

    /// Adds what a request used that ended without a reply to the run's accounts, and forgets its note.
    async fn abandon(&self, key: &str, used: &Charge<'_>) -> Result<(), StoreError>;

    /// Counts every call of the run that is noted and unanswered as cut off, at its most: for when nobody works for the
    /// run, before its first call and after its last. The notes stay, so that such a call counts as repeated when it is
    /// made again.
    async fn cut_off(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// How often `begin` found a note, over all processes that worked for this run.
    fn repeated(&self) -> Result<u64, StoreError>;

    /// What this run has used, by account, over all processes that worked for it. Calls that a kill cut off are in it
    /// at their most.
    fn accounts(&self) -> Result<Accounts, StoreError>;
}

/// The store could not be read or written.
#[derive(Debug, Error)]
#[error("failed to use the exchange store: {0}")]
pub struct StoreError(pub String);

/// How stored exchanges are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Ask again, always; keep the replies.
    Live,
    /// Ask models only what was never asked.
    #[default]
    Reuse,
    /// Ask nobody; a missing exchange is an error.
    Replay,
}

/// A reply and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The reply.
    pub reply: Value,
    /// True when the outside world was asked just now.
    pub live: bool,
}

/// Why no reply can be had.
#[derive(Debug, Error)]
pub enum ExchangeError<E: std::error::Error> {
    /// The other side failed.
    #[error(transparent)]
    Live(E),
    /// Replaying, and nobody recorded this.
    #[error("failed to replay a {} exchange: none is recorded under `{key}`", .kind.as_str())]
    NotRecorded {
        /// What was to be talked to.
        kind: ExchangeKind,
        /// The key that was looked up.
        key: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a live call brought: its reply or failure, and what it used either way.
#[derive(Clone, Debug)]
pub struct Paid<T> {
    /// The reply or failure.
    pub told: T,
    /// Tokens and money.
    pub usage: Usage,
    /// Requests it took.
    pub attempts: u32,
}

/// Asks through the store: each request once, its reply written before it is used.
pub struct Recorder {
    store: Arc<dyn Exchanges>,
    mode: Mode,
    budget: Option<Arc<Budget>>,
    flights: Turns,
    broken: Mutex<Option<String>>,
}

impl Recorder {
    /// A recorder over `store`.
    pub fn new(store: Arc<dyn Exchanges>, mode: Mode) -> Self {
        Self { store, mode, budget: None, flights: Mutex::default(), broken: Mutex::default() }
    }

    /// Asks only as long as `budget` allows.
    #[must_use]
    pub fn with_budget(mut self, budget: Arc<Budget>) -> Self {
        self.budget = Some(budget);
        self
    }

    /// The cap of the budget that was reached: nobody is asked any more.
    pub fn exhausted(&self) -> Option<Reached> {
        self.budget.as_ref()?.reached()
    }

    /// What the store said when it failed first: rows that fail from then on may have failed for that.
    pub fn broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that the store failed.
    pub(crate) fn breaks(&self, error: &StoreError) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.to_string());
    }

    /// Counts the calls that nobody waits for any more as cut off; for when all work has ended.
    ///
    /// # Errors
    /// The store fails.
    pub async fn cut_off(&self) -> Result<(), StoreError> {
        self.store.cut_off().await
    }

    /// Counts what a question that is put off may use at most, so that the answer finds its money.
    ///
    /// # Errors
    /// The budget does not allow for it.
    pub fn set_aside(&self, at_most: Usage) -> Result<(), Reached> {
        self.budget.as_ref().map_or(Ok(()), |budget| budget.set_aside(at_most))
    }

    /// What the run has used so far, by account.
    ///
    /// # Errors
    /// The store fails.
    pub fn accounts(&self) -> Result<Accounts, StoreError> {
        self.store.accounts()
    }

    fn serves(&self, kind: ExchangeKind, stored: &Stored, settled: fn(&Value) -> bool) -> bool {
        let may = stored.own || (self.mode == Mode::Reuse && kind.reusable());
        self.mode == Mode::Replay || (may && settled(&stored.exchange.reply))
    }

    /// The stored reply to `request`, for who asks nobody now, counted on `account`: this run's own, whatever it says, else one that is
    /// `settled` where that is allowed.
    ///
    /// # Errors
    /// The store fails.
    pub async fn stored(
        &self,
        kind: ExchangeKind,
        request: &Value,
        account: &str,
        settled: fn(&Value) -> bool,
    ) -> Result<Option<Value>, StoreError> {
        let key = Exchange::key(kind, request);
        let stored = self.store.get(&key)?.filter(|stored| stored.own || self.serves(kind, stored, settled));
        if stored.is_some() {
            self.store.reuse(&key, account).await?;
        }
        Ok(stored.map(|stored| stored.exchange.reply))
    }

    /// Whether [`Recorder::ask`] would ask somebody for the reply to `request`, as far as is known before.
    ///
    /// # Errors
    /// The store fails.
    pub fn lacks(&self, kind: ExchangeKind, request: &Value, settled: fn(&Value) -> bool) -> Result<bool, StoreError> {
        if self.mode == Mode::Replay {
            return Ok(false);
        }
        let stored = self.store.get(&Exchange::key(kind, request))?;
        Ok(!stored.is_some_and(|stored| self.serves(kind, &stored, settled)))
    }

    /// Calls of the run that had to be made again because a kill came between sending and answer.
    ///
    /// # Errors
    /// The store fails.
    pub fn repeated(&self) -> Result<u64, StoreError> {
        self.store.repeated()
    }

    /// The reply to `request`: the stored one where that is allowed, else that of `live`, which costs nothing.
    ///
    /// A reply this run has received already is used again, whatever the mode: that is what makes a
    /// resumed run ask nothing twice. Only one that is not `settled`, such as a server that could not
    /// be started, is asked for again. Two callers with one request share one live call.
    ///
    /// # Errors
    /// The live error, a miss in `Replay`, or a store that fails.
    pub async fn ask<E, F, Fut>(
        &self,
        kind: ExchangeKind,
        request: &Value,
        settled: fn(&Value) -> bool,
        live: F,
    ) -> Result<Recorded, ExchangeError<E>>
    where
        E: std::error::Error,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Value, E>>,
    {
        let free = |_| async { Paid { told: live().await, usage: Usage::default(), attempts: 1 } };
        self.ask_through(kind, request, settled, kind.as_str(), true, free).await
    }

    /// As [`Recorder::ask`], for a call that is paid for on `account`: it asks its [`Toll`] before every try.
    ///
    /// # Errors
    /// As [`Recorder::ask`].
    pub async fn ask_paid<E, F, Fut>(
        &self,
        kind: ExchangeKind,
        request: &Value,
        settled: fn(&Value) -> bool,
        account: &str,
        live: F,
    ) -> Result<Recorded, ExchangeError<E>>
    where
        E: std::error::Error,
        F: FnOnce(Arc<dyn Toll>) -> Fut,
        Fut: Future<Output = Paid<Result<Value, E>>>,
    {
        self.ask_through(kind, request, settled, account, false, |call| live(call)).await
    }

    /// A call that is `free` is noted here, as it asks no toll.
    async fn ask_through<E, F, Fut>(
        &self,
        kind: ExchangeKind,
        request: &Value,
        settled: fn(&Value) -> bool,
        account: &str,
        free: bool,
        live: F,
    ) -> Result<Recorded, ExchangeError<E>>
    where
        E: std::error::Error,
        F: FnOnce(Arc<Sending>) -> Fut,
        Fut: Future<Output = Paid<Result<Value, E>>>,
    {
        let key = Exchange::key(kind, request);
        let flight = Flight::join(&self.flights, &key);
        let _turn = flight.turn.lock().await;
        let broke = |error: StoreError| {
            self.breaks(&error);
            ExchangeError::Store(error)
        };
        match self.store.get(&key).map_err(broke)? {
            Some(stored) if self.serves(kind, &stored, settled) => {
                self.store.reuse(&key, account).await.map_err(broke)?;
                return Ok(Recorded { reply: stored.exchange.reply, live: false });
            }
            _ if self.mode == Mode::Replay => return Err(ExchangeError::NotRecorded { kind, key }),
            _ => {}
        }
        let budget = self.budget.clone().filter(|_| !free);
        let call = Arc::new(Sending::new(Arc::clone(&self.store), budget, &key, account));
        if free {
            call.note(Usage::default()).await.map_err(broke)?;
        }
        let Paid { told, usage, attempts } = live(Arc::clone(&call)).await;
        // One that is dropped before stays reserved: nobody knows what it cost.
        let sent = call.ended(usage);
        if let (Err(_), Some(fault)) = (&told, call.fault()) {
            return Err(broke(fault));
        }
        let used = Charge { account, usage, attempts };
        match told {
            Ok(reply) => {
                let exchange = Exchange { key, kind, request: request.clone(), reply };
                self.store.put(&exchange, &used).await.map_err(broke)?;
                Ok(Recorded { reply: exchange.reply, live: true })
            }
            Err(error) => {
                if sent {
                    self.store.abandon(&key, &used).await.map_err(broke)?;
                }
                Err(ExchangeError::Live(error))
            }
        }
    }
}

type Turns = Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>;

/// One caller's place in the queue for a key; leaves the queue on drop, so that memory does not
/// grow with the run and a cancelled caller blocks nobody.
struct Flight<'a> {
    turns: &'a Turns,
    key: String,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl<'a> Flight<'a> {
    fn join(turns: &'a Turns, key: &str) -> Self {
        let mut map = turns.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = Arc::clone(map.entry(key.to_owned()).or_default());
        Self { turns, key: key.to_owned(), turn }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut map = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // Two holders are the map and this flight: nobody else waits.
        if Arc::strong_count(&self.turn) <= 2 {
            map.remove(&self.key);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        io,
        sync::atomic::{AtomicU64, Ordering},
    };

    use serde_json::json;

    use super::*;
    use crate::account::Caps;

    /// An in-memory store; `own` holds the keys this run has used, `noted` those in flight with what they cost at most.
    #[derive(Default)]
    pub(crate) struct Memory {
        kept: Mutex<HashMap<String, Exchange>>,
        own: Mutex<Vec<String>>,
        noted: Mutex<HashMap<String, f64>>,
        repeated: AtomicU64,
        accounts: Mutex<Accounts>,
    }

    impl Memory {
        /// What the call in flight of this key would cost if it were cut off.
        pub(crate) fn noted_at(&self, key: &str) -> Option<f64> {
            self.noted.lock().unwrap().get(key).copied()
        }
    }

    #[async_trait]
    impl Exchanges for Memory {
        fn get(&self, key: &str) -> Result<Option<Stored>, StoreError> {
            let own = self.own.lock().unwrap().iter().any(|k| k == key);
            Ok(self.kept.lock().unwrap().get(key).map(|e| Stored { exchange: e.clone(), own }))
        }

        async fn reuse(&self, _: &str, account: &str) -> Result<(), StoreError> {
            self.accounts.lock().unwrap().stored(account);
            Ok(())
        }

        async fn begin(&self, key: &str, at_most: &Charge<'_>) -> Result<(), StoreError> {
            let before = self.noted.lock().unwrap().insert(key.to_owned(), at_most.usage.cost).is_some();
            self.repeated.fetch_add(u64::from(before), Ordering::Relaxed);
            Ok(())
        }

        async fn note(&self, key: &str, at_most: &Charge<'_>) -> Result<(), StoreError> {
            self.noted.lock().unwrap().insert(key.to_owned(), at_most.usage.cost);
            Ok(())
        }

        async fn put(&self, exchange: &Exchange, used: &Charge<'_>) -> Result<(), StoreError> {
            self.accounts.lock().unwrap().answered(used);
            self.own.lock().unwrap().push(exchange.key.clone());
            self.noted.lock().unwrap().remove(&exchange.key);
            self.kept.lock().unwrap().insert(exchange.key.clone(), exchange.clone());
            Ok(())
        }

        async fn abandon(&self, key: &str, used: &Charge<'_>) -> Result<(), StoreError> {
            self.accounts.lock().unwrap().failed(used);
            self.noted.lock().unwrap().remove(key);
            Ok(())
        }

        fn repeated(&self) -> Result<u64, StoreError> {
            Ok(self.repeated.load(Ordering::Relaxed))
        }

        fn accounts(&self) -> Result<Accounts, StoreError> {
            Ok(self.accounts.lock().unwrap().clone())
        }
    }

    async fn ask(recorder: &Recorder, kind: ExchangeKind, answer: i32) -> Result<Recorded, ExchangeError<io::Error>> {
        recorder.ask(kind, &json!({"q": 1}), |_| true, || async move { Ok(json!(answer)) }).await
    }

    #[tokio::test]
    async fn a_model_is_asked_once_and_a_tool_once_per_run() {
        let store = Arc::new(Memory::default());
        let first = Recorder::new(store.clone(), Mode::Reuse);
        assert!(ask(&first, ExchangeKind::Chat, 1).await.unwrap().live);
        assert!(ask(&first, ExchangeKind::Call, 1).await.unwrap().live);
        assert!(!ask(&first, ExchangeKind::Call, 2).await.unwrap().live, "resumed: not asked again");

        store.own.lock().unwrap().clear();
        let second = Recorder::new(store, Mode::Reuse);
        assert_eq!(ask(&second, ExchangeKind::Chat, 2).await.unwrap(), Recorded { reply: json!(1), live: false });
        assert_eq!(ask(&second, ExchangeKind::Call, 2).await.unwrap(), Recorded { reply: json!(2), live: true });
    }

    #[tokio::test]
    async fn live_asks_again_in_a_new_run_and_replay_never() {
        let store = Arc::new(Memory::default());
        ask(&Recorder::new(store.clone(), Mode::Reuse), ExchangeKind::Chat, 1).await.unwrap();
        store.own.lock().unwrap().clear();
        let live = ask(&Recorder::new(store.clone(), Mode::Live), ExchangeKind::Chat, 2).await.unwrap();
        assert_eq!(live.reply, json!(2));
        let replay = Recorder::new(store, Mode::Replay);
        assert_eq!(ask(&replay, ExchangeKind::Chat, 3).await.unwrap().reply, json!(2));
        let miss = ask(&replay, ExchangeKind::Harvest, 3).await.unwrap_err();
        assert!(matches!(miss, ExchangeError::NotRecorded { kind: ExchangeKind::Harvest, .. }), "{miss}");
    }

    #[tokio::test]
    async fn equal_requests_share_one_call() {
        let recorder = Recorder::new(Arc::new(Memory::default()), Mode::Reuse);
        let calls = AtomicU64::new(0);
        let one = || async {
            recorder
                .ask::<io::Error, _, _>(
                    ExchangeKind::Chat,
                    &json!("same"),
                    |_| true,
                    || async {
                        tokio::task::yield_now().await;
                        Ok(json!(calls.fetch_add(1, Ordering::SeqCst)))
                    },
                )
                .await
                .unwrap()
        };
        let (a, b, c) = tokio::join!(one(), one(), one());
        assert_eq!((a.reply, b.reply, c.reply), (json!(0), json!(0), json!(0)));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert!(recorder.flights.lock().unwrap().is_empty(), "no flight is left behind");
    }

    #[tokio::test]
    async fn a_call_cut_off_by_a_kill_counts_as_repeated() {
        let store = Arc::new(Memory::default());
        let nothing = Charge { account: "m", usage: Usage::default(), attempts: 0 };
        store.begin(&Exchange::key(ExchangeKind::Chat, &json!({"q": 1})), &nothing).await.unwrap();
        let recorder = Recorder::new(store, Mode::Reuse);
        ask(&recorder, ExchangeKind::Chat, 1).await.unwrap();
        assert_eq!(recorder.repeated().unwrap(), 1);
    }

    #[tokio::test]
    async fn what_is_not_settled_is_asked_for_again() {
        let recorder = Recorder::new(Arc::new(Memory::default()), Mode::Reuse);
        let ask = async |answer: &'static str| {
            let live = || async move { Ok::<_, io::Error>(json!(answer)) };
            recorder.ask(ExchangeKind::Harvest, &json!(1), |reply| reply != "down", live).await.unwrap().reply
        };
        assert_eq!(ask("down").await, json!("down"));
        assert_eq!(ask("up").await, json!("up"));
        assert_eq!(ask("other").await, json!("up"));
    }

    #[tokio::test]
    async fn what_is_used_is_counted_and_never_more_than_the_budget() {
        let store = Arc::new(Memory::default());
        let caps = Caps { cost: Some(1.0), ..Caps::default() };
        let recorder = Recorder::new(store.clone(), Mode::Reuse).with_budget(Budget::new(caps, Usage::default()));
        let usage = |cost| Usage { cost, output_tokens: 3, ..Usage::default() };
        let ask = async |n: u64, fails: bool| {
            let live = |toll: Arc<dyn Toll>| async move {
                if let Err(refused) = toll.before(usage(0.5)).await {
                    return Paid { told: Err(io::Error::other(refused)), usage: Usage::default(), attempts: 0 };
                }
                let told = if fails { Err(io::Error::other("down")) } else { Ok(json!(n)) };
                Paid { told, usage: usage(0.25), attempts: 2 }
            };
            recorder.ask_paid(ExchangeKind::Chat, &json!(n), |_| true, "m", live).await
        };
        assert!(ask(1, false).await.unwrap().live && !ask(1, false).await.unwrap().live);
        assert!(matches!(ask(2, true).await, Err(ExchangeError::Live(_))));
        assert!(ask(3, false).await.unwrap().live && recorder.exhausted().is_none());
        let refused = ask(4, false).await.unwrap_err().to_string();
        assert!(refused.contains("budget is used up"), "a quarter is left, half may be needed: {refused}");
        assert!(recorder.exhausted().is_some() && !ask(3, false).await.unwrap().live, "what is stored is free");
        let account = store.accounts().unwrap().by_name["m"];
        assert_eq!((account.answered, account.failed, account.retried, account.usage.cost), (2, 1, 3, 0.75));
        assert_eq!(account.stored, 2);
    }

    #[tokio::test]
    async fn a_failed_call_leaves_no_note() {
        let store = Arc::new(Memory::default());
        let recorder = Recorder::new(store.clone(), Mode::Reuse);
        let failed = recorder
            .ask(ExchangeKind::Chat, &json!({"q": 1}), |_| true, || async { Err::<Value, _>(io::Error::other("down")) })
            .await;
        assert!(matches!(failed, Err(ExchangeError::Live(_))));
        assert!(store.noted.lock().unwrap().is_empty());
        ask(&recorder, ExchangeKind::Chat, 1).await.unwrap();
        assert_eq!(recorder.repeated().unwrap(), 0);
    }
}
