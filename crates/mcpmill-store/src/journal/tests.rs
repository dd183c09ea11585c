use std::{collections::BTreeMap, fs, io::Write};

use mcpmill_core::{
    event::Summary,
    id::SampleId,
    record::{Judgement, Sample},
};

use super::*;
use crate::{
    codec::samples::Dice,
    parquet_file::{read_all, row_count},
    run_dir::{RunDir, StageState},
};

const STAGE: &str = "3-generate";

/// A run in a folder of its own.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        drop(RunDir::create(dir.path(), "2026-11-29", "ffffffff", "0.1.0").unwrap());
        Self { dir }
    }

    fn state(&self) -> StageState {
        RunDir::open(self.dir.path(), "2026-11-29-ffffffff").unwrap().stage(STAGE, "f").unwrap()
    }

    fn try_open(&self, part_rows: usize) -> Result<Journal<Sample>, JournalError> {
        match self.state() {
            StageState::Open(stage) => Journal::open(stage, JournalOptions { part_rows, verdicts: false }),
            StageState::Done(info) => panic!("done: {info:?}"),
        }
    }

    fn open(&self, part_rows: usize) -> Journal<Sample> {
        self.try_open(part_rows).unwrap()
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("2026-11-29-ffffffff").join(STAGE)
    }

    /// All files of the stage, by their names below it.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for folder in ["", "parts"] {
            let Ok(entries) = fs::read_dir(self.folder().join(folder)) else { continue };
            for path in entries.map(|e| e.unwrap().path()).filter(|p| p.is_file()) {
                let name = path.strip_prefix(self.folder()).unwrap().display().to_string();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
        files
    }

    /// A place whose stage holds just these files.
    fn with(files: &BTreeMap<String, Vec<u8>>) -> Self {
        let place = Self::new();
        fs::create_dir_all(place.folder().join("parts")).unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(place.folder().join(name), bytes).unwrap());
        place
    }

    fn finished_files(&self) -> BTreeMap<String, Vec<u8>> {
        self.files().into_iter().filter(|(name, _)| name.ends_with(".parquet")).collect()
    }
}

