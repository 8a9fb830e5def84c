//! One slice: makes it be as described, and keeps it so. A thread of its own, so that slices do not wait for each other.

mod images;
mod resuming;
mod scaling;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use runtime::{FunctionId, Sandbox};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use slice::{Link, Pool, Slice, Spec};

use images::Images;
pub(crate) use resuming::keep_cores;

use crate::backoff::Backoff;
use crate::control::{Event, Failure, Process, ProcessKind, ProcessState, SliceState};
use crate::cores;
use crate::function::{self, Function};
use crate::link::{self, ActiveLink, EndPoint, Pump};
use crate::logs::now_ns;
use crate::node::Node;
use crate::plan::Plan;
use crate::record::{self, Record};
use crate::replace::{LOOK_EVERY, Next, Replaced, Replacement};
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

/// A replacement, and who waits for it.
struct Replacing {
    replacement: Replacement,
    events: Sender<Event>,
    outcome: Sender<Outcome>,
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

    /// Makes the slice be as described; where that fails, as it was to be before.
    fn apply(&mut self, target: &Slice, events: &Sender<Event>) -> Outcome {
        let former = self.described();
        let target = &as_many_as_before(target, former.as_ref());
        if let Some(function) = self.is_replacing_for(target) {
            return Err(self.unchanged(&format!("function {function} is being replaced: ask again when it is")));
        }
        record::store_descriptor(&self.node.paths, target)
            .map_err(|e| self.unchanged(&format!("the descriptor cannot be kept: {e}")))?;
        if self.resume_at.take().is_none() {
            self.note_images();
        }
        self.publish(Some(SliceState::Changing));
        let error = match self.converge(target, events) {
            Ok(changes) => return Ok(changes),
            Err(error) => error,
        };
        let Failure { message, mut details } = self.failure(&error);
        details.push(match self.undo(former.as_ref(), events) {
            Ok(()) if former.is_none() => "nothing of the slice is left".into(),
            Ok(()) => "the slice is as it was before".into(),
            Err(e) => format!("and undoing it failed, too, and is tried again: {e:#}"),
        });
        Err(Failure { message, details })
    }

    /// What shall be: where that cannot be read, what there is.
    fn described(&self) -> Option<Slice> {
        let there = || Some(self.actual()).filter(|there| !there.spec.functions.is_empty());
        record::load_descriptor(&self.node.paths, &self.name).unwrap_or_else(|_| there())
    }

    fn note_images(&mut self) {
        let of = |function: &Function| Some((function.spec.image.clone(), function.image()?.clone()));
        self.images =
            self.functions.iter().filter_map(|(name, function)| Some((name.clone(), of(function)?))).collect();
    }

    fn unchanged(&self, reason: &str) -> Failure {
        Failure { message: format!("slice {}: {reason}", self.name), details: vec!["nothing was changed".into()] }
    }

    /// The former description holds again, and what is, is brought to it, now or later.
    fn undo(&mut self, former: Option<&Slice>, events: &Sender<Event>) -> Result<()> {
        match former {
            Some(former) => record::store_descriptor(&self.node.paths, former)?,
            None => record::remove_descriptor(&self.node.paths, &self.name)?,
        }
        let undone = self.become_as(former, events);
        if undone.is_err() {
            self.resume_later();
        }
        undone
    }

    /// Brings what is to what shall be; none: nothing.
    fn become_as(&mut self, described: Option<&Slice>, events: &Sender<Event>) -> Result<()> {
        match described {
            Some(target) => self.converge(target, events).map(drop),
            None => self.clear(events),
        }
    }

    /// Has another container of a function take over; where that fails, all is as it was.
    fn replace(&mut self, name: String, events: Sender<Event>, outcome: Sender<Outcome>) {
        let begun = match self.functions.get_mut(&name) {
            None => Err(anyhow!("there is no function {name}")),
            Some(_) if self.replacing.contains_key(&name) => Err(anyhow!("function {name}: is being replaced already")),
            Some(function) => Replacement::begin(function, &self.node),
        };
        match begun {
            Ok(replacement) => drop(self.replacing.insert(name, Replacing { replacement, events, outcome })),
            Err(error) => drop(outcome.send(Err(self.failure(&error)))),
        }
    }

    /// Looks how far replacements are. Whether one was concluded.
    fn go_on_replacing(&mut self) -> bool {
        let mut ended = Vec::new();
        let mut handed_over = false;
        for (name, Replacing { replacement, .. }) in &mut self.replacing {
            let Some(function) = self.functions.get_mut(name) else { continue };
            match replacement.proceed(function, &self.node) {
                Ok(Next::Look) => {}
                Ok(Next::Record) => handed_over = true,
                Ok(Next::Conclude) => ended.push((name.clone(), Ok(()))),
                Err(error) => ended.push((name.clone(), Err(error))),
            }
        }
        if handed_over {
            self.store_record(&[], &[]);
        }
        let any = !ended.is_empty();
        for (name, how) in ended {
            self.end_replacement(&name, how);
        }
        any
    }

