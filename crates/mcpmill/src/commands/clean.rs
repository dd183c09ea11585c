//! `clean`: removes what a killed run left behind in the cache.

use std::{fs, path::Path};

use crate::{error::Failure, run::Setup};

/// Removes worlds of servers that no longer run and downloads that were cut off for good.
///
/// Processes need no cleaning: a cage dies with the program that made it.
///
/// # Errors
/// A folder cannot be read or removed.
pub fn clean(setup: &Setup) -> Result<(), Failure> {
    let worlds = setup.config.cache_dir.join("worlds");
    let mut removed = 0;
    for entry in entries(&worlds)? {
        // A world in use is locked by the process that made it; see `mcp::world`.
        if in_use(&entry) {
            continue;
        }
        fs::remove_dir_all(&entry).map_err(|e| Failure::environment(format!("failed to remove `{}`: {e}", entry.display())))?;
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

/// The name of a world ends in the id of the process that made it.
fn in_use(world: &Path) -> bool {
    let name = world.file_name().unwrap_or_default().to_string_lossy();
    let pid = name.rsplit('-').next().and_then(|p| p.parse::<u32>().ok());
    pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
}
