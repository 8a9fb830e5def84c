//! One slice: makes it be as described, and keeps it so. A thread of its own, so that slices do not wait for each other.

mod account;
mod converging;
mod editing;
mod images;
mod replacing;
mod resuming;
mod scaling;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use slice::{Slice, Spec};

use images::Images;
use replacing::Replacing;
pub(crate) use resuming::keep_cores;

use crate::backoff::Backoff;
use crate::control::{Event, Failure, Process, SliceState};
use crate::function::Function;
use crate::link::{ActiveLink, Pump};
use crate::logs::now_ns;
use crate::node::Node;
use crate::record;
use crate::replace::LOOK_EVERY;
use crate::supervised::{Supervise, Supervised};

/// What a worker is told.
pub(crate) enum Command {
    /// Be as described.
    Apply(Box<Slice>, Sender<Event>, Sender<Outcome>),
    /// Have so many replicas of a pool.
    Scale(String, u16, Sender<Event>, Sender<Outcome>),
    /// Have another container of a function take over from the one that runs.
    Replace(String, Sender<Event>, Sender<Outcome>),
    /// Be no more.
    Remove(Sender<Event>, Sender<Outcome>),
    /// The set of shared cores has changed.
    CoresChanged,
}

impl Command {
    /// Whether it may be the first that a slice is told; the others are for one that is there.
    pub(crate) fn begins(&self) -> bool {
        matches!(self, Self::Apply(..) | Self::Remove(..))
    }
}

/// What came of a command.
pub(crate) type Outcome = Result<usize, Failure>;

/// A worker, seen from other threads.
#[derive(Clone)]
pub(crate) struct Handle {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    view: Arc<Mutex<View>>,
}

impl Handle {
    /// Tells it something; false if it has ended.
    pub(crate) fn tell(&self, command: Command) -> bool {
        let told = self.commands.send(command).is_ok();
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        told
    }

    /// Whether both are the same worker.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.view, &other.view)
    }

    /// How the slice is, as of its last change.
    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A slice as others may see it.
#[derive(Clone)]
pub(crate) struct View {
    /// How it is.
    pub(crate) state: SliceState,
    /// When it was first brought up, milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// What exists of it.
    pub(crate) actual: Slice,
    /// Its functions' and pumps' processes, without what changes by the moment.
    pub(crate) processes: Vec<Process>,
    /// Containers by function.
    pub(crate) containers: BTreeMap<String, runtime::Container>,
}

struct Worker {
    node: Arc<Node>,
    name: String,
    since_ms: u64,
    functions: BTreeMap<String, Function>,
    links: BTreeMap<String, ActiveLink>,
    /// What functions were of when they last were as described, by name, with what describes it: what is begun and fails is undone to
    /// that, whatever has become of the files.
    images: Images,
    /// Functions that are being replaced.
    replacing: BTreeMap<String, Replacing>,
    view: Arc<Mutex<View>>,
    /// When to try again what a resumption could not do.
    resume_at: Option<Instant>,
    resumption: Backoff,
    /// Told when this slice's exclusive cores have changed.
    cores_changed: Box<dyn Fn() + Send>,
}

/// Starts the worker of a slice, which first goes on with what a former daemon left of it. `ended` is called when nothing
/// of the slice is left and it shall not be.
///
/// Returns when the view shows what was taken up; what is missing to what shall be follows.
pub(crate) fn start(
    node: &Arc<Node>,
    name: &str,
    cores_changed: impl Fn() + Send + 'static,
    ended: impl FnOnce() + Send + 'static,
) -> std::io::Result<Handle> {
    let (commands, incoming) = mpsc::channel();
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let empty = empty_slice(name);
    let view = Arc::new(Mutex::new(View {
        state: SliceState::Changing,
        since_ms: now_ns() / 1_000_000,
        actual: empty,
        processes: Vec::new(),
        containers: BTreeMap::new(),
    }));
    let handle = Handle { commands, wake: wake.clone(), view: view.clone() };
    let mut worker = Worker {
        node: node.clone(),
        name: name.to_owned(),
        since_ms: now_ns() / 1_000_000,
        functions: BTreeMap::new(),
        links: BTreeMap::new(),
        images: Images::new(),
        replacing: BTreeMap::new(),
        view,
        resume_at: None,
        resumption: Backoff::default(),
        cores_changed: Box::new(cores_changed),
    };
    let (adopted, wait) = mpsc::channel::<()>();
    std::thread::Builder::new().name(format!("slice {name}")).spawn(move || {
        let former = worker.adopt_former();
        worker.publish(Some(SliceState::Changing));
        drop(adopted);
        if former {
            worker.resume();
            if worker.is_nothing() {
                return ended();
            }
        }
        worker.run(&incoming, &wake, ended);
    })?;
    let _ = wait.recv();
    Ok(handle)
}

fn empty_slice(name: &str) -> Slice {
    Slice {
        api_version: slice::ApiVersion::V1Alpha1,
        kind: slice::Kind::Slice,
        metadata: slice::Metadata { name: name.to_owned() },
        spec: Spec { functions: Vec::new(), links: Vec::new() },
    }
}

