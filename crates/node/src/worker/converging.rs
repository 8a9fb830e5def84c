//! What lies between what there is and what shall be: which containers and links go, and which are made.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;

use anyhow::{Context, Result};
use runtime::{FunctionId, Image};
use slice::{Link, Slice};

use super::{Worker, images};
use crate::control::Event;
use crate::function::{self, Function};
use crate::link::{self, ActiveLink, EndPoint};
use crate::plan::Plan;
use crate::record;
use crate::supervised::Supervise;

impl Worker {
    /// Does what lies between what exists and `target`, and nothing else. Whatever was done is noted when it fails, so that
    /// converging again goes on from there.
    pub(super) fn converge(&mut self, target: &Slice, events: &Sender<Event>) -> Result<usize> {
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
        let images = images::of_each(containers, &self.images, |function| function::resolve(&self.node, function))?;
        self.store_record(&target.spec.functions, &target.spec.links);

        self.take_down(&plan, &say)?;
        self.make_functions(&plan, target, images)?;
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

    /// Takes away what goes, and stops what is made anew.
    fn take_down(&mut self, plan: &Plan, say: &dyn Fn(String, &str)) -> Result<()> {
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
        let leaving = node.pools.leave(&node, plan.leave.iter().map(|name| self.id(name)).collect(), say);
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
        Ok(())
    }

    /// Makes the containers that are to be started.
    fn make_functions(&mut self, plan: &Plan, target: &Slice, mut images: BTreeMap<String, Image>) -> Result<()> {
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
        Ok(())
    }

    /// What the broker calls a container.
    fn id(&self, container: &str) -> String {
        format!("{}/{container}", self.name)
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

    pub(super) fn establish(&self, link: &Link, former: Option<&record::ProcessRecord>) -> Result<ActiveLink> {
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
}