    /// Concludes a replacement, or gives it up.
    fn end_replacement(&mut self, name: &str, how: Result<()>) {
        let replacing = self.replacing.remove(name).zip(self.functions.get_mut(name));
        let Some((Replacing { replacement, events, outcome }, function)) = replacing else { return };
        let result = match how {
            Ok(()) => {
                let Replaced { former, pid } = replacement.conclude(function, &self.node);
                let action = format!("process {pid} has taken over from process {former}");
                let _ = events.send(Event::Progress { subject: format!("function {name}"), action });
                Ok(1)
            }
            Err(error) => {
                replacement.give_up(function, &self.node);
                Err(self.failure(&error))
            }
        };
        self.store_record(&[], &[]);
        self.publish(None);
        let _ = outcome.send(result);
    }

    /// A function that is being replaced and would have to change for this.
    fn is_replacing_for(&self, target: &Slice) -> Option<String> {
        let plan = Plan::new(&self.actual(), target, &self.there());
        let down = plan.links_down.iter().filter_map(|key| self.links.get(key)).map(|link| &link.spec);
        let ends = down.chain(&plan.links_up).flat_map(|link| link.between.iter().filter_map(slice::End::port));
        let mut touched = ends.map(|at| &at.function).chain(&plan.stop).chain(&plan.start);
        touched.find(|name| self.replacing.contains_key(*name)).cloned()
    }

