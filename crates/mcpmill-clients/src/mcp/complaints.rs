//! The end of a server's error output.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use mcpmill_core::text::shown;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes kept.
const KEPT: usize = 64 << 10;

/// Reads for as long as the server lives, so that it never blocks on its error output, and keeps the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Complaints(Arc<Mutex<VecDeque<u8>>>);

impl Complaints {
    pub(super) fn of(stream: Option<impl AsyncRead + Unpin + Send + 'static>) -> Self {
        let complaints = Self::default();
        let ring = Arc::clone(&complaints.0);
        if let Some(mut stream) = stream {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
                    ring.extend(&buffer[..read]);
                    let over = ring.len().saturating_sub(KEPT);
                    ring.drain(..over);
                }
            });
        }
        complaints
    }

    /// What is kept, if anything.
    pub(super) fn text(&self) -> Option<String> {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = ring.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Its last line, made safe to show.
    pub(super) fn last_line(&self) -> Option<String> {
        Some(shown(self.text()?.lines().last()?.trim(), 300))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_is_kept() {
        let long: &'static [u8] = Box::leak([b"x".repeat(100_000), b"\nlast\n".to_vec()].concat().into_boxed_slice());
        let complaints = Complaints::of(Some(long));
        while complaints.last_line().as_deref() != Some("last") {
            tokio::task::yield_now().await;
        }
        assert!(complaints.text().unwrap().len() < KEPT);
    }
}
