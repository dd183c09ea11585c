//! The end of a server's error output.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use mcpmill_core::text::shown;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::secrets::Secrets;

/// Bytes kept.
const KEPT: usize = 64 << 10;

/// Reads for as long as the server lives, so that it never blocks on its error output, and keeps the end.
#[derive(Clone, Debug)]
pub(super) struct Complaints {
    ring: Arc<Mutex<VecDeque<u8>>>,
    /// Taken out before anything is cut, or half of one would stay.
    secrets: Arc<Secrets>,
}

impl Complaints {
    pub(super) fn of(stream: Option<impl AsyncRead + Unpin + Send + 'static>, secrets: Arc<Secrets>) -> Self {
        let complaints = Self { ring: Arc::default(), secrets };
        let ring = Arc::clone(&complaints.ring);
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

    /// What is kept, if anything, without secrets.
    pub(super) fn text(&self) -> Option<String> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = ring.iter().copied().collect();
        let text = self.secrets.out_of(String::from_utf8_lossy(&bytes).trim());
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
        let complaints = Complaints::of(Some(long), Arc::default());
        while complaints.last_line().as_deref() != Some("last") {
            tokio::task::yield_now().await;
        }
        assert!(complaints.text().unwrap().len() < KEPT);
    }

    #[tokio::test]
    async fn no_half_of_a_secret_is_left_where_a_line_is_cut() {
        let secrets = Secrets::new(&[("KEY".to_owned(), "s3cret-value".to_owned())].into());
        let line: &'static [u8] = Box::leak(format!("{} s3cret-value", "x".repeat(292)).into_bytes().into_boxed_slice());
        let complaints = Complaints::of(Some(line), Arc::new(secrets));
        while complaints.text().is_none() {
            tokio::task::yield_now().await;
        }
        assert!(complaints.last_line().unwrap().ends_with("x <KEY>"));
    }
}
