//! A packet of a trace, on a line.

use crate::out::{Paint, plain};
use std::net::IpAddr;
use upf::control::{Inner, Packet, Verdict};

/// When, which way, what, by which rules, and what became of it.
pub fn line(packet: &Packet, paint: Paint) -> String {
    let way = if packet.uplink { "up  " } else { "down" };
    let words = [
        time(packet.at_ns),
        format!("{way} {}", plain(&packet.from)),
        packet.inner.as_ref().map_or_else(String::new, inner),
        rules(packet),
        packet.outside.map_or_else(String::new, |outside| format!("outside {outside}")),
        verdict(&packet.verdict, paint),
    ];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ")
}

/// UTC, to the microsecond.
fn time(at_ns: u64) -> String {
    let seconds = at_ns / 1_000_000_000;
    let (hours, minutes) = (seconds / 3_600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{:06}", seconds % 60, at_ns / 1_000 % 1_000_000)
}

fn inner(inner: &Inner) -> String {
    let end = |address: IpAddr, port: Option<u16>| match (address, port) {
        (address, None) => address.to_string(),
        (IpAddr::V4(v4), Some(port)) => format!("{v4}:{port}"),
        (IpAddr::V6(v6), Some(port)) => format!("[{v6}]:{port}"),
    };
    let protocol = match inner.protocol {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        50 => "esp".into(),
        58 => "icmp6".into(),
        132 => "sctp".into(),
        other => format!("protocol {other}"),
    };
    let (from, to) = (end(inner.source, inner.source_port), end(inner.destination, inner.destination_port));
    format!("{from} > {to} {protocol} {} B", inner.octets)
}

fn rules(packet: &Packet) -> String {
    let Some(pdr) = packet.pdr else { return "no PDR".into() };
    let list = |name: &str, ids: &[u32]| {
        let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
        if ids.is_empty() { String::new() } else { format!(" {name} {}", ids.join(",")) }
    };
    let far = packet.far.map_or_else(String::new, |far| format!(" FAR {far}"));
    format!("PDR {pdr}{far}{}{}", list("QER", &packet.qers), list("URR", &packet.urrs))
}

fn verdict(verdict: &Verdict, paint: Paint) -> String {
    match verdict {
        Verdict::Sent { port, frame_octets } => {
            format!("{} by {}, {frame_octets} B", paint.green("sent"), plain(port))
        }
        Verdict::Unresolved { port, neighbour } => {
            format!("{} for the address of {neighbour} on {}", paint.yellow("waits"), plain(port))
        }
        Verdict::Waits => format!("{} for the UE", paint.yellow("waits")),
        Verdict::Dropped { reason, meaning } => {
            format!("{}: {}. {}", paint.red("dropped"), plain(reason.trim_start_matches("drop.")), plain(meaning))
        }
        Verdict::SlowPath => "for the UPF itself".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use upf::control::Seid;

    #[test]
    fn a_line_tells_why_a_packet_went_where_it_went() {
        let packet = Packet {
            at_ns: 1_700_000_000_123_456_789,
            uplink: true,
            from: "n3".into(),
            frame_octets: 142,
            inner: Some(Inner {
                source: "10.60.0.1".parse().unwrap(),
                destination: "10.6.0.2".parse().unwrap(),
                protocol: 17,
                source_port: Some(4_000),
                destination_port: Some(9),
                octets: 84,
            }),
            up_seid: Some(Seid(1)),
            pdr: Some(1),
            far: Some(11),
            qers: vec![5, 6],
            urrs: vec![],
            outside: None,
            verdict: Verdict::Sent { port: "n6".into(), frame_octets: 98 },
        };
        assert_eq!(
            line(&packet, Paint::none()),
            "22:13:20.123456  up   n3  10.60.0.1:4000 > 10.6.0.2:9 udp 84 B  PDR 1 FAR 11 QER 5,6  sent by n6, 98 B"
        );
        let translated = Packet { outside: Some("203.0.113.1:2000".parse().unwrap()), ..packet.clone() };
        assert!(line(&translated, Paint::none()).ends_with("QER 5,6  outside 203.0.113.1:2000  sent by n6, 98 B"));
        let verdict =
            Verdict::Dropped { reason: "drop.no_pdr".into(), meaning: "No PDR of the session matches.".into() };
        let dropped = Packet { pdr: None, inner: None, uplink: false, from: "n6".into(), verdict, ..packet };
        assert_eq!(
            line(&dropped, Paint::none()),
            "22:13:20.123456  down n6  no PDR  dropped: no_pdr. No PDR of the session matches."
        );
    }
}
