//! A function, or a replica of one: its sandbox, its container, its output, and the sockets by which it reaches its ports.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use runtime::{Container, ContainerSpec, FunctionId, IdRange, IdRanges, Image, Sandbox, Source, State, StateDirectory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use slice::Cores;
use vport::broker::Broker;

use crate::keeper;
use crate::logs::{self, Capture, Pipes};
use crate::node::Node;
use crate::process::{Process, ProcessId};
use crate::record::ProcessRecord;
use crate::replace;
use crate::supervised::{Supervise, Supervised};

/// How long a function may take to end in good order.
const GRACE: Duration = Duration::from_secs(2);

/// A function, or a replica of one, that exists: running, about to run, or ended.
pub(crate) struct Function {
    node: Arc<Node>,
    id: FunctionId,
    /// As it was described when it was made, with all of its replicas if it is one.
    pub(crate) spec: slice::Function,
    /// Its life.
    pub(crate) run: Supervised,
    sandbox: Sandbox,
    container: Container,
    /// Which of the function's containers that is.
    unit: FunctionId,
    /// None: a former daemon's, and could not be found when that was followed.
    image: Option<Image>,
    uid: u32,
    cores: Vec<usize>,
    pipes: Pipes,
    capture: Option<Capture>,
}

impl Function {
    /// Makes everything but the container.
    pub(crate) fn create(node: &Arc<Node>, id: FunctionId, spec: &slice::Function, image: Image) -> Result<Self> {
        let sandbox = Sandbox::create(&node.layout, &id)?;
        let cores = claim_cores(node, &id, spec)?;
        let function = Self::assemble(node, id, spec, sandbox, Some(image), Supervised::default(), cores)?;
        function.serve_ports()?;
        Ok(function)
    }

    /// Goes on with a function that a former daemon made, of the image that it was started of; none if its sandbox is gone. Its ports
    /// are not served yet.
    pub(crate) fn adopt(
        node: &Arc<Node>,
        id: FunctionId,
        spec: &slice::Function,
        record: &ProcessRecord,
        image: Option<&Image>,
    ) -> Result<Option<Self>> {
        let Some(sandbox) = Sandbox::open(&node.layout, &id)? else { return Ok(None) };
        // What runs goes on running, whatever has become of its image.
        let image = match image.filter(|image| image.rootfs.is_dir()) {
            Some(image) => Some(image.clone()),
            None => resolve(node, spec).ok(),
        };
        let record = replace::settle(node, &id, record)?;
        let mut run = Supervised::adopt(&record);
        let unit = if record.second { id.beside() } else { id.clone() };
        // The former daemon may have been killed before it could note what it had started.
        if run.process().is_none()
            && let State::Running(pid) = Container::new(&node.layout, &node.runtime()?, &unit).state()?
            && let Some(process) = ProcessId::of(pid.as_raw()).and_then(Process::open)
        {
            run.started(process);
        }
        let had = Container::new(&node.layout, &node.runtime()?, &unit).cores()?;
        let cores = cores_to_go_on_with(node, &id, spec, &had);
        let mut function = Self::assemble(node, id, spec, sandbox, image, run, cores)?;
        function.move_from(had);
        Ok(Some(function))
    }

    /// Its container was found on these cores. Which ones are shared is known when every slice was taken up.
    fn move_from(&mut self, had: Vec<usize>) {
        if !self.has_own_cores() && !had.is_empty() {
            self.cores = had;
        } else if self.cores != had {
            self.move_to_its_cores();
        }
    }

    fn has_own_cores(&self) -> bool {
        self.node.cores().of(&self.id.to_string()).is_some()
    }

    fn move_to_its_cores(&self) {
        if self.run.process().is_some()
            && let Err(e) = self.container.set_cores(&self.cores)
        {
            tracing::warn!("{}: stays on its cores: {e}", self.id);
        }
    }

    fn assemble(
        node: &Arc<Node>,
        id: FunctionId,
        spec: &slice::Function,
        sandbox: Sandbox,
        image: Option<Image>,
        run: Supervised,
        cores: Vec<usize>,
    ) -> Result<Self> {
        let unit = if run.record().second { id.beside() } else { id.clone() };
        let container = Container::new(&node.layout, &node.runtime()?, &unit);
        let uid = sandbox.ids().first + image.as_ref().map_or(runtime::USER, |image| image.user.uid);
        let pipes = pipes(node, &id, uid, run.process().map(|process| process.id.pid))?;
        let capture = Capture::start(&pipes, &node.paths.logs(id.slice()), id.function())?;
        Ok(Self {
            node: node.clone(),
            id,
            spec: spec.clone(),
            run,
            sandbox,
            container,
            unit,
            image,
            uid,
            cores,
            pipes,
            capture: Some(capture),
        })
    }