fn hash(n: u64) -> String {
    format!("{:064x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn verdict(n: u64, filter: &str) -> Verdict {
    Verdict { subject_id: format!("in_{n}"), filter: filter.into(), judgement: Judgement::Keep, ..Dice::new(n).verdict() }
}

/// The end of input `n`, always the same.
fn done(n: u64) -> Done<Sample> {
    let id = format!("in_{n}");
    let mut dice = Dice::new(n);
    let mut done = Done::none(match n % 4 {
        0 | 1 => Outcome::kept(&id),
        2 => Outcome::dropped(&id, "below-threshold"),
        _ => Outcome { raw: Some("raw reply".into()), ..Outcome::failed(&id, "unreadable", "é".repeat(500)) },
    });
    done.outcome.seconds = 0.25;
    if n.is_multiple_of(4) {
        done.rows = (0..2).map(|i| Sample { id: SampleId(format!("smp_{}_{i}", n * 7919 % 1000)), ..dice.sample() }).collect();
    }
    if n.is_multiple_of(2) {
        done.verdicts = vec![verdict(n, "schema"), verdict(n, "again")];
    }
    done
}

fn accept(journal: &Journal<Sample>, inputs: impl IntoIterator<Item = u64>) {
    for n in inputs.into_iter().filter(|&n| journal.seen(&hash(n)).is_none()).collect::<Vec<_>>() {
        journal.accept(&hash(n), done(n)).unwrap();
    }
}

fn summary(inputs: impl IntoIterator<Item = u64>) -> Summary {
    let mut summary = Summary::default();
    inputs.into_iter().map(done).for_each(|done| summary.count(&done.outcome, done.rows.len() as u64));
    summary
}

/// The files that inputs `0..n` must end in.
fn expected(n: u64) -> BTreeMap<String, Vec<u8>> {
    let place = Place::new();
    let journal = place.open(100_000);
    accept(&journal, 0..n);
    journal.finish(&summary(0..n)).unwrap();
    place.finished_files()
}

fn check_finishes_as(place: &Place, n: u64) {
    check_finishes_with(5, place, n);
}

fn check_finishes_with(part_rows: usize, place: &Place, n: u64) {
    let journal = place.open(part_rows);
    accept(&journal, 0..n);
    journal.finish(&summary(0..n)).unwrap();
    assert_eq!(place.finished_files(), expected(n));
    assert!(!place.folder().join("parts").exists());
}

#[test]
fn files_are_sorted_and_hold_everything() {
    let place = Place::new();
    let journal = place.open(5);
    accept(&journal, (0..23).rev());
    let info = journal.finish(&summary(0..23)).unwrap();
    assert_eq!(info.summary(), summary(0..23));
    assert_eq!(place.state(), StageState::Done(Box::new(info)));
    let samples: Vec<Sample> = read_all(&place.folder().join("samples.parquet")).unwrap();
    let mut sorted: Vec<Sample> = (0..23).flat_map(|n| done(n).rows).collect();
    sorted.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(samples, sorted);
    let outcomes: Vec<Outcome> = read_all(&place.folder().join("outcomes.parquet")).unwrap();
    assert!(outcomes.is_sorted_by(|a, b| a.input_id < b.input_id));
    assert_eq!(outcomes.iter().find(|o| o.input_id == "in_3"), Some(&done(3).outcome), "raw and all");
    let verdicts: Vec<Verdict> = read_all(&place.folder().join("verdicts.parquet")).unwrap();
    assert_eq!(verdicts.len(), 24);
    assert_eq!(verdicts[..2], done(0).verdicts, "in the order they were given");
}

#[test]
fn bytes_do_not_depend_on_order_parts_or_kills() {
    let expected = expected(60);
    assert_eq!(expected.keys().collect::<Vec<_>>(), ["outcomes.parquet", "samples.parquet", "verdicts.parquet"]);
    for (seed, part_rows) in [(1, 1), (2, 2), (3, 7), (4, 60), (5, 2000)] {
        let place = Place::new();
        let mut dice = Dice::new(seed);
        let mut inputs: Vec<u64> = (0..60).collect();
        (1..60).rev().for_each(|i| inputs.swap(i, dice.below(i as u64 + 1) as usize));
        // Each piece ends in a kill, after which other rows may come first and parts are of another size.
        for piece in inputs.chunks(1 + dice.below(20) as usize) {
            accept(&place.open(part_rows + dice.below(2) as usize), piece.iter().copied());
        }
        let journal = place.open(part_rows);
        assert_eq!(journal.ended(), 60);
        journal.finish(&summary(0..60)).unwrap();
        assert_eq!(place.finished_files(), expected, "parts of {part_rows}");
    }
}

#[test]
fn row_groups_do_not_depend_on_parts() {
    let make = |part_rows| {
        let place = Place::new();
        let journal = place.open(part_rows);
        for n in 0..7u64 {
            let rows =
                (0..1500).map(|i| Sample { id: SampleId(format!("s{}", i * 7 + n)), messages: vec![], ..Dice::new(i).sample() });
            journal.accept(&hash(n), Done::kept(&n.to_string(), rows.collect())).unwrap();
        }
        let sums = Summary { input_rows: 7, kept: 7, output_rows: 10_500, ..Summary::default() };
        journal.finish(&sums).unwrap();
        place.finished_files()
    };
    let (one, many) = (make(100), make(2));
    assert!(one == many, "the files differ");
}

#[test]
fn what_is_seen_after_reopening_is_small() {
    let place = Place::new();
    accept(&place.open(3), 0..8);
    let journal = place.open(3);
    for n in 0..8 {
        let (outcome, rows) = journal.seen(&hash(n)).unwrap();
        assert_eq!((outcome.outcome, rows), (done(n).outcome.outcome, done(n).rows.len() as u64));
        assert_eq!(outcome.raw, None);
        assert!(outcome.cause.unwrap_or_default().chars().count() <= CAUSE_CHARACTERS + 1);
    }
    assert_eq!(journal.seen(&hash(8)), None);
}

#[test]
fn a_torn_last_line_is_done_again() {
    let place = Place::new();
    accept(&place.open(100), 0..10);
    let path = place.folder().join("parts/00000.jsonl");
    let whole = fs::read(&path).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|&b| b == b'\n').unwrap() + 1;
    for cut in [last + 1, (last + whole.len()) / 2, whole.len() - 1] {
        fs::write(&path, &whole[..cut]).unwrap();
        let journal = place.open(100);
        assert_eq!((journal.ended(), journal.seen(&hash(9))), (9, None));
        accept(&journal, [9]);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    check_finishes_as(&place, 10);
}

#[test]
fn damage_in_the_middle_names_file_and_line() {
    let place = Place::new();
    accept(&place.open(100), 0..5);
    let path = place.folder().join("parts/00000.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    for damaged in [whole.replacen("in_2", "\u{1}", 1), whole.replacen("\"input_id\":\"in_2\",", "", 1)] {
        fs::write(&path, damaged).unwrap();
        let error = place.try_open(100).err().unwrap();
        assert!(matches!(error.kind, JournalErrorKind::Line { line: 3, .. }), "{error}");
        assert!(error.to_string().contains("00000.jsonl"), "{error}");
    }
    fs::write(&path, whole.clone() + "{}\n").unwrap();
    assert!(matches!(place.try_open(100).err().unwrap().kind, JournalErrorKind::Line { line: 6, .. }));
    fs::write(&path, whole.clone() + &whole).unwrap();
    assert!(matches!(place.try_open(100).err().unwrap().kind, JournalErrorKind::Line { line: 6, .. }));
}

