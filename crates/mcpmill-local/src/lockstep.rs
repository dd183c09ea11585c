//! Several answers at once: the sequences of all callers that wait take every step of the model together.
//!
//! One thread does all the work. It reads prompts one after the other, lets the answers grow in lockstep, sends an
//! answer off when it is complete and takes the next request into its place. Who else is there changes no bit of an
//! answer (see [`Model::step`](crate::model::Model::step)). Whatever goes wrong with one request, a panic included,
//! is told to its caller; the others go on.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use candle_core::Tensor;

use crate::engine::Engine;
use crate::error::LocalError;
use crate::generate::{Answer, Beginning, Finish, Generated, Generation};
use crate::kv::Kv;
use crate::prefix::Slots;

/// More sequences take memory and are hardly faster.
const MOST: usize = 64;

/// How a caller learns of its answer.
pub(crate) type Reply = Box<dyn FnOnce(Result<Generated, LocalError>) + Send>;

struct Job {
    request: Generation,
    reply: Reply,
}

/// The door to the thread that answers.
pub(crate) struct Lockstep {
    /// `None` only while it is dropped: the thread ends when nobody can ask any more.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Lockstep {
    /// Starts the thread; at most `places` answers grow at a time, within 1 and [`MOST`].
    pub(crate) fn start(engine: Engine, slots: Slots, places: usize) -> std::io::Result<Lockstep> {
        let (sender, jobs) = channel();
        let desk = Desk::new(engine, slots, places.clamp(1, MOST), jobs);
        let thread = Builder::new().name("mcpmill-local".into()).spawn(move || desk.work())?;
        Ok(Lockstep { jobs: Some(sender), thread: Some(thread) })
    }

    /// Hands a request in. A reply that is dropped unused means that the thread is gone.
    pub(crate) fn submit(&self, request: Generation, reply: Reply) {
        if let Some(jobs) = &self.jobs {
            // A send that fails drops the reply, which tells the caller.
            drop(jobs.send(Job { request, reply }));
        }
    }
}

impl Drop for Lockstep {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// A sequence that grows.
struct Running {
    answer: Answer,
    reply: Reply,
    kv: Kv,
    /// The row `(1, hidden)` behind all that was read.
    hidden: Tensor,
    cached: usize,
}

/// What reading a prompt gives: a sequence, the row behind it and how many of its tokens were known.
type Read = (Kv, Tensor, usize);

/// What the thread works on.
struct Desk {
    engine: Engine,
    slots: Slots,
    places: usize,
    jobs: Receiver<Job>,
    waiting: VecDeque<Job>,
    running: Vec<Running>,
    /// Memory of sequences that have ended; never more than there are places.
    spare: Vec<Kv>,
}

impl Desk {
    fn new(engine: Engine, slots: Slots, places: usize, jobs: Receiver<Job>) -> Self {
        Desk { engine, slots, places, jobs, waiting: VecDeque::new(), running: Vec::new(), spare: Vec::new() }
    }

    fn work(mut self) {
        while self.receive() {
            self.admit();
            self.choose();
            self.step();
        }
    }

    /// Takes in what callers have handed in, and waits for it when there is nothing else to do. False when nobody
    /// can ask any more.
    fn receive(&mut self) -> bool {
        if self.running.is_empty() && self.waiting.is_empty() {
            match self.jobs.recv() {
                Ok(job) => self.waiting.push_back(job),
                Err(_) => return false,
            }
        }
        self.waiting.extend(self.jobs.try_iter());
        let waiting = std::mem::take(&mut self.waiting);
        let given_up: VecDeque<Job>;
        (given_up, self.waiting) = waiting.into_iter().partition(|job| job.request.cancel.load(Ordering::Relaxed));
        given_up.into_iter().for_each(|job| (job.reply)(Err(LocalError::Cancelled)));
        true
    }

    /// Fills free places, first come, first served. All of them before the next step: the fuller a step, the less
    /// each answer costs.
    fn admit(&mut self) {
        while self.running.len() < self.places
            && let Some(Job { request, reply }) = self.waiting.pop_front()
        {
            match guarded(|| self.begin(request)) {
                Ok((answer, Ok((kv, hidden, cached)))) => self.running.push(Running { answer, reply, kv, hidden, cached }),
                Ok((answer, Err(finish))) => reply(guarded(|| Ok(answer.finished(&self.engine, finish, 0)))),
                Err(error) => reply(Err(error)),
            }
        }
    }

