//! `clean`: removes what a killed run left behind in the cache.

use std::{fs, path::Path};

use mcpmill_clients::cage::remove_tree;

use crate::{error::Failure, run::Setup};

/// Removes the worlds of servers whose process is gone.
///
/// Processes need no cleaning: a cage dies with the program that made it.
///
/// # Errors
/// A folder cannot be read or removed.
pub fn clean(setup: &Setup) -> Result<(), Failure> {
    let worlds = setup.config.cache_dir.join("worlds");
    let mut removed = 0;
    for entry in entries(&worlds)? {
        if in_use(&entry) {
            continue;
        }
        remove_tree(&entry).map_err(|e| Failure::environment(format!("failed to remove `{}`: {e}", entry.display())))?;
        removed += 1;
    }
    eprintln!("removed {removed} leftover worlds");
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<std::path::PathBuf>, Failure> {
    match fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(Failure::environment(format!("failed to read `{}`: {e}", folder.display()))),
        Ok(entries) => Ok(entries.filter_map(Result::ok).map(|e| e.path()).filter(|p| p.is_dir()).collect()),
    }
}

/// The name of a world is `world-<process>-<random>`.
fn in_use(world: &Path) -> bool {
    let name = world.file_name().unwrap_or_default().to_string_lossy();
    let process = name.strip_prefix("world-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    process.is_some_and(|id| Path::new(&format!("/proc/{id}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_of_living_processes_are_in_use() {
        assert!(in_use(Path::new(&format!("/x/world-{}-AbC", std::process::id()))));
        assert!(!in_use(Path::new("/x/world-4294967295-AbC")));
        assert!(!in_use(Path::new("/x/other")));
    }
}
