//! The OCI runtime that carries containers out: runc first, then crun, each proved by making a container with it.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::Attempt;
use crate::{CommandLine, Container, ContainerSpec, Error, FunctionId, IdRanges, Image, Layout, Result, Sandbox};

/// What they are called, the preferred one first.
const KNOWN: &[&str] = &["runc", "crun"];
/// The variable that names the only one to be used.
const CHOICE: &str = "KAISTA_OCI_RUNTIME";
/// Where they are looked for; a daemon's own PATH may be poorer.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A runtime that has made a container on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciRuntime {
    program: PathBuf,
    version: String,
    file: ProgramFile,
}

/// What tells a program's file from what it was: its number, and when it was changed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ProgramFile {
    inode: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl ProgramFile {
    fn of(program: &Path) -> Option<Self> {
        let found = fs::metadata(program).ok()?;
        Some(Self { inode: found.ino(), changed_s: found.ctime(), changed_ns: found.ctime_nsec() })
    }
}

/// Why a runtime is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The program's name.
    pub program: String,
    /// What it said, or that it is not installed.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.program, self.reason)
    }
}

impl OciRuntime {
    /// The first of runc and crun (or only the program that `KAISTA_OCI_RUNTIME` names) that can make a container of the
    /// kind that we need here; takes some 100 ms. Fails with each one's reason.
    pub fn probe(layout: &Layout) -> Result<Self> {
        let chosen = env::var(CHOICE).ok();
        let names = chosen.as_deref().map_or(KNOWN.to_vec(), |name| vec![name]);
        let mut refusals = Vec::new();
        for name in names {
            match Self::try_one(layout, name) {
                Ok(runtime) => return Ok(runtime),
                Err(reason) => refusals.push(Refusal { program: name.into(), reason }),
            }
        }
        Err(Error::NoRuntime(refusals))
    }

    fn try_one(layout: &Layout, name: &str) -> std::result::Result<Self, String> {
        let program = find(name).ok_or("not installed")?;
        let file = ProgramFile::of(&program).ok_or("not installed")?;
        let mut runtime = Self { program, version: String::new(), file };
        let said = runtime.output("--version", &["--version".into()]).map_err(|e| e.to_string())?;
        runtime.version = said.lines().next().unwrap_or_default().into();
        let made = make_container(layout, &runtime);
        made.map_err(|error| error.to_string())?;
        Ok(runtime)
    }

    /// Whether it is still what was probed, and is not to be another one by now.
    pub fn is_as_probed(&self) -> bool {
        let is_chosen = |name: String| find(&name).as_ref() == Some(&self.program);
        ProgramFile::of(&self.program) == Some(self.file) && env::var(CHOICE).ok().is_none_or(is_chosen)
    }

    /// Its absolute path.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The first line of its `--version`.
    pub fn version(&self) -> &str {
        &self.version
    }

    #[cfg(test)]
    pub(crate) fn untested(program: &str) -> Self {
        let file = ProgramFile { inode: 0, changed_s: 0, changed_ns: 0 };
        Self { program: program.into(), version: String::new(), file }
    }

    /// For messages: the program without its directory.
    pub(crate) fn name(&self) -> String {
        self.program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// A command of this runtime for somebody to spawn.
    pub(crate) fn command(
        &self,
        layout: &Layout,
        args: impl IntoIterator<Item = OsString>,
        cwd: PathBuf,
    ) -> CommandLine {
        let root = ["--root".into(), layout.runtime_root().into()];
        CommandLine {
            program: self.program.clone(),
            args: root.into_iter().chain(args).collect(),
            env: vec![("PATH".into(), PATH.into())],
            cwd,
        }
    }

    /// Runs a verb and returns what it prints.
    pub(crate) fn run(&self, layout: &Layout, verb: &str, args: &[OsString]) -> Result<String> {
        let root = ["--root".into(), layout.runtime_root().into()];
        self.output(verb, &[root.as_slice(), args].concat())
    }

    fn output(&self, verb: &str, args: &[OsString]) -> Result<String> {
        let program = format!("{} {verb}", self.name());
        let output = Command::new(&self.program)
            .args(args)
            .env_clear()
            .env("PATH", PATH)
            .current_dir("/")
            .stdin(Stdio::null())
            .output()
            .attempt(|| format!("running {program}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let reason = if said.is_empty() { output.status.to_string() } else { said };
            return Err(Error::Program { program, reason });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let executable = |path: &Path| fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    PATH.split(':').map(|dir| Path::new(dir).join(name)).find(|path| executable(path))
}

/// Makes a container of an image with one empty file, and takes it away again. It is not started: namespaces, mounts,
/// cgroups and limits are all there before that.
fn make_container(layout: &Layout, runtime: &OciRuntime) -> Result<()> {
    let id = FunctionId::new("probe", &format!("p{}", std::process::id()))?;
    let image = layout.function_dir(&id).join("image");
    let answer = make_container_of(layout, runtime, &id, &image);
    let cleaned = Sandbox::delete(layout, &id).and_then(|()| IdRanges::release(layout, &id));
    answer.and(cleaned)
}

fn make_container_of(layout: &Layout, runtime: &OciRuntime, id: &FunctionId, image: &Path) -> Result<()> {
    let program = image.join("program");
    fs::create_dir_all(image)
        .and_then(|()| fs::write(&program, ""))
        .and_then(|()| fs::set_permissions(&program, fs::Permissions::from_mode(0o755)))
        .attempt(|| format!("making {}", image.display()))?;
    let image = Image::of_directory(image)?;
    let spec = ContainerSpec {
        command: Some(vec!["/program".into()]),
        memory: Some(64 << 20),
        ..ContainerSpec::new(image, "probe")
    };

    let container = Container::new(layout, runtime, id);
    container.prepare(&Sandbox::create(layout, id)?, &spec)?;
    let made = container
        .create_command()
        .to_command()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .attempt(|| format!("running {} create", runtime.name()))?;
    if !made.success() {
        return Err(Error::Program { program: format!("{} create", runtime.name()), reason: container.create_log() });
    }
    let pid = container.after_create()?;
    let short = crate::Confinement::of(pid)?.shortcomings();
    // The first process still has the runtime's program and privileges; only its uid is final.
    if short.iter().any(|text| text.contains("root on the host")) {
        return Err(Error::Program { program: runtime.name(), reason: short.join(", ") });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_is_not_as_it_was_probed() {
        let folder = tempfile::tempdir().unwrap();
        let [program, other] = ["runc", "other"].map(|name| folder.path().join(name));
        [&program, &other].into_iter().for_each(|path| fs::write(path, "").unwrap());
        let file = ProgramFile::of(&program).unwrap();
        let runtime = OciRuntime { program: program.clone(), version: String::new(), file };
        assert!(runtime.is_as_probed());
        fs::rename(other, &program).unwrap();
        assert!(!runtime.is_as_probed());
        fs::remove_file(program).unwrap();
        assert!(!runtime.is_as_probed());
    }
}