#[test]
fn a_kill_at_any_step_of_sealing_is_mended() {
    let place = Place::new();
    accept(&place.open(100), 0..5);
    let before = place.files();
    drop(place.open(5));
    let after = place.files();
    let parquet: Vec<&String> = after.keys().filter(|n| n.starts_with("parts/")).collect();
    assert_eq!(parquet, ["parts/00000.outcomes.parquet", "parts/00000.rows.parquet", "parts/00000.verdicts.parquet"]);
    let steps = ["rows", "outcomes", "verdicts"].map(|word| format!("parts/00000.{word}.parquet"));
    for step in 0..=steps.len() {
        let mut files = before.clone();
        steps[..step].iter().for_each(|name| drop(files.insert(name.clone(), after[name].clone())));
        if let Some(next) = steps.get(step) {
            // The kill came while the next file was being written.
            files.insert(format!("{next}.tmp"), b"half".to_vec());
        }
        // Reopened with the same limit the part is sealed; with a higher one it grows.
        for part_rows in [5, 7] {
            let place = Place::with(&files);
            let journal = place.open(part_rows);
            assert_eq!(journal.ended(), 5, "step {step}");
            accept(&journal, 5..9);
            drop(journal);
            check_finishes_as(&place, 12);
        }
    }
    check_finishes_as(&Place::with(&after), 12);
    let mut incomplete = after.clone();
    incomplete.remove("parts/00000.outcomes.parquet");
    let error = Place::with(&incomplete).try_open(5).err().unwrap();
    assert!(error.to_string().contains("00000.outcomes.parquet"), "{error}");
}

#[test]
fn a_part_that_a_loss_of_power_brought_back_is_sealed_again() {
    let place = Place::new();
    accept(&place.open(100), 0..5);
    let lines = place.files()["parts/00000.jsonl"].clone();
    accept(&place.open(5), 5..8);
    let mut files = place.files();
    assert!(files.contains_key("parts/00001.jsonl"));
    files.insert("parts/00000.jsonl".into(), lines.clone());
    for part_rows in [5, 100] {
        check_finishes_with(part_rows, &Place::with(&files), 12);
    }
    // The same with the part above it sealed.
    accept(&place.open(5), 8..10);
    let mut files = place.files();
    files.insert("parts/00000.jsonl".into(), lines);
    assert!(files.contains_key("parts/00001.rows.parquet"));
    for part_rows in [5, 100] {
        check_finishes_with(part_rows, &Place::with(&files), 12);
    }
}

#[test]
fn a_kill_at_any_step_of_finishing_is_mended() {
    let place = Place::new();
    accept(&place.open(4), 0..10);
    let before = place.files();
    place.open(4).finish(&summary(0..10)).unwrap();
    let after = place.files();
    let steps = ["samples.parquet", "outcomes.parquet", "verdicts.parquet", "stage.json"];
    for step in 0..=steps.len() {
        let mut files = before.clone();
        steps[..step].iter().for_each(|name| drop(files.insert((*name).into(), after[*name].clone())));
        files.insert("parts/merge-Rows-1-0.parquet".into(), b"half".to_vec());
        if let Some(next) = steps.get(step) {
            files.insert(format!("{next}.tmp"), b"half".to_vec());
            check_finishes_as(&Place::with(&files), 10);
        } else {
            let place = Place::with(&files);
            assert!(matches!(place.state(), StageState::Done(_)));
            assert_eq!(place.finished_files(), expected(10));
        }
    }
}

