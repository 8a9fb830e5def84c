//! What a session manager asks for a UE of a stage.

use std::net::Ipv4Addr;

use pfcp::NodeId;
use pfcp::rule::{
    ApplyAction, BitRate, CreateFar, CreatePdr, CreateQer, CreateUrr, FTeid, ForwardingParameters, GateStatus,
    Interface, MeasurementMethod, OuterHeaderCreation, OuterHeaderRemoval, Pdi, ReportingTriggers, UeIp, UrrTerms,
};
use pfcp::session::{Establishment, FSeid};

use super::ue;

/// A session as most are: two PDRs, two FARs, a QER and a URR, for the UE of this number. Downlink its TEID is the number and one.
pub fn simple(number: u32) -> Establishment {
    Establishment {
        node_id: NodeId::Fqdn("smf".into()),
        cp_f_seid: FSeid::new(u64::from(number) + 1, Ipv4Addr::new(10, 4, 0, 2).into()),
        pdn_type: Some(1),
        create_pdrs: vec![uplink(number), downlink(number)],
        create_fars: vec![
            far(1, Interface::SgiLan, "internet", None),
            far(2, Interface::Access, "access", Some(number + 1)),
        ],
        create_qers: vec![CreateQer {
            id: 1,
            gate_status: GateStatus { uplink_open: true, downlink_open: true },
            // More than the packets of a test.
            mbr: Some(BitRate { uplink_kbps: 10_000_000, downlink_kbps: 10_000_000 }),
            gbr: None,
            qfi: Some(9),
            reflective: None,
            correlation_id: None,
            others: vec![],
        }],
        create_urrs: vec![CreateUrr {
            id: 1,
            method: Some(MeasurementMethod::VOLUM),
            triggers: Some(ReportingTriggers(0)),
            terms: UrrTerms::default(),
            others: vec![],
        }],
        create_bars: vec![],
        create_endpoints: vec![],
        inactivity_timer_s: None,
        others: vec![],
    }
}

fn uplink(number: u32) -> CreatePdr {
    CreatePdr {
        id: 1,
        precedence: 100,
        pdi: Pdi {
            f_teid: Some(FTeid::Choose { v4: true, v6: false, id: None }),
            ue_ip: Some(UeIp { v4: Some(ue(number)), ..UeIp::default() }),
            network_instance: Some("access".into()),
            ..Pdi::from_interface(Interface::Access)
        },
        outer_header_removal: Some(OuterHeaderRemoval::GTPU_UDP_IPV4),
        far_id: Some(1),
        qer_ids: vec![1],
        urr_ids: vec![1],
        ..CreatePdr::default()
    }
}

fn downlink(number: u32) -> CreatePdr {
    CreatePdr {
        id: 2,
        precedence: 100,
        pdi: Pdi {
            ue_ip: Some(UeIp { v4: Some(ue(number)), destination: true, ..UeIp::default() }),
            network_instance: Some("internet".into()),
            ..Pdi::from_interface(Interface::SgiLan)
        },
        far_id: Some(2),
        qer_ids: vec![1],
        urr_ids: vec![1],
        ..CreatePdr::default()
    }
}

/// Forwards, into a tunnel to the gNB where it has a TEID.
fn far(id: u32, to: Interface, network_instance: &str, teid: Option<u32>) -> CreateFar {
    CreateFar {
        id,
        apply_action: ApplyAction::FORW,
        forwarding_parameters: Some(ForwardingParameters {
            destination_interface: to,
            network_instance: Some(network_instance.into()),
            outer_header_creation: teid.map(|teid| OuterHeaderCreation::gtpu(teid, Ipv4Addr::new(10, 3, 0, 2).into())),
            transport_level_marking: None,
            others: vec![],
        }),
        duplicating_parameters: vec![],
        bar_id: None,
        others: vec![],
    }
}
