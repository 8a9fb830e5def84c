//! The two functions that are compared, each on one thread over synthetic ports: the UPF's worker with its sessions in
//! force, and the plain forwarder. Both take the same frames.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};

use anyhow::Context;
use gtpu::Direction;
use port::synthetic::Synthetic;
use port::{Burst, PacketRef, PortInfo, QueuePair, RxQueue, TxCounters, TxQueue};
use traffic::forwarder::{Addresses, Forwarder};
use traffic::frame;
use traffic::generator::{Flow, SINK_PORT, SOURCE_PORT, Tunnel, packet};
use traffic::sizes::Sizes;
use upf::alarms::{self, AlarmReceiver};
use upf::bell::Bell;
use upf::buffers::Room;
use upf::clock::Clock;
use upf::drops::DropReason;
use upf::ip::UDP;
use upf::mail::{self, Inbox};
use upf::rules::{
    CpFSeid, Endpoint, FTeid, Far, FarAction, Forwarding, Interface, OuterHeaderCreation, OuterHeaderRemoval, Parting,
    Pdi, Pdr, Qer, SdfFilter, Session, UeIp,
};
use upf::side::{PortId, Side};
use upf::tables::{SessionUpdate, Settings, Tables};
use upf::trace::Tracer;
use upf::worker::{Assembly, Habits, Links, Worker};

use crate::line::Tally;

/// The way that packets go through the UPF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Way {
    /// From the RAN: a G-PDU comes in, the packet in it leaves.
    Uplink,
    /// To the RAN: a packet comes in, a G-PDU leaves.
    Downlink,
}

impl Way {
    /// Both ways.
    pub const BOTH: [Self; 2] = [Self::Uplink, Self::Downlink];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uplink => "uplink",
            Self::Downlink => "downlink",
        }
    }
}

/// Which of the two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Subject {
    /// [`Plain`].
    Forwarder,
    /// [`Upf`].
    Upf,
}

impl Subject {
    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forwarder => "forwarder",
            Self::Upf => "upf",
        }
    }
}

/// What the sessions and their packets look like.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Number of sessions.
    pub sessions: u32,
    /// How many of them have traffic.
    pub active: u32,
    /// What is in them.
    pub payload: Payload,
    /// PDRs each way. If there are several each has an SDF filter, and packets match the last one: those before differ from it
    /// in what is compared last.
    pub pdrs: u16,
}

/// Inner UDP payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// So many bytes in all packets.
    Bytes(usize),
    /// Those of each session have one of the sizes of [`MIX`].
    Mix,
}

/// Of the shares of the simple IMIX, with a longest that fits N3 both ways.
static MIX: LazyLock<Sizes> =
    LazyLock::new(|| Sizes::mix(&[(18, 7), (548, 4), (1_400, 1)]).expect("payloads have room for a stamp"));

impl Payload {
    /// Bytes in the packets of a session.
    pub fn of(self, session: u32) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Mix => MIX.of(session, 0),
        }
    }

    /// The most bytes that a packet has.
    pub fn largest(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Mix => MIX.largest(),
        }
    }

    /// The mean of all packets in bytes.
    pub fn mean(self) -> f64 {
        match self {
            Self::Bytes(bytes) => bytes as f64,
            Self::Mix => MIX.mean(),
        }
    }
}

impl Load {
    /// Packets of one size, one PDR each way.
    pub const fn of(sessions: u32, active: u32, payload: usize) -> Self {
        Self { sessions, active, payload: Payload::Bytes(payload), pdrs: 1 }
    }
}

const UPF_N3: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 1);
const UPF_N6: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 1);
/// The base station.
pub const GNB: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 2);
/// The host in the data network.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 2);
/// Ethernet address of the base station.
pub const GNB_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x32];
/// Ethernet address of the host in the data network.
pub const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x62];
/// QoS flow of all packets.
pub const QFI: u8 = 9;
/// No packet of a measurement meets its limit, but every one is held against it.
const MBR_BPS: u64 = 100_000_000_000;

