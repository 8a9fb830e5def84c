//! The short way of nearly all packets: over and with IPv4 without options, in a tunnel with no more than a PDU session
//! container, by the first rule of their session's direction. Then every field is at a known place, and few comparisons of whole
//! words say that all is sound and that the rule is theirs.
//!
//! What is found and decided here is what the general way ([`super::classify`], [`super::decide`]) would find and decide.
//! Whatever is not just so goes that way, which also says what is wrong with it.

use gtpu::BASE_LEN;

use super::decide::{admit, count, counted, into_tunnel, out_by};
use super::{Arrival, Class, ETHERNET_LEN, Rare, Verdict};
use crate::ip::{ETHERTYPE_IPV4, checksum_is_right, half, word};
use crate::side::Side;
use crate::state::State;
use crate::tables::{Rule, Version};
use crate::template;

const IP: usize = ETHERNET_LEN;
const IP_LEN: usize = 20;
const UDP_AT: usize = IP + IP_LEN;
const UDP_LEN: usize = 8;
const GTPU: usize = UDP_AT + UDP_LEN;
/// Of GTP-U: the fixed and the optional part, and a shortest container.
const GPDU_LEN: usize = gtpu::GPDU_MAX_LEN;

/// Where a user's packet begins behind such headers.
pub(super) const INNER: usize = template::LEN;

/// A G-PDU to the UPF's first address.
pub(super) struct Gpdu {
    pub teid: u32,
    /// As in [`gtpu::PduSession::flow`].
    pub flow: u8,
    /// Length of what it carries.
    pub len: u16,
}

/// A G-PDU in a frame of `len` bytes that begins with `head`.
#[inline(always)]
pub(super) fn gpdu(side: &Side, head: &[u8], len: usize) -> Option<Gpdu> {
    let head = head.first_chunk::<INNER>()?;
    let is_usual = side.gpdus()?.fits(head);
    let ip_len = usize::from(half(head, IP + 2));
    let udp_len = usize::from(half(head, UDP_AT + 4));
    let message_len = BASE_LEN + usize::from(half(head, GTPU + 2));
    // Each lies within the one before.
    let fits = (ip_len <= len - ETHERNET_LEN)
        & (IP_LEN + udp_len <= ip_len)
        & (UDP_LEN + message_len <= udp_len)
        & (message_len >= GPDU_LEN);
    let found = Gpdu {
        teid: word(head, GTPU + 4),
        flow: head[INNER - 2] & 0x3f,
        len: message_len.wrapping_sub(GPDU_LEN) as u16,
    };
    // Together, so that there is one jump to mispredict.
    (is_usual & fits & checksum_is_right(header(head))).then_some(found)
}

/// A packet over IPv4 to the UPF's link address in a frame of `len` bytes that begins with `head`: its destination, and its length.
#[inline(always)]
pub(super) fn plain(side: &Side, head: &[u8], len: usize) -> Option<(u32, u16)> {
    let head = head.first_chunk::<UDP_AT>()?;
    Some((word(head, IP + 16), ip_len(side, head, len)? as u16))
}

/// Length of the packet over IPv4 in a frame of `len` bytes to the UPF's link address, if its header is sound and has no options.
#[inline(always)]
fn ip_len<const N: usize>(side: &Side, head: &[u8; N], len: usize) -> Option<usize> {
    let is_ours = head.first_chunk() == Some(&side.mac);
    // EtherType, version and length of the header. The type of service may be any.
    let is_ip = word(head, IP - 2) & 0xffff_ff00 == u32::from(ETHERTYPE_IPV4) << 16 | 0x4500;
    let total = usize::from(half(head, IP + 2));
    let fits = (IP_LEN..=len - ETHERNET_LEN).contains(&total);
    (is_ours & is_ip & fits & checksum_is_right(header(head))).then_some(total)
}

/// The header behind Ethernet's.
#[inline(always)]
fn header<const N: usize>(head: &[u8; N]) -> &[u8; IP_LEN] {
    const { assert!(IP + IP_LEN <= N) };
    head[IP..].first_chunk().expect("long enough")
}

