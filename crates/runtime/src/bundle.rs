//! The OCI bundle of a container: its `config.json` and what it refers to.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use oci_spec::runtime::{
    LinuxBuilder, LinuxCapabilities, LinuxCpuBuilder, LinuxDeviceCgroupBuilder, LinuxIdMappingBuilder,
    LinuxMemoryBuilder, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, LinuxPidsBuilder, LinuxResources,
    LinuxResourcesBuilder, Mount, MountBuilder, PosixRlimit, PosixRlimitBuilder, PosixRlimitType, Process,
    ProcessBuilder, RootBuilder, Spec, SpecBuilder, UserBuilder,
};

use crate::error::Attempt;
use crate::rootfs::{Root, is_plain_absolute};
use crate::{
    ContainerSpec, Error, FunctionId, IdRange, Layout, Result, Sandbox, StateDirectory, User, cgroup, seccomp,
};

/// Where a function sees its port directory.
const PORTS: &str = "/run/kaista";
/// The broker's socket in it, told to the function in `KAISTA_PORTS`.
const PORTS_SOCKET: &str = "/run/kaista/ports.sock";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Tells what the host has to anybody who looks; nothing that a function needs.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// `bundle` in the container's directory.
pub(crate) fn directory(layout: &Layout, id: &FunctionId) -> PathBuf {
    layout.container_dir(id).join("bundle")
}

/// Makes bundle, root filesystem, port directory and state directory anew.
pub(crate) fn make(layout: &Layout, id: &FunctionId, sandbox: &Sandbox, wanted: &ContainerSpec) -> Result<()> {
    let (bundle, ports) = (directory(layout, id), layout.ports_dir(id));
    for dir in [&bundle, &ports] {
        fs::create_dir_all(dir).attempt(|| format!("making {}", dir.display()))?;
    }
    close(&bundle, sandbox.ids())?;
    let root = Root::new(&bundle, &wanted.image.rootfs, sandbox.ids());
    let user = &wanted.image.user;
    root.begin()?;
    if let Some(state) = &wanted.state_directory {
        make_state(state, &root, user, sandbox.ids())?;
    }
    if !root.has(Path::new("/etc/hosts")) {
        let hosts = format!("127.0.0.1 localhost {0}\n::1 localhost {0}\n", wanted.hostname);
        root.lay(Path::new("/etc/hosts"), hosts.as_bytes())?;
    }
    for (path, content) in &wanted.files {
        root.lay(path, content.as_bytes())?;
    }
    let cwd = working_directory(wanted)?;
    if !root.has(&cwd) {
        // As other engines do: many an image names one that its program is meant to find empty.
        root.mount_point_at(&cwd)?;
    }
    root.mount(sandbox)?;

    let config = config(layout, id, sandbox, wanted)?;
    let text = serde_json::to_vec_pretty(&config).map_err(std::io::Error::other);
    let path = bundle.join("config.json");
    text.and_then(|text| fs::write(&path, text)).attempt(|| format!("writing {}", path.display()))
}

/// Environment, files and image are nobody's on the host. The container's own root passes: by then it has no rights over what
/// belongs to the host's.
fn close(bundle: &Path, ids: IdRange) -> Result<()> {
    chown(bundle, Some(0), Some(ids.first))
        .and_then(|()| fs::set_permissions(bundle, fs::Permissions::from_mode(0o710)))
        .attempt(|| format!("setting owner and mode of {}", bundle.display()))
}

/// The state directory on the host, and the place where it is mounted.
fn make_state(state: &StateDirectory, root: &Root<'_>, user: &User, ids: IdRange) -> Result<()> {
    if !is_plain_absolute(&state.container) || state.container == Path::new("/") {
        return Err(Error::Spec(format!("{} cannot be a state directory", state.container.display())));
    }
    root.mount_point_at(&state.container)?;
    let host = &state.host;
    fs::create_dir_all(host)
        .and_then(|()| fs::set_permissions(host, fs::Permissions::from_mode(0o700)))
        .and_then(|()| chown(host, Some(ids.first + user.uid), Some(ids.first + user.gid)))
        .attempt(|| format!("making the state directory {}", host.display()))
}

fn config(layout: &Layout, id: &FunctionId, sandbox: &Sandbox, wanted: &ContainerSpec) -> Result<Spec> {
    let root = Root::mount_point(&directory(layout, id));
    let ids = LinuxIdMappingBuilder::default().container_id(0u32).host_id(sandbox.ids().first).size(IdRange::SIZE);
    let ids = vec![built(ids.build())?];
    let linux = LinuxBuilder::default()
        .namespaces(namespaces(sandbox)?)
        .uid_mappings(ids.clone())
        .gid_mappings(ids)
        .cgroups_path(cgroup::path(layout, id))
        .resources(resources(wanted)?)
        .seccomp(seccomp::filter())
        .masked_paths(MASKED.iter().map(ToString::to_string).collect::<Vec<_>>())
        .readonly_paths(READ_ONLY.iter().map(ToString::to_string).collect::<Vec<_>>());
    let spec = SpecBuilder::default()
        .version("1.0.2")
        .root(built(RootBuilder::default().path(root).readonly(true).build())?)
        .hostname(wanted.hostname.clone())
        .process(process(wanted)?)
        .mounts(mounts(layout, sandbox, wanted)?)
        .linux(built(linux.build())?);
    built(spec.build())
}