    /// Starts an answer and reads its prompt, unless the constraint leaves no choice at all.
    fn begin(&mut self, request: Generation) -> Result<(Answer, Result<Read, Finish>), LocalError> {
        let (mut answer, beginning) = Answer::begin(&self.engine, request)?;
        let read = match answer.end() {
            Some(finish) => Err(finish),
            None => Ok(self.read(&answer, &beginning)?),
        };
        Ok((answer, read))
    }

    /// Lets the model read a prompt, in the slot of its kind, and copies what came out.
    fn read(&mut self, answer: &Answer, beginning: &Beginning) -> Result<Read, LocalError> {
        let model = &self.engine.model;
        let name = answer.prefix_slot();
        let mut slot = self.slots.take(model, name)?;
        let read = slot.prefill(model, &beginning.tokens, &beginning.ends, answer.cancel());
        let copied = read.and_then(|(hidden, cached)| {
            let mut kv = self.spare.pop().map_or_else(|| Kv::new(&model.config, self.engine.max_context), Ok)?;
            kv.copy_from(&slot.kv)?;
            Ok((kv, hidden, cached))
        });
        self.slots.put_back(name, slot);
        copied
    }

    /// The next token of every answer; those that end leave.
    fn choose(&mut self) {
        let Desk { engine, running, spare, .. } = self;
        if running.is_empty() {
            return;
        }
        let rows: Vec<Tensor> = running.iter().map(|one| one.hidden.clone()).collect();
        let scores = guarded(|| Ok(engine.model.logits(&Tensor::cat(&rows, 0)?)?));
        let mut scores = scores.map(Vec::into_iter);
        let mut kept = Vec::with_capacity(running.len());
        for mut one in running.drain(..) {
            let chosen = guarded(|| {
                let mut scores = match &mut scores {
                    Ok(scores) => scores.next(),
                    Err(_) => engine.model.logits(&one.hidden)?.pop(),
                };
                let scores = scores.as_mut().ok_or_else(|| LocalError::Compute("no scores".into()))?;
                one.answer.choose(engine, scores)
            });
            match chosen {
                Ok(None) => kept.push(one),
                Ok(Some(finish)) => one.leave(engine, spare, Ok(finish)),
                Err(error) => one.leave(engine, spare, Err(error)),
            }
        }
        *running = kept;
    }

