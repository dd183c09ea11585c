//! Model files by address: a host on loopback that hangs up, lies, and sends elsewhere.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

mod loopback;

use std::sync::atomic::{AtomicU64, Ordering};

use loopback::{Host, Reply, raw, reply};
use mcpmill_clients::{
    assets::{DownloadErrorKind, Remote},
    secret::Secret,
};
use mcpmill_core::canonical::sha256_hex;

/// A file of bytes that all differ from their neighbours.
fn file() -> Vec<u8> {
    (0..200_000_u32).map(|n| (n * 31 % 251) as u8).collect()
}

/// What a range of the file looks like, hanging up after some bytes.
fn part(head: &str, at_most: usize) -> Reply {
    let lower = head.to_lowercase();
    let from = lower.split("range: bytes=").nth(1).and_then(|r| r.split('-').next()?.parse::<usize>().ok());
    let (file, from) = (file(), from.unwrap_or(0));
    let (status, range) = match from {
        0 => ("200 OK", String::new()),
        from => ("206 Partial", format!("Content-Range: bytes {from}-{}/{}\r\n", file.len() - 1, file.len())),
    };
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{range}Content-Length: {}\r\n\r\n", file.len() - from);
    Reply::Raw([head.as_bytes(), &file[from..(from + at_most).min(file.len())]].concat())
}

#[tokio::test]
async fn a_fetch_goes_on_where_it_broke_and_is_done_once() {
    let host = Host::start(|_, _, head| part(head, 60_000)).await;
    let folder = tempfile::tempdir().unwrap();
    let remote = Remote::hub(&host.url(""), "org/repo/m.gguf", "main", &sha256_hex(file()), 1 << 20).unwrap();
    let (last, total) = (AtomicU64::new(0), AtomicU64::new(0));
    let progress = |done, of| {
        last.store(done, Ordering::Relaxed);
        total.store(of, Ordering::Relaxed);
    };
    let path = remote.fetch(folder.path(), &progress).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), file());
    assert_eq!((last.into_inner(), total.into_inner()), (200_000, 200_000));
    assert_eq!(host.requests("/org/repo/resolve/main/m.gguf").len(), 4);
    assert_eq!(remote.fetch(folder.path(), &|_, _| ()).await.unwrap(), path);
    assert_eq!(host.requests("/org/repo/resolve/main/m.gguf").len(), 4, "a file that is here is not asked for");
}

#[tokio::test]
async fn another_file_or_a_larger_one_is_refused_and_not_kept() {
    let host = Host::start(|path, _, _| match path {
        "/endless" => raw(&format!("HTTP/1.1 200 x\r\nConnection: close\r\n\r\n{}", "a".repeat(5000))),
        "/gone" => Reply::None,
        _ => reply(200, "", "other"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let fetch = async |path: &str| {
        let remote = Remote::new(&host.url(path), &sha256_hex("file"), 1000).unwrap();
        let error = remote.fetch(folder.path(), &|_, _| ()).await.unwrap_err();
        assert!(!remote.path(folder.path()).exists());
        error.kind
    };
    assert!(matches!(fetch("/other").await, DownloadErrorKind::Digest { .. }));
    assert!(matches!(fetch("/endless").await, DownloadErrorKind::TooLarge(1000)));
    assert!(matches!(fetch("/gone").await, DownloadErrorKind::Status(404)));
}

#[tokio::test]
async fn a_redirect_is_followed_and_no_other_host_gets_the_token() {
    let storage = Host::start(|_, _, _| reply(200, "", "file")).await;
    let elsewhere = format!("Location: {}\r\n", storage.url("/blob").replace("127.0.0.1", "localhost"));
    let hub = Host::start(move |_, _, _| reply(302, &elsewhere, "")).await;
    let folder = tempfile::tempdir().unwrap();
    let remote = Remote::new(&hub.url("/m.gguf"), &sha256_hex("file"), 1000).unwrap().with_token(Some(Secret::new("hf_planted")));
    remote.fetch(folder.path(), &|_, _| ()).await.unwrap();
    assert!(hub.requests("/m.gguf")[0].contains("hf_planted"));
    assert!(!storage.requests("/blob")[0].contains("hf_planted"));
}
