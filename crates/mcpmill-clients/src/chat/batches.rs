//! Batches over HTTP: hand a file in, ask how far it is, get the answers.

use std::{io, path::Path, time::Duration};

use reqwest::{StatusCode, header};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::io::AsyncWriteExt;

use super::{batch::BatchShape, endpoint::Endpoint, keys::Cleaner};

/// What the provider says that is longer than this is not read; files of answers are another matter.
const LARGEST_WORD: usize = 4 << 20;
/// Bytes of a file of answers.
const LARGEST_FILE: u64 = 4 << 30;
/// Files of hundreds of megabytes take longer than questions.
const PATIENCE: Duration = Duration::from_secs(1800);

/// A batch could not be handed in, looked at or fetched.
#[derive(Debug, Error)]
#[error("failed to {doing} at `{host}`: {detail}")]
pub struct BatchError {
    /// What was tried.
    pub doing: &'static str,
    /// The provider.
    pub host: String,
    /// Why it failed, in words; never a header or key.
    pub detail: String,
}

/// How far a batch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchState {
    /// The provider's word.
    pub status: String,
    /// Whether nothing more will come.
    pub ended: bool,
    /// What it says of its questions.
    pub counts: String,
    /// Where the answers are: paths below the base URL, or URLs.
    files: Vec<String>,
}

impl BatchState {
    /// Whether there are answers to fetch.
    pub fn has_answers(&self) -> bool {
        !self.files.is_empty()
    }
}

impl Endpoint {
    /// Hands in a file of [`Endpoint::batch_line`]s. Returns the provider's name of the batch.
    ///
    /// # Errors
    /// The file cannot be read, or the provider does not take it.
    pub async fn submit_batch(&self, file: &Path) -> Result<String, BatchError> {
        let doing = "hand in a batch";
        let bytes =
            tokio::fs::read(file).await.map_err(|e| self.lost(doing, &format!("cannot read `{}`: {e}", file.display())))?;
        let made = match self.batch_shape() {
            BatchShape::OpenAi => {
                let (kind, form) = form(&bytes);
                let request = self.client().post(self.beside("files")).header(header::CONTENT_TYPE, kind).body(form);
                let uploaded = self.said(doing, request).await?;
                let input = uploaded["id"].as_str().ok_or_else(|| self.lost(doing, "the upload has no id"))?;
                let body = json!({ "input_file_id": input, "endpoint": "/v1/chat/completions", "completion_window": "24h" });
                self.said(doing, self.client().post(self.beside("batches")).json(&body)).await?
            }
            BatchShape::Anthropic => {
                let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                let requests: Vec<Value> =
                    lines.map(serde_json::from_slice).collect::<Result<_, _>>().map_err(|e| self.lost(doing, &e.to_string()))?;
                self.said(doing, self.client().post(self.beside("messages/batches")).json(&json!({ "requests": requests })))
                    .await?
            }
        };
        let id = made["id"].as_str().filter(|id| is_name(id));
        id.map(str::to_owned).ok_or_else(|| self.lost(doing, "the batch has no usable id"))
    }

    /// How far a batch is.
    ///
    /// # Errors
    /// The provider does not know it or does not say.
    pub async fn batch_state(&self, id: &str) -> Result<BatchState, BatchError> {
        let doing = "look at a batch";
        if !is_name(id) {
            return Err(self.lost(doing, "the id has characters that no id has"));
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let counts = |value: &Value| match value.as_object() {
            Some(counts) => counts.iter().map(|(word, n)| format!("{n} {word}")).collect::<Vec<_>>().join(", "),
            None => String::new(),
        };
        Ok(match self.batch_shape() {
            BatchShape::OpenAi => {
                let said = self.said(doing, self.client().get(self.beside(&format!("batches/{id}")))).await?;
                let files = ["output_file_id", "error_file_id"].iter().filter_map(|field| said[*field].as_str());
                BatchState {
                    status: text(&said["status"]),
                    ended: matches!(said["status"].as_str(), Some("completed" | "failed" | "expired" | "cancelled")),
                    counts: counts(&said["request_counts"]),
                    files: files.filter(|file| is_name(file)).map(|file| format!("files/{file}/content")).collect(),
                }
            }
            BatchShape::Anthropic => {
                let said = self.said(doing, self.client().get(self.beside(&format!("messages/batches/{id}")))).await?;
                let ended = said["processing_status"] == "ended";
                // The results are below the batch, whatever host their URL names: the key goes nowhere else.
                let files = if ended { vec![format!("messages/batches/{id}/results")] } else { Vec::new() };
                BatchState { status: text(&said["processing_status"]), ended, counts: counts(&said["request_counts"]), files }
            }
        })
    }

    /// Writes the answers of a batch to `file`. Returns their bytes.
    ///
    /// # Errors
    /// There are none, or the file cannot be written.
    pub async fn fetch_batch(&self, state: &BatchState, file: &Path) -> Result<u64, BatchError> {
        let doing = "fetch the answers of a batch";
        let disk = |e: io::Error| self.lost(doing, &format!("cannot write `{}`: {e}", file.display()));
        let mut out = tokio::fs::File::create(file).await.map_err(disk)?;
        let mut bytes = 0;
        for path in &state.files {
            let request = self.client().get(self.beside(path)).timeout(PATIENCE);
            let mut response = request.send().await.map_err(|e| self.lost(doing, &cause(&e)))?;
            if !response.status().is_success() {
                return Err(self.lost(doing, &format!("status {}", response.status().as_u16())));
            }
            let mut cleaner = Cleaner::of(self.keys());
            while let Some(chunk) = response.chunk().await.map_err(|e| self.lost(doing, &cause(&e)))? {
                bytes += chunk.len() as u64;
                if bytes > LARGEST_FILE {
                    return Err(self.lost(doing, &format!("more than {LARGEST_FILE} bytes")));
                }
                out.write_all(&cleaner.clean(&chunk)).await.map_err(disk)?;
            }
            out.write_all(&cleaner.finish()).await.map_err(disk)?;
            out.write_all(b"\n").await.map_err(disk)?;
        }
        out.sync_all().await.map_err(disk)?;
        Ok(bytes)
    }

    /// What the provider says to a request.
    async fn said(&self, doing: &'static str, request: reqwest::RequestBuilder) -> Result<Value, BatchError> {
        let mut response = request.timeout(PATIENCE).send().await.map_err(|e| self.lost(doing, &cause(&e)))?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.lost(doing, &cause(&e)))? {
            if bytes.len() + chunk.len() > LARGEST_WORD {
                return Err(self.lost(doing, "the provider says too much"));
            }
            bytes.extend_from_slice(&chunk);
        }
        let text = self.without_key(String::from_utf8_lossy(&bytes).into_owned());
        if !status.is_success() {
            let unknown = if status == StatusCode::NOT_FOUND { " (it may have no batches)" } else { "" };
            let said = mcpmill_core::text::shown(&text, 300);
            return Err(self.lost(doing, &format!("status {}{unknown}: {said}", status.as_u16())));
        }
        serde_json::from_str(&text).map_err(|e| self.lost(doing, &format!("the reply is no JSON: {e}")))
    }

