//! A stream of server-sent events, taken apart within bounds.

use std::{collections::VecDeque, time::Duration};

/// An id longer than this is not kept: it has to go into a header.
const LONGEST_ID: usize = 1024;
/// Time to wait before a stream is asked for again, where the stream does not say.
const WAIT: Duration = Duration::from_secs(1);
/// Even a stream that asks for no wait at all gets this one.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);

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
    /// The last id on the lines so far, and the one of the last whole event.
    id: Option<Vec<u8>>,
    whole: Option<Vec<u8>>,
    wait: Duration,
}

/// An event or a line is larger than it may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

impl Parser {
    /// A parser of events of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            line: Vec::new(),
            name: String::new(),
            data: None,
            after_return: false,
            ready: VecDeque::new(),
            id: None,
            whole: None,
            wait: WAIT,
        }
    }

    /// Where a stream that broke off can be taken up again: the id of its last whole event.
    pub(super) fn last_id(&self) -> Option<&[u8]> {
        self.whole.as_deref()
    }

    /// How long the stream wants to be left alone before it is asked for again.
    pub(super) fn wait(&self) -> Duration {
        self.wait
    }

    /// Forgets what was left over when the stream broke off, and goes on with the next one.
    pub(super) fn broken_off(&mut self) {
        (self.line, self.name, self.data, self.after_return) = (Vec::new(), String::new(), None, false);
        self.id.clone_from(&self.whole);
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
            self.whole.clone_from(&self.id);
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
            // An empty id takes the one before back; one with a zero byte is none.
            b"id" if value.len() <= LONGEST_ID && !value.contains(&0) => {
                self.id = (!value.is_empty()).then(|| value.to_vec());
            }
            b"retry" => {
                let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
                if let Some(milliseconds) = digits.and_then(|text| text.parse().ok()) {
                    self.wait = Duration::from_millis(milliseconds).max(SHORTEST_WAIT);
                }
            }
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
    fn the_last_whole_event_says_where_to_go_on() {
        let mut parser = Parser::new(10_000);
        assert_eq!((parser.last_id(), parser.wait()), (None, WAIT));
        parser.feed(b"id: a\nretry: 500\ndata: \n\nid: b\nretry: soon\ndata: {").unwrap();
        assert_eq!((parser.last_id(), parser.wait()), (Some(&b"a"[..]), Duration::from_millis(500)));
        parser.broken_off();
        parser.feed(b"data: x\n\n").unwrap();
        let events: Vec<_> = std::iter::from_fn(|| parser.next()).map(|event| event.data).collect();
        assert_eq!(events, [b"".to_vec(), b"x".to_vec()]);
        assert_eq!(parser.last_id(), Some(&b"a"[..]), "the id of an event that never became whole counts for nothing");
        parser.feed(b"id: c\0\nretry: 0\n\n").unwrap();
        assert_eq!((parser.last_id(), parser.wait()), (Some(&b"a"[..]), SHORTEST_WAIT));
        parser.feed(format!("id: {}\n\n", "x".repeat(LONGEST_ID + 1)).as_bytes()).unwrap();
        assert_eq!(parser.last_id(), Some(&b"a"[..]));
        parser.feed(b"id\n\n").unwrap();
        assert_eq!(parser.last_id(), None);
    }

    #[test]
    fn events_have_a_bound() {
        assert_eq!(Parser::new(10).feed(&[b'x'; 11]), Err(TooLarge));
        let mut parser = Parser::new(20);
        assert_eq!((0..10).try_for_each(|_| parser.feed(b"data: x\n")), Err(TooLarge));
    }
}