fn process(wanted: &ContainerSpec) -> Result<Process> {
    let process = ProcessBuilder::default()
        .terminal(false)
        .user(built(UserBuilder::default().uid(wanted.image.user.uid).gid(wanted.image.user.gid).build())?)
        .args(arguments(wanted)?)
        .env(environment(wanted))
        .cwd(working_directory(wanted)?)
        .capabilities(no_capabilities())
        .rlimits(vec![open_files()?])
        .no_new_privileges(true);
    built(process.build())
}

fn working_directory(wanted: &ContainerSpec) -> Result<PathBuf> {
    let said = wanted.working_directory.as_ref().unwrap_or(&wanted.image.config.working_directory);
    let cwd = Path::new(if said.is_empty() { "/" } else { said });
    if !is_plain_absolute(cwd) {
        return Err(Error::Spec(format!("working directory {} is not an absolute path", cwd.display())));
    }
    Ok(cwd.into())
}

/// Kubernetes' rule: a command replaces entrypoint and command of the image, arguments alone replace its command.
fn arguments(wanted: &ContainerSpec) -> Result<Vec<String>> {
    let image = &wanted.image.config;
    let args = match (&wanted.command, &wanted.args) {
        (Some(command), args) => [command.as_slice(), args.as_deref().unwrap_or_default()].concat(),
        (None, Some(args)) => [image.entrypoint.as_slice(), args].concat(),
        (None, None) => [image.entrypoint.as_slice(), &image.cmd].concat(),
    };
    if args.first().is_none_or(String::is_empty) {
        return Err(Error::Spec("neither the function nor its image says which command to run".into()));
    }
    Ok(args)
}

fn environment(wanted: &ContainerSpec) -> Vec<String> {
    let mut env = BTreeMap::from([("PATH", PATH.to_owned()), ("HOME", wanted.image.user.home.clone())]);
    env.extend(wanted.image.config.env.iter().filter_map(|pair| pair.split_once('=')).map(|(n, v)| (n, v.to_owned())));
    env.insert("HOSTNAME", wanted.hostname.clone());
    env.extend(wanted.env.iter().map(|(name, value)| (name.as_str(), value.clone())));
    env.insert("KAISTA_PORTS", PORTS_SOCKET.to_owned());
    env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// All five sets empty. (The builder's default is not.)
fn no_capabilities() -> LinuxCapabilities {
    let mut none = LinuxCapabilities::default();
    none.set_bounding(Some(Default::default()))
        .set_effective(Some(Default::default()))
        .set_inheritable(Some(Default::default()))
        .set_permitted(Some(Default::default()))
        .set_ambient(Some(Default::default()));
    none
}

/// As many open files as a busy server needs, or as many as this process may give.
fn open_files() -> Result<PosixRlimit> {
    const WANTED: u64 = 65536;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).attempt(|| "reading the limit of open files".into())?;
    let limit = WANTED.min(hard);
    built(PosixRlimitBuilder::default().typ(PosixRlimitType::RlimitNofile).soft(limit).hard(limit).build())
}

fn namespaces(sandbox: &Sandbox) -> Result<Vec<LinuxNamespace>> {
    let mut all = Vec::new();
    for typ in [LinuxNamespaceType::Pid, LinuxNamespaceType::Ipc, LinuxNamespaceType::Uts, LinuxNamespaceType::Mount] {
        all.push(built(LinuxNamespaceBuilder::default().typ(typ).build())?);
    }
    let held = [(LinuxNamespaceType::User, sandbox.user_path()), (LinuxNamespaceType::Network, sandbox.net_path())];
    for (typ, path) in held {
        all.push(built(LinuxNamespaceBuilder::default().typ(typ).path(path).build())?);
    }
    Ok(all)
}

/// No runtime for real-time threads: where the kernel groups those, a container has none until one is asked for.
fn resources(wanted: &ContainerSpec) -> Result<LinuxResources> {
    let no_device = LinuxDeviceCgroupBuilder::default().allow(false).access("rwm").build();
    let mut resources = LinuxResourcesBuilder::default()
        .devices(vec![built(no_device)?])
        .pids(built(LinuxPidsBuilder::default().limit(i64::from(wanted.pids)).build())?);
    if let Some(limit) = wanted.memory {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut memory = LinuxMemoryBuilder::default().limit(limit);
        if counts_swap()? {
            memory = memory.swap(limit);
        }
        resources = resources.memory(built(memory.build())?);
    }
    if !wanted.cores.is_empty() {
        resources = resources.cpu(built(LinuxCpuBuilder::default().cpus(cgroup::list_of(&wanted.cores)).build())?);
    }
    built(resources.build())
}

