//! The transport between rmcp and a server's standard streams.
//!
//! rmcp drives the protocol; this keeps the bounds and, for the answers that become data, the JSON as
//! the server wrote it: key order, unknown fields and all.

use std::{collections::VecDeque, io, sync::Arc};

use rmcp::{
    RoleClient,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::Mutex as AsyncMutex,
};

use super::{cursor::written, kept::Kept, secrets::Secrets};

/// What a server may print to its standard output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caps {
    pub(super) line_bytes: usize,
    pub(super) total_bytes: u64,
}

/// A server's standard streams as a transport.
pub(super) struct Wire<R, W> {
    lines: BufReader<R>,
    line: Vec<u8>,
    read: u64,
    caps: Caps,
    /// Of a line that held several.
    more: VecDeque<RxJsonRpcMessage<RoleClient>>,
    writer: Arc<AsyncMutex<Option<W>>>,
    kept: Arc<Kept>,
}

impl<R: AsyncRead + Unpin, W> Wire<R, W> {
    pub(super) fn new(reader: R, writer: W, caps: Caps, secrets: Arc<Secrets>) -> (Self, Arc<Kept>) {
        let kept = Arc::new(Kept::new(secrets));
        let writer = Arc::new(AsyncMutex::new(Some(writer)));
        let lines = BufReader::new(reader);
        (Self { lines, line: Vec::new(), read: 0, caps, more: VecDeque::new(), writer, kept: Arc::clone(&kept) }, kept)
    }

    /// The next whole line, or `None` at the end or when the server prints too much. May be dropped
    /// while it waits: what was read stays in `self`.
    async fn next_line(&mut self) -> Option<Vec<u8>> {
        loop {
            let available = self.lines.fill_buf().await.ok()?;
            if available.is_empty() {
                // The last line may have no end.
                return Some(std::mem::take(&mut self.line)).filter(|line| !line.is_empty());
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |at| at + 1);
            self.line.extend_from_slice(&available[..taken]);
            self.lines.consume(taken);
            self.read += taken as u64;
            if self.line.len() > self.caps.line_bytes || self.read > self.caps.total_bytes {
                self.kept.flood();
                return None;
            }
            if end.is_some() {
                return Some(std::mem::take(&mut self.line));
            }
        }
    }
}

impl<R, W> Transport<RoleClient> for Wire<R, W>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Error = io::Error;

    fn send(&mut self, item: TxJsonRpcMessage<RoleClient>) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.kept.expect(&item);
        let writer = Arc::clone(&self.writer);
        async move {
            let mut line = written(&item)?;
            line.push(b'\n');
            let mut writer = writer.lock().await;
            let writer = writer.as_mut().ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the server was closed"))?;
            writer.write_all(&line).await?;
            writer.flush().await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if let Some(message) = self.more.pop_front() {
                return Some(message);
            }
            let line = self.next_line().await?;
            self.more.extend(self.kept.understand(&line));
            if self.kept.flooded() {
                return None;
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        // A writer that is stuck keeps the lock; the server is killed soon anyway.
        if let Ok(mut writer) = self.writer.try_lock() {
            writer.take();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{JsonRpcMessage, RequestId};

    use super::*;
    use crate::mcp::kept::Answer;

    fn wire(text: &'static str, caps: Caps) -> (Wire<&'static [u8], Vec<u8>>, Arc<Kept>) {
        Wire::new(text.as_bytes(), Vec::new(), caps, Arc::default())
    }

    const WIDE: Caps = Caps { line_bytes: 1 << 20, total_bytes: 1 << 20 };

    #[tokio::test]
    async fn chatter_is_skipped() {
        let text = "Starting…\n\n[1,2]\n42\n{\"a\":1}\n{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n";
        let (mut wire, kept) = wire(text, WIDE);
        let message = wire.receive().await.unwrap();
        assert!(matches!(message, JsonRpcMessage::Response(response) if response.id == RequestId::Number(7)));
        assert!(wire.receive().await.is_none());
        assert_eq!(kept.noise(), 4);
    }

    #[tokio::test]
    async fn a_message_behind_noise_on_its_line_is_found() {
        let text =
            "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n10%\r20%\r{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\r\n";
        let (mut wire, kept) = wire(text, WIDE);
        for id in [1, 2] {
            let message = wire.receive().await.unwrap();
            assert!(matches!(message, JsonRpcMessage::Response(response) if response.id == RequestId::Number(id)));
        }
        assert_eq!(kept.noise(), 0);
    }

    #[tokio::test]
    async fn a_last_line_without_end_counts() {
        let (mut wire, kept) = wire("x\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}", WIDE);
        assert!(matches!(wire.receive().await, Some(JsonRpcMessage::Response(_))));
        assert!(wire.receive().await.is_none());
        assert_eq!(kept.noise(), 1);
    }

    #[tokio::test]
    async fn results_are_kept_as_written() {
        let raw = r#"{"tools":[{"z":1,"name":"a","inputSchema":{"b":1,"a":1.0}}],"x":null}"#;
        let text: &'static str = Box::leak(format!("{{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{raw}}}\n").into_boxed_str());
        let (mut wire, kept) = wire(text, WIDE);
        kept.replies().insert(RequestId::Number(3), Answer::Awaited);
        wire.receive().await.unwrap();
        let Some(Answer::Came(result)) = kept.take(&RequestId::Number(3)) else { panic!() };
        assert_eq!(result.to_string(), raw);
        assert!(kept.take(&RequestId::Number(3)).is_none());
    }

    #[tokio::test]
    async fn odd_errors_are_readable() {
        let (mut wire, _) = wire("{\"jsonrpc\":\"2.0\",\"id\":3,\"error\":{\"code\":\"x\",\"message\":{\"a\":1}}}\n", WIDE);
        let Some(JsonRpcMessage::Error(error)) = wire.receive().await else { panic!() };
        assert_eq!(error.error.code.0, -32603);
        assert_eq!(error.error.message, "{\"a\":1}");
    }

    #[tokio::test]
    async fn floods_end_the_stream() {
        let (mut long, kept) = wire("0123456789\n", Caps { line_bytes: 5, total_bytes: 100 });
        assert!(long.receive().await.is_none());
        assert!(kept.flooded());
        let (mut much, kept) = wire("a\nb\nc\nd\n", Caps { line_bytes: 5, total_bytes: 5 });
        assert!(much.receive().await.is_none());
        assert!(kept.flooded());
    }
}
