//! A small session manager: real PFCP with one UPF, so that the sessions of a file exist for as long as it runs.
//!
//! It associates, establishes every session, and watches the UPF: where heartbeats stay unanswered, the recovery time
//! stamp changes or the UPF does not know a session's tunnel any more, it begins again. At the end it deletes what it
//! established.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use pfcp::client::{Client, ClientError, Retry};
use pfcp::node::{AssociationRelease, AssociationSetup, Heartbeat};
use pfcp::report::UsageReport;
use pfcp::rule::{
    ApplyAction, BitRate, CreateFar, CreatePdr, CreateQer, CreateUrr, FTeid, ForwardingParameters, GateStatus,
    Interface, MeasurementMethod, OuterHeaderCreation, OuterHeaderRemoval, Pdi, ReportingTriggers, SdfFilter, UeIp,
    UrrTerms,
};
use pfcp::session::{Established, Establishment, FSeid};
use pfcp::{Fault, NodeId, RecoveryTimeStamp, Request, Response};

use crate::ran::config::{Smf as Config, Wanted};

/// PDR that matches packets from the UE.
const UPLINK_PDR: u16 = 1;
/// PDR that matches packets to the UE.
const DOWNLINK_PDR: u16 = 2;
const UPLINK_FAR: u32 = 1;
const DOWNLINK_FAR: u32 = 2;
const QER: u32 = 1;
const URR: u32 = 1;
/// Precedence of the rules; sessions have but one for each direction.
const PRECEDENCE: u32 = 255;
/// How long it serves the socket before it looks whether it is to stop.
const SLICE: Duration = Duration::from_millis(50);
/// Time between two tries to associate, beside what the tries take.
const AGAIN: Duration = Duration::from_millis(100);

/// How long after an association messages about tunnels of the former one may still arrive.
const SETTLING: Duration = Duration::from_millis(200);

/// What the gNB is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The UPF's end of the tunnel of session `number`.
    Tunnel {
        /// Place of the session in the configuration.
        number: usize,
        /// Address and TEID; none any more where absent.
        endpoint: Option<(IpAddr, u32)>,
    },
}

/// Flags that other threads raise for the session manager.
#[derive(Debug, Default)]
pub struct Signals {
    /// Delete all sessions and return.
    pub stop: AtomicBool,
    /// The UPF said of a tunnel that it does not know it: associate anew.
    pub suspect: AtomicBool,
}

impl Signals {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The session manager.
pub struct Smf<'a> {
    config: Config,
    gnb: IpAddr,
    wanted: &'a [Wanted],
    client: Client,
    recovery: RecoveryTimeStamp,
    /// SEIDs of the UPF, by number of the session.
    established: Vec<Option<u64>>,
    tell: Box<dyn FnMut(News) + Send + 'a>,
}

/// Why the association is not to be relied upon any more.
#[derive(Debug)]
enum Lost {
    Client(ClientError),
    Restarted,
    Tunnel,
    Refused(Fault),
    Unexpected,
}

impl From<ClientError> for Lost {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Client(error) => error.fmt(f),
            Self::Restarted => f.write_str("the UPF has restarted"),
            Self::Tunnel => f.write_str("the UPF does not know a tunnel that it gave"),
            Self::Refused(fault) => write!(f, "the UPF refuses the association: {:?}", fault.cause),
            Self::Unexpected => f.write_str("the UPF answers with another message than it was asked for"),
        }
    }
}

impl<'a> Smf<'a> {
    /// A session manager for a gNB with GTP-U address `gnb`. `tell` hears of tunnels.
    pub fn new(
        config: &Config,
        gnb: IpAddr,
        wanted: &'a [Wanted],
        tell: impl FnMut(News) + Send + 'a,
    ) -> anyhow::Result<Self> {
        let local = SocketAddr::new(config.address, pfcp::PORT);
        let socket = UdpSocket::bind(local).with_context(|| format!("cannot speak PFCP from {local}"))?;
        let recovery = RecoveryTimeStamp::now();
        let retry = Retry { t1: config.t1(), n1: config.n1 };
        let client = Client::new(socket, SocketAddr::new(config.upf, pfcp::PORT), recovery, retry);
        let established = vec![None; wanted.len()];
        Ok(Self { config: config.clone(), gnb, wanted, client, recovery, established, tell: Box::new(tell) })
    }

