//! What was used over the time that was worked, read from `events.jsonl`.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::reporter::SITTING;

/// Points that are kept.
const POINTS: usize = 400;
/// Bytes of a line; a longer one is no event of ours.
const LONGEST: u64 = 4 << 20;

/// What all rows together had used at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Seconds that were worked before; what lies between two sittings is none of them.
    pub seconds: f64,
    /// The stage that ran.
    pub stage: String,
    /// Rows that had ended.
    pub rows: u64,
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// US dollars.
    pub cost: f64,
}

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    at: Option<f64>,
    event: String,
    #[serde(default)]
    stage: Option<String>,
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
    #[serde(default)]
    cost_usd: Option<f64>,
}

/// Reads a log. Lines that are no events, or have no time since an older mcpmill wrote them, tell nothing.
///
/// # Errors
/// The file is there and cannot be read.
pub fn timeline(log: &Path) -> std::io::Result<Vec<Point>> {
    let mut from = match File::open(log) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => BufReader::new(file?),
    };
    let (mut now, mut points, mut last, mut every, mut skipped) = (Point::default(), Vec::new(), None, 1, 0);
    let mut line = Vec::new();
    while read_line(&mut from, &mut line)? {
        let Ok(event) = serde_json::from_slice::<Line>(&line) else { continue };
        let Some(at) = event.at.filter(|at| at.is_finite()) else { continue };
        if event.event != SITTING {
            now.seconds += last.map_or(0.0, |last: f64| (at - last).max(0.0));
        }
        last = Some(at);
        if event.event != "row" {
            continue;
        }
        now.rows += 1;
        now.stage = event.stage.unwrap_or_default();
        now.input_tokens += event.input_tokens;
        now.output_tokens += event.output_tokens;
        now.cost += event.cost_usd.filter(|cost| cost.is_finite()).unwrap_or_default();
        skipped += 1;
        if skipped >= every {
            skipped = 0;
            points.push(now.clone());
        }
        if points.len() >= 2 * POINTS {
            // Every second one goes, the later ones stay.
            points = points.into_iter().skip(1).step_by(2).collect();
            every *= 2;
        }
    }
    if points.last() != Some(&now) && now.rows > 0 {
        points.push(now);
    }
    Ok(points)
}

/// The next line, as far as it may go; `false` at the end.
fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    std::io::Read::take(&mut *from, LONGEST).read_until(b'\n', line)?;
    Ok(!line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_sittings_is_not_worked() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("events.jsonl");
        let lines = [
            r#"{"at":100.0,"event":"sitting"}"#,
            r#"{"at":101.0,"event":"row","stage":"3-generate","input_tokens":5,"output_tokens":2,"cost_usd":0.5}"#,
            "no event at all",
            r#"{"event":"row","stage":"3-generate","input_tokens":99,"output_tokens":99,"cost_usd":9.0}"#,
            r#"{"at":9000.0,"event":"sitting"}"#,
            r#"{"at":9003.0,"event":"row","stage":"4-filter","input_tokens":1,"output_tokens":1,"cost_usd":null}"#,
        ];
        std::fs::write(&log, lines.join("\n")).unwrap();
        let points = timeline(&log).unwrap();
        assert_eq!(points.iter().map(|p| p.seconds).collect::<Vec<_>>(), [1.0, 4.0]);
        let end = points.last().unwrap();
        assert_eq!((end.rows, end.input_tokens, end.output_tokens, end.cost), (2, 6, 3, 0.5));
        assert!(timeline(&folder.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn a_long_log_keeps_few_points_and_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("events.jsonl");
        let line = |n: u32| format!(r#"{{"at":{n},"event":"row","stage":"s","input_tokens":1,"output_tokens":0,"cost_usd":0}}"#);
        std::fs::write(&log, (0..5001).map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let points = timeline(&log).unwrap();
        assert!(points.len() > POINTS / 2 && points.len() <= 2 * POINTS + 1, "{}", points.len());
        assert_eq!((points.last().unwrap().rows, points.last().unwrap().seconds), (5001, 5000.0));
    }
}
