//! Who runs in a container: what the image says, by its own `passwd` and `group`.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::quote;
use crate::{Error, IdRange, Result, rootfs};

/// Uid and gid of a function whose image names no user, or names root.
pub const USER: u32 = 1000;

/// The user and group of a container's first process, as numbered inside, and its home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Uid inside, never 0.
    pub uid: u32,
    /// Gid inside.
    pub gid: u32,
    /// `HOME`.
    pub home: String,
}

impl Default for User {
    /// Who runs where the image names nobody, or root: nobody needs root to be powerless.
    fn default() -> Self {
        Self { uid: USER, gid: USER, home: "/tmp".into() }
    }
}

impl User {
    /// From what the image's configuration says (`user[:group]`, numbers or names) and its own files.
    pub(crate) fn of(wanted: &str, root: &Path) -> Result<Self> {
        let read = |path| read_small(root, Path::new(path)).map(Option::unwrap_or_default);
        Self::find(wanted, &read("/etc/passwd")?, &read("/etc/group")?)
    }

    fn find(wanted: &str, passwd: &str, groups: &str) -> Result<Self> {
        let (user, group) = wanted.split_once(':').map_or((wanted, None), |(user, group)| (user, Some(group)));
        let line = passwd
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields.len() >= 6 && (fields[0] == user || (fields[2] == user && !user.is_empty())));
        let number = |text: &str| text.parse::<u32>().ok();
        let unknown = |what: &str, name: &str| Error::Spec(format!("the image has no {what} '{}'", quote::name(name)));
        let uid = match &line {
            Some(fields) => number(fields[2]).ok_or_else(|| unknown("user", user))?,
            None if user.is_empty() => 0,
            None => number(user).ok_or_else(|| unknown("user", user))?,
        };
        let gid = match group {
            Some(name) => number(name).or_else(|| gid_named(groups, name)).ok_or_else(|| unknown("group", name))?,
            None => line.as_ref().and_then(|fields| number(fields[3])).unwrap_or(0),
        };
        if uid >= IdRange::SIZE || gid >= IdRange::SIZE {
            return Err(Error::Spec(format!("user {uid}:{gid} is beyond the {} ids of a function", IdRange::SIZE)));
        }
        if uid == 0 {
            return Ok(Self::default());
        }
        let home = line.map_or("/", |fields| fields[5]);
        Ok(Self { uid, gid, home: home.into() })
    }
}

fn gid_named(groups: &str, name: &str) -> Option<u32> {
    let mut lines = groups.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?)
}

/// A small text file of the image, links followed within it; none if it is absent or too large. What is no file is an error: the
/// OCI runtime opens it as well, and a FIFO would keep it waiting.
fn read_small(root: &Path, path: &Path) -> Result<Option<String>> {
    const LIMIT: u64 = 1 << 20;
    let file = root.join(rootfs::resolve(root, path)?);
    match fs::metadata(&file) {
        Ok(meta) if !meta.is_file() => Err(Error::Spec(format!("the image's {} is not a file", path.display()))),
        Ok(meta) if meta.len() <= LIMIT => Ok(fs::read_to_string(file).ok()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/var/www:/bin/false\n";
    const GROUP: &str = "root:x:0:\nadm:x:4:web\n";

    #[test]
    fn an_image_s_own_user_is_kept_and_its_root_is_not() {
        let user = |wanted| User::find(wanted, PASSWD, GROUP).expect("a user");
        assert_eq!(user("web"), User { uid: 33, gid: 34, home: "/var/www".into() });
        assert_eq!(user("33"), user("web"));
        assert_eq!(user("web:adm").gid, 4);
        assert_eq!(user("77:88"), User { uid: 77, gid: 88, home: "/".into() });
        for root in ["", "root", "0", "0:0"] {
            assert_eq!(user(root).uid, USER, "{root}");
        }
        for wrong in ["nobody", "web:nobody", "65536", "1:65536"] {
            assert!(User::find(wrong, PASSWD, GROUP).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_image_whose_list_of_users_is_no_file_is_refused() {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir(root.path().join("etc")).expect("made");
        assert_eq!(User::of("", root.path()).expect("a user").uid, USER, "there need not be any");
        for file in ["etc/passwd", "etc/group"] {
            let mode = nix::sys::stat::Mode::S_IRUSR;
            nix::unistd::mkfifo(&root.path().join(file), mode).expect("made");
            let said = User::of("", root.path()).expect_err("refused").to_string();
            assert!(said.contains(file) && said.contains("is not a file"), "{said}");
            fs::remove_file(root.path().join(file)).expect("removed");
        }
    }
}
