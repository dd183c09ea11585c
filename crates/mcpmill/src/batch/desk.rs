//! Where questions are put off: each is written once to the file of its model.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mcpmill_clients::chat::{BatchShape, Endpoint};
use mcpmill_core::{
    edge::{ChatModel, ChatRequest, NotPutOff, PutOff, SetAside},
    record::Usage,
};

use super::sidecar::{Kept, Known, Waiting, folder, questions};

/// Ends the name of a file that is not whole yet.
const PART: &str = "part";

/// Where `--batch` writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the folder of the run.
    Run,
    /// To this file, and what it has no room for beside it.
    File(PathBuf),
}

/// Takes the questions of a run.
pub struct Desk {
    folder: PathBuf,
    target: Target,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: Known,
    stage: String,
    round: u32,
    open: HashMap<String, Output>,
    /// Files of this process that are whole, or will be: their order is their number.
    named: u32,
    /// By file the questions that wait in it and were asked for just now.
    asked: BTreeMap<String, u64>,
    seen: HashSet<String>,
}

/// The two files that belong together, while they are written.
struct Output {
    shown: String,
    batch: Written,
    questions: Written,
    lines: u64,
    bytes: u64,
}

struct Written {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Written {
    fn create(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(Self { path: path.to_owned(), file: BufWriter::with_capacity(1 << 16, File::create(part(path))?) })
    }

    fn place(self) -> io::Result<()> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(part(&self.path), &self.path)
    }
}

fn part(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".");
    name.push(PART);
    path.with_file_name(name)
}

/// The questions of a stage that wait.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PutOffs {
    /// By file how many of them are in it.
    pub files: BTreeMap<String, u64>,
    /// How often the stage has put questions off.
    pub round: u32,
}

