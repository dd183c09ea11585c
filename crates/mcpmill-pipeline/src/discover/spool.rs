//! Texts kept out of memory: compressed in blocks that lie on a shelf, and read back by place.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, PoisonError},
};

/// Bytes of text in a block before compression.
const BLOCK: usize = 32 << 10;
/// Blocks that are kept unpacked, for texts that are read in no order.
const UNPACKED: usize = 8;

/// Where blocks are put aside, outside of memory. What it holds is gone with the process.
pub trait Shelf: Send + Sync {
    /// Puts a block aside and says where it is; `None` when there is no room.
    fn put(&self, block: &[u8]) -> Option<u64>;

    /// The block of this place and length; `None` when it cannot be read.
    fn get(&self, at: u64, length: usize) -> Option<Vec<u8>>;
}

/// A growing list of texts: 12 bytes of memory a text and some for each block; without a shelf, or when
/// that is full, the compressed blocks too.
#[derive(Default)]
pub struct Spool {
    shelf: Option<Arc<dyn Shelf>>,
    blocks: Vec<Block>,
    open: String,
    index: Vec<Place>,
    last: Mutex<Vec<(u32, String)>>,
}

enum Block {
    Here(Vec<u8>),
    Shelved { at: u64, length: usize },
}

#[derive(Clone, Copy, Debug)]
struct Place {
    block: u32,
    from: u32,
    to: u32,
}

impl Spool {
    /// One whose blocks lie on a shelf, when there is one.
    pub fn on(shelf: Option<&Arc<dyn Shelf>>) -> Self {
        Self { shelf: shelf.cloned(), ..Self::default() }
    }

    /// Adds a text.
    pub fn push(&mut self, text: &str) {
        let from = self.open.len() as u32;
        self.open.push_str(text);
        self.index.push(Place { block: self.blocks.len() as u32, from, to: self.open.len() as u32 });
        if self.open.len() >= BLOCK
            && let Ok(packed) = zstd::bulk::compress(self.open.as_bytes(), 1)
        {
            let shelved = self.shelf.as_ref().and_then(|shelf| shelf.put(&packed));
            let length = packed.len();
            self.blocks.push(shelved.map_or_else(|| Block::Here(packed), |at| Block::Shelved { at, length }));
            self.open.clear();
            // One long text is no reason to keep its room for ever.
            self.open.shrink_to(2 * BLOCK);
        }
    }

    /// The text at a place; `None` beyond the end, or when its block cannot be read.
    pub fn get(&self, at: usize) -> Option<String> {
        let place = *self.index.get(at)?;
        let span = place.from as usize..place.to as usize;
        let Some(block) = self.blocks.get(place.block as usize) else { return self.open.get(span).map(str::to_owned) };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.iter().position(|(number, _)| *number == place.block);
        let found = match known {
            Some(known) => last.remove(known),
            None => (place.block, self.unpacked(block)?),
        };
        let text = found.1.get(span).map(str::to_owned);
        if last.len() >= UNPACKED {
            last.remove(0);
        }
        last.push(found);
        text
    }

    fn unpacked(&self, block: &Block) -> Option<String> {
        let packed = match block {
            Block::Here(packed) => Cow::Borrowed(packed.as_slice()),
            Block::Shelved { at, length } => Cow::Owned(self.shelf.as_ref()?.get(*at, *length)?),
        };
        let size = zstd::zstd_safe::get_frame_content_size(&packed).ok().flatten()?;
        String::from_utf8(zstd::bulk::decompress(&packed, usize::try_from(size).ok()?).ok()?).ok()
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
        let here = self.blocks.iter().map(|block| if let Block::Here(packed) = block { packed.len() } else { 0 });
        let unpacked = self.last.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, text)| text.len()).sum::<usize>();
        here.sum::<usize>()
            + self.blocks.capacity() * size_of::<Block>()
            + self.open.capacity()
            + self.index.capacity() * size_of::<Place>()
            + unpacked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shelf in memory that has room for so many blocks.
    struct Shelved(Mutex<Vec<u8>>, Mutex<usize>);

    impl Shelf for Shelved {
        fn put(&self, block: &[u8]) -> Option<u64> {
            let (mut bytes, mut room) = (self.0.lock().unwrap(), self.1.lock().unwrap());
            *room = room.checked_sub(1)?;
            bytes.extend_from_slice(block);
            Some((bytes.len() - block.len()) as u64)
        }

        fn get(&self, at: u64, length: usize) -> Option<Vec<u8>> {
            self.0.lock().unwrap().get(at as usize..at as usize + length).map(<[u8]>::to_vec)
        }
    }

    #[test]
    fn texts_come_back_whatever_the_order_and_take_little() {
        let text = |i: usize| format!("{{\"name\":\"server {i}\",\"text\":\"{}\"}}", "ä words that repeat ".repeat(i % 40));
        let raw: usize = (0..2000).map(|i| text(i).len()).sum();
        // Without a shelf, with one that is full soon, and with one that has room.
        for room in [0, 3, 1000] {
            let shelf: Arc<dyn Shelf> = Arc::new(Shelved(Mutex::default(), Mutex::new(room)));
            let mut spool = Spool::on((room > 0).then_some(&shelf));
            (0..2000).for_each(|i| spool.push(&text(i)));
            let most = if room == 1000 { BLOCK * 2 + 2000 * 24 + 100 * 48 } else { raw / 4 };
            assert!(spool.bytes() < most, "{} of {raw} with room for {room}", spool.bytes());
            assert!((0..2000).rev().step_by(7).all(|i| spool.get(i).as_deref() == Some(text(i).as_str())));
            assert_eq!((spool.len(), spool.get(2000)), (2000, None));
        }
    }
}
