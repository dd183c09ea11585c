//! Files that lie about themselves must be refused with a reason, without a panic and without a large allocation.

#![allow(clippy::unwrap_used, reason = "a test may fail here")]

use mcpmill_local::{LoadOptions, LocalModel};

/// A GGUF header under construction.
struct File(Vec<u8>);

impl File {
    fn new(tensors: u64, entries: u64) -> Self {
        let mut file = File(b"GGUF\x03\0\0\0".to_vec());
        file.0.extend(tensors.to_le_bytes());
        file.0.extend(entries.to_le_bytes());
        file
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn u64(mut self, n: u64) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn entry(self, key: &str, text: &str) -> Self {
        self.text(key).u32(8).text(text)
    }

    fn number(self, key: &str, n: u32) -> Self {
        self.text(key).u32(4).u32(n)
    }
}

fn check(file: File, reason: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("liar.gguf");
    std::fs::write(&path, file.0).unwrap();
    let error = LocalModel::load(&path, &LoadOptions::default()).err().expect("refused").to_string();
    assert!(error.starts_with("load the model `") && error.contains("liar.gguf") && error.ends_with(reason), "{error}");
}

#[test]
fn counts_are_not_believed() {
    check(File::new(u64::MAX, 0), "it announces 18446744073709551615 tensors");
    check(File::new(0, 1 << 40), "it announces 1099511627776 metadata entries");
    check(File::new(0, 1), "it ends inside its header");
}

#[test]
fn lengths_are_not_believed() {
    check(File::new(0, 1).u64(1 << 62), "a text of 4611686018427387904 bytes exceeds 1048576");
    check(File::new(0, 1).text("k").u32(8).u64(1000), "it ends inside its header");
    check(File::new(0, 1).text("tokenizer.ggml.tokens").u32(9).u32(8).u64(u64::MAX), "it ends inside its header");
    check(File::new(0, 1).text("x").u32(9).u32(0).u64(1 << 40), "it ends inside its header");
}

#[test]
fn unknown_and_nested_types_are_refused() {
    check(File::new(0, 1).text("k").u32(99), "metadata of the unknown type 99");
    check(File::new(0, 1).text("k").u32(9).u32(9).u64(1), "a list of the type 9");
}

#[test]
fn an_alignment_of_zero_divides_nothing() {
    check(File::new(0, 1).number("general.alignment", 0), "its alignment is Integer(0)");
}

#[test]
fn tensors_of_absurd_rank_or_type_are_refused() {
    check(File::new(1, 0).text("t").u32(400), "tensor `t` has 400 dimensions");
    check(File::new(1, 0).text("t").u32(1).u64(1).u32(77).u64(0), "the number type 77 is not supported");
}

#[test]
fn other_models_are_refused_by_name() {
    check(File::new(0, 0), "`general.architecture` is missing");
    check(File::new(0, 1).number("general.architecture", 1), "`general.architecture` is not a text");
    check(File::new(0, 1).entry("general.architecture", "bert"), "the architecture `bert` is not supported");
}

#[test]
fn sizes_that_do_not_divide_are_refused() {
    let file = File::new(0, 4)
        .entry("general.architecture", "llama")
        .number("llama.embedding_length", 576)
        .number("llama.attention.head_count", 9)
        .number("llama.attention.head_count_kv", 4);
    check(file, "576 values, 9 heads and 4 key heads do not divide");
}

#[test]
fn a_file_that_is_no_model_is_refused() {
    check(File(b"PK\x03\x04 and so on".to_vec()), "it is not a GGUF file of version 2 or 3");
    let missing = LocalModel::load("no/such.gguf".as_ref(), &LoadOptions::default()).err().expect("refused");
    assert!(missing.to_string().starts_with("load the model `no/such.gguf`: "), "{missing}");
}
