//! A host on loopback whose every byte is written by hand.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What a host does with a request.
pub enum Reply {
    /// Sends these bytes and hangs up.
    Raw(Vec<u8>),
    /// Sends them one by one, this far apart.
    Drip(Vec<u8>, Duration),
    /// Has no such page.
    None,
}

/// A reply with headers, each ended by `\r\n`, and a body of known length.
pub fn reply(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Reply {
    let body = body.as_ref();
    let mut bytes =
        format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    Reply::Raw(bytes)
}

/// A reply as it stands.
pub fn raw(text: &str) -> Reply {
    Reply::Raw(text.as_bytes().to_vec())
}

pub fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).expect("loopback and memory work");
    encoder.finish().expect("loopback and memory work")
}

/// A host on a port of its own. It writes down what it is asked.
pub struct Host {
    pub address: String,
    pub seen: Arc<Mutex<Vec<String>>>,
    pub most_at_once: Arc<AtomicUsize>,
}

impl Host {
    /// `answer` gets the path, how often it was asked for before, and the whole head of the request.
    pub async fn start(answer: impl Fn(&str, usize, &str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback and memory work");
        let address = listener.local_addr().expect("loopback and memory work").to_string();
        let host = Self { address, seen: Arc::default(), most_at_once: Arc::default() };
        let (seen, most, answer) = (host.seen.clone(), host.most_at_once.clone(), Arc::new(answer));
        let at_once = Arc::new(AtomicUsize::new(0));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, most, answer, at_once) = (seen.clone(), most.clone(), answer.clone(), at_once.clone());
                tokio::spawn(async move {
                    most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    serve(stream, &seen, &*answer, &at_once).await;
                });
            }
        });
        host
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Heads of the requests for a path.
    pub fn requests(&self, path: &str) -> Vec<String> {
        let start = format!("GET {path} HTTP/1.1\r\n");
        self.seen.lock().expect("no test panics with it").iter().filter(|head| head.starts_with(&start)).cloned().collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<String>>,
    answer: &(dyn Fn(&str, usize, &str) -> Reply + Sync),
    at_once: &AtomicUsize,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let before = {
        let mut seen = seen.lock().expect("no test panics with it");
        seen.push(head.clone());
        seen.iter().filter(|other| other.split(' ').nth(1) == Some(&path)).count() - 1
    };
    let (bytes, apart) = match answer(&path, before, &head) {
        Reply::Raw(bytes) => (bytes, None),
        Reply::Drip(bytes, apart) => (bytes, Some(apart)),
        Reply::None => (b"HTTP/1.1 404 x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_vec(), None),
    };
    at_once.fetch_sub(1, Ordering::SeqCst);
    // The crawler may hang up first.
    match apart {
        None => drop(stream.write_all(&bytes).await),
        Some(apart) => {
            for byte in bytes {
                if stream.write_all(&[byte]).await.is_err() {
                    break;
                }
                tokio::time::sleep(apart).await;
            }
        }
    }
    let _ = stream.shutdown().await;
}

/// A reply that ends when the host hangs up.
pub fn reply_without_length(body: &str) -> Reply {
    raw(&format!("HTTP/1.1 200 x\r\nConnection: close\r\n\r\n{body}"))
}