/// Whether the kernel limits memory and swap together (v1: only with swap accounting).
fn counts_swap() -> Result<bool> {
    let hierarchies = cgroup::Hierarchies::read()?;
    let v1 = hierarchies.v1.iter().find(|(controllers, _)| controllers.iter().any(|name| name == "memory"));
    Ok(v1.is_none_or(|(_, mount)| mount.join("memory.memsw.limit_in_bytes").exists()))
}

/// Everything that a container sees besides its root. tmpfs pages count towards its memory limit.
fn mounts(layout: &Layout, sandbox: &Sandbox, wanted: &ContainerSpec) -> Result<Vec<Mount>> {
    let size = wanted.memory.map_or("size=50%".into(), |limit| format!("size={limit}"));
    let owner = format!("uid={},gid={}", wanted.image.user.uid, wanted.image.user.gid);
    let mut all = vec![
        mount("/proc", "proc", "proc", "nosuid,noexec,nodev")?,
        mount("/dev", "tmpfs", "tmpfs", "nosuid,strictatime,mode=755,size=64k")?,
        mount("/dev/pts", "devpts", "devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5")?,
        mount("/dev/shm", "tmpfs", "shm", &format!("nosuid,noexec,nodev,mode=1777,{size}"))?,
        mount("/dev/mqueue", "mqueue", "mqueue", "nosuid,noexec,nodev")?,
        mount("/sys", "sysfs", "sysfs", "nosuid,noexec,nodev,ro")?,
        mount("/tmp", "tmpfs", "tmpfs", &format!("nosuid,nodev,mode=1777,{size}"))?,
        mount("/run", "tmpfs", "tmpfs", &format!("nosuid,nodev,noexec,mode=755,{owner},{size}"))?,
    ];
    // Connecting to a socket needs no writable mount.
    all.push(bind(PORTS, &layout.ports_dir(sandbox.id()), "bind,ro,nosuid,nodev,noexec")?);
    if let Some(state) = &wanted.state_directory {
        let at = state.container.to_str().ok_or_else(|| Error::Spec("the state directory is not UTF-8".into()))?;
        all.push(bind(at, &state.host, "bind,rw,nosuid,nodev,noexec")?);
    }
    Ok(all)
}

fn mount(at: &str, kind: &str, source: &str, options: &str) -> Result<Mount> {
    let options: Vec<String> = options.split(',').map(String::from).collect();
    built(MountBuilder::default().destination(at).typ(kind).source(source).options(options).build())
}

fn bind(at: &str, source: &Path, options: &str) -> Result<Mount> {
    let options: Vec<String> = options.split(',').map(String::from).collect();
    built(MountBuilder::default().destination(at).typ("bind").source(source).options(options).build())
}

/// A builder's answer; it fails only if a mandatory field is missing.
fn built<T>(answer: Result<T, oci_spec::OciSpecError>) -> Result<T> {
    answer.map_err(|error| Error::Spec(format!("the bundle is incomplete: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Image, ImageConfig};

    fn spec() -> ContainerSpec {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        let config = ImageConfig {
            entrypoint: words("/entry -e"),
            cmd: words("cmd"),
            env: vec!["PATH=/opt".into(), "A=image".into()],
            ..Default::default()
        };
        ContainerSpec::new(Image { rootfs: "/".into(), config, user: User::default(), digest: None }, "f")
    }

    #[test]
    fn command_and_arguments_replace_those_of_the_image_as_in_kubernetes() {
        let run = |command: Option<&str>, args: Option<&str>| {
            let list = |text: Option<&str>| text.map(|text| vec![text.to_owned()]);
            arguments(&ContainerSpec { command: list(command), args: list(args), ..spec() })
                .expect("a command")
                .join(" ")
        };
        assert_eq!(run(None, None), "/entry -e cmd");
        assert_eq!(run(None, Some("x")), "/entry -e x");
        assert_eq!(run(Some("/c"), None), "/c");
        assert_eq!(run(Some("/c"), Some("x")), "/c x");
    }

    #[test]
    fn the_descriptor_s_environment_wins_over_the_image_s_but_not_over_the_ports() {
        let own = [("A".to_owned(), "own".to_owned()), ("KAISTA_PORTS".to_owned(), "/elsewhere".to_owned())];
        let env = environment(&ContainerSpec { env: own.into(), ..spec() });
        assert!(env.contains(&"A=own".into()));
        assert!(env.contains(&"PATH=/opt".into()));
        assert!(env.contains(&format!("KAISTA_PORTS={PORTS_SOCKET}")));
    }

    #[test]
    fn all_five_capability_sets_are_empty() {
        let json = serde_json::to_value(no_capabilities()).expect("JSON");
        for set in ["bounding", "effective", "inheritable", "permitted", "ambient"] {
            assert_eq!(json[set].as_array().map(Vec::len), Some(0), "{set}");
        }
    }
}