    /// Runs until `signals` say stop.
    pub fn run(mut self, signals: &Signals) -> anyhow::Result<()> {
        let mut silent = false;
        while !signals.stopping() {
            match self.associate() {
                Ok(recovery) => {
                    silent = false;
                    let lost = self.keep(recovery, signals);
                    if let Err(lost) = lost {
                        tracing::warn!("{lost}; associating anew");
                    }
                }
                Err(lost) => {
                    // A UPF that is not there yet is said once.
                    if !std::mem::replace(&mut silent, true) {
                        tracing::warn!("{lost}; trying on");
                    }
                    std::thread::sleep(AGAIN);
                }
            }
        }
        self.leave();
        Ok(())
    }

    fn associate(&mut self) -> Result<RecoveryTimeStamp, Lost> {
        let setup = AssociationSetup::new(self.node_id(), self.recovery);
        match self.client.request(0, &Request::AssociationSetup(setup))? {
            Response::AssociationSetup(response) => {
                response.outcome.map_err(Lost::Refused)?;
                // A new association has no sessions (TS 29.244, 6.2.6.2.2), whatever there was before.
                for number in 0..self.wanted.len() {
                    self.forget(number);
                }
                Ok(response.recovery)
            }
            _ => Err(Lost::Unexpected),
        }
    }

    /// Establishes what is wanted and watches the UPF. Returns when it is lost, or `signals` say stop.
    fn keep(&mut self, recovery: RecoveryTimeStamp, signals: &Signals) -> Result<(), Lost> {
        let mut ready = false;
        let begin = Instant::now();
        let mut next_heartbeat = begin;
        while !signals.stopping() {
            // What was on its way when the association began anew says nothing about the new tunnels.
            if signals.suspect.swap(false, Ordering::Relaxed) && begin.elapsed() > SETTLING {
                return Err(Lost::Tunnel);
            }
            if Instant::now() >= next_heartbeat {
                self.establish_missing(signals, !ready)?;
                self.heartbeat()?;
                next_heartbeat = Instant::now() + self.config.heartbeat();
            }
            if self.client.peer_recovery() != Some(recovery) {
                return Err(Lost::Restarted);
            }
            let established = self.established.iter().flatten().count();
            if established == self.wanted.len() && !std::mem::replace(&mut ready, true) {
                println!("kaista-ran: ready, {established} sessions established");
            }
            self.client.serve(next_heartbeat.saturating_duration_since(Instant::now()).min(SLICE))?;
        }
        Ok(())
    }

    fn heartbeat(&mut self) -> Result<(), Lost> {
        match self.client.request(0, &Request::Heartbeat(Heartbeat { recovery: self.recovery }))? {
            Response::Heartbeat(_) => Ok(()),
            _ => Err(Lost::Unexpected),
        }
    }

    fn establish_missing(&mut self, signals: &Signals, say_refusals: bool) -> Result<(), Lost> {
        for number in 0..self.wanted.len() {
            if self.established[number].is_some() || signals.stopping() {
                continue;
            }
            let request = establishment(&self.wanted[number], self.cp_f_seid(number), self.node_id(), self.gnb);
            match self.client.request(0, &Request::SessionEstablishment(request))? {
                Response::SessionEstablishment(response) => match response.outcome {
                    Ok(session) => self.take(number, &session),
                    Err(fault) if say_refusals => tracing::error!("session {number} is refused: {fault:?}"),
                    Err(_) => {}
                },
                _ => return Err(Lost::Unexpected),
            }
        }
        Ok(())
    }

    fn take(&mut self, number: usize, session: &Established) {
        self.established[number] = Some(session.up_f_seid.seid);
        let endpoint = tunnel_endpoint(session, self.gnb);
        if endpoint.is_none() {
            tracing::error!("the UPF chose no tunnel endpoint for session {number} that the gNB can reach");
        }
        (self.tell)(News::Tunnel { number, endpoint });
    }