    fn lost(&self, doing: &'static str, detail: &str) -> BatchError {
        BatchError { doing, host: self.name().rsplit('@').next().unwrap_or_default().to_owned(), detail: detail.to_owned() }
    }
}

/// Whether a provider's name can stand in a URL.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 200
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && !text.contains("..")
}

/// The innermost cause: reqwest's own message names the URL only.
fn cause(error: &reqwest::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(inner) = source.source() {
        source = inner;
    }
    source.to_string()
}

/// A form with the file and its purpose.
fn form(file: &[u8]) -> (String, Vec<u8>) {
    let boundary = format!("mcpmill-{}", &mcpmill_core::canonical::sha256_hex(file)[..32]);
    let mut body = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--{boundary}\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"batch.jsonl\"\r\nContent-Type: application/jsonl\r\n\r\n"
    )
    .into_bytes();
    body.extend_from_slice(file);
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={boundary}"), body)
}

#[cfg(test)]
mod tests {
    use wiremock::{
        Mock, MockServer, ResponseTemplate,
        matchers::{body_json, method, path},
    };

    use super::*;
    use crate::chat::Api;

    #[test]
    fn names_cannot_leave_their_place_in_a_url() {
        assert!(is_name("batch_abc-1.2"));
        for bad in ["", "a/b", "..", "a?b", "é"] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    /// Anthropic's batches on loopback, in so far as they are needed here.
    #[tokio::test]
    async fn anthropic_takes_the_lines_themselves_and_gives_results() {
        let server = MockServer::start().await;
        let reply = |value: Value| ResponseTemplate::new(200).set_body_json(value);
        let requests = json!({ "requests": [{ "custom_id": "k", "params": { "model": "m" } }] });
        let made = reply(json!({ "id": "msgbatch_1", "processing_status": "in_progress" }));
        let below = "/v1/messages/batches";
        Mock::given(method("POST")).and(path(below)).and(body_json(requests)).respond_with(made).expect(1).mount(&server).await;
        let state = json!({ "processing_status": "ended", "results_url": "http://elsewhere.invalid/", "request_counts": { "succeeded": 1 } });
        Mock::given(method("GET")).and(path(format!("{below}/msgbatch_1"))).respond_with(reply(state)).mount(&server).await;
        let result = "{\"custom_id\":\"k\",\"result\":{\"type\":\"expired\",\"key\":\"[key] [key]\"}}\n";
        let results = ResponseTemplate::new(200)
            .set_body_string(result.replacen("[key]", "a-key-of-tests", 1).replace("[key]", r"a\u002dkey-of-tests"));
        Mock::given(method("GET")).and(path(format!("{below}/msgbatch_1/results"))).respond_with(results).mount(&server).await;

        let endpoint = crate::chat::endpoint::tests::endpoint(&server.uri(), Api::Anthropic);
        let folder = tempfile::tempdir().unwrap();
        let (file, answers) = (folder.path().join("a.jsonl"), folder.path().join("b.jsonl"));
        std::fs::write(&file, "{\"custom_id\":\"k\",\"params\":{\"model\":\"m\"}}\n").unwrap();
        let id = endpoint.submit_batch(&file).await.unwrap();
        let state = endpoint.batch_state(&id).await.unwrap();
        assert_eq!((state.status.as_str(), state.ended, state.counts.as_str()), ("ended", true, "1 succeeded"));
        endpoint.fetch_batch(&state, &answers).await.unwrap();
        assert_eq!(std::fs::read_to_string(&answers).unwrap().trim(), result.trim());
        let lost = endpoint.batch_state("other").await.unwrap_err().to_string();
        assert!(lost.contains("status 404") && lost.contains("127.0.0.1"), "{lost}");
    }

    #[test]
    fn a_form_has_the_purpose_and_the_file() {
        let (kind, body) = form(b"{}\n");
        let text = String::from_utf8(body).unwrap();
        let boundary = kind.split("boundary=").nth(1).unwrap();
        assert_eq!(text.matches(boundary).count(), 3);
        assert!(text.contains("name=\"purpose\"\r\n\r\nbatch\r\n") && text.contains("\r\n\r\n{}\n\r\n--"));
    }
}
