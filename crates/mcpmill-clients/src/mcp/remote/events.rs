//! A stream of server-sent events, taken apart within bounds.

use std::collections::VecDeque;

/// One event.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Its type; `message` when the stream does not say.
    pub(super) name: String,
    /// Its data, lines joined by line feeds.
    pub(super) data: Vec<u8>,
}

/// Puts events together from pieces of a stream, wherever the network cut them.
#[derive(Debug)]
pub(super) struct Parser {
    limit: usize,
    line: Vec<u8>,
    name: String,
    data: Option<Vec<u8>>,
    after_return: bool,
    ready: VecDeque<Event>,
}

/// An event or a line is larger than it may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

impl Parser {
    /// A parser of events of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, line: Vec::new(), name: String::new(), data: None, after_return: false, ready: VecDeque::new() }
    }

    /// The next whole event.
    pub(super) fn next(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    /// Takes a piece of the stream.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Result<(), TooLarge> {
        for &byte in piece {
            let second_half = byte == b'\n' && self.after_return;
            self.after_return = byte == b'\r';
            match byte {
                b'\n' if second_half => {}
                b'\n' | b'\r' => self.end_line(),
                _ => self.line.push(byte),
            }
            if self.line.len() + self.data.as_ref().map_or(0, Vec::len) > self.limit {
                return Err(TooLarge);
            }
        }
        Ok(())
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            if let Some(data) = self.data.take() {
                let name = if name.is_empty() { "message".to_owned() } else { name };
                self.ready.push_back(Event { name, data });
            }
            return;
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"data" => match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            },
            // Comments, ids and times to wait: nothing is resumed.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut parser = Parser::new(100);
        for piece in pieces {
            parser.feed(piece).unwrap();
        }
        std::iter::from_fn(|| parser.next()).map(|e| (e.name, String::from_utf8(e.data).unwrap())).collect()
    }

    #[test]
    fn events_are_put_together_wherever_they_were_cut() {
        let stream = "\u{feff}: hello\r\nevent: endpoint\r\ndata: /post\r\n\r\nid: 1\ndata:a\ndata: é\n\n\ndata: lost".as_bytes();
        let wanted = vec![("endpoint".to_owned(), "/post".to_owned()), ("message".to_owned(), "a\né".to_owned())];
        assert_eq!(events(&[stream]), wanted);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(events(&bytes), wanted);
        assert_eq!(events(&[b"data: x\r", b"\r"]), [("message".to_owned(), "x".to_owned())]);
    }

    #[test]
    fn events_have_a_bound() {
        assert_eq!(Parser::new(10).feed(&[b'x'; 11]), Err(TooLarge));
        let mut parser = Parser::new(20);
        assert_eq!((0..10).try_for_each(|_| parser.feed(b"data: x\n")), Err(TooLarge));
    }
}
