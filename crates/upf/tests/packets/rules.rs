//! Sessions and their rules, as scenarios have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use upf::counters::Counters;
use upf::marking::Marking;
use upf::rules::*;
use upf::usage::{ACTIVITY, Bounds, Usage, UsageId, UsageTerms};

use super::frame::number;
use super::words::Words;

/// `session SEID [watched] [discard] [leaves TEID at PEER]`: what waits is discarded, a tunnel gets an end marker.
pub fn session(words: &mut Words<'_>, counters: Counters) -> Result<Session, String> {
    let drop_buffered = words.flag("discard");
    let end_markers = match words.after("leaves")? {
        Some(teid) => {
            let address = words.after("at")?.and_then(|text| text.parse().ok()).ok_or("at ADDRESS")?;
            vec![Forwarding {
                destination_interface: Interface::Access,
                network_instance: None,
                outer_header_creation: Some(OuterHeaderCreation { teid: number(&teid)? as u32, address }),
                marking: Marking::default(),
            }]
        }
        None => vec![],
    };
    let cp_f_seid = CpFSeid { seid: 1, address: Ipv4Addr::LOCALHOST.into() };
    let up_seid = words.number()?;
    let watch = || {
        let place = counters.open(0).unwrap();
        Usage::new(place, UsageId { up_seid, urr: ACTIVITY }, &UsageTerms::default())
    };
    Ok(Session {
        up_seid,
        cp_f_seid,
        pdrs: vec![],
        fars: vec![],
        qers: vec![],
        urrs: vec![],
        activity: words.flag("watched").then(watch),
        parting: Parting { end_markers, drop_buffered },
    })
}

fn interface(text: &str) -> Result<Interface, String> {
    match text {
        "access" => Ok(Interface::Access),
        "core" => Ok(Interface::Core),
        "n6" => Ok(Interface::SgiLan),
        other => Err(format!("what is {other}?")),
    }
}

/// `pdr ID from access|core|n6 [teid TEID] [at ADDRESS] [ue ADDRESS] [ue6 PREFIX/LEN] [behind NETWORK/LEN]... [qfi QFI]... [sdf FILTER]...
/// [remove v4|v6|any|none] far ID [qer ID]...`. The ID is its precedence.
pub fn pdr(words: &mut Words<'_>) -> Result<Pdr, String> {
    let id = words.number()? as u16;
    let source_interface = interface(&words.after("from")?.ok_or("from")?)?;
    let teid = words.after("teid")?.map(|text| number(&text)).transpose()?;
    let at = words.all_after("at", |text| text.parse::<IpAddr>().map_err(|_| text.into()))?;
    let v4 = at.iter().find_map(|at| if let IpAddr::V4(at) = at { Some(*at) } else { None });
    let v6 = at.iter().find_map(|at| if let IpAddr::V6(at) = at { Some(*at) } else { None });
    let everywhere = at.is_empty();
    let f_teid = teid.map(|teid| FTeid {
        teid: teid as u32,
        v4: if everywhere { Some(Ipv4Addr::new(10, 3, 0, 1)) } else { v4 },
        v6: if everywhere { Some("2001:db8:3::1".parse().unwrap()) } else { v6 },
    });
    let ue_v4 = words.after("ue")?.map(|text| text.parse::<Ipv4Addr>().map_err(|_| text)).transpose()?;
    let ue_v6 = words.after("ue6")?.map(|text| prefix6(&text)).transpose()?;
    let ue_ip = (ue_v4.is_some() || ue_v6.is_some()).then_some(UeIp { v4: ue_v4, v6: ue_v6 });
    let removal = words.after("remove")?;
    let outer_header_removal = match removal.as_deref() {
        Some("v4") => Some(OuterHeaderRemoval::GtpuUdpIpv4),
        Some("v6") => Some(OuterHeaderRemoval::GtpuUdpIpv6),
        Some("any") => Some(OuterHeaderRemoval::GtpuUdpIp),
        None if source_interface == Interface::Access => Some(OuterHeaderRemoval::GtpuUdpIp),
        _ => None,
    };
    let pdi = Pdi {
        source_interface,
        network_instance: words.after("instance")?,
        f_teid,
        ue_ip,
        sdf_filters: words.all_after("sdf", sdf)?,
        qfis: words.all_after("qfi", |text| number(text).map(|qfi| qfi as u8))?,
        framed_routes: words.all_after("behind", network)?,
        traffic_endpoint: None,
    };
    Ok(Pdr {
        id,
        precedence: id.into(),
        pdi,
        outer_header_removal,
        far_id: number(&words.after("far")?.ok_or("far")?)? as u32,
        qer_ids: words.all_after("qer", |text| number(text).map(|id| id as u32))?,
        urr_ids: words.all_after("urr", |text| number(text).map(|id| id as u32))?,
    })
}

fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let (net, len) = text.split_once('/').ok_or(text)?;
    Ok((net.parse().map_err(|_| text)?, len.parse().map_err(|_| text)?))
}

fn prefix6(text: &str) -> Result<(Ipv6Addr, u8), String> {
    let (net, len) = text.split_once('/').ok_or(text)?;
    Ok((net.parse().map_err(|_| text)?, len.parse().map_err(|_| text)?))
}