    fn forget(&mut self, number: usize) {
        if self.established[number].take().is_some() {
            (self.tell)(News::Tunnel { number, endpoint: None });
        }
    }

    /// Deletes all sessions and the association, as far as the UPF answers.
    fn leave(&mut self) {
        for number in 0..self.wanted.len() {
            if let Some(seid) = self.established[number] {
                match self.client.request(seid, &Request::SessionDeletion) {
                    Ok(Response::SessionDeletion(response)) => {
                        print_usage(number, response.outcome.as_deref().unwrap_or(&[]));
                    }
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
            self.forget(number);
        }
        let release = AssociationRelease { node_id: self.node_id() };
        if let Err(error) = self.client.request(0, &Request::AssociationRelease(release)) {
            tracing::warn!("{error}");
        }
    }

    fn node_id(&self) -> NodeId {
        NodeId::Address(self.config.address)
    }

    fn cp_f_seid(&self, number: usize) -> FSeid {
        FSeid::new(number as u64 + 1, self.config.address)
    }
}

/// The UPF's tunnel endpoint in an address of the gNB's version.
fn tunnel_endpoint(session: &Established, gnb: IpAddr) -> Option<(IpAddr, u32)> {
    let created = session.created_pdrs.iter().find(|created| created.id == UPLINK_PDR)?;
    match created.f_teid? {
        FTeid::Given { teid, v4, v6 } => {
            let address = if gnb.is_ipv4() { v4.map(IpAddr::from) } else { v6.map(IpAddr::from) };
            Some((address?, teid))
        }
        FTeid::Choose { .. } => None,
    }
}

/// The request for one session: a PDR, FAR for each direction, one QER for both.
pub fn establishment(wanted: &Wanted, cp_f_seid: FSeid, node_id: NodeId, gnb: IpAddr) -> Establishment {
    let ue_ip = |destination| UeIp {
        v4: wanted.ue_v4,
        v6: wanted.ue_v6.map(|prefix| (prefix, 64)),
        destination,
        ..UeIp::default()
    };
    let filter = |text: &String| SdfFilter { flow_description: Some(text.clone()), ..SdfFilter::default() };
    let sdf_filters: Vec<SdfFilter> = wanted.filters.iter().map(filter).collect();
    let uplink = Pdi {
        f_teid: Some(FTeid::Choose { v4: gnb.is_ipv4(), v6: gnb.is_ipv6(), id: None }),
        network_instance: wanted.access_instance.clone(),
        ue_ip: Some(ue_ip(false)),
        sdf_filters: sdf_filters.clone(),
        qfis: vec![wanted.qfi],
        ..Pdi::from_interface(Interface::Access)
    };
    let downlink = Pdi {
        network_instance: wanted.network_instance.clone(),
        ue_ip: Some(ue_ip(true)),
        sdf_filters,
        ..Pdi::from_interface(Interface::SgiLan)
    };
    let removal = if gnb.is_ipv4() { OuterHeaderRemoval::GTPU_UDP_IPV4 } else { OuterHeaderRemoval::GTPU_UDP_IPV6 };
    let pdr = |id, pdi, removal, far_id| CreatePdr {
        id,
        precedence: PRECEDENCE,
        pdi,
        outer_header_removal: removal,
        far_id: Some(far_id),
        qer_ids: vec![QER],
        urr_ids: if wanted.measure_usage { vec![URR] } else { vec![] },
        ..CreatePdr::default()
    };
    let tunnel = OuterHeaderCreation::gtpu(wanted.downlink_teid, gnb);
    Establishment {
        node_id,
        cp_f_seid,
        pdn_type: Some(pdn_type(wanted)),
        create_pdrs: vec![
            pdr(UPLINK_PDR, uplink, Some(removal), UPLINK_FAR),
            pdr(DOWNLINK_PDR, downlink, None, DOWNLINK_FAR),
        ],
        create_fars: vec![
            forward(UPLINK_FAR, Interface::SgiLan, wanted.network_instance.clone(), None),
            forward(DOWNLINK_FAR, Interface::Access, wanted.access_instance.clone(), Some(tunnel)),
        ],
        create_qers: vec![qer(wanted)],
        create_urrs: if wanted.measure_usage { vec![urr()] } else { vec![] },
        create_bars: vec![],
        create_endpoints: vec![],
        inactivity_timer_s: None,
        others: Vec::new(),
    }
}

fn forward(id: u32, to: Interface, instance: Option<String>, tunnel: Option<OuterHeaderCreation>) -> CreateFar {
    let parameters = ForwardingParameters {
        destination_interface: to,
        network_instance: instance,
        outer_header_creation: tunnel,
        transport_level_marking: None,
        others: Vec::new(),
    };
    CreateFar {
        id,
        apply_action: ApplyAction::FORW,
        forwarding_parameters: Some(parameters),
        duplicating_parameters: vec![],
        bar_id: None,
        others: Vec::new(),
    }
}

fn qer(wanted: &Wanted) -> CreateQer {
    // Rounded up: a limit must not become none, nor less than was asked for.
    let kbps = |bps: u64| bps.div_ceil(1_000);
    CreateQer {
        id: QER,
        gate_status: GateStatus { uplink_open: true, downlink_open: true },
        mbr: wanted.mbr_bps.map(|(up, down)| BitRate { uplink_kbps: kbps(up), downlink_kbps: kbps(down) }),
        gbr: None,
        qfi: Some(wanted.qfi),
        reflective: None,
        correlation_id: None,
        others: Vec::new(),
    }
}

/// Counts octets and packets until the session ends.
fn urr() -> CreateUrr {
    const COUNT_PACKETS: u8 = 1 << 4;
    CreateUrr {
        id: URR,
        method: Some(MeasurementMethod::VOLUM),
        triggers: Some(ReportingTriggers::default()),
        terms: UrrTerms { measurement_information: Some(COUNT_PACKETS), ..UrrTerms::default() },
        others: Vec::new(),
    }
}

/// Says what a session has used.
fn print_usage(number: usize, reports: &[UsageReport]) {
    for volume in reports.iter().filter_map(|report| report.volume) {
        let (octets, packets) = (volume.octets, volume.packets);
        println!(
            "kaista-ran: session {number} used {} octets in {} packets uplink, {} octets in {} packets downlink",
            octets.uplink.unwrap_or(0),
            packets.uplink.unwrap_or(0),
            octets.downlink.unwrap_or(0),
            packets.downlink.unwrap_or(0)
        );
    }
}

/// PDN type (TS 29.244, 8.2.79).
fn pdn_type(wanted: &Wanted) -> u8 {
    match (wanted.ue_v4, wanted.ue_v6) {
        (_, None) => 1,
        (None, Some(_)) => 2,
        (Some(_), Some(_)) => 3,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Arc, Mutex};
    use std::thread::JoinHandle;

    use pfcp::node::{AssociationSetupResponse, NodeOutcome};
    use pfcp::rule::CreatedPdr;
    use pfcp::session::{DeletionResponse, EstablishmentResponse};
    use pfcp::{Cause, Header};

    use super::*;

    const GNB: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 3, 0, 2));
    const UPF_N3: Ipv4Addr = Ipv4Addr::new(10, 3, 0, 1);

