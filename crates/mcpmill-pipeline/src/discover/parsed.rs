//! Web pages as trees, as far as they are such as people write: a small page can be made to grow into a tree without
//! end.

use html5ever::{
    driver::{self, ParseOpts},
    tendril::{StrTendril, TendrilSink},
};
use scraper::{Html, HtmlTreeSink};

/// Bytes of a page that are read as a tree.
const MOST_BYTES: usize = 4 << 20;
/// Bytes that are read at once.
const STEP: usize = 512;
/// Nodes of a tree; what comes after them is left out.
const MOST_NODES: usize = 200_000;
/// Levels of a tree; what comes after a deeper one is left out.
const DEEPEST: usize = 256;

/// The tree of a page, cut off where it becomes too large or too deep.
pub(super) fn tree(page: &str) -> Html {
    let mut parser = driver::parse_document(HtmlTreeSink::new(Html::new_document()), ParseOpts::default());
    let (mut rest, mut nodes) = (&page[..page.floor_char_boundary(MOST_BYTES)], 0);
    while !rest.is_empty() {
        let (step, after) = rest.split_at(rest.ceil_char_boundary(STEP));
        parser.process(StrTendril::from_slice(step));
        rest = after;
        let html = parser.tokenizer.sink.sink.0.borrow();
        let all = html.tree.nodes();
        let new = all.len() - nodes;
        nodes = all.len();
        let deep = all.rev().take(new).any(|node| node.ancestors().nth(DEEPEST).is_some());
        if deep || nodes > MOST_NODES {
            break;
        }
    }
    parser.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_it_is_and_a_bomb_is_cut_off() {
        let page = format!("<!doctype html><p title=\"ä\">{}<b>x</b><i>y</i>", "ä <em>word</em> ".repeat(500));
        assert_eq!(tree(&page), Html::parse_document(&page));
        // Every paragraph would hold every one of these again.
        let again = (0..1_500).map(|n| format!("<b id={n}>")).collect::<String>() + &"<p>x".repeat(1_500);
        let nested = "<a href=\"/x\"><object>".repeat(20_000);
        for bomb in [again, nested, "<div>".repeat(200_000), "<p>x".repeat(2 << 20)] {
            let nodes = tree(&bomb).tree.nodes().len();
            assert!(nodes > 100 && nodes < MOST_NODES + 100_000, "{nodes}");
        }
    }
}
