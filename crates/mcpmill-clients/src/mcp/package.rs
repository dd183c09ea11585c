//! A view of its own package for a server that writes there: what it writes goes with its world.

use std::{fs, io, os::unix::fs::symlink, path::Path};

use mcpmill_core::edge::Bind;

use super::world::World;
use crate::{
    cage::{Cage, make_overlay},
    install::PREFIX,
};

/// The binds of a server with its package writable: through an overlay where the system has them, else as
/// a copy. The installed package is never written to.
pub(super) async fn writable(cage: &Cage, binds: &[Bind], world: &World) -> io::Result<Vec<Bind>> {
    let mut binds = binds.to_vec();
    let Some(package) = binds.iter_mut().find(|bind| bind.inside == Path::new(PREFIX)) else { return Ok(binds) };
    let own = world.package();
    fs::create_dir(&own)?;
    if cage.has_overlays(&own).await {
        make_overlay(&own)?;
        binds.push(Bind { host: own, inside: PREFIX.into(), writable: true });
        return Ok(binds);
    }
    let (installed, copy) = (package.host.clone(), own.join("copy"));
    let copied = copy.clone();
    tokio::task::spawn_blocking(move || copy_tree(&installed, &copied)).await.map_err(io::Error::other)??;
    *package = Bind { host: copy, inside: PREFIX.into(), writable: true };
    Ok(binds)
}

/// Copies a folder, links as links.
fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    let mut open = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = open.pop() {
        fs::create_dir(&to)?;
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
            if kind.is_dir() {
                open.push((entry.path(), target));
            } else if kind.is_symlink() {
                symlink(fs::read_link(entry.path())?, target)?;
            } else if kind.is_file() {
                fs::copy(entry.path(), target)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mcpmill_core::edge::WorldSpec;

    use super::*;
    use crate::cage::Host;

    #[test]
    fn a_copy_has_files_folders_and_links() {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (root.path().join("a"), root.path().join("b"));
        fs::create_dir_all(from.join("bin/deep")).unwrap();
        fs::write(from.join("bin/deep/x"), "x").unwrap();
        symlink("deep/x", from.join("bin/link")).unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("bin/link")).unwrap(), "x");
        assert_eq!(fs::read_link(to.join("bin/link")).unwrap(), Path::new("deep/x"));
    }

    #[tokio::test]
    async fn without_overlays_the_package_is_copied_into_the_world() {
        let root = tempfile::tempdir().unwrap();
        let installed = root.path().join("installed");
        fs::create_dir(&installed).unwrap();
        fs::write(installed.join("server.py"), "as installed").unwrap();
        // There is no such bubblewrap, and so nothing it can do.
        let cage = Cage::bubblewrap("/no/such/bwrap", Host::default()).unwrap();
        let world = World::new(&WorldSpec::default(), &root.path().join("worlds")).unwrap();
        let before = [Bind { host: installed.clone(), inside: PREFIX.into(), writable: false }];
        let binds = writable(&cage, &before, &world).await.unwrap();
        assert_eq!(binds.len(), 1);
        assert!(binds[0].writable && binds[0].host.starts_with(world.package()), "{binds:?}");
        fs::write(binds[0].host.join("server.py"), "changed").unwrap();
        assert_eq!(fs::read_to_string(installed.join("server.py")).unwrap(), "as installed");
    }
}
