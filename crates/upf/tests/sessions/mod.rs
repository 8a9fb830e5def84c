//! Sessions for tests: one UE, uplink to N6, downlink to a gNB at 10.3.0.2.
#![allow(dead_code, reason = "each test uses a part")]

use std::net::{IpAddr, Ipv4Addr};

use upf::rules::*;

/// The address of UE `number`.
pub fn ue(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a2d_0000 + number)
}

/// A session; its downlink tunnel has the TEID of its uplink tunnel.
pub fn session(seid: u64, teid: u32, ue_number: u32) -> Session {
    let ue_ip = Some(UeIp { v4: Some(ue(ue_number)), v6: None });
    let pdi = |source_interface, f_teid| Pdi {
        source_interface,
        network_instance: None,
        f_teid,
        ue_ip,
        sdf_filters: vec![],
        qfis: vec![],
    };
    let local = FTeid { teid, v4: Some(Ipv4Addr::new(10, 3, 0, 1)), v6: None };
    let forward = |destination_interface, outer_header_creation| {
        FarAction::Forward(Forwarding { destination_interface, network_instance: None, outer_header_creation })
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
            Far { id: 1, action: forward(Interface::SgiLan, None) },
            Far { id: 2, action: forward(Interface::Access, Some(gnb)) },
        ],
        qers: vec![],
        urrs: vec![],
    }
}

/// A QER with open gates and this maximum bit rate both ways.
pub fn qer(id: u32, mbr_bps: Option<u64>) -> Qer {
    Qer {
        id,
        uplink_gate_open: true,
        downlink_gate_open: true,
        uplink_mbr_bps: mbr_bps,
        downlink_mbr_bps: mbr_bps,
        qfi: None,
    }
}
