//! Where the file of an embedded model comes from, and what names it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use mcpmill_clients::assets::{AssetId, DownloadError, Remote};
use mcpmill_store::file_hash;

use crate::{
    config::LocalModel,
    edges::set,
    error::{Exit, Failure},
};

/// The model hub, where HF_ENDPOINT names no other.
const HUB: &str = "https://huggingface.co";

/// Where a model's file comes from.
pub enum Source {
    /// A pinned asset.
    Asset(AssetId),
    /// A file of the user's.
    File(PathBuf),
    /// An address with the hash of what is there.
    Remote(Box<Remote>),
}

/// Where the file of a local model comes from.
///
/// # Errors
/// More than one place is named, or an address without its hash.
pub fn source(local: &LocalModel) -> Result<Source, Failure> {
    let most = local.max_gb.saturating_mul(1 << 30);
    match (local.path.as_os_str().is_empty(), local.url.as_str(), local.hub.as_str()) {
        (true, "", "") => Ok(match asset(local) {
            Some(id) => Source::Asset(id),
            None => Source::File(PathBuf::from(&local.model)),
        }),
        (false, "", "") => Ok(Source::File(local.path.clone())),
        (true, url, "") => Remote::new(url, &local.sha256, most).map(Box::new).map(Source::Remote).map_err(|e| declared(&e)),
        (true, "", id) => {
            let (base, token) = (set("HF_ENDPOINT").unwrap_or_else(|| HUB.into()), set("HF_TOKEN"));
            let remote = Remote::hub(&base, id, &local.revision, &local.sha256, most).map_err(|e| declared(&e))?;
            Ok(Source::Remote(Box::new(remote.with_token(token.map(mcpmill_clients::secret::Secret::new)))))
        }
        _ => Err(Failure::usage("a local model names more than one of `path`, `url` and `hub`").hint("leave all but one empty")),
    }
}

fn declared(error: &DownloadError) -> Failure {
    Failure::from_error(Exit::Usage, error)
        .hint("`models.NAME.url` or `.hub` (org/repo/file.gguf) wants the file's `sha256`, which its page shows")
}

/// The asset a local model names; `None` when it is a file or an address.
pub fn asset(local: &LocalModel) -> Option<AssetId> {
    let elsewhere = !local.path.as_os_str().is_empty() || !local.url.is_empty() || !local.hub.is_empty();
    AssetId::ALL.into_iter().find(|id| !elsewhere && id.as_str() == local.model)
}

/// A model is named by its content: an asset by its pinned digest, a file by its hash, so that a file that changes
/// is another model, and neither path nor address stands in lineage.
///
/// # Errors
/// As [`source`]; also when the file cannot be read.
pub fn name(local: &LocalModel) -> Result<String, Failure> {
    let named = |stem: &str, hash: &str| format!("local/{stem}@{}", &hash[..12]);
    match source(local)? {
        Source::Asset(id) => Ok(named(id.as_str(), id.asset().digest().unwrap_or("000000000000"))),
        Source::Remote(remote) => Ok(named(&remote.stem(), remote.sha256())),
        Source::File(path) => {
            let hash = content_of(&path).map_err(|e| {
                Failure::usage(format!("failed to read the model `{}`: {e}", path.display()))
                    .hint("`models.local.model` names an asset (`mcpmill doctor` lists them), `models.local.path` a GGUF file")
            })?;
            if !local.sha256.is_empty() && !hash.eq_ignore_ascii_case(&local.sha256) {
                return Err(Failure::usage(format!("the SHA-256 of `{}` is {hash}, not {}", path.display(), local.sha256)));
            }
            Ok(named(&path.file_stem().unwrap_or_default().to_string_lossy(), &hash))
        }
    }
}

/// The hash of a file, computed once a process: model files are large.
pub fn content_of(path: &Path) -> std::io::Result<String> {
    static KNOWN: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(hash) = known.get(path) {
        return Ok(hash.clone());
    }
    let hash = file_hash(path)?;
    known.insert(path.to_owned(), hash.clone());
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use mcpmill_core::canonical::sha256_hex;

    use super::*;

    fn local(toml: &str) -> LocalModel {
        toml::from_str(toml).unwrap()
    }

    #[test]
    fn a_model_is_named_by_its_content_wherever_it_comes_from() {
        let dir = tempfile::tempdir().unwrap();
        let (path, hash) = (dir.path().join("m.gguf"), sha256_hex("weights"));
        std::fs::write(&path, "weights").unwrap();
        let expected = format!("local/m@{}", &hash[..12]);
        let by = |toml: String| name(&local(&toml));
        assert_eq!(by(format!("path = {path:?}")).unwrap(), expected);
        assert_eq!(by(format!("model = {path:?}")).unwrap(), expected);
        assert_eq!(by(format!("url = \"https://host/x/m.gguf\"\nsha256 = \"{hash}\"")).unwrap(), expected);
        assert_eq!(by(format!("hub = \"org/repo/m.gguf\"\nsha256 = \"{hash}\"")).unwrap(), expected);
        let other = by(format!("path = {path:?}\nsha256 = \"{}\"", "0".repeat(64))).unwrap_err();
        assert!(other.to_string().contains(&hash), "{other}");
    }

    #[test]
    fn what_names_no_file_is_told() {
        assert!(name(&local("url = \"https://host/m.gguf\"")).unwrap_err().hint.unwrap().contains("sha256"));
        assert!(name(&local("hub = \"org/repo\"\nsha256 = \"00\"")).is_err());
        assert!(name(&local("path = \"a\"\nurl = \"https://host/m.gguf\"")).unwrap_err().to_string().contains("more than one"));
    }

    #[test]
    fn the_default_is_an_asset_and_anything_else_comes_before_it() {
        assert_eq!(asset(&local("")), Some(AssetId::QwenCoder));
        assert_eq!(asset(&local("path = \"m.gguf\"")), None);
    }
}