    /// Lets the broker serve the function's ports. The socket outlives this process at the keeper, so that a function
    /// never finds it closed.
    pub(crate) fn serve_ports(&self) -> Result<()> {
        let uids = self.sandbox.ids().first..self.sandbox.ids().first + IdRange::SIZE;
        let directory = self.node.layout.ports_dir(&self.id);
        serve_socket(&self.node, &self.id.to_string(), &socket_label(&self.id), directory, uids)
    }

    /// It is to go, and its output with it.
    pub(crate) fn end_capture(&mut self) {
        self.capture = None;
    }

    /// Whether nobody has begun to take it away.
    pub(crate) fn is_whole(&self) -> bool {
        self.capture.is_some()
    }

    /// Who it is.
    pub(crate) fn id(&self) -> &FunctionId {
        &self.id
    }

    /// Where its interfaces are.
    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Its container, to ask for usage or to execute in.
    pub(crate) fn container(&self) -> &Container {
        &self.container
    }

    /// What it was started of.
    pub(crate) fn image(&self) -> Option<&Image> {
        self.image.as_ref()
    }

    /// The user that it runs as, on the host.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// The cores that it may use.
    pub(crate) fn cores(&self) -> &[usize] {
        &self.cores
    }

    /// Gives it another description and its image, for its next start.
    pub(crate) fn redescribe(&mut self, spec: &slice::Function, image: Image) -> Result<()> {
        self.uid = self.sandbox.ids().first + image.user.uid;
        self.image = Some(image);
        self.spec = spec.clone();
        self.cores = claim_cores(&self.node, &self.id, spec)?;
        self.run = Supervised::default();
        self.run.set_second(self.unit.is_second());
        Ok(())
    }

    /// Moves a function on shared cores to those that are shared now.
    pub(crate) fn follow_shared_cores(&mut self) {
        if self.has_own_cores() {
            return;
        }
        let shared = self.node.cores().shared();
        if shared != self.cores {
            self.cores = shared;
            self.move_to_its_cores();
        }
    }

    fn try_start(&mut self) -> Result<()> {
        let spec = self.container_spec()?;
        let process = self.start_container(&self.container, &spec)?;
        tracing::info!("{}: started as process {}", self.id, process.id.pid);
        self.run.started(process);
        Ok(())
    }

    fn start_container(&self, container: &Container, spec: &ContainerSpec) -> Result<Process> {
        container.prepare(&self.sandbox, spec)?;
        let streams = [self.node.null(), self.pipes.out.as_fd(), self.pipes.err.as_fd()];
        let status = self.node.keeper.run(&container.create_command(), streams)?;
        if status != 0 {
            bail!("its container cannot be made: {}", container.create_log().trim());
        }
        let pid = container.after_create()?.as_raw();
        let process = ProcessId::of(pid).and_then(Process::open).context("its container ended before it started")?;
        container.start()?;
        Ok(process)
    }

    /// Starts another container, of the image as it is now, that is to take over from the one that runs.
    pub(crate) fn start_heir(&mut self, heir: &Container) -> Result<(Process, Image)> {
        let image = resolve(&self.node, &self.spec)?;
        let mut spec = self.container_spec()?;
        spec.image = image.clone();
        spec.env.insert("KAISTA_SUCCEEDS".into(), "1".into());
        let process = self.start_container(heir, &spec)?;
        tracing::info!("{}: process {} is to take over", self.id, process.id.pid);
        Ok((process, image))
    }

    /// The heir's container and image are the function's from now on; the former container is taken away. The heir was started with
    /// these cores.
    pub(crate) fn install(&mut self, heir: Container, process: Process, image: Image, cores: &[usize]) {
        self.uid = self.sandbox.ids().first + image.user.uid;
        self.image = Some(image);
        let former = std::mem::replace(&mut self.container, heir);
        self.unit = self.unit.beside();
        self.run.set_second(self.unit.is_second());
        let ended = self.run.process().map(|process| process.id.pid);
        self.run.started(process);
        if let Err(e) = former.delete() {
            // The next replacement, or the end of the function, tries again.
            tracing::error!("{}: the former container stays: {e}", self.id);
        }
        ended.map(|pid| self.node.keeper.reap(pid));
        if cores != self.cores {
            self.move_to_its_cores();
        }
    }