    /// A UPF on a loopback address of its own that accepts everything, until it is dropped.
    struct FakeUpf {
        address: IpAddr,
        seen: Arc<Mutex<Vec<Request>>>,
        stop: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl FakeUpf {
        fn start(address: IpAddr, recovery: u32) -> Self {
            let socket = UdpSocket::bind((address, pfcp::PORT)).expect("a loopback address is free");
            socket.set_read_timeout(Some(Duration::from_millis(5))).expect("a socket has timeouts");
            let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
            let thread = std::thread::spawn({
                let (seen, stop) = (seen.clone(), stop.clone());
                move || {
                    let mut buffer = [0; 9_000];
                    let mut teid = 100;
                    while !stop.load(Ordering::Relaxed) {
                        let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                        let Ok((header, body)) = Header::parse(&buffer[..len]) else { continue };
                        let Ok(request) = Request::parse(&header, body) else { continue };
                        teid += 1;
                        let answer = answer(&request, address, recovery, teid).encode(1, header.sequence);
                        seen.lock().expect("no panic").push(request);
                        let _ = socket.send_to(&answer, from);
                    }
                }
            });
            Self { address, seen, stop, thread: Some(thread) }
        }

        fn count(&self, is: impl Fn(&Request) -> bool) -> usize {
            self.seen.lock().expect("no panic").iter().filter(|request| is(request)).count()
        }
    }

