//! What a kill in the wrong moment leaves behind.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use super::run::GATE;

/// Ends cages whose mcpmill is gone.
///
/// There is one moment, of less than a millisecond at the start of a cage, in which the end of mcpmill
/// takes bubblewrap along but not the namespace that it is about to fill: its first process then
/// waits for ever, and nothing has run in it yet. Such a process is the first of its namespace, has
/// our command line, and its parent is no bubblewrap.
pub(super) fn end_orphans() {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if is_orphan(pid)
            && let Some(pid) = Pid::from_raw(pid)
        {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

fn is_orphan(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut args = line.split(|byte| *byte == 0);
    if args.nth(1) != Some(b"--json-status-fd".as_slice()) || !args.any(|arg| arg.starts_with(GATE.as_bytes())) {
        return false;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let first_of_its_namespace = field("NSpid:").is_some_and(|pids| pids.split_whitespace().skip(1).last() == Some("1"));
    let parent = field("PPid:").and_then(|parent| fs::read_to_string(format!("/proc/{parent}/comm")).ok());
    first_of_its_namespace && parent.is_none_or(|name| name.trim() != "bwrap")
}