/// The UPF: one worker, with sessions, a gate, a policer and a QFI each.
pub struct Upf {
    worker: Worker,
    sent: Arc<Tally>,
    _tables: Tables,
    _slow_path: Inbox,
    _alarms: AlarmReceiver,
}

/// The plain forwarder: takes from one port and sends back to it, Ethernet addresses swapped.
pub struct Plain {
    forwarder: Forwarder,
    sent: Arc<Tally>,
}

impl Upf {
    /// A UPF over synthetic ports that receives packets going `way`, all sessions in turn, over and over.
    pub fn new(way: Way, load: Load) -> anyhow::Result<Self> {
        let sent = Arc::new(Tally::default());
        Self::build(load, sent.clone(), |teids| {
            let frames = frames(way, load, teids);
            let (from_n3, from_n6) = if way == Way::Uplink { (frames, vec![]) } else { (vec![], frames) };
            Ok((queue(from_n3, n3(), &sent)?, queue(from_n6, n6(), &sent)?))
        })
    }

    /// A UPF over the given queues of N3 and N6, and the frames that make it work.
    pub fn over(way: Way, load: Load, n3: QueuePair, n6: QueuePair) -> anyhow::Result<(Self, Vec<Vec<u8>>)> {
        let mut made = vec![];
        let upf = Self::build(load, Arc::default(), |teids| {
            made = frames(way, load, teids);
            Ok((n3, n6))
        })?;
        Ok((upf, made))
    }

    fn build(
        load: Load,
        sent: Arc<Tally>,
        queues: impl FnOnce(&[u32]) -> anyhow::Result<(QueuePair, QueuePair)>,
    ) -> anyhow::Result<Self> {
        let (n3, n6) = (n3(), n6());
        let settings = Settings { max_sessions: load.sessions as usize, policer_burst_ms: 50, workers: 1 };
        let sides = (Side::new(&n3, &[]), Side::new(&n6, &[]));
        let (tables, mut readers) = Tables::new(&settings, sides.0, sides.1, Box::new(|_, _| {}));
        let mut reader = readers.pop().context("there is one worker")?;
        let refresh = || {
            reader.refresh();
            Ok(())
        };
        let teids = install(&tables, refresh, load)?;

        let (n3, n6) = queues(&teids)?;
        let (outbox, slow_path) = mail::channel(1 << 16, reader.bell(0));
        let (alarms, heard) = alarms::channel(Arc::new(Bell::new()?));
        let links = Links {
            inboxes: vec![],
            workers: vec![None],
            slow_path: outbox,
            alarms,
            tracer: Tracer::unread(),
            assembly: Assembly::new(1),
        };
        let habits = Habits { room: Room::new(0), ipv6_zero_checksum: false, clock: Clock::new() };
        let worker = Worker::new(reader, n3, n6, links, habits);
        Ok(Self { worker, sent, _tables: tables, _slow_path: slow_path, _alarms: heard })
    }

    /// One round of the worker. False if there was nothing.
    #[inline]
    pub fn turn(&mut self) -> bool {
        self.worker.run_once()
    }

    /// Packets sent so far; known over synthetic ports only.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Packets dropped so far, as last published, by reason.
    pub fn drops(&self) -> Vec<(DropReason, u64)> {
        let board = self.worker.drops();
        DropReason::ALL.iter().map(|reason| (*reason, board.get(*reason))).filter(|(_, count)| *count > 0).collect()
    }
}

impl Plain {
    /// A forwarder over the given queue, and the frames that [`Upf::over`] has with the same arguments.
    pub fn over(way: Way, load: Load, queue: QueuePair) -> (Self, Vec<Vec<u8>>) {
        let forwarder = Forwarder::within(queue, Addresses::Swap);
        (Self { forwarder, sent: Arc::default() }, frames(way, load, &Self::teids(load)))
    }