/// What [`super::decide`] would say of a packet from a network whose packets are in tunnels, or not, where that is to send it or to
/// drop it. None where it is not a usual one. What is to be sent has a neighbour that is resolved.
#[inline(always)]
pub(crate) fn decide<'t, const TUNNELS: bool>(
    tables: &'t Version,
    state: &mut State,
    class: &Class,
    head: &[u8],
    now: u64,
) -> Option<Verdict<'t>> {
    let Class::User { list, arrival, at, len, .. } = *class else { return None };
    match (arrival, usize::from(at)) {
        (Arrival::Tunnelled { v6: false, flow }, INNER) if TUNNELS => uplink(tables, state, list, flow, len, head, now),
        (Arrival::Plain, IP) if !TUNNELS => downlink(tables, state, list, len, head, now),
        _ => None,
    }
}

#[inline(always)]
fn uplink<'t>(
    tables: &'t Version,
    state: &mut State,
    list: u32,
    flow: Option<u8>,
    available: u16,
    head: &[u8],
    now: u64,
) -> Option<Verdict<'t>> {
    let head = head.first_chunk::<{ INNER + IP_LEN }>()?;
    let len = half(head, INNER + 2);
    let is_ip = head[INNER] == 0x45 && (IP_LEN as u16..=available).contains(&len);
    if !is_ip {
        return None;
    }
    let rule = tables.rules(list).first()?;
    let (source, destination) = (word(head, INNER + 12), word(head, INNER + 16));
    let port = rule.usual_uplink(word(head, IP + 16), source, flow)?;
    let (network, is_multicast) = (tables.network(port), destination >= 0xe000_0000);
    if is_multicast || usize::from(len) > network.side.mtu {
        return None;
    }
    let ethernet = tables.hop_v4(network, destination)?.ethernet.as_ref()?;
    Some(
        charged(tables, state, rule, true, len, now)
            .map(|counted| out_by::<false>(port, Some(ethernet), INNER as u16, len, counted)),
    )
}

#[inline(always)]
fn downlink<'t>(
    tables: &'t Version,
    state: &mut State,
    list: u32,
    len: u16,
    head: &[u8],
    now: u64,
) -> Option<Verdict<'t>> {
    let head = head.first_chunk::<UDP_AT>().filter(|head| head[IP] == 0x45)?;
    let rule = tables.rules(list).first()?;
    let tunnel = rule.usual_downlink(word(head, IP + 16))?;
    let path = tables.path(tunnel.path);
    if len > path.inner_max() || !path.is_resolved() {
        return None;
    }
    Some(
        charged(tables, state, rule, false, len, now)
            .map(|counted| into_tunnel(tables, IP as u16, len.into(), tunnel, counted)),
    )
}

