//! Batches: questions that are written to files in place of being asked, and the answers that come back.
//!
//! ```text
//! runs/<id>/batch/
//!   3-generate-1.jsonl            lines as the provider takes them; may be moved anywhere
//!   3-generate-1.requests.jsonl   the questions themselves, by the same names: what an answer belongs to
//!   returned.jsonl                questions that came back without an answer, and are written again
//!   submitted.jsonl               batches that were handed in
//! ```

mod desk;
mod handed_in;
mod import;
mod sidecar;

pub use desk::{Desk, PutOffs, Target};
pub use handed_in::{Share, submitted, submitted_batches, unanswered};
pub use import::{import, store_of};
