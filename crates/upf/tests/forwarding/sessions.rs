//! Sessions and packets for tests: one UE, uplink to N6, downlink to a gNB at 10.3.0.2.
#![allow(dead_code, reason = "each test uses a part")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicBool;

use port::{PortInfo, Steering};
use upf::function::Upf;
use upf::rules::*;

pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// An IPv4/UDP packet to UE `number` with this many bytes behind the header, marked with `mark`.
pub fn downlink(number: u32, mark: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + len];
    frame[..6].copy_from_slice(&MAC);
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&(20 + len as u16).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..30].copy_from_slice(&[192, 0, 2, 1]);
    frame[30..34].copy_from_slice(&ue(number).octets());
    let checksum = upf::ip::checksum(upf::ip::sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[34..38].copy_from_slice(&mark.to_be_bytes());
    frame
}

/// The mark of a packet as it leaves by N3, without a PDU session container.
pub fn mark(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14 + 36 + 20..][..4].try_into().unwrap())
}

pub fn info(name: &str, address: &str, queues: u16, steering: Steering) -> PortInfo {
    PortInfo {
        mac: MAC,
        mtu: 9_000,
        queues,
        steering,
        addresses: vec![(address.parse().unwrap(), 24)],
        ..PortInfo::named(name)
    }
}

/// The address of UE `number`.
pub fn ue(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a2d_0000 + number)
}

/// A session; its downlink tunnel has the TEID of its uplink tunnel.
pub fn session(seid: u64, teid: u32, ue_number: u32) -> Session {
    let ue_ip = Some(UeIp { v4: Some(ue(ue_number)), v6: None });
    let pdi =
        |source_interface, f_teid| Pdi { source_interface, network_instance: None, f_teid, ue_ip, ..Pdi::default() };
    let local = FTeid { teid, v4: Some(Ipv4Addr::new(10, 3, 0, 1)), v6: None };
    let forward = |destination_interface, outer_header_creation| {
        FarAction::Forward(Forwarding {
            destination_interface,
            network_instance: None,
            outer_header_creation,
            marking: Default::default(),
        })
    };
    let gnb = OuterHeaderCreation { teid, address: Ipv4Addr::new(10, 3, 0, 2).into() };
    Session {
        up_seid: seid,
        cp_f_seid: CpFSeid { seid, address: IpAddr::V4(Ipv4Addr::LOCALHOST) },
        pdrs: vec![
            Pdr {
                id: 1,
                precedence: 1,
                pdi: pdi(Interface::Access, Some(local)),
                outer_header_removal: Some(OuterHeaderRemoval::GtpuUdpIpv4),
                far_id: 1,
                qer_ids: vec![],
                urr_ids: vec![],
            },
            Pdr {
                id: 2,
                precedence: 2,
                pdi: pdi(Interface::SgiLan, None),
                outer_header_removal: None,
                far_id: 2,
                qer_ids: vec![],
                urr_ids: vec![],
            },
        ],
        fars: vec![
            Far { id: 1, action: forward(Interface::SgiLan, None), copies: vec![] },
            Far { id: 2, action: forward(Interface::Access, Some(gnb)), copies: vec![] },
        ],
        qers: vec![],
        urrs: vec![],
        activity: None,
        parting: Parting::default(),
    }
}

/// A QER with open gates and this maximum bit rate both ways.
pub fn qer(id: u32, mbr_bps: Option<u64>) -> Qer {
    Qer { id, uplink_mbr_bps: mbr_bps, downlink_mbr_bps: mbr_bps, ..Qer::default() }
}

/// Has the workers publish what they have counted.
pub fn stop(upf: &mut Upf) {
    let stopped = AtomicBool::new(true);
    upf.workers.iter_mut().for_each(|worker| worker.run(&stopped).unwrap());
}