    /// Any TEIDs have the same length.
    fn teids(load: Load) -> Vec<u32> {
        (1..=load.sessions).collect()
    }

    /// A forwarder over a synthetic port that receives the frames which [`Upf::new`] receives with the same arguments.
    pub fn new(way: Way, load: Load) -> anyhow::Result<Self> {
        let sent = Arc::new(Tally::default());
        let queue = queue(frames(way, load, &Self::teids(load)), if way == Way::Uplink { n3() } else { n6() }, &sent)?;
        Ok(Self { forwarder: Forwarder::within(queue, Addresses::Swap), sent })
    }

    /// One round of the forwarder; the number of packets found.
    #[inline]
    pub fn turn(&mut self) -> usize {
        self.forwarder.turn()
    }

    /// Packets that its port did not take.
    pub fn refused(&self) -> u64 {
        self.forwarder.refused()
    }

    /// Packets sent so far; known over synthetic ports only.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }
}

/// Puts sessions and neighbours in force, and returns the sessions' TEIDs. Whoever forwards by the tables takes them over in
/// `refresh`, which is called again and again; where that fails nobody waits until they are in force.
pub fn install(
    tables: &Tables,
    mut refresh: impl FnMut() -> anyhow::Result<()>,
    load: Load,
) -> anyhow::Result<Vec<u32>> {
    let mut teids = Vec::new();
    let mut updates = Vec::new();
    for number in 0..load.sessions {
        let ue = UeIp { v4: Some(ue(number)), v6: None };
        let teid = tables.reserve_teid(tables.home_bucket(&ue))?;
        updates.push(SessionUpdate::Put(session(number, ue, teid, load.pdrs)));
        teids.push(teid);
    }
    let neighbours =
        [(PortId::N3, IpAddr::from(GNB), Some(GNB_MAC)), (PortId::N6, IpAddr::from(SERVER), Some(SERVER_MAC))];
    // Changes return when all workers have taken them over or are gone, which one that has failed may be only after this has returned.
    let tables = tables.clone();
    let writer = std::thread::spawn(move || -> anyhow::Result<()> {
        tables.apply(updates)?;
        Ok(tables.set_neighbours(&neighbours)?)
    });
    while !writer.is_finished() {
        refresh()?;
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    writer.join().expect("the tables do not panic")?;
    refresh()?;
    Ok(teids)
}

fn session(number: u32, ue_ip: UeIp, teid: u32, pdrs: u16) -> Session {
    let pdi = |filter: Option<SdfFilter>, source_interface, f_teid| Pdi {
        source_interface,
        network_instance: None,
        f_teid,
        ue_ip: Some(ue_ip),
        sdf_filters: Vec::from_iter(filter),
        ..Pdi::default()
    };
    let local = FTeid { teid, v4: Some(UPF_N3), v6: None };
    let pdr = |id, pdi, outer_header_removal, far_id| Pdr {
        id,
        precedence: 255,
        pdi,
        outer_header_removal,
        far_id,
        qer_ids: vec![1],
        urr_ids: vec![],
    };
    let both_ways = (1..=pdrs).flat_map(|at| {
        let filter = |way| (pdrs > 1).then(|| filter(way, at == pdrs, at));
        let uplink = pdi(filter(Way::Uplink), Interface::Access, Some(local));
        let downlink = pdi(filter(Way::Downlink), Interface::SgiLan, None);
        [pdr(at, uplink, Some(OuterHeaderRemoval::GtpuUdpIpv4), 1), pdr(pdrs + at, downlink, None, 2)]
    });
    let far = |id, destination_interface, outer_header_creation| Far {
        id,
        action: FarAction::Forward(Forwarding {
            destination_interface,
            network_instance: None,
            outer_header_creation,
            marking: Default::default(),
        }),
        copies: vec![],
    };
    let tunnel = OuterHeaderCreation { teid: 0x1000_0000 + number, address: GNB.into() };
    Session {
        up_seid: u64::from(number) + 1,
        cp_f_seid: CpFSeid { seid: u64::from(number) + 1, address: GNB.into() },
        pdrs: both_ways.collect(),
        fars: vec![far(1, Interface::SgiLan, None), far(2, Interface::Access, Some(tunnel))],
        qers: vec![Qer {
            id: 1,
            uplink_mbr_bps: Some(MBR_BPS),
            downlink_mbr_bps: Some(MBR_BPS),
            qfi: Some(QFI),
            ..Qer::default()
        }],
        urrs: vec![],
        activity: None,
        parting: Parting::default(),
    }
}

/// A filter for UDP between the server's network and the UE, which sees the packets that go `way` if it is `meant` for them:
/// others differ in the port that they go to.
fn filter(way: Way, meant: bool, number: u16) -> SdfFilter {
    let (from_port, to_port) = ((SOURCE_PORT, SOURCE_PORT + 1_023), (SINK_PORT, SINK_PORT + 9));
    let to_port = if meant { to_port } else { (to_port.0 + 10 * number, to_port.1 + 10 * number) };
    let side = |prefix, ports| Endpoint { prefix, ports: vec![ports] };
    let network = Some((SERVER.into(), 16));
    let (from, to) = match way {
        Way::Uplink => (side(network, to_port), side(None, from_port)),
        Way::Downlink => (side(network, from_port), side(None, to_port)),
    };
    SdfFilter { id: None, protocol: Some(UDP), from, to, tos: None, spi: None, flow_label: None }
}

/// One frame of each active session.
pub fn frames(way: Way, load: Load, teids: &[u32]) -> Vec<Vec<u8>> {
    order(load).into_iter().map(|number| frame(way, load, number, teids[number as usize])).collect()
}

/// The active sessions, anywhere among all, in an order that a prefetcher does not guess.
pub fn order(load: Load) -> Vec<u32> {
    let mut order: Vec<u32> = (0..load.sessions).collect();
    // A fixed linear congruential sequence (Knuth's constants): the same order in every run.
    let mut state = 1_u64;
    for i in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    order.truncate(load.active as usize);
    order
}

/// A frame of session `number`, whose TEID at the UPF is `teid`.
pub fn frame(way: Way, load: Load, number: u32, teid: u32) -> Vec<u8> {
    let (flow, to, from) = match way {
        Way::Uplink => {
            let tunnel = Tunnel { from: GNB, to: UPF_N3, teid, qfi: QFI, direction: Direction::Uplink };
            (Flow { from: ue(number), to: SERVER, tunnel: Some(tunnel) }, n3().mac, GNB_MAC)
        }
        Way::Downlink => (Flow { from: SERVER, to: ue(number), tunnel: None }, n6().mac, SERVER_MAC),
    };
    let mut frame = frame::ethernet(to, from, frame::ETHERTYPE_IPV4).to_vec();
    frame.extend(packet(&flow, number, load.payload.of(number)));
    frame
}

/// Bytes of the frames that go `way`, of the largest.
pub fn frame_len(way: Way, load: Load) -> usize {
    frame(way, Load { payload: Payload::Bytes(load.payload.largest()), ..load }, 0, 1).len()
}

/// The UE of session `number`.
pub fn ue(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 64, 0, 1)) + number)
}

