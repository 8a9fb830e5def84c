//! What the tests share: a layout of their own, a small image of the host's busybox, a container that runs to its end.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use runtime::{
    Container, ContainerSpec, Exec, FunctionId, IdRanges, Image, Layout, OciRuntime, Sandbox, Source, State,
};

/// Skips the test, by name and with a reason, where the machine lacks what it needs.
#[macro_export]
macro_rules! needs {
    ($name:expr, $($requirement:expr),+) => {
        for missing in [$($requirement),+].into_iter().flatten() {
            println!("SKIPPED {}: {missing}", $name);
            return;
        }
    };
}

/// Why a test that needs root cannot run.
pub fn root() -> Option<String> {
    (!nix::unistd::Uid::effective().is_root()).then(|| "needs root".into())
}

/// Why a test that needs a program cannot run.
pub fn program(name: &str) -> Option<String> {
    find(name).is_none().then(|| format!("needs the program {name}"))
}

/// Why a test that runs containers cannot run.
pub fn containers() -> Option<String> {
    root().or_else(|| program("runc")).or_else(|| program("busybox"))
}

pub fn find(name: &str) -> Option<PathBuf> {
    let dirs = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    dirs.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists())
}

/// Waits until something holds.
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A node of the test's own; everything of it is removed at the end.
pub struct Node {
    pub layout: Layout,
    pub runtime: OciRuntime,
    dir: tempfile::TempDir,
}

impl Node {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("traversable");
        let layout = Layout::new(dir.path().join("run"), dir.path().join("state"));
        let runtime = OciRuntime::probe(&layout).expect("an OCI runtime that works");
        Self { layout, runtime, dir }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// An image with busybox at /bin, and what `fill` adds.
    pub fn busybox(&self, fill: impl FnOnce(&Path)) -> Image {
        let root = self.dir().join("image");
        for dir in ["bin", "etc", "lib64"] {
            fs::create_dir_all(root.join(dir)).expect("made");
        }
        fs::copy(find("busybox").expect("busybox"), root.join("bin/busybox")).expect("copied");
        fill(&root);
        Image::resolve(&self.layout, &Source::Rootfs(root)).expect("an image")
    }

    pub fn function(&self, name: &str) -> FunctionId {
        FunctionId::new("test", name).expect("a name")
    }

    /// Creates and starts a container; returns it with what it prints going to a file.
    pub fn launch(&self, id: &FunctionId, spec: &ContainerSpec) -> Launched {
        let sandbox = Sandbox::create(&self.layout, id).expect("a sandbox");
        let container = Container::new(&self.layout, &self.runtime, id);
        container.prepare(&sandbox, spec).expect("prepared");
        let path = self.dir().join(format!("{}.out", id.container()));
        let out = fs::File::create(&path).expect("a file");
        let err = out.try_clone().expect("a copy");
        let created = container.create_command().to_command().stdin(Stdio::null()).stdout(out).stderr(err).status();
        assert!(created.expect("runs").success(), "{}", container.create_log());
        container.after_create().expect("confined");
        container.start().expect("started");
        Launched { container, sandbox, out: path }
    }

    /// Runs a container to its end and returns what it printed.
    pub fn run(&self, id: &FunctionId, spec: &ContainerSpec) -> String {
        let launched = self.launch(id, spec);
        let patience = Instant::now() + Duration::from_secs(20);
        while matches!(launched.container.state().expect("a state"), State::Running(_)) {
            assert!(Instant::now() < patience, "still running; so far: {}", launched.printed());
            std::thread::sleep(Duration::from_millis(10));
        }
        let printed = launched.printed();
        launched.container.delete().expect("deleted");
        printed
    }

    /// A container that only waits, to execute in.
    pub fn idle(&self, id: &FunctionId, image: &Image) -> Launched {
        let command = Some(["/bin/busybox", "sleep", "1000"].map(String::from).to_vec());
        self.launch(id, &ContainerSpec { command, ..ContainerSpec::new(image.clone(), id.function()) })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for id in Sandbox::list(&self.layout).unwrap_or_default() {
            let _ = Sandbox::delete(&self.layout, &id);
            let _ = IdRanges::release(&self.layout, &id);
        }
    }
}

pub struct Launched {
    pub container: Container,
    pub sandbox: Sandbox,
    out: PathBuf,
}

impl Launched {
    pub fn printed(&self) -> String {
        fs::read_to_string(&self.out).expect("its output")
    }

    pub fn exec(&self, args: &[&str]) -> Output {
        let args = args.iter().map(ToString::to_string).collect();
        let command = self.container.exec_command(&Exec { args, ..Exec::default() }).expect("a command");
        command.to_command().stdin(Stdio::null()).output().expect("runs")
    }

    /// A shell line in the container, which must succeed.
    pub fn sh(&self, line: &str) -> String {
        let output = self.exec(&["/bin/busybox", "sh", "-c", line]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{line}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }
}

/// Runs a host command that must succeed.
pub fn host(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Copies a program of the host, and the libraries that it is linked with, into an image.
pub fn copy_program(root: &Path, name: &str) {
    let program = find(name).expect("there");
    fs::create_dir_all(root.join("bin")).expect("made");
    fs::copy(&program, root.join("bin").join(name)).expect("copied");
    for word in host("ldd", &[program.to_str().expect("UTF-8")]).split_whitespace().filter(|word| word.starts_with('/'))
    {
        let place = root.join(word.trim_start_matches('/'));
        fs::create_dir_all(place.parent().expect("a directory")).expect("made");
        fs::copy(word, place).expect("copied");
    }
}

/// The cgroups of a function that exist, on every hierarchy.
pub fn cgroups(layout: &Layout, id: &FunctionId) -> Vec<PathBuf> {
    let hierarchies = runtime::cgroup::Hierarchies::read().expect("cgroups");
    let mounts = hierarchies.v1.into_iter().map(|(_, mount)| mount).chain(hierarchies.v2.map(|(mount, _)| mount));
    let dirs = mounts.map(|mount| mount.join(layout.cgroup()).join(id.slice()).join(id.function()));
    dirs.filter(|dir| dir.exists()).collect()
}

/// The file that comes with a message over a Unix socket.
pub fn receive_file(stream: &std::os::unix::net::UnixStream) -> fs::File {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 256];
    let mut parts = [std::io::IoSliceMut::new(&mut text)];
    recvmsg(stream, &mut parts, &mut control, RecvFlags::empty()).expect("a message");
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fd.expect("a file").into()
}
