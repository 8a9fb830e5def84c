//! Sessions and their rules, as tables.

use crate::{
    out::{self, bytes, plain},
    outcome::Failure,
};
use serde_json::Value;
use upf::control::{Detail, Summary, Urr};
use upf::rules::{Endpoint, Far, FarAction, Interface, Pdr, Qer, SdfFilter};

pub fn session_row(session: &Summary) -> Vec<String> {
    let teids: Vec<_> = session.teids.iter().map(|teid| format!("{teid:#x}")).collect();
    let octets = |octets: Option<u64>| octets.map_or_else(dash, bytes);
    vec![
        session.up_seid.to_string(),
        session.smf.to_string(),
        session.cp_seid.to_string(),
        list(session.ues.iter().map(|ue| plain(ue)).collect()),
        list(teids),
        session.pdrs.to_string(),
        session.worker.map_or_else(dash, |worker| worker.to_string()),
        octets(session.uplink_octets),
        octets(session.downlink_octets),
    ]
}

/// All there is of a session.
pub fn print(detail: &Detail) -> Result<(), Failure> {
    let session = &detail.summary;
    let worker = session.worker.map_or_else(String::new, |worker| format!(", worker {worker}"));
    out::line(&format!("session {} of {} ({}){worker}", session.up_seid, session.smf, session.cp_seid))?;
    let head = ["PDR", "PRECEDENCE", "FROM", "TEID", "UE", "INSTANCE", "QFI", "FILTERS", "FAR", "QERS", "URRS"];
    section(&head, detail.pdrs.iter().map(pdr_row).collect())?;
    section(&["FAR", "ACTION"], detail.fars.iter().map(far_row).collect())?;
    section(&["QER", "GATE UP", "GATE DOWN", "MBR UP", "MBR DOWN", "QFI"], detail.qers.iter().map(qer_row).collect())?;
    let head = ["URR", "COUNTS", "UP", "PACKETS UP", "DOWN", "PACKETS DOWN"];
    section(&head, detail.urrs.iter().map(urr_row).collect())
}

fn section(head: &[&str], rows: Vec<Vec<String>>) -> Result<(), Failure> {
    if rows.is_empty() {
        return Ok(());
    }
    out::line("")?;
    Ok(out::print_table(&out::table(head, rows))?)
}

fn pdr_row(pdr: &Pdr) -> Vec<String> {
    let pdi = &pdr.pdi;
    let ue = pdi.ue_ip.map_or_else(Vec::new, |ue| {
        let v6 = ue.v6.map(|(net, len)| format!("{net}/{len}"));
        ue.v4.map(|address| address.to_string()).into_iter().chain(v6).collect()
    });
    vec![
        pdr.id.to_string(),
        pdr.precedence.to_string(),
        side(pdi.source_interface).into(),
        pdi.f_teid.map_or_else(dash, |f_teid| format!("{:#x}", f_teid.teid)),
        list(ue),
        pdi.network_instance.as_deref().map_or_else(dash, plain),
        list(pdi.qfis.iter().map(u8::to_string).collect()),
        list(pdi.sdf_filters.iter().map(filter).collect()),
        pdr.far_id.to_string(),
        list(pdr.qer_ids.iter().map(u32::to_string).collect()),
        list(pdr.urr_ids.iter().map(u32::to_string).collect()),
    ]
}

fn far_row(far: &Far) -> Vec<String> {
    let action = match &far.action {
        FarAction::Drop => "drop".into(),
        FarAction::Buffer(buffering) => {
            let notify = if buffering.notify { ", notify" } else { "" };
            format!("buffer up to {} packets{notify}", buffering.max_packets)
        }
        FarAction::Forward(forwarding) => {
            let tunnel =
                forwarding.outer_header_creation.map(|to| format!(", tunnel {:#x} at {}", to.teid, to.address));
            let instance = forwarding.network_instance.as_deref().map(|name| format!(", {}", plain(name)));
            let to = side(forwarding.destination_interface);
            format!("forward to {to}{}{}", instance.unwrap_or_default(), tunnel.unwrap_or_default())
        }
    };
    vec![far.id.to_string(), action]
}

fn qer_row(qer: &Qer) -> Vec<String> {
    let gate = |open: bool| if open { "open" } else { "closed" };
    let rate = |bps: Option<u64>| bps.map_or_else(dash, |bps| format!("{}bit/s", out::number(bps)));
    vec![
        qer.id.to_string(),
        gate(qer.uplink_gate_open).into(),
        gate(qer.downlink_gate_open).into(),
        rate(qer.uplink_mbr_bps),
        rate(qer.downlink_mbr_bps),
        qer.qfi.map_or_else(dash, |qfi| qfi.to_string()),
    ]
}

fn urr_row(urr: &Urr) -> Vec<String> {
    vec![
        urr.id.to_string(),
        if urr.measures { "yes" } else { "paused" }.into(),
        bytes(urr.counts.uplink_octets),
        urr.counts.uplink_packets.to_string(),
        bytes(urr.counts.downlink_octets),
        urr.counts.downlink_packets.to_string(),
    ]
}

fn side(interface: Interface) -> &'static str {
    match interface {
        Interface::Access => "access",
        Interface::Core => "core",
        Interface::SgiLan => "data network",
    }
}

fn filter(filter: &SdfFilter) -> String {
    let end = |end: &Endpoint| {
        let prefix = end.prefix.map_or_else(|| "any".into(), |(address, len)| format!("{address}/{len}"));
        let range =
            |&(first, last): &(u16, u16)| if first == last { first.to_string() } else { format!("{first}-{last}") };
        let ports: Vec<_> = end.ports.iter().map(range).collect();
        if ports.is_empty() { prefix } else { format!("{prefix} {}", ports.join("+")) }
    };
    let protocol = filter.protocol.map_or_else(|| "ip".into(), |protocol| protocol.to_string());
    let mut text = format!("{protocol} from {} to {}", end(&filter.from), end(&filter.to));
    if let Some((value, mask)) = filter.tos {
        text += &format!(" tos {value:#x}/{mask:#x}");
    }
    if let Some(spi) = filter.spi {
        text += &format!(" spi {spi:#x}");
    }
    if let Some(label) = filter.flow_label {
        text += &format!(" flow {label:#x}");
    }
    text
}

fn list(items: Vec<String>) -> String {
    if items.is_empty() { dash() } else { items.join(", ") }
}

fn dash() -> String {
    "-".into()
}

/// The value with its fields named as everywhere in our JSON.
pub fn camel(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (camel_name(&name), camel(value))).collect(),
        Value::Array(items) => items.into_iter().map(camel).collect(),
        other => other,
    }
}

fn camel_name(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| {
        let (head, tail) = word.split_at(word.len().min(1));
        all + &head.to_ascii_uppercase() + tail
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_named_as_everywhere() {
        let value = serde_json::json!({"up_seid": 1, "list": [{"network_instance": "a_b"}]});
        assert_eq!(camel(value), serde_json::json!({"upSeid": 1, "list": [{"networkInstance": "a_b"}]}));
    }
}