/// Holds a packet that can be sent, and whose gate is open, against quotas and maximum bit rates, and counts it. As what is in
/// [`super::Forward`].
#[inline(always)]
fn charged(tables: &Version, state: &mut State, rule: Rule<'_>, uplink: bool, len: u16, now: u64) -> Result<u32, Rare> {
    admit(tables, state, rule, uplink, len.into(), now)?;
    count(tables, state, rule, uplink, len.into(), now);
    Ok(counted(tables, rule))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use port::PortInfo;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::super::ahead::believed;
    use super::super::classify::{classify_any, classify_to};
    use super::super::decide as decide_any;
    use crate::alarms::{self, AlarmReceiver};
    use crate::bell::Bell;
    use crate::buffers::{Buffers, Room};
    use crate::drops::DropReason;
    use crate::ip::{checksum, sum};
    use crate::rules::{
        CpFSeid, FTeid, Far, FarAction, Forwarding, Interface, OuterHeaderCreation, OuterHeaderRemoval, Parting, Pdi,
        Pdr, Qer, Session, UeIp,
    };
    use crate::side::PortId;
    use crate::tables::{Reader, SessionUpdate, Settings, Tables};

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const N3: [u8; 4] = [10, 3, 0, 1];
    const GNB: [u8; 4] = [10, 3, 0, 2];
    const SERVER: [u8; 4] = [10, 6, 0, 2];
    /// Of the sessions below.
    const SESSIONS: u32 = 7;

    fn ue(number: u32) -> [u8; 4] {
        [10, 45, 0, number as u8]
    }

    /// A usual one first; then with a gate closed, uplink and downlink, with any UE address, in a QoS flow alone, dropping, and
    /// a maximum bit rate that is soon exceeded.
    fn session(number: u32) -> Session {
        let ue_ip = (number != 3).then(|| UeIp { v4: Some(ue(number).into()), v6: None });
        let pdi = |source_interface, f_teid, qfis| Pdi { source_interface, f_teid, ue_ip, qfis, ..Pdi::default() };
        let local = FTeid { teid: number + 1, v4: Some(N3.into()), v6: None };
        let pdr = |id, pdi, outer_header_removal| Pdr {
            id,
            precedence: 1,
            pdi,
            outer_header_removal,
            far_id: id.into(),
            qer_ids: vec![1],
            urr_ids: vec![],
        };
        let forward = |destination_interface, outer_header_creation| Forwarding {
            destination_interface,
            network_instance: None,
            outer_header_creation,
            marking: Default::default(),
        };
        let gnb = OuterHeaderCreation { teid: 9, address: Ipv4Addr::from(GNB).into() };
        let down = FarAction::Forward(forward(Interface::Access, Some(gnb)));
        let rate = (number == 6).then_some(1_000);
        Session {
            up_seid: u64::from(number) + 1,
            cp_f_seid: CpFSeid { seid: 1, address: Ipv4Addr::LOCALHOST.into() },
            pdrs: vec![
                pdr(
                    1,
                    pdi(Interface::Access, Some(local), if number == 4 { vec![9] } else { vec![] }),
                    Some(OuterHeaderRemoval::GtpuUdpIpv4),
                ),
                pdr(
                    2,
                    Pdi {
                        ue_ip: ue_ip.or(Some(UeIp { v4: Some(ue(3).into()), v6: None })),
                        ..pdi(Interface::SgiLan, None, vec![])
                    },
                    None,
                ),
            ],
            fars: vec![
                Far { id: 1, action: FarAction::Forward(forward(Interface::SgiLan, None)), copies: vec![] },
                Far { id: 2, action: if number == 5 { FarAction::Drop } else { down }, copies: vec![] },
            ],
            qers: vec![Qer {
                id: 1,
                qfi: Some(9),
                uplink_mbr_bps: rate,
                downlink_mbr_bps: rate,
                uplink_gate_open: number != 1,
                downlink_gate_open: number != 2,
                ..Qer::default()
            }],
            urrs: vec![],
            activity: None,
            parting: Parting::default(),
        }
    }

    struct Upf {
        reader: Reader,
        /// For the one way and for the other.
        states: [State; 2],
        _tables: Tables,
        _heard: Vec<AlarmReceiver>,
    }

    fn upf() -> Upf {
        let settings = Settings { max_sessions: 10, policer_burst_ms: 50, workers: 1 };
        let side = |name, address: [u8; 4]| {
            Side::new(
                &PortInfo { mac: MAC, addresses: vec![(Ipv4Addr::from(address).into(), 24)], ..PortInfo::named(name) },
                &[],
            )
        };
        let (tables, mut readers) =
            Tables::new(&settings, side("n3", N3), side("n6", [10, 6, 0, 1]), Box::new(|_, _| {}));
        tables.apply((0..SESSIONS).map(session).map(SessionUpdate::Put).collect()).expect("sessions");
        let neighbours = [(PortId::N3, GNB), (PortId::N6, SERVER)];
        let resolved = neighbours.map(|(port, address)| (port, Ipv4Addr::from(address).into(), Some([2; 6])));
        tables.set_neighbours(&resolved).expect("neighbours");
        let mut heard = vec![];
        let states = std::array::from_fn(|_| {
            let (alarms, receiver) = alarms::channel(Arc::new(Bell::new().expect("a bell")));
            heard.push(receiver);
            State { buffers: Buffers::new(Room::new(0)), alarms }
        });
        let mut reader = readers.remove(0);
        reader.refresh();
        Upf { reader, states, _tables: tables, _heard: heard }
    }

    fn ip(from: [u8; 4], to: [u8; 4], behind: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
        packet.extend(from);
        packet.extend(to);
        packet[2..4].copy_from_slice(&(20 + behind.len() as u16).to_be_bytes());
        let sum = checksum(sum(&packet));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(behind);
        packet
    }

    fn udp(behind: &[u8]) -> Vec<u8> {
        let mut datagram = vec![8, 0x68, 8, 0x68];
        datagram.extend((8 + behind.len() as u16).to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(behind);
        datagram
    }

    /// A sound frame of a session, uplink with a PDU session container.
    fn sound(number: u32, uplink: bool, payload: usize) -> Vec<u8> {
        let mut frame = [&MAC[..], &[2; 6], &[8, 0]].concat();
        let user = udp(&vec![7; payload]);
        if !uplink {
            frame.extend(ip(SERVER, ue(number), &user));
            return frame;
        }
        let user = ip(ue(number), SERVER, &user);
        let mut message = vec![0x34, 0xff];
        message.extend((8 + user.len() as u16).to_be_bytes());
        message.extend((number + 1).to_be_bytes());
        message.extend([0, 0, 0, 0x85, 1, 0x10, 9, 0]);
        message.extend(user);
        frame.extend(ip(GNB, N3, &udp(&message)));
        frame
    }

    /// Makes the outer header's checksum right again, so that what else was changed is looked at.
    fn mend(frame: &mut [u8]) {
        if let Some(header) = frame.get_mut(14..34) {
            header[10..12].fill(0);
            let sum = checksum(sum(header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
    }

    #[test]
    fn sound_frames_of_usual_sessions_go_the_short_way() {
        let Upf { reader, states: [mut state, _], .. } = upf();
        let tables = reader.version();
        for (uplink, port) in [(true, PortId::N3), (false, PortId::N6)] {
            let frame = sound(0, uplink, 40);
            let side = &tables.network(port).side;
            assert!(if uplink {
                gpdu(side, &frame, frame.len()).is_some()
            } else {
                plain(side, &frame, frame.len()).is_some()
            });
            let class = super::super::classify(tables, port, &frame, frame.len());
            let verdict = match uplink {
                true => decide::<true>(tables, &mut state, &class, &frame, 1),
                false => decide::<false>(tables, &mut state, &class, &frame, 1),
            };
            assert!(matches!(verdict, Some(Ok(forward)) if forward.resolved));
        }
    }

    proptest! {
        #[test]
        fn the_short_way_leads_where_the_long_one_does(
            packets in prop::collection::vec((
                0..SESSIONS,
                any::<bool>(),
                0..40_usize,
                // Which octet becomes what.
                prop::collection::vec((any::<Index>(), prop_oneof![any::<u8>(), Just(0), Just(0xff), Just(0x46)]), 0..3),
                // Bits of octets of headers that are turned.
                prop::collection::vec((0..78_usize, 0..8), 0..2),
                // How much of the frame there is, how much of it is at hand, whether the sum is made right, and whether its rules
                // were asked for.
                (prop::option::of(any::<Index>()), prop::option::of(any::<Index>()), any::<bool>(), any::<bool>()),
            ), 1..20),
        ) {
            let Upf { reader, states: [mut short, mut long], .. } = upf();
            let tables = reader.version();
            for (now, (number, uplink, payload, octets, bits, (len, at_hand, is_mended, asks))) in packets.into_iter().enumerate() {
                let mut frame = sound(number, uplink, payload);
                for (at, octet) in octets {
                    *at.get_mut(&mut frame[..]) = octet;
                }
                for (at, bit) in bits {
                    if let Some(octet) = frame.get_mut(at) {
                        *octet ^= 1_u8 << bit;
                    }
                }
                if is_mended {
                    mend(&mut frame);
                }
                if let Some(len) = len {
                    frame.truncate(14 + len.index(frame.len() - 13));
                }
                let head = at_hand.map_or(frame.len(), |at_hand| 14 + at_hand.index(frame.len() - 13));
                let (head, port) = (&frame[..head], if uplink { PortId::N3 } else { PortId::N6 });
                let network = tables.network(port);
                let mut class = Class::Drop(DropReason::NoPdr);
                let other = match uplink {
                    true => {
                        let list = if asks { believed::<true>(tables, network, head) } else { None };
                        classify_to::<true>(tables, network, head, frame.len(), list, &mut class);
                        classify_any::<true>(tables, network, head, frame.len(), None)
                    }
                    false => {
                        let list = if asks { believed::<false>(tables, network, head) } else { None };
                        classify_to::<false>(tables, network, head, frame.len(), list, &mut class);
                        classify_any::<false>(tables, network, head, frame.len(), None)
                    }
                };
                prop_assert_eq!(class, other);
                let now = now as u64 * 1_000_000;
                let verdict = match uplink {
                    true => decide::<true>(tables, &mut short, &class, head, now),
                    false => decide::<false>(tables, &mut short, &class, head, now),
                };
                let verdict = verdict.unwrap_or_else(|| decide_any(tables, &mut short, &class, head, now));
                let other = decide_any(tables, &mut long, &class, head, now);
                prop_assert_eq!(format!("{verdict:?}"), format!("{other:?}"));
            }
        }
    }
}