/// The UPF's port N3.
pub fn n3() -> PortInfo {
    let mut info = PortInfo::named("n3");
    info.addresses = vec![(UPF_N3.into(), 24)];
    info.mtu = 9_000;
    info
}

/// The UPF's port N6.
pub fn n6() -> PortInfo {
    let mut info = PortInfo::named("n6");
    info.addresses = vec![(UPF_N6.into(), 24)];
    info
}

/// The queue of a synthetic port, whose sending half adds what it accepts to `sent`.
fn queue(frames: Vec<Vec<u8>>, info: PortInfo, sent: &Arc<Tally>) -> anyhow::Result<QueuePair> {
    let port = Synthetic::new(frames).info(info).open();
    let queue = port.queues.into_iter().next().context("a port has a queue")?;
    Ok(counted(queue.rx, queue.tx, sent))
}

/// A queue whose sending half adds what it accepts to `sent`.
pub fn counted(rx: Box<dyn RxQueue>, tx: Box<dyn TxQueue>, sent: &Arc<Tally>) -> QueuePair {
    QueuePair { rx, tx: Box::new(Counted { inner: tx, sent: sent.clone() }) }
}

/// Counts what is sent, where the thread that measures can see it.
struct Counted {
    inner: Box<dyn TxQueue>,
    sent: Arc<Tally>,
}

