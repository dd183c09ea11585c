//! What a run knows of its batches, beside the files themselves.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use mcpmill_core::{canonical::sha256_hex, edge::ChatRequest, record::Usage};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Ends the name of a file of questions.
const QUESTIONS: &str = ".requests.jsonl";
/// Begins what is said of a question that was refused.
pub(super) const REFUSED: &str = "refused";
/// A line longer than this is none of ours.
const LONGEST: u64 = 64 << 20;

/// A question that waits for its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiting {
    /// The key of its exchange.
    pub(super) key: String,
    /// What names the model.
    pub(super) model: String,
    /// The file it was written to, as the user knows it.
    pub(super) file: String,
    /// Counts up each time the stage puts questions off.
    pub(super) round: u32,
    /// What it may use at most.
    #[serde(default)]
    pub(super) at_most: Usage,
    /// The question.
    pub(super) request: ChatRequest,
}

/// A question that came back without an answer.
#[derive(Debug, Serialize, Deserialize)]
struct Returned {
    key: String,
    why: String,
    /// Hash of the round and of the line that said so: the same line says it once in each.
    line: String,
}

/// Where a run keeps its batches.
pub(super) fn folder(run: &Path) -> PathBuf {
    run.join("batch")
}

/// The path of the questions of `stage`'s file of this number.
pub(super) fn questions(folder: &Path, stage: &str, number: u32) -> PathBuf {
    folder.join(format!("{stage}-{number}{QUESTIONS}"))
}

/// The files of questions of a folder, in order.
pub(super) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(QUESTIONS)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Every line of a file with its place, a broken last one left out: a kill may have come between.
pub(super) fn lines<T: DeserializeOwned>(path: &Path, mut each: impl FnMut(u64, T)) -> io::Result<()> {
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let (mut at, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let length = reader.by_ref().take(LONGEST).read_until(b'\n', &mut line)? as u64;
        if length == 0 {
            return Ok(());
        }
        if let Ok(value) = serde_json::from_slice(&line) {
            each(at, value);
        }
        at += length;
    }
}

/// Adds a line to a file and makes it last.
pub(super) fn append<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    // A line that a kill has cut off ends here.
    let cut = file.metadata()?.len() > 0 && !ends_line(path)?;
    let text = format!("{}{}\n", if cut { "\n" } else { "" }, serde_json::to_string(value)?);
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

fn ends_line(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// The questions of a run that came back without an answer.
#[derive(Default)]
pub(super) struct Returns {
    path: PathBuf,
    times: HashMap<String, u64>,
    /// Those that were refused.
    refused: HashMap<String, u64>,
    said: HashSet<String>,
}

impl Returns {
    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        let mut returns = Self { path: folder.join("returned.jsonl"), ..Self::default() };
        let path = returns.path.clone();
        lines(&path, |_, returned: Returned| {
            returns.count(&returned.key, &returned.why);
            returns.said.insert(returned.line);
        })?;
        Ok(returns)
    }

    fn count(&mut self, key: &str, why: &str) {
        *self.times.entry(key.to_owned()).or_default() += 1;
        if why.starts_with(REFUSED) {
            *self.refused.entry(key.to_owned()).or_default() += 1;
        }
    }

    /// How often a question came back refused.
    pub(super) fn refusals(&self, key: &str) -> u64 {
        self.refused.get(key).copied().unwrap_or_default()
    }

    /// How often a question came back.
    pub(super) fn times(&self, key: &str) -> u64 {
        self.times.get(key).copied().unwrap_or_default()
    }

    /// Notes that `line` said so of a question of this round; false when it had said so before.
    pub(super) fn note(&mut self, key: &str, round: u32, why: &str, line: &str) -> io::Result<bool> {
        let line = sha256_hex(format!("{round}\n{line}"));
        if !self.said.insert(line.clone()) {
            return Ok(false);
        }
        self.count(key, why);
        append(&self.path, &Returned { key: key.to_owned(), why: why.to_owned(), line })?;
        Ok(true)
    }
}

/// The folders of runs, oldest name first.
pub(super) fn runs_in(runs: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(runs) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.join("run.json").is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Which questions of which runs some keys are.
pub(super) struct Index {
    runs: Vec<PathBuf>,
    files: Vec<PathBuf>,
    places: HashMap<String, Vec<Place>>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    run: usize,
    file: usize,
    at: u64,
}

impl Index {
    /// Looks for `keys` in all runs; a question that was written several times is found once a run.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn read(runs: &Path, keys: &HashSet<String>) -> io::Result<Self> {
        let mut index = Self { runs: runs_in(runs)?, files: Vec::new(), places: HashMap::new() };
        for run in 0..index.runs.len() {
            for path in files(&folder(&index.runs[run]))? {
                let file = index.files.len();
                let places = &mut index.places;
                lines(&path, |at, waiting: Waiting| {
                    if keys.contains(&waiting.key) {
                        let own = places.entry(waiting.key).or_default();
                        own.retain(|place| place.run != run);
                        own.push(Place { run, file, at });
                    }
                })?;
                index.files.push(path);
            }
        }
        Ok(index)
    }

    /// The runs that wait for `key`, each with the question.
    pub(super) fn waiting(&self, key: &str) -> io::Result<Vec<(&PathBuf, Waiting)>> {
        let read = |place: &Place| {
            let mut file = BufReader::new(File::open(&self.files[place.file])?);
            file.seek(SeekFrom::Start(place.at))?;
            let mut line = Vec::new();
            file.take(LONGEST).read_until(b'\n', &mut line)?;
            let waiting: Waiting = serde_json::from_slice(&line)?;
            Ok((&self.runs[place.run], waiting))
        };
        self.places.get(key).into_iter().flatten().map(read).collect()
    }
}

/// Where a question waits, and what it may use at most.
pub(super) struct Kept {
    pub(super) file: String,
    pub(super) round: u32,
    pub(super) at_most: Usage,
}

/// What a folder of batches holds when a run goes on.
#[derive(Default)]
pub(super) struct Known {
    /// By key the questions that wait.
    pub(super) waiting: HashMap<String, Kept>,
    /// By stage the number of its last file and of its last round.
    pub(super) last: BTreeMap<String, (u32, u32)>,
}

impl Known {
    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        let returns = Returns::read(folder)?;
        let mut known = Self::default();
        let mut times: HashMap<String, u64> = HashMap::new();
        for path in files(folder)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let named = name.strip_suffix(QUESTIONS).and_then(|name| name.rsplit_once('-'));
            let Some((stage, Ok(number))) = named.map(|(stage, number)| (stage, number.parse::<u32>())) else { continue };
            let last = known.last.entry(stage.to_owned()).or_default();
            last.0 = last.0.max(number);
            let waiting = &mut known.waiting;
            lines(&path, |_, line: Waiting| {
                last.1 = last.1.max(line.round);
                *times.entry(line.key.clone()).or_default() += 1;
                waiting.insert(line.key, Kept { file: line.file, round: line.round, at_most: line.at_most });
            })?;
        }
        known.waiting.retain(|key, _| times.get(key).copied().unwrap_or_default() > returns.times(key));
        Ok(known)
    }
}
