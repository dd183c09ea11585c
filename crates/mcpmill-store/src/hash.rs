//! Hashes of files, for fingerprints.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use sha2::{Digest, Sha256};

/// SHA-256 of the bytes of a file, as 64 lower-case hex digits. Reads in blocks: memory stays flat.
///
/// # Errors
/// The file cannot be read; the message names it.
pub fn file_hash(path: &Path) -> io::Result<String> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("failed to hash `{}`: {e}", path.display()));
    let mut file = File::open(path).map_err(named)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 16];
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(hex::encode(hash.finalize())),
            Ok(n) => hash.update(&block[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(named(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mcpmill_core::canonical::sha256_hex;

    use super::*;

    #[test]
    fn hashes_more_than_one_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        assert_eq!(file_hash(&path).unwrap(), sha256_hex(&bytes));
        let missing = file_hash(&dir.path().join("nope")).unwrap_err().to_string();
        assert!(missing.contains("nope"), "{missing}");
    }
}
