//! How the rows of a split are cut into files.

use std::collections::BTreeMap;

use mcpmill_core::record::{ExportRow, Message, Split};

use super::Dataset;

/// The files of every split, planned row by row: their names hold their number, which must be known before the first.
#[derive(Clone, Debug)]
pub struct Shards {
    rows: u64,
    bytes: u64,
    /// Rows of each file, and the bytes of the last one.
    splits: BTreeMap<Split, (Vec<u64>, u64)>,
}

impl Shards {
    /// No rows yet; the dataset says how large files become.
    pub fn new(dataset: &Dataset) -> Self {
        Self { rows: dataset.rows_per_file as u64, bytes: dataset.mb_per_file.saturating_mul(1 << 20), splits: BTreeMap::new() }
    }

    /// Adds a row; rows are written in the order in which they are added.
    pub fn add(&mut self, row: &ExportRow) {
        self.push(row.split, text_bytes(row));
    }

    fn push(&mut self, split: Split, bytes: u64) {
        let (files, last) = self.splits.entry(split).or_default();
        match files.last_mut() {
            // A row that is larger than a file has one of its own.
            Some(rows) if *rows < self.rows && last.saturating_add(bytes) <= self.bytes => {
                *rows += 1;
                *last += bytes;
            }
            _ => {
                files.push(1);
                *last = bytes;
            }
        }
    }

    /// Rows of each file of a split.
    pub fn of(&self, split: Split) -> &[u64] {
        self.splits.get(&split).map_or(&[], |(files, _)| files)
    }
}

/// Bytes of a row's texts, before compression: what readers hold in memory.
fn text_bytes(row: &ExportRow) -> u64 {
    let message = |message: &Message| match message {
        Message::System { content } | Message::User { content } | Message::Tool { content, .. } => content.len(),
        Message::Assistant { content, tool_calls } => {
            let calls = tool_calls.iter().map(|call| call.function.name.len() + arguments(&call.function.arguments));
            content.as_deref().map_or(0, str::len) + calls.sum::<usize>()
        }
    };
    let messages: usize = row.messages.iter().map(message).sum();
    let lineage: usize = row.lineage.iter().map(|revision| revision.text.len() + 200).sum();
    let verdicts: usize = row.verdicts.iter().map(|v| v.reason.len() + v.evidence.as_deref().map_or(0, str::len) + 60).sum();
    (messages + row.tools.len() + lineage + verdicts) as u64
}

fn arguments(map: &serde_json::Map<String, serde_json::Value>) -> usize {
    serde_json::to_string(map).map_or(0, |text| text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_cut_by_rows_and_by_bytes() {
        let text = "title = \"t\"\nlicence = \"mit\"\nlicences = []\nlive = []\nallow_unjudged = false\ncandidates = 4\n\
                    rows_per_file = 3\nmb_per_file = 1\n[split]\nunseen_server = 0.0\nunseen_tool = 0.0\nseen_tool = 0.0";
        let mut shards = Shards::new(&Dataset::parse("d", text).unwrap());
        for bytes in [10, 10, 10, 10, 1 << 20, 5, 5 << 20, 1 << 19, 1 << 19, 1] {
            shards.push(Split::Train, bytes);
        }
        shards.push(Split::SeenTool, 1);
        assert_eq!(shards.of(Split::Train), [3, 1, 1, 1, 1, 2, 1]);
        assert_eq!((shards.of(Split::SeenTool), shards.of(Split::UnseenTool)), (&[1][..], &[][..]));
    }
}