impl Desk {
    /// The desk of the run in `run`. Files that a kill left unfinished are gone: their questions are asked again.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn open(run: &Path, target: Target) -> io::Result<Self> {
        let folder = folder(run);
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == PART) {
                fs::remove_file(path)?;
            }
        }
        let state = State { known: Known::read(&folder)?, ..State::default() };
        Ok(Self { folder, target, state: Mutex::new(state) })
    }

    /// What takes the questions to `endpoint`.
    pub fn of(self: &Arc<Self>, endpoint: Arc<Endpoint>) -> Arc<PutOff> {
        let desk = Arc::clone(self);
        Arc::new(move |key: &str, request: &ChatRequest, set_aside: SetAside<'_>| desk.take(&endpoint, key, request, set_aside))
    }

    /// What the questions that earlier processes wrote may still use at most; those that `answered` knows by their key
    /// are no more.
    pub fn outstanding<E>(&self, answered: impl Fn(&str) -> Result<bool, E>) -> Result<Usage, E> {
        let mut all = Usage::default();
        for (key, kept) in &self.state().known.waiting {
            if kept.at_most != Usage::default() && !answered(key)? {
                all += kept.at_most;
            }
        }
        Ok(all)
    }

    /// Begins with a stage.
    pub fn begin(&self, stage: &str) {
        let mut state = self.state();
        let (number, round) = state.known.last.get(stage).copied().unwrap_or_default();
        stage.clone_into(&mut state.stage);
        state.named = number;
        state.round = round;
        state.asked.clear();
        state.seen.clear();
    }

    /// Ends with a stage: what was written becomes whole.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn finish(&self) -> io::Result<PutOffs> {
        let mut state = self.state();
        let state = &mut *state;
        let wrote = !state.open.is_empty() || state.named > state.known.last.get(&state.stage).map_or(0, |last| last.0);
        for (_, output) in state.open.drain() {
            output.place()?;
        }
        let round = state.round + u32::from(wrote);
        state.known.last.insert(state.stage.clone(), (state.named, round));
        Ok(PutOffs { files: std::mem::take(&mut state.asked), round })
    }

    fn take(&self, endpoint: &Endpoint, key: &str, request: &ChatRequest, set_aside: SetAside<'_>) -> Result<String, NotPutOff> {
        let mut state = self.state();
        let file = match state.known.waiting.get(key) {
            Some(kept) => kept.file.clone(),
            None => {
                let at_most = endpoint.batch_most(request);
                set_aside(at_most).map_err(NotPutOff::Budget)?;
                self.write(&mut state, endpoint, (key, request), at_most).map_err(NotPutOff::Failed)?
            }
        };
        if state.seen.insert(key.to_owned()) {
            *state.asked.entry(file.clone()).or_default() += 1;
        }
        Ok(format!("its question is in `{file}`"))
    }

    fn write(
        &self,
        state: &mut State,
        endpoint: &Endpoint,
        (key, request): (&str, &ChatRequest),
        at_most: Usage,
    ) -> Result<String, String> {
        let line = endpoint.batch_line(request, key).map_err(|e| e.to_string())?;
        let line = format!("{line}\n");
        let disk = |e: io::Error| format!("failed to write a batch below `{}`: {e}", self.folder.display());
        let model = endpoint.model();
        let shape = endpoint.batch_shape();
        if state.open.get(model).is_some_and(|output| output.is_full(shape, line.len() as u64))
            && let Some(full) = state.open.remove(model)
        {
            full.place().map_err(disk)?;
        }
        if !state.open.contains_key(model) {
            state.named += 1;
            state.open.insert(model.to_owned(), self.create(&state.stage, state.named).map_err(disk)?);
        }
        let output = state.open.get_mut(model).ok_or("the file is gone")?;
        let waiting = Waiting {
            key: key.to_owned(),
            model: model.to_owned(),
            file: output.shown.clone(),
            round: state.round + 1,
            at_most,
            request: request.clone(),
        };
        output.add(&line, &waiting).map_err(disk)?;
        let file = output.shown.clone();
        let kept = Kept { file: file.clone(), round: waiting.round, at_most };
        state.known.waiting.insert(key.to_owned(), kept);
        Ok(file)
    }

    fn create(&self, stage: &str, number: u32) -> io::Result<Output> {
        let path = match &self.target {
            Target::Run => self.folder.join(format!("{stage}-{number}.jsonl")),
            Target::File(file) => free(file)?,
        };
        let here = std::env::current_dir().unwrap_or_default();
        let shown = path.strip_prefix(&here).unwrap_or(&path).display().to_string();
        let questions = Written::create(&questions(&self.folder, stage, number))?;
        Ok(Output { shown, batch: Written::create(&path)?, questions, lines: 0, bytes: 0 })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `file`, or where there is one the first of `file-2`, `file-3`, … that is free.
fn free(file: &Path) -> io::Result<PathBuf> {
    let (stem, ending) = (file.file_stem().unwrap_or_default().to_string_lossy(), file.extension().unwrap_or_default());
    for number in 1..10_000 {
        let name = if number == 1 { stem.to_string() } else { format!("{stem}-{number}") };
        let path = file.with_file_name(name).with_extension(ending);
        if !path.exists() && !part(&path).exists() {
            return Ok(path);
        }
    }
    Err(io::Error::other(format!("there are too many files beside `{}`", file.display())))
}

impl Output {
    fn is_full(&self, shape: BatchShape, more: u64) -> bool {
        self.lines >= shape.most_lines() || self.bytes + more > shape.most_bytes()
    }

    fn add(&mut self, line: &str, waiting: &Waiting) -> io::Result<()> {
        self.batch.file.write_all(line.as_bytes())?;
        serde_json::to_writer(&mut self.questions.file, waiting)?;
        self.questions.file.write_all(b"\n")?;
        self.lines += 1;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// The batch first: a question that is known to wait stands in a file.
    fn place(self) -> io::Result<()> {
        self.batch.place()?;
        self.questions.place()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mcpmill_clients::chat::{EndpointSettings, Sampling};
    use mcpmill_core::{
        account::{Budget, Cap, Caps, Price},
        edge::Format,
        record::Message,
    };
    use serde_json::{Map, Value};

    use super::{
        super::sidecar::{Index, Returns},
        *,
    };

    fn endpoint(model: &str) -> Arc<Endpoint> {
        let made = Endpoint::new(EndpointSettings {
            base_url: "http://127.0.0.1:9/v1".into(),
            model: model.into(),
            api: None,
            key: None,
            concurrency: 1,
            requests_per_minute: None,
            tokens_per_minute: None,
            retries: 0,
            timeout: Duration::from_secs(1),
            give_up_after: Duration::from_secs(1),
            price: Some(Price { input: 1.0, output: 1.0, ..Price::default() }),
            sampling: Sampling::default(),
            extra: Map::new(),
            tool_schema: None,
        });
        Arc::new(made.unwrap())
    }

    fn request(text: &str) -> ChatRequest {
        ChatRequest {
            messages: vec![Message::user(text)],
            tools: Vec::new(),
            format: Format::Text,
            temperature: 0.0,
            top_p: 1.0,
            max_tokens: 9,
            seed: 1,
            prompt_kind: String::new(),
        }
    }

    fn keys(file: &Path) -> Vec<String> {
        let lines = fs::read_to_string(file).unwrap();
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["custom_id"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn each_question_is_written_once_until_it_comes_back() {
        let runs = tempfile::tempdir().unwrap();
        let run = runs.path().join("r");
        fs::create_dir(&run).unwrap();
        fs::write(run.join("run.json"), "{}").unwrap();
        let ask = |keys: &[&str]| {
            let desk = Arc::new(Desk::open(&run, Target::Run).unwrap());
            desk.begin("3-generate");
            let (a, b) = (desk.of(endpoint("a")), desk.of(endpoint("b")));
            for key in keys {
                let put_off = if key.starts_with('a') { &a } else { &b };
                assert!(put_off(key, &request(key), &|_| Ok(())).unwrap().contains("3-generate-"));
            }
            desk.finish().unwrap()
        };
        let first = ask(&["a1", "a1", "b1", "a2"]);
        assert_eq!((first.round, first.files.values().sum::<u64>(), first.files.len()), (1, 3, 2));
        assert_eq!(keys(&run.join("batch/3-generate-1.jsonl")), ["a1", "a2"]);
        assert_eq!(keys(&run.join("batch/3-generate-2.jsonl")), ["b1"]);

        let again = ask(&["a1", "b1"]);
        assert_eq!((again.round, again.files.len()), (1, 2), "nothing new is written");
        let mut returns = Returns::read(&run.join("batch")).unwrap();
        assert!(returns.note("a1", 1, "expired", "line").unwrap() && !returns.note("a1", 1, "expired", "line").unwrap());
        let third = ask(&["a1", "a2", "a3"]);
        assert_eq!((third.round, third.files.len()), (2, 2));
        assert_eq!(keys(&run.join("batch/3-generate-3.jsonl")), ["a1", "a3"]);

        let index = Index::read(runs.path(), &["a1".to_owned(), "nobody".to_owned()].into()).unwrap();
        let waiting = index.waiting("a1").unwrap();
        assert_eq!((waiting.len(), waiting[0].1.round, &waiting[0].1.request), (1, 2, &request("a1")));
        assert!(index.waiting("nobody").unwrap().is_empty() && index.waiting("b1").unwrap().is_empty());
    }

    #[test]
    fn what_a_kill_left_is_asked_again() {
        let run = tempfile::tempdir().unwrap();
        let desk = Arc::new(Desk::open(run.path(), Target::Run).unwrap());
        desk.begin("4-filter");
        desk.of(endpoint("a"))("a1", &request("q"), &|_| Ok(())).unwrap();
        drop(desk);
        let desk = Arc::new(Desk::open(run.path(), Target::Run).unwrap());
        assert_eq!(fs::read_dir(run.path().join("batch")).unwrap().count(), 0);
        desk.begin("4-filter");
        desk.of(endpoint("a"))("a1", &request("q"), &|_| Ok(())).unwrap();
        assert_eq!(desk.finish().unwrap().round, 1);
        assert_eq!(keys(&run.path().join("batch/4-filter-1.jsonl")), ["a1"]);
    }

    #[test]
    fn no_more_is_put_off_than_the_budget_allows() {
        let run = tempfile::tempdir().unwrap();
        let one = endpoint("a").batch_most(&request("a1"));
        assert!(one.cost > 0.0);
        let open = || Arc::new(Desk::open(run.path(), Target::Run).unwrap());
        let budget = |used| Budget::new(Caps { cost: Some(one.cost * 2.5), ..Caps::default() }, used);
        let ask = |desk: &Arc<Desk>, budget: &Budget, key: &str| {
            desk.begin("3-generate");
            desk.of(endpoint("a"))(key, &request(key), &|at_most| budget.set_aside(at_most))
        };
        let (desk, first) = (open(), budget(Usage::default()));
        for key in ["a1", "a2", "a1"] {
            ask(&desk, &first, key).unwrap();
        }
        assert!(matches!(ask(&desk, &first, "a3"), Err(NotPutOff::Budget(reached)) if matches!(reached.0, Cap::Cost { .. })));
        ask(&desk, &first, "a2").unwrap();
        desk.finish().unwrap();
        assert_eq!(keys(&run.path().join("batch/3-generate-1.jsonl")), ["a1", "a2"]);

        // A later process counts what still waits, and what was answered no more.
        let outstanding = |answered: &str| open().outstanding(|key| Ok::<_, ()>(key == answered)).unwrap();
        assert!((outstanding("").cost - one.cost * 2.0).abs() < 1e-12 && (outstanding("a1").cost - one.cost).abs() < 1e-12);
        let (desk, later) = (open(), budget(outstanding("")));
        ask(&desk, &later, "a1").unwrap();
        assert!(ask(&desk, &later, "a3").is_err());
        ask(&desk, &budget(outstanding("a1")), "a3").unwrap();
    }

    #[test]
    fn a_file_of_the_users_keeps_its_name_and_is_never_overwritten() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("mine.jsonl");
        for expected in ["mine.jsonl", "mine-2.jsonl"] {
            let desk = Arc::new(Desk::open(&place.path().join("run").join(expected), Target::File(file.clone())).unwrap());
            desk.begin("3-generate");
            desk.of(endpoint("a"))("a1", &request("q"), &|_| Ok(())).unwrap();
            desk.finish().unwrap();
            assert_eq!(keys(&place.path().join(expected)), ["a1"]);
        }
    }
}
