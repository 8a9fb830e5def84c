//! A link between two ports, or a port and the outside, by the mechanism that its ends call for.
//!
//! | ends | mechanism |
//! |---|---|
//! | shared memory, shared memory | a link of the broker |
//! | kernel, kernel | a veth pair |
//! | shared memory, kernel | a TAP in the kernel end's sandbox, and a pump |
//! | kernel, interface of the host | a macvlan interface in the sandbox |
//! | kernel, veth to the host | a veth pair, one end in the host's own network |
//! | shared memory, interface of the host | a macvtap interface in the sandbox, and a pump |
//! | shared memory, veth to the host | a TAP in the host's own network, and a pump |

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use runtime::net::{self, Interface, Namespace};
use runtime::{FunctionId, IdRanges, Sandbox};
use slice::{Cidr, Link, Outside, Port};
use vport::broker::{EndSpec, LinkKind, LinkSpec, RING_BYTES_DEFAULT};
use vport::info::{PortInfo, derived_mac};
use vport::steering::Steering;

use crate::function::serve_socket;
use crate::node::Node;
use crate::process::{self, Process, ProcessId};
use crate::pump;
use crate::record::ProcessRecord;
use crate::supervised::{Supervise, Supervised};

/// One end of a link, with all that is needed to reach it.
pub(crate) enum EndPoint<'a> {
    /// A port of a function.
    Port {
        /// The function.
        id: &'a FunctionId,
        /// Its sandbox.
        sandbox: &'a Sandbox,
        /// The port.
        port: &'a Port,
    },
    /// A port of a pool, which is shared memory.
    Pool {
        /// The pool.
        id: FunctionId,
        /// All replicas that there can be.
        members: Vec<String>,
        /// The port of each.
        port: &'a Port,
    },
    /// Something of the host.
    Outside(&'a Outside),
}

impl EndPoint<'_> {
    /// The end as the broker knows it, if it is shared memory.
    fn shared(&self) -> Option<EndSpec> {
        match self {
            Self::Port { id, port, .. } if !port.is_kernel() => Some(EndSpec::of(id.to_string(), port_info(id, port))),
            Self::Pool { id, members, port } => {
                let member = |name: &String| format!("{}/{name}", id.slice());
                Some(EndSpec { functions: members.iter().map(member).collect(), port: port_info(id, port) })
            }
            _ => None,
        }
    }

    /// The network and the interface that it is there, if it is the kernel's.
    fn kernel(&self) -> Result<(Namespace, Interface)> {
        match self {
            Self::Port { id, sandbox, port } if port.is_kernel() => Ok((sandbox.net()?, kernel_interface(id, port))),
            _ => bail!("an end is no interface of a container"),
        }
    }
}

/// A link that exists.
pub(crate) struct ActiveLink {
    /// As it was described when it was made.
    pub(crate) spec: Link,
    /// Its pump, if it has one.
    pub(crate) pump: Option<Pump>,
    /// Whether nobody has begun to take it away.
    pub(crate) is_whole: bool,
}

/// What makes a link the same link whatever it is called: its two ends.
pub(crate) fn key(link: &Link) -> String {
    let mut ends = link.between.each_ref().map(ToString::to_string);
    ends.sort();
    ends.join("--")
}

/// The broker's name of a link.
pub(crate) fn broker_name(slice: &str, link: &Link) -> String {
    format!("{slice}/{}", key(link))
}

/// How the broker carries a link between two ports that share memory.
pub(crate) fn kind(slice: &str, described: &slice::Slice, link: &Link) -> LinkKind {
    match described.trust_group(link) {
        None if link.kind == slice::LinkKind::SharedRecords => LinkKind::SharedRecords,
        None => LinkKind::Direct,
        Some(group) => LinkKind::ZeroCopy { group: format!("{slice}/{group}") },
    }
}

/// Size of each of its rings.
pub(crate) fn ring_bytes(link: &Link) -> u64 {
    link.ring_size.map_or(RING_BYTES_DEFAULT.into(), |size| size.0)
}