/// `PROTOCOL,FROM,TO[,TOS/MASK][,spi:N][,label:N]`, where from and to are `any` or `ADDRESS/LEN`, with `@FIRST-LAST` for ports.
fn sdf(text: &str) -> Result<SdfFilter, String> {
    if text == "nothing" {
        return Ok(SdfFilter::nothing());
    }
    let parts: Vec<_> = text.split(',').collect();
    let [protocol, from, to, ref more @ ..] = parts[..] else { return Err(text.into()) };
    let after = |key: &str| more.iter().find_map(|part| part.strip_prefix(key)).map(number).transpose();
    let tos = more.iter().find(|part| part.contains('/')).map(|tos| {
        let (value, mask) = tos.split_once('/').ok_or("tos")?;
        Ok::<_, String>((number(value)? as u8, number(mask)? as u8))
    });
    Ok(SdfFilter {
        protocol: if protocol == "any" { None } else { Some(number(protocol)? as u8) },
        from: endpoint(from)?,
        to: endpoint(to)?,
        tos: tos.transpose()?,
        spi: after("spi:")?.map(|spi| spi as u32),
        flow_label: after("label:")?.map(|label| label as u32),
        id: None,
    })
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    let (net, ports) = text.split_once('@').unwrap_or((text, ""));
    let prefix = match net.split_once('/') {
        Some((net, len)) => Some((net.parse().map_err(|_| text)?, len.parse().map_err(|_| text)?)),
        None => None,
    };
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Ok((number(first)? as u16, number(last)? as u16))
    };
    let ports = ports.split('+').filter(|range| !range.is_empty()).map(range).collect::<Result<_, String>>()?;
    Ok(Endpoint { prefix, ports })
}

/// `far ID drop`, `far ID buffer MOST [notify]`, or `far ID to access|core|n6 [tunnel TEID peer ADDRESS [tos OCTET]]`.
pub fn far(words: &mut Words<'_>) -> Result<Far, String> {
    let id = words.number()? as u32;
    let copies = words.all_after("copy", copy)?;
    if words.flag("drop") {
        return Ok(Far { id, action: FarAction::Drop, copies });
    }
    if let Some(most) = words.after("buffer")? {
        let max_packets = number(&most)? as u16;
        let action = FarAction::Buffer(Buffering { notify: words.flag("notify"), max_packets, ..Buffering::default() });
        return Ok(Far { id, action, copies });
    }
    let destination_interface = interface(&words.after("to")?.ok_or("to")?)?;
    let teid = words.after("tunnel")?.map(|text| number(&text)).transpose()?;
    let peer = words.after("peer")?.map(|text| text.parse().map_err(|_| text)).transpose()?;
    let outer_header_creation =
        teid.zip(peer).map(|(teid, address)| OuterHeaderCreation { teid: teid as u32, address });
    let network_instance = words.after("instance")?;
    let marking = words.after("tos")?.map(|text| marking(&text)).transpose()?.unwrap_or_default();
    Ok(Far {
        id,
        action: FarAction::Forward(Forwarding {
            destination_interface,
            network_instance,
            outer_header_creation,
            marking,
        }),
        copies,
    })
}

/// `TEID@ADDRESS[,TOS]`.
fn copy(text: &str) -> Result<Forwarding, String> {
    let (tunnel, tos) = text.split_once(',').unwrap_or((text, "0"));
    let (teid, address) = tunnel.split_once('@').ok_or(text)?;
    let tunnel = OuterHeaderCreation { teid: number(teid)? as u32, address: address.parse().map_err(|_| text)? };
    Ok(Forwarding {
        destination_interface: Interface::Core,
        network_instance: None,
        outer_header_creation: Some(tunnel),
        marking: marking(tos)?,
    })
}

/// `OCTET[/MASK]`.
fn marking(text: &str) -> Result<Marking, String> {
    let (tos, mask) = text.split_once('/').unwrap_or((text, "0xff"));
    Ok(Marking { tos: number(tos)? as u8, mask: number(mask)? as u8 })
}

/// `qer ID [qfi QFI] [rqi] [ul-closed] [dl-closed] [ul-mbr BPS] [dl-mbr BPS] [correlation ID]`.
pub fn qer(words: &mut Words<'_>) -> Result<Qer, String> {
    Ok(Qer {
        id: words.number()? as u32,
        uplink_gate_open: !words.flag("ul-closed"),
        downlink_gate_open: !words.flag("dl-closed"),
        uplink_mbr_bps: words.after("ul-mbr")?.map(|text| number(&text)).transpose()?,
        downlink_mbr_bps: words.after("dl-mbr")?.map(|text| number(&text)).transpose()?,
        qfi: words.after("qfi")?.map(|text| number(&text)).transpose()?.map(|qfi| qfi as u8),
        reflective: words.flag("rqi"),
        correlation_id: words.after("correlation")?.map(|text| number(&text)).transpose()?.map(|id| id as u32),
    })
}

/// `urr ID [quota OCTETS] [ul-quota OCTETS] [dl-quota OCTETS]`.
pub fn urr(up_seid: u64, words: &mut Words<'_>, counters: &Counters) -> Result<Urr, String> {
    let id = words.number()? as u32;
    let mut octets = |key| words.after(key)?.map(|text| number(&text)).transpose();
    let stop_at = Bounds { total: octets("quota")?, uplink: octets("ul-quota")?, downlink: octets("dl-quota")? };
    let tell_dropped_at = octets("dropped")?.map(|octets| [None, Some(octets)]);
    let before_qos = words.flag("before-qos");
    let terms = UsageTerms { stop_at, tell_dropped_at, before_qos, ..UsageTerms::default() };
    let quota_far_id = words.after("far")?.map(|text| number(&text)).transpose()?.map(|id| id as u32);
    let place = counters.open(0).map_err(|error| error.to_string())?;
    Ok(Urr { id, measures: true, usage: Usage::new(place, UsageId { up_seid, urr: id }, &terms), quota_far_id })
}