    /// The containers that there are, and of each whether it was not started.
    fn there(&self) -> BTreeMap<String, bool> {
        self.functions.iter().map(|(name, function)| (name.clone(), function.run.is_idle())).collect()
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

    /// Takes everything away.
    fn remove(&mut self, events: &Sender<Event>) -> Outcome {
        while let Some(name) = self.replacing.keys().next().cloned() {
            self.end_replacement(
                &name,
                Err(anyhow!("function {name}: is not replaced, since its slice is taken away")),
            );
        }
        self.resume_at = None;
        self.publish(Some(SliceState::Changing));
        let count = self.functions.len() + self.links.len();
        let removed = record::remove_descriptor(&self.node.paths, &self.name).map_err(Into::into);
        removed.and_then(|()| self.clear(events)).map(|()| count).map_err(|e: anyhow::Error| Failure {
            message: format!("slice {}: {e:#}", self.name),
            details: vec!["what is left is taken away by another `kaista down`".into()],
        })
    }

    fn clear(&mut self, events: &Sender<Event>) -> Result<()> {
        self.converge(&empty_slice(&self.name), events)?;
        self.sweep()?;
        Ok(Record::remove(&self.node.paths, &self.name)?)
    }

    /// Takes away by name what no record could tell of.
    fn sweep(&self) -> Result<()> {
        Pump::remove_all(&self.node, &self.name)?;
        for id in Sandbox::list(&self.node.layout)?.into_iter().filter(|id| id.slice() == self.name) {
            function::remove(&self.node, &self.name, id.function())?;
        }
        self.node.deposits.end_all(&self.name);
        Ok(())
    }

    /// What exists, as a description. Of a pool, that is as many replicas as the number of the last one says.
    fn actual(&self) -> Slice {
        let mut slice = empty_slice(&self.name);
        let mut specs: BTreeMap<&str, slice::Function> = BTreeMap::new();
        for (name, function) in &self.functions {
            let described = &function.spec;
            let spec = specs.entry(&described.name).or_insert_with(|| {
                let pool = described.pool.map(|pool| Pool { replicas: None, ..pool });
                slice::Function { pool, ..described.clone() }
            });
            if let Some(pool) = &mut spec.pool {
                let number = described.members().iter().take_while(|member| *member != name).count() as u16 + 1;
                pool.replicas = pool.replicas.max(Some(number));
            }
        }
        slice.spec.functions = specs.into_values().collect();
        slice.spec.links = self.links.values().map(|link| link.spec.clone()).collect();
        slice
    }

    /// What the broker calls a container.
    fn id(&self, container: &str) -> String {
        format!("{}/{container}", self.name)
    }

    /// Does what lies between what exists and `target`, and nothing else. Whatever was done is noted when it fails, so that
    /// converging again goes on from there.
    fn converge(&mut self, target: &Slice, events: &Sender<Event>) -> Result<usize> {
        self.remove_halves()?;
        let plan = Plan::new(&self.actual(), target, &self.there());
        if plan.is_empty() {
            return Ok(0);
        }
        let say = |subject: String, action: &str| {
            let _ = events.send(Event::Progress { subject, action: action.to_owned() });
        };
        // Images first: most of what can fail, fails before anything was touched.
        let containers = plan.start.iter().filter_map(|name| Some((name, target.function_of(name)?)));
        let mut images = images::of_each(containers, &self.images, |function| function::resolve(&self.node, function))?;
        self.store_record(&target.spec.functions, &target.spec.links);

        for key in &plan.links_down {
            self.remove_link(key)?;
            say(format!("link {key}"), "removed");
        }
        for link in &plan.links_renamed {
            if let Some(active) = self.links.get_mut(&link::key(link)) {
                active.spec = link.clone();
            }
        }
        let node = self.node.clone();
        let leaving = node.pools.leave(&node, plan.leave.iter().map(|name| self.id(name)).collect(), &say);
        let stop: Vec<&mut Function> = self
            .functions
            .iter_mut()
            .filter(|(name, _)| plan.stop.contains(*name))
            .map(|(_, function)| function)
            .collect();
        function::stop(&mut { stop })?;
        for name in &plan.remove {
            self.remove_function(name)?;
            say(format!("function {name}"), "removed");
        }
        drop(leaving);
        for name in &plan.start {
            let Some((spec, image)) = target.function_of(name).zip(images.remove(name)) else { continue };
            match self.functions.get_mut(name) {
                Some(function) => function.redescribe(spec, image)?,
                None => {
                    let made = FunctionId::new(&self.name, name)
                        .map_err(Into::into)
                        .and_then(|id| Function::create(&self.node, id, spec, image));
                    if made.is_err()
                        && let Err(e) = function::remove(&self.node, &self.name, name)
                    {
                        tracing::error!("slice {}: {e:#}", self.name);
                    }
                    self.functions.insert(name.clone(), made?);
                }
            }
        }
        (self.cores_changed)();
        self.follow_shared_cores();
        for link in &plan.links_up {
            self.add_link(link)?;
            say(format!("link {}", link.label()), "made");
        }
        for name in &plan.start {
            if let Some(function) = self.functions.get_mut(name) {
                function.start()?;
                say(format!("function {name}"), "started");
            }
        }
        self.store_record(&[], &[]);
        Ok(plan.count)
    }

    /// Takes away what a former attempt has left half of: if it shall be, it is made anew.
    fn remove_halves(&mut self) -> Result<()> {
        let links = self.links.iter().filter(|(_, link)| !link.is_whole).map(|(key, _)| key.clone());
        let functions =
            self.functions.iter().filter(|(_, function)| !function.is_whole()).map(|(name, _)| name.clone());
        let (links, functions): (Vec<_>, Vec<_>) = (links.collect(), functions.collect());
        links.iter().try_for_each(|key| self.remove_link(key))?;
        functions.iter().try_for_each(|name| self.remove_function(name))?;
        if !links.is_empty() || !functions.is_empty() {
            self.store_record(&[], &[]);
        }
        Ok(())
    }

    fn remove_function(&mut self, name: &str) -> Result<()> {
        if let Some(function) = self.functions.get_mut(name) {
            function.end_capture();
        }
        // Known until it is gone, so that another attempt is made.
        function::remove(&self.node, &self.name, name)?;
        self.functions.remove(name);
        Ok(())
    }

    fn add_link(&mut self, link: &Link) -> Result<()> {
        let made = self.establish(link, None);
        if made.is_err() {
            let ports = self.actual();
            let _ = link::remove(&self.node, &self.name, link, &|at| ports.port(at).cloned());
        }
        self.links.insert(link::key(link), made?);
        Ok(())
    }

    fn establish(&self, link: &Link, former: Option<&record::ProcessRecord>) -> Result<ActiveLink> {
        let slice = self.actual();
        let end = |end| self.end_point(&slice, end).with_context(|| format!("link {}", link.label()));
        let [one, other] = link.between.each_ref().map(end);
        let points = [one?, other?];
        link::establish(&self.node, &self.name, link, link::kind(&self.name, &slice, link), points, former)
    }

    fn end_point<'a>(&'a self, slice: &'a Slice, end: &'a slice::End) -> Result<EndPoint<'a>> {
        let missing = || format!("{end} does not exist");
        let at = match end {
            slice::End::Outside { host } => return Ok(EndPoint::Outside(host)),
            slice::End::Port(at) => at,
        };
        let (spec, port) = slice.function(&at.function).zip(slice.port(at)).with_context(missing)?;
        if spec.pool.is_some() {
            return Ok(EndPoint::Pool { id: FunctionId::new(&self.name, &spec.name)?, members: spec.members(), port });
        }
        let function = self.functions.get(&spec.name).with_context(missing)?;
        Ok(EndPoint::Port { id: function.id(), sandbox: function.sandbox(), port })
    }

    fn remove_link(&mut self, key: &str) -> Result<()> {
        let Some(active) = self.links.remove(key) else { return Ok(()) };
        let link = active.spec.clone();
        drop(active);
        let ports = self.actual();
        let removed = link::remove(&self.node, &self.name, &link, &|at| ports.port(at).cloned());
        if removed.is_err() {
            // Known yet, so that another attempt is made.
            self.links.insert(key.to_owned(), ActiveLink { spec: link, pump: None, is_whole: false });
        }
        removed
    }

    /// Notes what exists, and what is about to.
    fn store_record(&self, functions: &[slice::Function], links: &[Link]) {
        let mut actual = self.actual();
        for function in functions {
            let same = |there: &&mut slice::Function| {
                there.name == function.name && there.pool.map(|pool| pool.max) == function.pool.map(|pool| pool.max)
            };
            match actual.spec.functions.iter_mut().find(same) {
                None => actual.spec.functions.push(function.clone()),
                Some(there) => {
                    if let Some((there, pool)) = there.pool.as_mut().zip(function.pool) {
                        there.replicas = there.replicas.max(pool.replicas);
                    }
                }
            }
        }
        for link in links {
            if !self.links.contains_key(&link::key(link)) {
                actual.spec.links.push(link.clone());
            }
        }
        let pumps =
            self.links.iter().filter_map(|(key, link)| Some((key.clone(), link.pump.as_ref()?.run.record().clone())));
        let record = Record {
            actual,
            since_ms: self.since_ms,
            functions: self
                .functions
                .iter()
                .map(|(name, function)| (name.clone(), function.run.record().clone()))
                .collect(),
            images: self
                .functions
                .iter()
                .filter_map(|(name, function)| Some((name.clone(), function.image()?.clone())))
                .collect(),
            pumps: pumps.collect(),
            runtime: self.node.runtime_so_far(),
        };
        if let Err(e) = record.store(&self.node.paths) {
            tracing::error!("slice {}: its record cannot be kept: {e}", self.name);
        }
    }

    fn publish(&self, state: Option<SliceState>) {
        let processes: Vec<Process> =
            self.functions.values().map(|f| self.function_process(f)).chain(self.pump_processes()).collect();
        let waiting =
            self.resume_at.is_some() || processes.iter().any(|process| process.state == ProcessState::Waiting);
        let view = View {
            state: state.unwrap_or(if waiting { SliceState::Degraded } else { SliceState::Up }),
            since_ms: self.since_ms,
            actual: self.actual(),
            processes,
            containers: self.functions.iter().map(|(name, f)| (name.clone(), f.container().clone())).collect(),
        };
        *self.view.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = view;
    }

    fn function_process(&self, function: &Function) -> Process {
        let (name, cores) = (function.id().function(), cores::list(function.cores()));
        let described = process(&self.name, name, ProcessKind::Function, &function.run, function.uid(), cores);
        let replica_of = function.spec.pool.map(|_| function.spec.name.clone());
        Process { replica_of, ..described }
    }

    fn pump_processes(&self) -> impl Iterator<Item = Process> {
        let shared = cores::list(&self.node.cores().shared());
        self.links.values().filter_map(move |link| {
            let pump = link.pump.as_ref()?;
            Some(process(&self.name, &link.spec.label(), ProcessKind::Pump, &pump.run, pump.uid(), shared.clone()))
        })
    }
}

/// The target, with the number of replicas that a pool was to have where it names none.
fn as_many_as_before(target: &Slice, former: Option<&Slice>) -> Slice {
    let mut target = target.clone();
    for function in &mut target.spec.functions {
        if let Some(pool) = &mut function.pool {
            let there = || former?.function(&function.name)?.pool?.replicas;
            pool.replicas = pool.replicas.or_else(there).or(Some(1)).map(|replicas| replicas.min(pool.max));
        }
    }
    target
}

fn process(slice: &str, name: &str, kind: ProcessKind, run: &Supervised, uid: u32, cpus: String) -> Process {
    let record = run.record();
    Process {
        slice: slice.to_owned(),
        name: name.to_owned(),
        kind,
        state: run.state(),
        pid: run.process().map(|process| process.id.pid),
        uid,
        cpus,
        started_ms: record.started_ms,
        restarts: record.restarts,
        last_exit: record.last_exit.clone(),
        memory_bytes: None,
        cpu_ns: None,
        replica_of: None,
        share: None,
    }
}