/// Makes the link, or finds it made; with a record of its pump, goes on with that.
pub(crate) fn establish(
    node: &Arc<Node>,
    slice: &str,
    link: &Link,
    kind: LinkKind,
    ends: [EndPoint<'_>; 2],
    former: Option<&ProcessRecord>,
) -> Result<ActiveLink> {
    let made = match &ends {
        [EndPoint::Outside(_), EndPoint::Outside(_)] => bail!("both ends are outside"),
        [port, EndPoint::Outside(outside)] | [EndPoint::Outside(outside), port] => {
            join_outside(node, slice, link, port, outside, former)
        }
        _ => join_ports(node, slice, link, kind, &ends, former),
    };
    let pump = made.with_context(|| format!("link {}", link.label()))?;
    Ok(ActiveLink { spec: link.clone(), pump, is_whole: true })
}

fn join_ports(
    node: &Arc<Node>,
    slice: &str,
    link: &Link,
    kind: LinkKind,
    ends: &[EndPoint<'_>; 2],
    former: Option<&ProcessRecord>,
) -> Result<Option<Pump>> {
    let [one, other] = ends;
    match (one.shared(), other.shared()) {
        (Some(one), Some(other)) => {
            join_shared(node, slice, link, kind, [one, other])?;
            Ok(None)
        }
        (None, None) => {
            let ((a, p), (b, q)) = (one.kernel()?, other.kernel()?);
            net::veth((&a, &p.name), (&b, &q.name))?;
            net::configure(&a, &p)?;
            net::configure(&b, &q)?;
            Ok(None)
        }
        (Some(shared), None) => pump_to_tap(node, slice, link, shared, &other.kernel()?, former),
        (None, Some(shared)) => pump_to_tap(node, slice, link, shared, &one.kernel()?, former),
    }
}

fn join_outside(
    node: &Arc<Node>,
    slice: &str,
    link: &Link,
    end: &EndPoint<'_>,
    outside: &Outside,
    former: Option<&ProcessRecord>,
) -> Result<Option<Pump>> {
    match (outside, end.shared()) {
        (Outside::Interface(host), None) => {
            let (inside, interface) = end.kernel()?;
            net::macvlan(&inside, &interface.name, host)?;
            net::configure(&inside, &interface)?;
            Ok(None)
        }
        (Outside::Veth { name, addresses }, None) => {
            let ((inside, interface), host) = (end.kernel()?, Namespace::host()?);
            let mtu = interface.mtu;
            net::veth((&inside, &interface.name), (&host, name))?;
            net::configure(&inside, &interface)?;
            net::configure(&host, &host_interface(slice, name, addresses, mtu))?;
            Ok(None)
        }
        (Outside::Interface(host), Some(shared)) => {
            let EndPoint::Port { id, sandbox, port } = end else { bail!("a pool has no interface of the host") };
            let (inside, interface) = (sandbox.net()?, hidden_interface(port));
            let make = || Ok(net::macvtap(&inside, &interface, host)?);
            let pump = Pump::establish(node, slice, link, shared, make, former)?;
            let wanted = Interface {
                name: interface.clone(),
                mac: Some(mac(id, port)),
                mtu: Some(u32::from(port.mtu)),
                ..Interface::default()
            };
            net::configure(&inside, &wanted)?;
            Ok(Some(pump))
        }
        (Outside::Veth { name, addresses }, Some(shared)) => {
            let mtu = Some(u32::from(shared.port.mtu));
            let wanted = (Namespace::host()?, host_interface(slice, name, addresses, mtu));
            pump_to_tap(node, slice, link, shared, &wanted, former)
        }
    }
}

/// A link of the broker between two functions, with the segments that the keeper has of it, and what is known of its pool.
fn join_shared(node: &Node, slice: &str, link: &Link, kind: LinkKind, ends: [EndSpec; 2]) -> Result<()> {
    let name = broker_name(slice, link);
    let ring_bytes = u32::try_from(ring_bytes(link))?;
    let pool = ends.iter().find(|end| end.functions.len() > 1);
    node.deposits.begin(&name, pool);
    let kept = node.deposits.of(&name);
    let pool = pool.map(|end| end.functions[0].clone());
    let spec = LinkSpec { name, ends, ring_bytes, kind };
    node.broker.add_link(spec.clone())?;
    if let Some(first) = pool
        && let Some(ownership) = node.deposits.ownership(&first)
        && let Err(e) = node.broker.recall(&first, ownership)
    {
        tracing::error!("{e}; its replicas are started anew");
    }
    if !kept.is_empty() {
        node.broker.adopt(spec, kept)?;
    }
    Ok(())
}

fn pump_to_tap(
    node: &Arc<Node>,
    slice: &str,
    link: &Link,
    shared: EndSpec,
    (namespace, interface): &(Namespace, Interface),
    former: Option<&ProcessRecord>,
) -> Result<Option<Pump>> {
    let make = || Ok(net::tap(namespace, &interface.name)?);
    let pump = Pump::establish(node, slice, link, shared, make, former)?;
    net::configure(namespace, interface)?;
    Ok(Some(pump))
}

/// Takes a link away, by its description alone. The sandboxes of its kernel ends are there yet, or their interfaces are gone
/// with them.
pub(crate) fn remove(
    node: &Node,
    slice: &str,
    link: &Link,
    ports: &dyn Fn(&slice::PortRef) -> Option<Port>,
) -> Result<()> {
    let name = broker_name(slice, link);
    let _ = node.broker.remove_link(&name);
    node.deposits.end(&name);
    Pump::remove(node, &pump_id(slice, link)?)?;
    // Nothing is removed from the host's network by its name, which may be another's by now: what the link has there goes with the
    // pair's other end, or with the last descriptor of a TAP.
    for at in link.between.iter().filter_map(slice::End::port) {
        let id = FunctionId::new(slice, &at.function)?;
        let (Some(port), Some(sandbox)) = (ports(at), Sandbox::open(&node.layout, &id)?) else { continue };
        let hidden = hidden_interface(&port);
        net::remove(&sandbox.net()?, port.interface.as_deref().unwrap_or(&hidden))?;
    }
    Ok(())
}

/// The process between a shared-memory port and an interface of the kernel.
pub(crate) struct Pump {
    node: Arc<Node>,
    id: FunctionId,
    uid: u32,
    /// The queue of a TAP or macvtap interface.
    interface: OwnedFd,
    port: PortInfo,
    /// Its life.
    pub(crate) run: Supervised,
}

/// Name of the one port that a pump has.
const PUMP_PORT: &str = "pump";

impl Pump {
    fn establish(
        node: &Arc<Node>,
        slice: &str,
        link: &Link,
        shared: EndSpec,
        make: impl FnOnce() -> Result<OwnedFd>,
        former: Option<&ProcessRecord>,
    ) -> Result<Self> {
        let id = pump_id(slice, link)?;
        let ids = IdRanges::allocate(&node.layout, &id)?;
        let run = former.map(|record| Self::adopt(node, record, ids.first)).unwrap_or_default();
        let interface = Self::interface(node, &id, &run, ids.first, make)?;
        node.keeper.store(&interface_label(&id), interface.as_fd())?;
        let port = PortInfo { queues: 1, steering: Steering::None, mtu: shared.port.mtu, ..PortInfo::named(PUMP_PORT) };
        let own = EndSpec::of(id.to_string(), port.clone());
        join_shared(node, slice, link, LinkKind::Direct, [shared, own])?;
        let directory = node.paths.pump(slice, id.function());
        serve_socket(node, &id.to_string(), &socket_label(&id), directory, ids.first..ids.first + 1)?;
        let mut pump = Self { node: node.clone(), id, uid: ids.first, interface, port, run };
        if pump.run.process().is_none() {
            pump.start()?;
        }
        Ok(pump)
    }

    /// Goes on with the process that a former daemon started, also where it was killed before it could note it.
    fn adopt(node: &Node, record: &ProcessRecord, uid: u32) -> Supervised {
        let mut run = Supervised::adopt(record);
        if run.process().is_none()
            && let Some(process) = process::of_user(uid, &node.paths.run).into_iter().find_map(Process::open)
        {
            run.started(process);
        }
        run
    }

    /// The keeper's descriptor, or the one that the running pump has, or a new one.
    fn interface(
        node: &Node,
        id: &FunctionId,
        run: &Supervised,
        uid: u32,
        make: impl FnOnce() -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        if let Some(kept) = node.keeper.fetch(&interface_label(id)) {
            return Ok(kept);
        }
        if let Some(process) = run.process()
            && let Ok(found) = process.descriptor(0)
        {
            return Ok(found);
        }
        process::kill_all_of(uid, &node.paths.run);
        make()
    }

    /// Keeps it off the cores that functions have for themselves.
    pub(crate) fn follow_shared_cores(&self) {
        if let Some(process) = self.run.process() {
            process::set_cores(process.id.pid, &self.node.cores().shared());
        }
    }

    /// The user that it runs as.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Takes all pumps of a slice away, whichever links they are of.
    pub(crate) fn remove_all(node: &Node, slice: &str) -> Result<()> {
        let directories = match std::fs::read_dir(node.paths.pumps().join(slice)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            directories => directories?,
        };
        for directory in directories {
            if let Some(name) = directory?.file_name().to_str() {
                Self::remove(node, &FunctionId::new(slice, name)?)?;
            }
        }
        Ok(())
    }

    fn remove(node: &Node, id: &FunctionId) -> Result<()> {
        // It is stored before anything else of a pump is made.
        node.keeper.discard(&interface_label(id));
        let directory = node.paths.pump(id.slice(), id.function());
        if !directory.exists() {
            // It may have had no more than its ids when it failed.
            return Ok(IdRanges::release(&node.layout, id)?);
        }
        let ids = IdRanges::allocate(&node.layout, id)?;
        process::kill_all_of(ids.first, &node.paths.run);
        let _ = node.broker.remove_function(&id.to_string());
        node.keeper.discard(&socket_label(id));
        std::fs::remove_dir_all(&directory)?;
        let _ = directory.parent().map(std::fs::remove_dir);
        Ok(IdRanges::release(&node.layout, id)?)
    }
}

impl Supervise for Pump {
    fn run(&mut self) -> &mut Supervised {
        &mut self.run
    }

    fn start(&mut self) -> Result<()> {
        process::kill_all_of(self.uid, &self.node.paths.run);
        let socket = self.node.paths.pump(self.id.slice(), self.id.function()).join("ports.sock");
        let command = pump::command(self.uid, &socket, &self.port)?;
        let log = std::io::stderr();
        let pid = self.node.keeper.spawn(&command, [self.interface.as_fd(), self.node.null(), log.as_fd()])?;
        let process = ProcessId::of(pid).and_then(Process::open).context("the pump ended at once")?;
        self.run.started(process);
        self.follow_shared_cores();
        Ok(())
    }

    fn ended(&mut self) {
        let Some(pid) = self.run.process().map(|process| process.id.pid) else { return };
        let status = self.node.keeper.reap(pid);
        self.run.ended(status, slice::Restart::Always);
        tracing::warn!("{}: ended: {}", self.id, self.run.record().last_exit.as_deref().unwrap_or_default());
    }
}

/// The broker's name of the pump of a link, whether it has one or not.
pub(crate) fn pump_name(slice: &str, link: &Link) -> Option<String> {
    pump_id(slice, link).ok().map(|id| id.to_string())
}

/// A name for the pump of a link that serves as a directory and for its user ids.
fn pump_id(slice: &str, link: &Link) -> Result<FunctionId> {
    let [_, _, a, b, c, d] = derived_mac(&key(link));
    Ok(FunctionId::new(slice, &format!("pump-{a:02x}{b:02x}{c:02x}{d:02x}"))?)
}

fn interface_label(id: &FunctionId) -> String {
    format!("interface {id}")
}

fn socket_label(id: &FunctionId) -> String {
    format!("socket {id}")
}

fn port_info(id: &FunctionId, port: &Port) -> PortInfo {
    PortInfo {
        name: port.name.clone(),
        mac: mac(id, port),
        mtu: port.mtu,
        queues: port.queues,
        steering: match port.steering {
            slice::Steering::None => Steering::None,
            slice::Steering::Teid => Steering::Teid,
            slice::Steering::UeAddress => Steering::UeAddress,
            slice::Steering::FiveTuple => Steering::FiveTuple,
        },
        addresses: port.addresses.iter().map(|a| (a.address, a.prefix)).collect(),
        routes: port
            .routes
            .iter()
            .map(|route| vport::info::Route { to: route.to.network(), prefix: route.to.prefix, via: route.via })
            .collect(),
    }
}

/// The port's address: as described, or made from its names, so that it stays over every restart.
fn mac(id: &FunctionId, port: &Port) -> [u8; 6] {
    port.mac.map_or_else(|| derived_mac(&format!("{id}/{}", port.name)), |mac| mac.0)
}

fn interface_name(port: &Port) -> &str {
    port.interface.as_deref().unwrap_or(&port.name)
}

/// An interface in the sandbox that belongs to the pump, not to the function's programs.
fn hidden_interface(port: &Port) -> String {
    let [_, _, a, b, c, d] = derived_mac(&port.name);
    format!("pump{a:02x}{b:02x}{c:02x}{d:02x}")
}

fn kernel_interface(id: &FunctionId, port: &Port) -> Interface {
    Interface {
        name: interface_name(port).to_owned(),
        mac: Some(mac(id, port)),
        mtu: Some(u32::from(port.mtu)),
        addresses: port.addresses.iter().map(prefix).collect(),
        routes: port
            .routes
            .iter()
            .map(|route| net::Route { to: (route.to.network(), route.to.prefix), via: Some(route.via) })
            .collect(),
    }
}

fn host_interface(slice: &str, name: &str, addresses: &[Cidr], mtu: Option<u32>) -> Interface {
    Interface {
        name: name.to_owned(),
        mac: Some(derived_mac(&format!("{slice}/host:{name}"))),
        mtu,
        addresses: addresses.iter().map(prefix).collect(),
        routes: Vec::new(),
    }
}

fn prefix(cidr: &Cidr) -> net::Prefix {
    (cidr.address, cidr.prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(text: &str) -> Link {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_link_is_the_same_whatever_its_name_and_whichever_end_comes_first() {
        let one = link(r#"{"name": "n3", "between": ["ran/n3", "upf/n3"]}"#);
        let other = link(r#"{"between": ["upf/n3", "ran/n3"], "maxLatency": "1ms"}"#);
        assert_eq!(key(&one), "ran/n3--upf/n3");
        assert_eq!(key(&one), key(&other));
        assert_eq!(pump_id("s", &one).unwrap(), pump_id("s", &other).unwrap());
    }

    #[test]
    fn names_of_hidden_interfaces_fit_the_kernel() {
        let port: Port = serde_json::from_str(&format!(r#"{{"name": "{}"}}"#, "p".repeat(63))).unwrap();
        assert!(hidden_interface(&port).len() < 16);
    }
}