impl TxQueue for Counted {
    #[inline]
    fn send(&mut self, packets: &[PacketRef<'_>]) -> usize {
        let accepted = self.inner.send(packets);
        self.count(accepted)
    }

    #[inline]
    fn send_burst(&mut self, burst: &Burst<'_>, from: usize) -> usize {
        let accepted = self.inner.send_burst(burst, from);
        self.count(accepted)
    }

    fn counters(&self) -> TxCounters {
        self.inner.counters()
    }
}

impl Counted {
    #[inline]
    fn count(&self, accepted: usize) -> usize {
        self.sent.add(accepted as u64);
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load::of(50, 50, 64);

    #[test]
    fn a_mix_has_the_shares_of_the_simple_imix_and_frames_up_to_the_largest() {
        let load = Load { payload: Payload::Mix, ..LOAD };
        let lens: Vec<usize> =
            (0..24).map(|number| frame(Way::Downlink, load, number, 1).len() - (14 + 20 + 8)).collect();
        let count = |len: usize| lens.iter().filter(|found| **found == len).count();
        assert_eq!([18, 548, 1_400].map(count), [14, 8, 2]);
        assert_eq!(frame_len(Way::Downlink, load), 14 + 20 + 8 + 1_400);
    }

    #[test]
    fn the_upf_forwards_every_packet_both_ways() {
        for way in Way::BOTH {
            let mut upf = Upf::new(way, LOAD).expect("a UPF");
            for _ in 0..10 {
                upf.turn();
            }
            assert!(upf.sent() >= 100, "{way:?}: {} sent, dropped {:?}", upf.sent(), upf.drops());
        }
    }

    #[test]
    fn of_several_pdrs_the_last_one_matches() {
        for way in Way::BOTH {
            let mut upf = Upf::new(way, Load { pdrs: 16, ..LOAD }).expect("a UPF");
            upf.turn();
            assert!(upf.sent() > 0, "{way:?}: dropped {:?}", upf.drops());
            for meant in [true, false] {
                let filter = filter(way, meant, 3);
                let ports = if way == Way::Uplink { &filter.from.ports } else { &filter.to.ports };
                assert_eq!((ports[0].0..=ports[0].1).contains(&SINK_PORT), meant);
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_worker_that_has_failed() {
        let settings = Settings { max_sessions: 50, policer_burst_ms: 50, workers: 1 };
        let sides = (Side::new(&n3(), &[]), Side::new(&n6(), &[]));
        let (tables, _never_refreshed) = Tables::new(&settings, sides.0, sides.1, Box::new(|_, _| {}));
        let error = install(&tables, || anyhow::bail!("the worker has failed"), LOAD).expect_err("nothing is in force");
        assert_eq!(error.to_string(), "the worker has failed");
    }

    #[test]
    fn the_forwarder_takes_the_same_frames() {
        for way in Way::BOTH {
            let mut plain = Plain::new(way, LOAD).expect("a forwarder");
            plain.turn();
            assert!(plain.sent() > 0);
        }
        // 64 bytes of payload in UDP and IP; uplink in GTP-U with its extension, UDP and IP besides.
        assert_eq!(frame_len(Way::Downlink, LOAD), 14 + 20 + 8 + 64);
        assert_eq!(frame_len(Way::Uplink, LOAD), 14 + 20 + 8 + 16 + 20 + 8 + 64);
    }
}
