//! Texts kept small: compressed in blocks and read back by place.

use std::sync::{Mutex, PoisonError};

/// Bytes of text in a block before compression.
const BLOCK: usize = 32 << 10;

/// A growing list of texts, compressed in blocks.
#[derive(Debug, Default)]
pub struct Spool {
    blocks: Vec<Vec<u8>>,
    open: String,
    index: Vec<Place>,
    last: Mutex<Option<(u32, String)>>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    block: u32,
    from: u32,
    to: u32,
}

impl Spool {
    /// Adds a text.
    pub fn push(&mut self, text: &str) {
        let from = self.open.len() as u32;
        self.open.push_str(text);
        self.index.push(Place { block: self.blocks.len() as u32, from, to: self.open.len() as u32 });
        if self.open.len() >= BLOCK
            && let Ok(packed) = zstd::bulk::compress(self.open.as_bytes(), 1)
        {
            self.blocks.push(packed);
            self.open.clear();
        }
    }

    /// The text at a place; `None` beyond the end.
    pub fn get(&self, at: usize) -> Option<String> {
        let place = *self.index.get(at)?;
        let span = place.from as usize..place.to as usize;
        let Some(packed) = self.blocks.get(place.block as usize) else { return self.open.get(span).map(str::to_owned) };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(block, _)| *block != place.block) {
            let size = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten()?;
            let text = zstd::bulk::decompress(packed, usize::try_from(size).ok()?).ok()?;
            *last = Some((place.block, String::from_utf8(text).ok()?));
        }
        last.as_ref()?.1.get(span).map(str::to_owned)
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bytes it takes in memory, about.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(Vec::len).sum::<usize>() + self.open.len() + self.index.len() * size_of::<Place>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_whatever_the_order_and_take_little() {
        let text = |i: usize| format!("{{\"name\":\"server {i}\",\"text\":\"{}\"}}", "ä words that repeat ".repeat(i % 40));
        let mut spool = Spool::default();
        (0..2000).for_each(|i| spool.push(&text(i)));
        assert!((0..2000).rev().step_by(7).all(|i| spool.get(i).as_deref() == Some(text(i).as_str())));
        assert_eq!((spool.len(), spool.get(2000)), (2000, None));
        let raw: usize = (0..2000).map(|i| text(i).len()).sum();
        assert!(spool.bytes() * 4 < raw, "{} of {raw}", spool.bytes());
    }
}
