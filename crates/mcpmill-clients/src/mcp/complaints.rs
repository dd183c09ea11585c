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

/// The end of what came.
#[derive(Debug, Default)]
struct Ring {
    bytes: VecDeque<u8>,
    /// Something came before.
    is_cut: bool,
}

/// Reads for as long as the server lives, so that it never blocks on its error output, and keeps the end.
#[derive(Clone, Debug)]
pub(super) struct Complaints {
    ring: Arc<Mutex<Ring>>,
    /// Taken out before anything is cut, or half of one would stay.
    secrets: Arc<Secrets>,
}

impl Complaints {
    pub(super) fn of(stream: Option<impl AsyncRead + Unpin + Send + 'static>, secrets: Arc<Secrets>) -> Self {
        let complaints = Self { ring: Arc::default(), secrets };
        let (ring, most) = (Arc::clone(&complaints.ring), KEPT + complaints.secrets.longest_rest());
        if let Some(mut stream) = stream {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
                    ring.bytes.extend(&buffer[..read]);
                    let over = ring.bytes.len().saturating_sub(most);
                    ring.bytes.drain(..over);
                    ring.is_cut |= over > 0;
                }
            });
        }
        complaints
    }

    /// What is kept, if anything, without secrets.
    pub(super) fn text(&self) -> Option<String> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = ring.bytes.iter().copied().collect();
        let is_cut = ring.is_cut;
        drop(ring);
        let text = String::from_utf8_lossy(&bytes);
        let text = if is_cut { self.secrets.out_of_rest(&text) } else { self.secrets.out_of(&text) };
        let text = text.trim().to_owned();
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

    #[tokio::test]
    async fn no_half_of_a_secret_is_left_where_the_beginning_is_lost() {
        let secrets = Arc::new(Secrets::new(&[("KEY".to_owned(), "s3cret-value".to_owned())].into()));
        for cut in 1..12 {
            let line: &'static [u8] = Box::leak("s3cret-value".repeat(9000).split_off(cut).into_bytes().into_boxed_slice());
            let complaints = Complaints::of(Some(line), Arc::clone(&secrets));
            while complaints.ring.lock().unwrap().bytes.iter().rev().take(5).rev().ne(b"value") || complaints.text().is_none() {
                tokio::task::yield_now().await;
            }
            let text = complaints.text().unwrap();
            assert!(text.starts_with("<KEY><KEY>") && text.replace("<KEY>", "").is_empty(), "{}", &text[..40]);
        }
    }
}