#[test]
fn two_rows_of_one_id_are_a_fault_of_the_stage() {
    let place = Place::new();
    let journal = place.open(1);
    let twin = |id: &str| Done::kept(id, done(0).rows[..1].to_vec());
    journal.accept("a", twin("a")).unwrap();
    journal.accept("b", twin("b")).unwrap();
    let sums = Summary { input_rows: 2, kept: 2, output_rows: 2, ..Summary::default() };
    let error = journal.finish(&sums).unwrap_err();
    assert!(matches!(&error.kind, JournalErrorKind::RowTwice { table: "samples", id } if id == "smp_0_0"), "{error}");
    assert_eq!(place.open(1).ended(), 2, "the journal is kept");
}

#[test]
fn verdicts_are_written_where_the_stage_gives_any() {
    let place = Place::new();
    let journal = place.open(1);
    accept(&journal, [1, 3, 5]);
    journal.finish(&summary([1, 3, 5])).unwrap();
    assert!(!place.folder().join("verdicts.parquet").exists());

    let place = Place::new();
    let StageState::Open(stage) = place.state() else { panic!() };
    let journal: Journal<Sample> = Journal::open(stage, JournalOptions { verdicts: true, ..Default::default() }).unwrap();
    journal.finish(&Summary::default()).unwrap();
    for name in ["samples", "outcomes", "verdicts"] {
        assert_eq!(row_count(&place.folder().join(name).with_extension("parquet")).unwrap(), 0);
    }
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let place = Place::new();
    let journal = place.open(100);
    accept(&journal, [0]);
    let twice = journal.accept(&hash(0), done(0)).unwrap_err().to_string();
    assert!(twice.contains("`in_0` ended twice"), "{twice}");
    let mut nan = done(2);
    nan.verdicts[1].score = Some(f64::NAN);
    assert!(journal.accept(&hash(2), nan).unwrap_err().to_string().contains("`score`"));
    let mut infinite = done(2);
    infinite.outcome.cost_usd = f64::INFINITY;
    assert!(journal.accept(&hash(2), infinite).is_err());
    assert_eq!(journal.seen(&hash(2)), None);
    let error = journal.finish(&summary(0..2)).unwrap_err();
    assert!(matches!(error.kind, JournalErrorKind::Counts { what: "input rows", told: 2, found: 1 }), "{error}");
    check_finishes_as(&place, 3);
}

#[test]
fn a_write_that_fails_half_way_is_taken_back() {
    let place = Place::new();
    accept(&place.open(100), 0..3);
    let path = place.folder().join("parts/00000.jsonl");
    let whole = fs::read(&path).unwrap();
    let mut tail = Tail::open(&path, whole.len() as u64, 3).unwrap();
    // A line whose write is refused: the file handle may only be read.
    tail.deny_writes(&path);
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"half").unwrap();
    assert!(tail.append(b"line\n").is_err());
    assert!(tail.append(b"line\n").unwrap_err().to_string().contains("half way"), "nothing may follow half a line");
}

#[test]
fn merged_parts_are_the_bytes_of_the_rows_written_at_once() {
    let place = Place::new();
    let journal = place.open(70);
    accept(&journal, 0..1000);
    journal.finish(&summary(0..1000)).unwrap();
    let whole = place.folder().join("whole");
    let is_whole = |name: &str| fs::read(&whole).unwrap() == fs::read(place.folder().join(name)).unwrap();
    let mut rows: Vec<Sample> = (0..1000).flat_map(|n| done(n).rows).collect();
    rows.sort_by(|a, b| a.id.cmp(&b.id));
    crate::parquet_file::write_all(&whole, &rows, &[]).unwrap();
    assert!(rows.len() == 500 && is_whole("samples.parquet"));
    let mut outcomes: Vec<Outcome> = (0..1000).map(|n| done(n).outcome).collect();
    outcomes.sort_by(|a, b| a.input_id.cmp(&b.input_id));
    crate::parquet_file::write_all(&whole, &outcomes, &[]).unwrap();
    assert!(is_whole("outcomes.parquet"), "over several batches");
}