    /// Its container's name.
    pub(crate) fn unit(&self) -> &FunctionId {
        &self.unit
    }

    fn container_spec(&mut self) -> Result<ContainerSpec> {
        if self.image.is_none() {
            let image = resolve(&self.node, &self.spec)?;
            self.uid = self.sandbox.ids().first + image.user.uid;
            self.image = Some(image);
        }
        let spec = &self.spec;
        let image = self.image.clone().context("resolved above")?;
        Ok(ContainerSpec {
            command: spec.command.clone(),
            args: spec.args.clone(),
            env: spec.env.clone(),
            working_directory: spec.working_directory.clone(),
            files: spec.files.iter().map(|(path, text)| (PathBuf::from(path), text.clone())).collect(),
            cores: self.cores.clone(),
            memory: spec.memory.map(|memory| memory.0),
            state_directory: spec.state_directory.as_ref().map(|inside| StateDirectory {
                host: self.node.layout.function_state_dir(&self.id),
                container: inside.into(),
            }),
            ..ContainerSpec::new(image, self.id.function())
        })
    }
}

impl Supervise for Function {
    fn run(&mut self) -> &mut Supervised {
        &mut self.run
    }

    fn start(&mut self) -> Result<()> {
        let mut started = self.try_start();
        if started.as_ref().is_err_and(keeper::died) {
            started = self.try_start();
        }
        if started.is_err() {
            let _ = self.container.delete();
        }
        started.with_context(|| format!("function {}", self.id.function()))
    }

    fn ended(&mut self) {
        let Some(pid) = self.run.process().map(|process| process.id.pid) else { return };
        let status = self.node.keeper.reap(pid);
        let again = self.run.ended(status, self.spec.restart);
        let how = self.run.record().last_exit.as_deref().unwrap_or_default();
        tracing::warn!("{}: ended: {how}{}", self.id, if again { "; starting it again" } else { "" });
        if !again && let Err(e) = self.container.delete() {
            tracing::error!("{}: {e}", self.id);
        }
    }
}

/// Lets a function go on with the cores that it has for itself, if it runs.
pub(crate) fn keep_cores(node: &Node, id: &FunctionId, count: usize) -> Result<()> {
    let runtime = node.runtime()?;
    for unit in [id.clone(), id.beside()] {
        let container = Container::new(&node.layout, &runtime, &unit);
        let had = container.cores()?;
        if had.len() == count && container.first_process().is_some() {
            node.cores().keep(&id.to_string(), &had);
        }
    }
    Ok(())
}

/// Takes exclusive cores, or the shared ones.
fn claim_cores(node: &Node, id: &FunctionId, spec: &slice::Function) -> Result<Vec<usize>> {
    let owner = id.to_string();
    let mut cores = node.cores();
    match spec.cores {
        Cores::Exclusive(count) => cores.take(&owner, count as usize).map_err(|free| {
            anyhow::anyhow!("function {}: wants {count} cores for itself, and {free} are to be had", id.function())
        }),
        Cores::Shared => {
            cores.give_back(&owner);
            Ok(cores.shared())
        }
    }
}

/// The cores of a function that was found on `had`, whichever the host has lost: what is left of its own, or the shared ones.
fn cores_to_go_on_with(node: &Node, id: &FunctionId, spec: &slice::Function, had: &[usize]) -> Vec<usize> {
    let owner = id.to_string();
    if spec.cores == Cores::Exclusive(had.len() as u32) {
        node.cores().keep(&owner, had);
    }
    claim_cores(node, id, spec).unwrap_or_else(|e| {
        tracing::error!("slice {}: {e:#}; it goes on with others", id.slice());
        let cores = node.cores();
        cores.of(&owner).map_or_else(|| cores.shared(), <[usize]>::to_vec)
    })
}