impl Worker {
    /// Serves commands and restarts what ends, until nothing is left to do and nobody is there to tell.
    fn run(&mut self, incoming: &Receiver<Command>, wake: &OwnedFd, ended: impl FnOnce()) {
        let mut first = true;
        loop {
            self.publish(None);
            if !first {
                self.wait(wake);
            }
            first = false;
            loop {
                let command = match incoming.try_recv() {
                    Ok(command) => command,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                };
                let Some((outcome, result)) = self.carry_out(command) else { continue };
                if self.is_nothing() {
                    ended();
                    let _ = outcome.send(result);
                    return;
                }
                self.publish(None);
                let _ = outcome.send(result);
            }
            self.go_on_replacing();
            if self.replacing.is_empty() && self.resume_at.is_some_and(|at| at <= Instant::now()) {
                self.resume();
                if self.is_nothing() {
                    return ended();
                }
            }
            self.supervise();
        }
    }

    /// Does what it is told: whom to tell what came of it, unless that is for later.
    fn carry_out(&mut self, command: Command) -> Option<(Sender<Outcome>, Outcome)> {
        match command {
            Command::Apply(target, events, outcome) => Some((outcome, self.apply(&target, &events))),
            Command::Scale(pool, replicas, events, outcome) => Some((outcome, self.scale(&pool, replicas, &events))),
            Command::Remove(events, outcome) => Some((outcome, self.remove(&events))),
            Command::Replace(function, events, outcome) => {
                self.replace(function, events, outcome);
                None
            }
            Command::CoresChanged => {
                self.follow_shared_cores();
                None
            }
        }
    }

    fn follow_shared_cores(&mut self) {
        self.functions.values_mut().for_each(Function::follow_shared_cores);
        self.links.values().filter_map(|link| link.pump.as_ref()).for_each(Pump::follow_shared_cores);
    }

    fn is_nothing(&self) -> bool {
        self.functions.is_empty()
            && self.links.is_empty()
            && matches!(record::load_descriptor(&self.node.paths, &self.name), Ok(None))
    }

    /// Waits for a command, the end of a process, or the time to start one. Replacements go on meanwhile.
    fn wait(&mut self, wake: &OwnedFd) {
        while !self.wait_a_moment(wake) && !self.go_on_replacing() {}
        let _ = rustix::io::read(wake, &mut [0; 8]);
    }

    /// The same, as long as no replacement is to be looked after. Whether something has happened.
    fn wait_a_moment(&self, wake: &OwnedFd) -> bool {
        let replacing = !self.replacing.is_empty();
        let resume_at = self.resume_at.filter(|_| !replacing);
        let due = self.lives().filter_map(Supervised::start_at).chain(resume_at).min();
        let timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
        let timeout = if replacing { Some(timeout.map_or(LOOK_EVERY, |due| due.min(LOOK_EVERY))) } else { timeout };
        let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        fds.extend(
            self.lives().filter_map(Supervised::process).map(|process| PollFd::new(process.fd(), PollFlags::IN)),
        );
        let ready = poll(&mut fds, timeout.as_ref()).unwrap_or(0);
        ready > 0 || !replacing || due.is_some_and(|due| due <= Instant::now())
    }

    fn lives(&self) -> impl Iterator<Item = &Supervised> {
        let pumps = self.links.values().filter_map(|link| link.pump.as_ref());
        self.functions.values().map(|function| &function.run).chain(pumps.map(|pump| &pump.run))
    }

    /// Notices ends, and starts what is due.
    fn supervise(&mut self) {
        // A replacement looks after both of its processes.
        let functions = self.functions.iter_mut().filter(|(name, _)| !self.replacing.contains_key(*name));
        let functions = functions.map(|(_, function)| function as &mut dyn Supervise);
        let pumps =
            self.links.values_mut().filter_map(|link| link.pump.as_mut()).map(|pump| pump as &mut dyn Supervise);
        let mut changed = false;
        for supervised in functions.chain(pumps) {
            changed |= supervised.look_after(&self.name);
        }
        if changed {
            self.store_record(&[], &[]);
        }
    }

    fn failure(&self, error: &anyhow::Error) -> Failure {
        tracing::error!("slice {}: {error:#}", self.name);
        Failure { message: format!("slice {}: {error:#}", self.name), details: self.last_words(error) }
    }

    /// What the function that an error names had last said.
    fn last_words(&self, error: &anyhow::Error) -> Vec<String> {
        let text = format!("{error:#}");
        let named = self.functions.keys().find(|name| text.starts_with(&format!("function {name}:")));
        let lines = named.map(|name| crate::logs::last(&self.node.paths.logs(&self.name), name, Some(5)));
        let text = |event| match event {
            Event::Line { text, .. } => Some(text),
            _ => None,
        };
        lines.unwrap_or_default().into_iter().filter_map(text).collect()
    }
}