    impl std::ops::Drop for FakeUpf {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }

    fn answer(request: &Request, address: IpAddr, recovery: u32, teid: u32) -> Response {
        let node_id = NodeId::Address(address);
        let recovery = RecoveryTimeStamp(recovery);
        match request {
            Request::Heartbeat(_) => Response::Heartbeat(Heartbeat { recovery }),
            Request::AssociationSetup(_) => {
                Response::AssociationSetup(AssociationSetupResponse::new(node_id, Ok(()), recovery))
            }
            Request::SessionEstablishment(_) => {
                let f_teid = FTeid::Given { teid, v4: Some(UPF_N3), v6: None };
                let session = Established {
                    up_f_seid: FSeid::new(teid.into(), address),
                    created_pdrs: vec![CreatedPdr { id: UPLINK_PDR, f_teid: Some(f_teid), ue_ip: None }],
                    created_endpoints: vec![],
                };
                Response::SessionEstablishment(EstablishmentResponse { node_id, outcome: Ok(session) })
            }
            Request::SessionDeletion => Response::SessionDeletion(DeletionResponse { outcome: Ok(vec![]) }),
            _ => Response::AssociationRelease(NodeOutcome { node_id, outcome: Ok(()) }),
        }
    }

    fn wanted(count: u32) -> Vec<Wanted> {
        let session = |number| Wanted {
            ue_v4: Some(Ipv4Addr::from_bits(0x0a3c_0001 + number)),
            ue_v6: None,
            qfi: 9,
            downlink_teid: 0x1001 + number,
            access_instance: Some("access".into()),
            network_instance: Some("internet".into()),
            mbr_bps: Some((1_500, 2_000_000)),
            measure_usage: true,
            filters: vec!["permit out ip from any to assigned".into()],
        };
        (0..count).map(session).collect()
    }

    /// A running session manager; what it tells the gNB; how to stop it.
    struct Running {
        news: Receiver<News>,
        signals: Arc<Signals>,
        thread: JoinHandle<anyhow::Result<()>>,
    }

    fn start(own: IpAddr, upf: IpAddr, count: u32) -> Running {
        let config = Config { address: own, upf, heartbeat_ms: 50, t1_ms: 20, n1: 3 };
        let (sender, news) = channel();
        let signals = Arc::new(Signals::default());
        let thread = std::thread::spawn({
            let signals = signals.clone();
            move || {
                let wanted = wanted(count);
                let tell = move |news| drop(sender.send(news));
                Smf::new(&config, GNB, &wanted, tell)?.run(&signals)
            }
        });
        Running { news, signals, thread }
    }

    impl Running {
        /// The next tunnels to be told of, as many as `count`.
        fn tunnels(&self, count: usize) -> Vec<Option<(IpAddr, u32)>> {
            let next = || self.news.recv_timeout(Duration::from_secs(10)).expect("news in time");
            (0..count).map(|_| next()).map(|News::Tunnel { endpoint, .. }| endpoint).collect()
        }

        fn stop(self) {
            self.signals.stop.store(true, Ordering::Relaxed);
            self.thread.join().expect("no panic").expect("a good end");
        }
    }

    fn loopback(last: u8) -> IpAddr {
        Ipv4Addr::new(127, 8, 8, last).into()
    }