/// Ends functions together: asks, waits a little, then takes their containers away, also where one of them cannot go. The sandboxes
/// stay.
pub(crate) fn stop(functions: &mut [&mut Function]) -> Result<()> {
    for function in functions.iter() {
        if let Some(process) = function.run.process().filter(|process| hears_term(process.id.pid)) {
            process.signal(Signal::TERM);
        }
    }
    let deadline = Instant::now() + GRACE;
    for function in functions.iter() {
        let Some(process) = function.run.process().filter(|process| hears_term(process.id.pid)) else { continue };
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let _ = poll(&mut [PollFd::new(process.fd(), PollFlags::IN)], Some(&timeout));
    }
    let mut result = Ok(());
    for function in functions.iter_mut() {
        let deleted = function.container.delete().with_context(|| format!("function {}", function.id.function()));
        if deleted.is_ok() || function.run.process().is_none_or(Process::has_ended) {
            function.run.process().map(|process| function.node.keeper.reap(process.id.pid));
            function.run.stopped();
        }
        result = result.and(deleted);
    }
    result
}

/// Whether SIGTERM means anything to the first process of a container: without a handler the kernel keeps it from it, and
/// waiting would be in vain.
pub(crate) fn hears_term(pid: i32) -> bool {
    const TERM: u64 = 1 << (15 - 1);
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    // Blocked signals may be read from a signalfd or be waited for.
    [mask("SigCgt:"), mask("SigBlk:")].into_iter().flatten().any(|mask| mask & TERM != 0)
}

/// Takes everything of a function away, by its name alone: container, sandbox, socket, output. Its state directory stays,
/// and with it the user ids that own it.
pub(crate) fn remove(node: &Node, slice: &str, function: &str) -> Result<()> {
    let id = FunctionId::new(slice, function)?;
    let _ = node.broker.remove_function(&id.to_string());
    node.keeper.discard(&socket_label(&id));
    for label in pipe_labels(&id) {
        node.keeper.discard(&label);
    }
    node.cores().give_back(&id.to_string());
    Sandbox::delete(&node.layout, &id)?;
    logs::remove(&node.paths.logs(slice), function);
    if !node.layout.function_state_dir(&id).exists() {
        IdRanges::release(&node.layout, &id)?;
    }
    Ok(())
}

/// Unpacks the function's image, or finds it unpacked.
pub(crate) fn resolve(node: &Node, spec: &slice::Function) -> Result<Image> {
    let source = match &spec.image {
        slice::Image::Rootfs(path) => Source::Rootfs(path.clone()),
        slice::Image::OciLayout { directory, tag } => {
            Source::OciLayout { directory: directory.clone(), tag: tag.clone() }
        }
        slice::Image::Archive { file, tag } => Source::Archive { file: file.clone(), tag: tag.clone() },
    };
    Image::resolve(&node.layout, &source).with_context(|| format!("function {}", spec.name))
}

/// The pipes of the function's output: the keeper's, or those of its process, or new ones.
fn pipes(node: &Node, id: &FunctionId, uid: u32, pid: Option<i32>) -> Result<Pipes> {
    let [out, err] = pipe_labels(id);
    if let (Some(out), Some(err)) = (node.keeper.fetch(&out), node.keeper.fetch(&err)) {
        return Ok(Pipes { out, err });
    }
    let pipes = match pid.and_then(Pipes::of_process) {
        Some(pipes) => pipes,
        None => Pipes::new(uid)?,
    };
    node.keeper.store(&out, pipes.out.as_fd())?;
    node.keeper.store(&err, pipes.err.as_fd())?;
    Ok(pipes)
}

fn pipe_labels(id: &FunctionId) -> [String; 2] {
    [format!("output {id}"), format!("errors {id}")]
}

fn socket_label(id: &FunctionId) -> String {
    format!("socket {id}")
}

/// Serves the ports of `client` on `ports.sock` in the directory, to these users.
pub(crate) fn serve_socket(
    node: &Node,
    client: &str,
    label: &str,
    directory: PathBuf,
    uids: std::ops::Range<u32>,
) -> Result<()> {
    std::fs::create_dir_all(&directory)?;
    let path = directory.join("ports.sock");
    let socket = match node.keeper.fetch(label).filter(|_| path.exists()) {
        Some(socket) => socket,
        None => {
            let socket = Broker::bind(&path)?;
            // Who reaches the directory may ask; who is served is decided by user.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
            node.keeper.store(label, socket.as_fd())?;
            socket
        }
    };
    Ok(node.broker.listen(client, socket, uids)?)
}