    /// Lets the model read the tokens that were chosen.
    fn step(&mut self) {
        let Desk { engine, running, spare, .. } = self;
        if running.is_empty() || together(engine, running).is_ok() {
            return;
        }
        // One of them is at fault: each by itself shows which.
        for mut one in std::mem::take(running) {
            match together(engine, std::slice::from_mut(&mut one)) {
                Ok(()) => running.push(one),
                Err(error) => one.leave(engine, spare, Err(error)),
            }
        }
    }
}

impl Running {
    fn leave(self, engine: &Engine, spare: &mut Vec<Kv>, end: Result<Finish, LocalError>) {
        let Running { answer, reply, kv, cached, .. } = self;
        // What an error or a panic may have left half done is not used again.
        if end.is_ok() {
            spare.push(kv);
        }
        reply(end.and_then(|finish| guarded(|| Ok(answer.finished(engine, finish, cached)))));
    }
}

/// One step of some sequences. If it fails, none of them has moved.
fn together(engine: &Engine, running: &mut [Running]) -> Result<(), LocalError> {
    let lengths: Vec<usize> = running.iter().map(|one| one.kv.len()).collect();
    let stepped = guarded(|| {
        let mut batch: Vec<_> = running.iter_mut().map(|one| (&mut one.kv, one.answer.unread())).collect();
        let rows = engine.model.step(&mut batch)?;
        Ok((0..batch.len()).map(|n| rows.narrow(0, n, 1)).collect::<candle_core::Result<Vec<_>>>()?)
    });
    match stepped {
        Ok(rows) => running.iter_mut().zip(rows).for_each(|(one, hidden)| one.hidden = hidden),
        Err(error) => {
            running.iter_mut().zip(lengths).for_each(|(one, len)| one.kv.truncate(len));
            return Err(error);
        }
    }
    Ok(())
}

/// Turns a panic into an error of the request it belongs to.
fn guarded<T>(work: impl FnOnce() -> Result<T, LocalError>) -> Result<T, LocalError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(LocalError::Compute(format!("panicked: {}", said.unwrap_or_default()).into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        LoadOptions,
        chat::{Role, Turn},
        engine::read,
    };
    type Answers = Receiver<Result<Generated, LocalError>>;

    /// A desk nobody works at, and the door to it.
    fn desk(places: usize) -> (Desk, Sender<Job>) {
        let path = crate::test_model::path();
        let options = LoadOptions { max_context: 256, prefix_slots: 1, lockstep: places };
        let (_, engine) = read(&path, &options).unwrap();
        let (sender, jobs) = channel();
        (Desk::new(engine, Slots::new(1, 256), places, jobs), sender)
    }

    fn ask(question: &str, max_tokens: usize) -> Generation {
        let messages = vec![Turn { role: Role::User, content: question.into() }];
        Generation { messages, max_tokens, ..Generation::default() }
    }

    fn hand_in(door: &Sender<Job>, request: &Generation) -> Answers {
        let (reply, answers) = channel();
        let reply: Reply = Box::new(move |generated| reply.send(generated).unwrap());
        door.send(Job { request: request.clone(), reply }).unwrap();
        answers
    }

    fn round(desk: &mut Desk) {
        desk.receive();
        desk.admit();
        desk.choose();
        desk.step();
    }

    fn finish(desk: &mut Desk, answers: &Answers) -> Generated {
        while !desk.running.is_empty() || !desk.waiting.is_empty() {
            round(desk);
        }
        answers.try_recv().unwrap().unwrap()
    }

    #[test]
    fn a_cancelled_answer_gives_its_place_away_at_the_next_token() {
        let (mut desk, door) = desk(2);
        let stopped = ask("Count to one hundred.", 100);
        let first = hand_in(&door, &stopped);
        let second = hand_in(&door, &ask("Name a colour.", 6));
        let waits = hand_in(&door, &ask("Name a fruit.", 6));
        let withdrawn = ask("Name a town.", 6);
        let never = hand_in(&door, &withdrawn);
        round(&mut desk);
        assert_eq!((desk.running.len(), desk.waiting.len()), (2, 2), "two places, two wait");
        stopped.cancel.store(true, Ordering::Relaxed);
        withdrawn.cancel.store(true, Ordering::Relaxed);
        round(&mut desk);
        assert!(matches!(first.try_recv(), Ok(Err(LocalError::Cancelled))));
        assert!(matches!(never.try_recv(), Ok(Err(LocalError::Cancelled))), "also one that has no place yet");
        round(&mut desk);
        assert_eq!((desk.running.len(), desk.waiting.len()), (2, 0), "the next one has the place");
        finish(&mut desk, &second);
        waits.try_recv().unwrap().unwrap();
        assert_eq!((desk.running.len(), desk.spare.len()), (0, 2), "memory for two sequences and no more");
    }

    #[test]
    fn an_answer_that_fails_takes_no_other_with_it() {
        let (mut desk, door) = desk(3);
        let question = ask("What is the capital of France?", 12);
        let alone = hand_in(&door, &question);
        round(&mut desk);
        let alone = finish(&mut desk, &alone).text;

        let good = hand_in(&door, &question);
        let bad = hand_in(&door, &ask("What is the capital of Spain?", 12));
        let refused = hand_in(&door, &ask(&"word ".repeat(300), 12));
        desk.receive();
        desk.admit();
        desk.choose();
        assert!(matches!(refused.try_recv(), Ok(Err(LocalError::PromptTooLong { .. }))));
        assert_eq!(desk.running.len(), 2);
        desk.running[1].answer.add_impossible_token();
        desk.step();
        assert!(matches!(bad.try_recv(), Ok(Err(LocalError::Compute(_)))));
        assert_eq!(desk.running.len(), 1);
        assert_eq!(finish(&mut desk, &good).text, alone);
    }

    #[test]
    fn a_panic_is_an_error_of_one_request() {
        let caught = guarded::<()>(|| panic!("on {}", "purpose")).unwrap_err();
        assert_eq!(caught.to_string(), "compute a step of the model: panicked: on purpose");
    }

    #[test]
    fn a_thread_that_is_gone_leaves_nobody_waiting() {
        let (desk, door) = desk(1);
        let answers = hand_in(&door, &ask("Hi", 4));
        drop(desk);
        assert!(answers.recv().is_err());
    }
}
