//! What a function's container is asked for.

use super::{Rules, join};
use crate::{
    descriptor::{Function, Image},
    format::check_absolute,
    places::{Step, steps},
    report::Position,
    tree::excerpt,
};
use std::path::Path as FilePath;

/// Least memory in which a container starts at all.
const LEAST_MEMORY: u64 = 4 << 20;
/// What the platform itself puts into every container.
const PLATFORM_PATHS: [&str; 4] = ["/proc", "/sys", "/dev", "/run/kaista"];

impl Rules<'_> {
    pub(super) fn container(&mut self, function: &Function, at: &[Step]) {
        if let Some(first) = function.command.as_ref().and_then(|c| c.first())
            && first.is_empty()
        {
            let at = self.at(&join(at, steps!["command", 0]));
            self.report.error(at, "the command is empty", "name a program, for example /usr/bin/kaista-upf");
        }
        if let Some(memory) = function.memory
            && memory.0 < LEAST_MEMORY
            && self.places.is_sound(&join(at, steps!["memory"]))
        {
            let at = self.at(&join(at, steps!["memory"]));
            self.report.error(at, format!("no container starts with {memory}"), "give at least 4MiB");
        }
        self.environment(function, at);
        self.files(function, at);
        if let Some(directory) = &function.state_directory {
            let at = self.at(&join(at, steps!["stateDirectory"]));
            self.platform_path(directory, at, "the state directory");
        }
    }

    fn environment(&mut self, function: &Function, at: &[Step]) {
        for name in function.env.keys() {
            let at = self.places.key(&join(at, steps!["env", name.as_str()]));
            if name.is_empty() || name.contains(['=', '\0']) {
                let reason = format!("{:?} cannot be the name of a variable", excerpt(name));
                self.report.error(at, reason, "use letters, digits and underscores");
            } else if name == "KAISTA_PORTS" {
                self.report.error(at, "KAISTA_PORTS is set by the platform", "take it away");
            }
        }
    }

    fn files(&mut self, function: &Function, at: &[Step]) {
        for name in function.files.keys() {
            let at = self.places.key(&join(at, steps!["files", name.as_str()]));
            if name.contains('\0') {
                self.report.error(at, "a path cannot hold a zero byte", "take the \\0 away");
                continue;
            }
            if let Err(error) = check_absolute(name) {
                self.report.error(at, error.reason, error.remedy);
                continue;
            }
            self.platform_path(name, at, "a file");
            let slashes = name.match_indices('/').map(|(end, _)| &name[..end]);
            let outer = slashes.into_iter().find(|outer| function.files.contains_key(*outer));
            if let Some(outer) = outer {
                let reason =
                    format!("{:?} would have to be a directory, and is a file of this function", excerpt(outer));
                self.report.error(at, reason, "choose another path for one of them");
            }
        }
    }

    /// Reports a path that belongs to the platform.
    fn platform_path(&mut self, path: &str, at: Position, what: &str) {
        let taken = PLATFORM_PATHS.iter().find(|p| path == **p || is_below(path, p) || is_below(p, path));
        if path == "/" {
            self.report.error(at, format!("{what} cannot take the place of the whole image"), "choose a path below /");
        } else if let Some(taken) = taken {
            let reason = format!("{what} cannot be at {path:?}: {taken} belongs to the platform");
            self.report.error(at, reason, "choose a path elsewhere, for example below /var/lib or /etc");
        }
    }

    pub(super) fn image(&mut self, image: &Image, at: &[Step], directory: Option<&FilePath>) {
        let place = join(at, steps!["image"]);
        let field = match image {
            Image::Rootfs(_) => "rootfs",
            Image::OciLayout { .. } => "ociLayout",
            Image::Archive { .. } => "archive",
        };
        let at = join(&place, steps![field]);
        if !self.places.is_sound(&at) {
            return;
        }
        let at = self.at(&at);
        if image.path().as_os_str().is_empty() {
            self.report.error(at, format!("{field} names nothing"), "give a path, relative to this file");
            return;
        }
        let Some(directory) = directory else { return };
        let path = directory.join(image.path());
        let (fits, wanted) = match image {
            Image::Rootfs(_) => (path.is_dir(), "directory"),
            Image::OciLayout { .. } => (path.join("oci-layout").is_file(), "OCI image layout"),
            Image::Archive { .. } => (path.is_file(), "file"),
        };
        if !fits {
            let reason = format!("there is no {wanted} at {}", path.display());
            self.report.warning(at, reason, "build or fetch the image before the slice is started");
        }
    }
}

/// Whether a path is within the directory `outer`.
fn is_below(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}
