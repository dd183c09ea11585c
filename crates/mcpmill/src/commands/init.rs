//! `init`: writes the settings and the five folders out.

use crate::{declarations::Declarations, error::Failure};

/// Writes what is not there yet into the working folder.
///
/// # Errors
/// A file cannot be written.
pub fn init() -> Result<(), Failure> {
    let here = std::env::current_dir().map_err(|e| Failure::environment(format!("failed to find the working folder: {e}")))?;
    let written = Declarations::write_out(&here)?;
    for path in &written {
        println!("{path}");
    }
    if written.is_empty() {
        eprintln!("everything is here already; nothing was written");
    } else {
        eprintln!("wrote {} files; a file here replaces the built-in one of the same name", written.len());
    }
    Ok(())
}
