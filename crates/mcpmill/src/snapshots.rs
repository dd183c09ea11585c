//! What crawls found before, kept in the cache and recorded with the run that starts from it; and where
//! listings are put aside while a crawl goes on.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use mcpmill_clients::cage::npm_registry;
use mcpmill_core::{
    canonical::sha256_hex,
    edge::{ExchangeError, ExchangeKind, Recorder},
};
use mcpmill_pipeline::discover::{Head, Keeping, Line, Shelf, Snapshot, Snapshots};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{error::Failure, run::now_rfc3339};

/// Raised when snapshots of an earlier mcpmill cannot be used: everything is fetched once more then.
const FORMAT: u32 = 2;
/// Bytes of lines that are recorded as one exchange.
const PART: usize = 1 << 20;

/// A file without a name in the cache: its room is free again when the process ends, however it ends.
pub struct DiskShelf {
    file: File,
    end: AtomicU64,
}

impl DiskShelf {
    /// A shelf below a cache folder.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn new(cache: &Path) -> io::Result<Self> {
        fs::create_dir_all(cache)?;
        let path = cache.join(format!("shelf-{}.tmp", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        fs::remove_file(&path)?;
        Ok(Self { file, end: AtomicU64::new(0) })
    }
}

impl Shelf for DiskShelf {
    fn put(&self, block: &[u8]) -> Option<u64> {
        let at = self.end.fetch_add(block.len() as u64, Ordering::Relaxed);
        self.file.write_all_at(block, at).ok().map(|()| at)
    }

    fn get(&self, at: u64, length: usize) -> Option<Vec<u8>> {
        let mut block = vec![0; length];
        self.file.read_exact_at(&mut block, at).ok().map(|()| block)
    }
}

/// Snapshots as packed files of the cache, one a marketplace: a line an entry, and one that says when at the end.
pub struct DiskSnapshots {
    folder: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct End {
    format: u32,
    head: Head,
}

impl DiskSnapshots {
    /// Snapshots below a cache folder.
    pub fn new(cache: &Path) -> Self {
        Self { folder: cache.join("crawls") }
    }

    fn path(&self, marketplace: &str) -> PathBuf {
        self.folder.join(format!("{marketplace}.jsonl.zst"))
    }

    fn open(&self, marketplace: &str) -> io::Result<Reader> {
        let file = File::open(self.path(marketplace))?;
        Ok(Reader { lines: BufReader::new(zstd::Decoder::new(file)?).lines(), held: None })
    }

    fn begin(&self, marketplace: &str) -> io::Result<DiskKeeping> {
        fs::create_dir_all(&self.folder)?;
        let path = self.path(marketplace);
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let packed = zstd::Encoder::new(BufWriter::new(File::create(&partial)?), 3)?;
        Ok(DiskKeeping { marketplace: marketplace.to_owned(), path, partial, packed: Some(packed), failed: None })
    }
}

/// A snapshot that is read from the disk.
struct Reader {
    lines: io::Lines<BufReader<zstd::Decoder<'static, BufReader<File>>>>,
    /// The last line that was read: an entry, when another follows.
    held: Option<String>,
}

impl Reader {
    /// The next lines, about [`PART`] bytes of them; none at the end.
    ///
    /// # Errors
    /// The file is damaged, or of another format.
    fn part(&mut self) -> io::Result<String> {
        let mut part = String::new();
        while part.len() < PART
            && let Some(line) = self.lines.next()
        {
            if let Some(line) = self.held.replace(line?) {
                serde_json::from_str::<Line>(&line).map_err(io::Error::other)?;
                part += &line;
                part.push('\n');
            }
        }
        Ok(part)
    }

    /// What stands at the end.
    ///
    /// # Errors
    /// The file was cut off, or is of another format.
    fn head(self) -> io::Result<Head> {
        let End { format, head } = serde_json::from_str(&self.held.unwrap_or_default()).map_err(io::Error::other)?;
        if format == FORMAT { Ok(head) } else { Err(io::ErrorKind::Unsupported.into()) }
    }
}

/// A snapshot on its way to the disk.
struct DiskKeeping {
    marketplace: String,
    path: PathBuf,
    partial: PathBuf,
    packed: Option<zstd::Encoder<'static, BufWriter<File>>>,
    failed: Option<io::Error>,
}

impl DiskKeeping {
    fn close(&mut self, head: &Head) -> io::Result<()> {
        self.push(&json!(End { format: FORMAT, head: head.clone() }).to_string());
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let Some(packed) = self.packed.take() else { return Ok(()) };
        packed.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&self.partial, &self.path)
    }
}

impl Keeping for DiskKeeping {
    fn push(&mut self, line: &str) {
        if let Some(packed) = self.packed.as_mut().filter(|_| self.failed.is_none()) {
            self.failed = writeln!(packed, "{line}").err();
        }
    }

