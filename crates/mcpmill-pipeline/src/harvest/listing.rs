//! A list of tools as it comes, page after page, within bounds.

use std::collections::HashSet;

use mcpmill_core::{canonical::content_hash, edge::ToolPage, record::ToolDraft};

/// Bytes of a tool as JSON. The largest of 13,000 real tools has 112 KB; a tool stands in every row that offers it.
const LARGEST_TOOL: usize = 512 << 10;

/// Bytes of one server's tools as JSON that are kept. The largest of 173 servers has 1.1 MB; this bounds what
/// is held while a list comes, page after page.
const LARGEST_LIST: usize = 32 << 20;

/// A cursor of more bytes is not sent back.
const LONGEST_CURSOR: usize = 64 << 10;

/// Pages in a row that may bring nothing new before a list is given up.
const EMPTY_PAGES: usize = 5;

/// Entries of a list that are no tools and are named.
const NAMED: usize = 5;

/// What a list has brought so far.
#[derive(Default)]
pub(super) struct Listing {
    pub(super) tools: Vec<ToolDraft>,
    bytes: usize,
    pub(super) too_large: usize,
    seen: HashSet<String>,
    cursors: HashSet<String>,
    /// Pages since the last one that brought something new.
    empty: usize,
    /// Entries that are no tools: how many, and why the first of them are none.
    refused_count: usize,
    pub(super) refused: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl Listing {
    /// Takes a page; the cursor to go on with, when that makes sense.
    pub(super) fn take(&mut self, page: ToolPage) -> Option<String> {
        let before = (self.tools.len(), self.too_large);
        for tool in page.tools {
            let bytes = serde_json::to_string(&tool).map_or(0, |text| text.len());
            if bytes > LARGEST_TOOL {
                self.too_large += 1;
                continue;
            }
            if self.bytes + bytes > LARGEST_LIST {
                self.notes.push(format!("more than {LARGEST_LIST} bytes of tools, the rest was cut off"));
                return None;
            }
            if self.seen.insert(content_hash(&tool)) {
                self.bytes += bytes;
                self.tools.push(tool);
            }
        }
        let named = NAMED.saturating_sub(self.refused.len());
        self.refused_count += page.refused.len();
        self.refused.extend(page.refused.into_iter().take(named));
        let next = page.next_cursor.filter(|cursor| !cursor.is_empty())?;
        if next.len() > LONGEST_CURSOR {
            self.notes.push(format!("pagination: a cursor of {} bytes", next.len()));
            return None;
        }
        // Pages that bring nothing new may be followed by others like them for ever, and by more tools.
        self.empty = if (self.tools.len(), self.too_large) == before { self.empty + 1 } else { 0 };
        if self.empty >= EMPTY_PAGES || !self.cursors.insert(next.clone()) {
            self.notes.push("pagination: non-advancing".to_owned());
            return None;
        }
        Some(next)
    }

    pub(super) fn detail(mut self, oddities: Vec<String>) -> (Option<String>, Vec<ToolDraft>) {
        if !self.refused.is_empty() {
            let more = if self.refused_count > self.refused.len() { ", …" } else { "" };
            self.notes.push(format!(
                "{} entries of its list are no tools: {}{more}",
                self.refused_count,
                self.refused.join(", ")
            ));
        }
        if self.too_large > 0 {
            self.notes.push(format!("{} tools of more than {LARGEST_TOOL} bytes are left out", self.too_large));
        }
        self.notes.extend(oddities);
        ((!self.notes.is_empty()).then(|| self.notes.join("; ")), self.tools)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::harvest) fn page(names: &[&str], next: &str) -> ToolPage {
        let tool = |name: &&str| ToolDraft {
            name: (*name).to_owned(),
            title: None,
            description: None,
            input_schema: json!({"type": "object"}),
            output_schema: None,
            annotations: None,
        };
        ToolPage { tools: names.iter().map(tool).collect(), next_cursor: Some(next.to_owned()), refused: Vec::new() }
    }

    #[test]
    fn cursors_that_stick_end_the_list() {
        let mut stuck = Listing::default();
        assert_eq!(stuck.take(page(&["a", "b"], "8")).as_deref(), Some("8"));
        assert_eq!(stuck.take(page(&["a", "b"], "8")), None);
        let (detail, tools) = stuck.detail(vec!["stdout_noise: 2 lines".to_owned()]);
        assert_eq!((detail.as_deref(), tools.len()), (Some("pagination: non-advancing; stdout_noise: 2 lines"), 2));

        let mut empty = Listing::default();
        assert_eq!(empty.take(page(&["a"], "1")).as_deref(), Some("1"));
        for n in 2..6 {
            assert_eq!(empty.take(page(&[], &n.to_string())), Some(n.to_string()));
        }
        // Tools may come after empty pages; then it all begins again.
        assert_eq!(empty.take(page(&["b"], "6")).as_deref(), Some("6"));
        for n in 7..11 {
            assert!(empty.take(page(&["a"], &n.to_string())).is_some());
        }
        assert_eq!(empty.take(page(&[], "11")), None);
        assert_eq!((empty.notes.as_slice(), empty.tools.len()), (["pagination: non-advancing".to_owned()].as_slice(), 2));

        let mut long = Listing::default();
        assert_eq!(long.take(page(&["a"], &"x".repeat(LONGEST_CURSOR + 1))), None);
        assert_eq!(long.notes, ["pagination: a cursor of 65537 bytes"]);

        let mut last = Listing::default();
        assert_eq!(last.take(page(&["a"], "")), None);
        assert_eq!(last.detail(Vec::new()).0, None);
    }

    #[test]
    fn what_is_no_tool_is_named() {
        let mut listing = Listing::default();
        let refused = (0..7).map(|n| format!("`{n}`")).collect();
        listing.take(ToolPage { refused, next_cursor: None, ..page(&["a"], "") });
        let (detail, tools) = listing.detail(Vec::new());
        assert_eq!(detail.unwrap(), "7 entries of its list are no tools: `0`, `1`, `2`, `3`, `4`, …");
        assert_eq!(tools.len(), 1);
    }

    #[test]
    fn lists_have_a_bound_in_bytes() {
        let large = |name: &str, bytes: usize| {
            let tool = ToolDraft { description: Some("x".repeat(bytes)), ..page(&[name], "").tools.remove(0) };
            ToolPage { tools: vec![tool], next_cursor: Some(name.to_owned()), refused: Vec::new() }
        };
        let mut listing = Listing::default();
        assert!(listing.take(large("too-large", LARGEST_TOOL)).is_some());
        let pages = (0..1000).take_while(|n| listing.take(large(&n.to_string(), LARGEST_TOOL - 200)).is_some()).count();
        assert_eq!(pages, LARGEST_LIST / LARGEST_TOOL);
        let (detail, tools) = listing.detail(Vec::new());
        let detail = detail.unwrap();
        assert!(detail.contains("bytes of tools, the rest was cut off"), "{detail}");
        assert!(detail.ends_with(&format!("; 1 tools of more than {LARGEST_TOOL} bytes are left out")), "{detail}");
        assert_eq!(tools.len(), pages);
    }
}
