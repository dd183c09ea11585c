//! Removing folders that caged programs have written to.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Removes a folder whatever a program has done to it: folders it has closed are opened first.
///
/// # Errors
/// It is still there.
pub fn remove_tree(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_all(folder);
            fs::remove_dir_all(folder)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Makes every folder below `folder` readable and writable to us, links not followed.
fn open_all(folder: &Path) {
    let mut open: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        if !fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            continue;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).ok();
        open.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_folders_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let world = root.path().join("world");
        fs::create_dir_all(world.join("a/b")).unwrap();
        fs::write(world.join("a/b/file"), "x").unwrap();
        for closed in ["a/b", "a"] {
            fs::set_permissions(world.join(closed), fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&world).unwrap();
        assert!(!world.exists());
        remove_tree(&world).unwrap();
    }
}