    fn finish(mut self: Box<Self>, head: &Head) {
        if let Err(e) = self.close(head) {
            eprintln!("the next crawl of {} will fetch everything: its snapshot cannot be kept: {e}", self.marketplace);
        }
    }
}

impl Drop for DiskKeeping {
    fn drop(&mut self) {
        fs::remove_file(&self.partial).ok();
    }
}

/// When the run's crawl began, in RFC 3339: recorded, so that addresses with a date are the same when the run goes
/// on, and in a replay.
///
/// # Errors
/// The exchange store cannot be used.
pub async fn beginning(recorder: &Recorder) -> Result<String, Failure> {
    let recorded = given(recorder, "time", async || Some(now_rfc3339())).await?;
    // A run of before recorded no beginning.
    Ok(recorded.unwrap_or_else(now_rfc3339))
}

/// The package registry that npm was set to when the run's crawl began. Only for a run that starts there: whose
/// registry it is should not be handed on for nothing.
///
/// # Errors
/// The exchange store cannot be used.
pub async fn registry(recorder: &Recorder) -> Result<Option<String>, Failure> {
    given(recorder, "npm_registry", async || npm_registry().await).await
}

/// What a crawl was given at its beginning, recorded; `None` when there is none, or a replay finds none recorded.
async fn given(recorder: &Recorder, what: &str, now: impl AsyncFnOnce() -> Option<String>) -> Result<Option<String>, Failure> {
    let live = async || Ok::<_, io::Error>(json!(now().await));
    match recorder.ask(ExchangeKind::Crawl, &json!({ "beginning": what }), |_| true, live).await {
        Ok(recorded) => Ok(recorded.reply.as_str().map(str::to_owned)),
        Err(ExchangeError::NotRecorded { .. }) => Ok(None),
        Err(error) => Err(Failure::environment(format!("failed to begin the crawl: {error}"))),
    }
}

/// Snapshots a run starts from, recorded with it: going on with the run, and a replay of it, start from the
/// same ones whatever the cache holds by then.
pub struct RecordedSnapshots {
    /// Where snapshots are kept; `None` when the run starts from none and leaves none.
    disk: Option<DiskSnapshots>,
    recorder: Arc<Recorder>,
}

impl RecordedSnapshots {
    /// Records what `disk` holds when it is first asked for.
    pub fn new(disk: Option<DiskSnapshots>, recorder: Arc<Recorder>) -> Self {
        Self { disk, recorder }
    }

    /// The snapshot on the disk, its lines recorded in parts; one that cannot be read is none.
    async fn started_from(&self, marketplace: &str) -> io::Result<Option<Recording>> {
        let Some(Ok(mut reader)) = self.disk.as_ref().map(|disk| disk.open(marketplace)) else { return Ok(None) };
        let mut parts = Vec::new();
        loop {
            let Ok(part) = reader.part() else { return Ok(None) };
            if part.is_empty() {
                break;
            }
            let id = sha256_hex(&part);
            let live = || async { Ok::<_, io::Error>(Value::from(part)) };
            self.recorder.ask(ExchangeKind::Crawl, &part_of(marketplace, &id), |_| true, live).await.map_err(io::Error::other)?;
            parts.push(id);
        }
        Ok(reader.head().ok().map(|head| Recording { head, parts }))
    }