    #[test]
    fn every_session_is_established_and_deleted_in_the_end() {
        let upf = FakeUpf::start(loopback(1), 7);
        let smf = start(loopback(2), upf.address, 3);
        assert!(smf.tunnels(3).iter().all(|endpoint| matches!(endpoint, Some((address, _)) if *address == UPF_N3)));
        smf.stop();
        assert_eq!(upf.count(|request| matches!(request, Request::AssociationSetup(_))), 1);
        assert_eq!(upf.count(|request| matches!(request, Request::SessionEstablishment(_))), 3);
        assert_eq!(upf.count(|request| matches!(request, Request::SessionDeletion)), 3);
        assert_eq!(upf.count(|request| matches!(request, Request::AssociationRelease(_))), 1);
    }

    #[test]
    fn a_upf_that_restarts_gets_the_sessions_again() {
        let upf = FakeUpf::start(loopback(3), 7);
        let smf = start(loopback(4), upf.address, 2);
        assert_eq!(smf.tunnels(2).iter().flatten().count(), 2);
        drop(upf);
        let upf = FakeUpf::start(loopback(3), 8);
        // Both old tunnels are taken away, then there are two new ones.
        let tunnels = smf.tunnels(4);
        assert_eq!(tunnels.iter().filter(|endpoint| endpoint.is_none()).count(), 2);
        assert_eq!(upf.count(|request| matches!(request, Request::SessionEstablishment(_))), 2);
        smf.stop();
    }

    #[test]
    fn a_upf_that_lost_a_tunnel_gets_the_sessions_again() {
        let upf = FakeUpf::start(loopback(7), 7);
        let smf = start(loopback(8), upf.address, 1);
        assert_eq!(smf.tunnels(1).iter().flatten().count(), 1);
        std::thread::sleep(2 * SETTLING);
        smf.signals.suspect.store(true, Ordering::Relaxed);
        let tunnels = smf.tunnels(2);
        assert!(tunnels[0].is_none() && tunnels[1].is_some(), "{tunnels:?}");
        smf.stop();
    }

    #[test]
    fn it_waits_for_a_upf_that_is_not_there_yet() {
        let smf = start(loopback(6), loopback(5), 1);
        std::thread::sleep(Duration::from_millis(100));
        let _upf = FakeUpf::start(loopback(5), 7);
        assert_eq!(smf.tunnels(1).iter().flatten().count(), 1);
        smf.stop();
    }

    #[test]
    fn the_request_has_a_rule_for_each_direction() {
        let wanted = &wanted(1)[0];
        let request = establishment(wanted, FSeid::new(1, GNB), NodeId::Address(GNB), GNB);
        let [uplink, downlink] = &request.create_pdrs[..] else { panic!("two PDRs") };
        assert_eq!(uplink.pdi.f_teid, Some(FTeid::Choose { v4: true, v6: false, id: None }));
        assert_eq!(uplink.outer_header_removal, Some(OuterHeaderRemoval::GTPU_UDP_IPV4));
        assert_eq!(downlink.pdi.ue_ip.map(|ue| (ue.v4, ue.destination)), Some((wanted.ue_v4, true)));
        assert_eq!(downlink.pdi.sdf_filters.len(), 1);
        let tunnel = request.create_fars[1].forwarding_parameters.as_ref().and_then(|p| p.outer_header_creation);
        assert_eq!(tunnel, Some(OuterHeaderCreation::gtpu(0x1001, GNB)));
        assert_eq!(request.create_qers[0].mbr, Some(BitRate { uplink_kbps: 2, downlink_kbps: 2_000 }));
    }

    #[test]
    fn a_tunnel_endpoint_of_the_other_ip_version_is_none() {
        let given = FTeid::Given { teid: 5, v4: Some(UPF_N3), v6: None };
        let session = Established {
            up_f_seid: FSeid::new(1, GNB),
            created_pdrs: vec![CreatedPdr { id: UPLINK_PDR, f_teid: Some(given), ue_ip: None }],
            created_endpoints: vec![],
        };
        assert_eq!(tunnel_endpoint(&session, GNB), Some((UPF_N3.into(), 5)));
        assert_eq!(tunnel_endpoint(&session, "2001:db8::1".parse().expect("an address")), None);
    }

    #[test]
    fn a_refusal_is_said_with_its_cause() {
        let refused = Lost::Refused(Fault::new(Cause::NoResourcesAvailable));
        assert!(refused.to_string().contains("NoResourcesAvailable"));
    }
}