    /// The lines of a part again.
    async fn part(&self, marketplace: &str, id: &str) -> Result<String, String> {
        let lost = || async { Err::<Value, _>(io::Error::other("it was recorded and is there no more")) };
        let asked = self.recorder.ask(ExchangeKind::Crawl, &part_of(marketplace, id), |_| true, lost).await;
        let reply = asked.map_err(|e| format!("what the crawl started from is not recorded whole: {e}"))?.reply;
        reply.as_str().map(str::to_owned).ok_or_else(|| "what the crawl started from is recorded as no text".to_owned())
    }
}

/// What a crawl started from, as it is recorded.
#[derive(Serialize, Deserialize)]
struct Recording {
    head: Head,
    /// Hashes of the parts its lines are recorded in.
    parts: Vec<String>,
}

fn part_of(marketplace: &str, id: &str) -> Value {
    json!({ "snapshot": marketplace, "part": id })
}

#[async_trait]
impl Snapshots for RecordedSnapshots {
    async fn load(&self, marketplace: &str, shelf: Option<&Arc<dyn Shelf>>) -> Result<Option<Snapshot>, String> {
        let live = || async { self.started_from(marketplace).await.map(|recording| json!(recording)) };
        let request = json!({ "snapshot": marketplace });
        let reply = match self.recorder.ask(ExchangeKind::Crawl, &request, |_| true, live).await {
            Ok(recorded) => recorded.reply,
            // A run of before, which recorded no beginning and started from nothing.
            Err(ExchangeError::NotRecorded { .. }) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let recording: Option<Recording> = serde_json::from_value(reply).map_err(|e| e.to_string())?;
        let Some(Recording { head, parts }) = recording else { return Ok(None) };
        let mut snapshot = Snapshot::new(head, shelf);
        for id in &parts {
            let part = self.part(marketplace, id).await?;
            part.lines().try_for_each(|line| snapshot.push(line)).map_err(|e| e.to_string())?;
        }
        Ok(Some(snapshot))
    }

    fn begin(&self, marketplace: &str) -> Option<Box<dyn Keeping>> {
        match self.disk.as_ref()?.begin(marketplace) {
            Ok(keeping) => Some(Box::new(keeping)),
            Err(e) => {
                eprintln!("the next crawl of {marketplace} will fetch everything: its snapshot cannot be kept: {e}");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mcpmill_core::edge::{Exchanges, Mode};
    use mcpmill_pipeline::discover::Listing;
    use mcpmill_testkit::Remembering;

    use super::*;

    fn snapshots(cache: Option<&Path>, store: &Arc<Remembering>, mode: Mode) -> RecordedSnapshots {
        let recorder = Recorder::new(Arc::clone(store) as Arc<dyn Exchanges>, mode);
        RecordedSnapshots::new(cache.map(DiskSnapshots::new), Arc::new(recorder))
    }

    fn head() -> Head {
        Head { at: "2026-01-31T00:00:00Z".into(), declaration: "d".into() }
    }

    fn line(i: usize) -> Line {
        let listing = Listing { id: format!("m#{i}"), server: Err("broken ".repeat(40)), keys: vec!["npm:a".into()], own: false };
        Line { key: i.to_string(), hash: format!("{:016x}", i + 1), listing: Some(listing), entry: None, read: 0 }
    }

    #[tokio::test]
    async fn a_run_starts_from_the_same_snapshot_whatever_is_kept_since() {
        let cache = tempfile::tempdir().unwrap();
        let first = snapshots(Some(cache.path()), &Arc::default(), Mode::Reuse);
        assert!(first.load("m", None).await.unwrap().is_none());
        // More than one part.
        let mut keeping = first.begin("m").unwrap();
        (0..5000).for_each(|i| keeping.push(&serde_json::to_string(&line(i)).unwrap()));
        keeping.finish(&head());
        assert!(first.load("m", None).await.unwrap().is_none(), "the same run started from nothing");

        let store = Arc::<Remembering>::default();
        let second = snapshots(Some(cache.path()), &store, Mode::Reuse);
        let shelf: Arc<dyn Shelf> = Arc::new(DiskShelf::new(cache.path()).unwrap());
        let found = second.load("m", Some(&shelf)).await.unwrap().unwrap();
        assert!(store.kept().len() > 2, "in parts");
        assert_eq!((found.head.clone(), found.lines().count(), found.line("4999")), (head(), 5000, Some(line(4999))));
        // One that is not finished is none; one that is takes its place, and the run still starts from its own.
        drop(second.begin("m"));
        second.begin("m").unwrap().finish(&Head::default());
        assert_eq!(second.load("m", None).await.unwrap().unwrap().lines().count(), 5000);
        let replay = snapshots(None, &store, Mode::Replay);
        assert_eq!(replay.load("m", None).await.unwrap().unwrap().lines().count(), 5000);
        assert!(replay.begin("m").is_none());
        // A part that was not handed on is no snapshot of less.
        store.forget(|exchange| exchange.request.get("part").is_some());
        assert!(replay.load("m", None).await.err().unwrap().contains("not recorded whole"));
        let left: Vec<_> = fs::read_dir(cache.path().join("crawls")).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["m.jsonl.zst"]);
    }

    #[tokio::test]
    async fn damaged_snapshots_are_none() {
        let cache = tempfile::tempdir().unwrap();
        let kept = snapshots(Some(cache.path()), &Arc::default(), Mode::Reuse);
        let mut keeping = kept.begin("m").unwrap();
        (0..50).for_each(|i| keeping.push(&serde_json::to_string(&line(i)).unwrap()));
        keeping.finish(&head());
        let path = cache.path().join("crawls/m.jsonl.zst");
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        assert!(kept.load("m", None).await.unwrap().is_none());
        fs::write(&path, zstd::encode_all("{\"format\":1,\"at\":\"\"}\n{}\n".as_bytes(), 1).unwrap()).unwrap();
        assert!(snapshots(Some(cache.path()), &Arc::default(), Mode::Reuse).load("m", None).await.unwrap().is_none());
    }
}
