//! Frames from their notation: layers from the outside in, each with addresses or ports and then options. Lengths and
//! checksums that are not stated are right.

use std::collections::HashMap;
use std::net::IpAddr;

/// One layer as written.
struct Layer<'t> {
    kind: &'t str,
    arguments: Vec<&'t str>,
    options: HashMap<&'t str, &'t str>,
}

/// Where a frame goes: Ethernet addresses that `eth` has unless it says others.
#[derive(Clone, Copy)]
pub struct Ends {
    pub from: [u8; 6],
    pub to: [u8; 6],
}

const KINDS: [&str; 9] = ["eth", "vlan", "arp", "ip", "udp", "tcp", "icmp", "gtpu", "nd"];

/// The bytes of a frame.
pub fn build(text: &str, ends: Ends) -> Result<Vec<u8>, String> {
    let layers = layers(text)?;
    let mut bytes = vec![];
    for (at, layer) in layers.iter().enumerate().rev() {
        let inner = layers.get(at + 1);
        let outer = layers[..at].iter().rev().find(|layer| layer.kind == "ip");
        bytes = match layer.kind {
            "eth" => ethernet(layer, inner, ends, bytes)?,
            "vlan" => [&[0, 5][..], &ether_type(inner)?.to_be_bytes(), &bytes].concat(),
            "arp" => arp(layer, ends)?,
            "ip" => ip(layer, inner, bytes)?,
            "udp" => udp(layer, inner, outer, bytes)?,
            "tcp" => tcp(layer, outer, bytes)?,
            "icmp" => icmp(layer, outer, bytes)?,
            "nd" => neighbour_discovery(layer, outer, ends)?,
            "gtpu" => gtpu(layer, bytes)?,
            literal => [payload(literal)?, bytes].concat(),
        };
    }
    Ok(bytes)
}

fn layers(text: &str) -> Result<Vec<Layer<'_>>, String> {
    let mut layers: Vec<Layer<'_>> = vec![];
    for word in text.split_whitespace() {
        let literal = word.starts_with(['"', '*']) || word.starts_with("x:");
        if KINDS.contains(&word) || literal {
            layers.push(Layer { kind: word, arguments: vec![], options: HashMap::new() });
            continue;
        }
        let layer = layers.last_mut().ok_or(format!("{word} before any layer"))?;
        match word.split_once('=') {
            Some((key, value)) => {
                layer.options.insert(key, value);
            }
            None => layer.arguments.push(word),
        }
    }
    Ok(layers)
}

impl Layer<'_> {
    fn argument<T: std::str::FromStr>(&self, at: usize) -> Result<T, String> {
        let word = self.arguments.get(at).ok_or(format!("{} lacks argument {}", self.kind, at + 1))?;
        word.parse().map_err(|_| format!("{}: {word}", self.kind))
    }

    fn number(&self, key: &str) -> Result<Option<u64>, String> {
        self.options.get(key).map(|value| number(value)).transpose()
    }

    fn has(&self, key: &str) -> bool {
        self.arguments.contains(&key)
    }
}

pub fn number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).map_err(|_| text.to_owned()),
        None => text.parse().map_err(|_| text.to_owned()),
    }
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.chars().filter(|&c| c != ':' && c != '.').collect::<String>();
    (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[at * 2..at * 2 + 2], 16).map_err(|_| text.to_owned()))
        .collect()
}

/// `"text"`, `x:0102`, `*100` for so many bytes, or `*100@976` for so many of them from there on.
fn payload(literal: &str) -> Result<Vec<u8>, String> {
    if let Some(digits) = literal.strip_prefix("x:") {
        return hex(digits);
    }
    if let Some(count) = literal.strip_prefix('*') {
        let (count, first) = count.split_once('@').unwrap_or((count, "0"));
        let first = number(first)?;
        return Ok((first..first + number(count)?).map(|at| at as u8).collect());
    }
    Ok(literal.trim_matches('"').as_bytes().to_vec())
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    hex(text)?.try_into().map_err(|_| text.to_owned())
}

fn ethernet(layer: &Layer<'_>, inner: Option<&Layer<'_>>, ends: Ends, payload: Vec<u8>) -> Result<Vec<u8>, String> {
    let to = layer.options.get("to").map_or(Ok(ends.to), |text| mac(text))?;
    let from = layer.options.get("from").map_or(Ok(ends.from), |text| mac(text))?;
    let kind = layer.number("type")?.map_or_else(|| ether_type(inner), |kind| Ok(kind as u16))?;
    let mut frame = [&to[..], &from[..], &kind.to_be_bytes(), &payload].concat();
    frame.resize(frame.len() + layer.number("pad")?.unwrap_or(0) as usize, 0xee);
    frame.truncate(layer.number("cut")?.map_or(usize::MAX, |cut| cut as usize));
    Ok(frame)
}

fn ether_type(inner: Option<&Layer<'_>>) -> Result<u16, String> {
    Ok(match inner {
        Some(layer) if layer.kind == "arp" => 0x0806,
        Some(layer) if layer.kind == "vlan" => 0x8100,
        Some(layer) if layer.kind == "ip" && layer.argument::<IpAddr>(0)?.is_ipv6() => 0x86dd,
        _ => 0x0800,
    })
}

/// `arp request|reply SENDER TARGET`.
fn arp(layer: &Layer<'_>, ends: Ends) -> Result<Vec<u8>, String> {
    let (operation, target_mac) = if layer.has("request") { (1, [0; 6]) } else { (2, ends.to) };
    let mut bytes = vec![0, 1, 8, 0, 6, 4, 0, operation];
    for (mac, at) in [(ends.from, 1), (target_mac, 2)] {
        bytes.extend(mac);
        bytes.extend(layer.argument::<std::net::Ipv4Addr>(at)?.octets());
    }
    Ok(bytes)
}

fn protocol(inner: Option<&Layer<'_>>, v6: bool) -> u8 {
    match inner.map(|layer| layer.kind) {
        Some("udp") => 17,
        Some("tcp") => 6,
        Some("icmp" | "nd") => {
            if v6 {
                58
            } else {
                1
            }
        }
        _ => 253,
    }
}

/// `ip FROM TO [tos=] [ttl=] [len=] [proto=] [id=] [frag=] [sum=] [ext=HEX]`: either version, by the addresses.
fn ip(layer: &Layer<'_>, inner: Option<&Layer<'_>>, payload: Vec<u8>) -> Result<Vec<u8>, String> {
    let (from, to): (IpAddr, IpAddr) = (layer.argument(0)?, layer.argument(1)?);
    let tos = layer.number("tos")?.unwrap_or(0) as u8;
    let ttl = layer.number("ttl")?.unwrap_or(64) as u8;
    let protocol = layer.number("proto")?.map_or_else(|| protocol(inner, from.is_ipv6()), |protocol| protocol as u8);
    let extra = layer.options.get("ext").map_or(Ok(vec![]), |text| hex(text))?;
    let (payload, place) = part(layer, payload)?;
    let (id, part_of) = (layer.number("id")?.unwrap_or(0), protocol);
    let protocol = if place.is_some() && from.is_ipv6() { 44 } else { protocol };
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header_len = 20 + extra.len();
            let len = layer.number("len")?.unwrap_or((header_len + payload.len()) as u64) as u16;
            let place = place.map(|(offset, more)| offset as u64 / 8 + (u64::from(more) << 13));
            let fragment = layer.number("frag")?.or(place).unwrap_or(0x4000) as u16;
            let mut header = vec![0x40 | (header_len / 4) as u8, tos];
            header.extend(len.to_be_bytes());
            header.extend((id as u16).to_be_bytes());
            header.extend(fragment.to_be_bytes());
            header.extend([ttl, protocol, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            header.extend(extra);
            let sum = layer.number("sum")?.map_or_else(|| checksum(&[&header]), |sum| sum as u16);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header.extend(payload);
            Ok(header)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let fragment = place.map_or(vec![], |(offset, more)| {
                [&[part_of, 0][..], &(offset as u16 | u16::from(more)).to_be_bytes(), &(id as u32).to_be_bytes()]
                    .concat()
            });
            let payload = [extra, fragment, payload].concat();
            let len = layer.number("len")?.unwrap_or(payload.len() as u64) as u16;
            let label = layer.number("label")?.unwrap_or(0) as u32;
            let mut header = (0x6000_0000 | u32::from(tos) << 20 | label).to_be_bytes().to_vec();
            header.extend(len.to_be_bytes());
            header.extend([protocol, ttl]);
            header.extend(from.octets());
            header.extend(to.octets());
            header.extend(payload);
            Ok(header)
        }
        _ => Err("two versions of IP in one packet".into()),
    }
}

/// Where in its packet a fragment is, and whether more follow.
type Place = (usize, bool);

/// With `part=FROM-TO` these octets of the payload are a fragment, with `more` behind them unless they end it; or as
/// stated by `more` and `last`.
fn part(layer: &Layer<'_>, payload: Vec<u8>) -> Result<(Vec<u8>, Option<Place>), String> {
    let Some(text) = layer.options.get("part") else { return Ok((payload, None)) };
    let (from, to) = text.split_once('-').ok_or("part=FROM-TO")?;
    let (from, to) = (number(from)? as usize, (number(to)? as usize).min(payload.len()));
    let more = layer.has("more") || to < payload.len() && !layer.has("last");
    Ok((payload[from.min(to)..to].to_vec(), Some((from, more))))
}

/// The pseudo-header of UDP, TCP and ICMPv6.
fn pseudo(ip: &Layer<'_>, protocol: u8, len: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![];
    for at in 0..2 {
        match ip.argument::<IpAddr>(at)? {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend((len as u32).to_be_bytes());
    bytes.extend([0, 0, 0, protocol]);
    Ok(bytes)
}

/// `udp FROM TO [len=] [sum=]`. Datagrams with GTP-U over IPv4 have no checksum unless they state one, or `sum=auto`.
fn udp(
    layer: &Layer<'_>,
    inner: Option<&Layer<'_>>,
    outer: Option<&Layer<'_>>,
    payload: Vec<u8>,
) -> Result<Vec<u8>, String> {
    let outer = outer.ok_or("udp without ip")?;
    let v6 = outer.argument::<IpAddr>(0)?.is_ipv6();
    let len = layer.number("len")?.unwrap_or(8 + payload.len() as u64) as u16;
    let mut bytes = vec![];
    bytes.extend(layer.argument::<u16>(0)?.to_be_bytes());
    bytes.extend(layer.argument::<u16>(1)?.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    let without = inner.is_some_and(|inner| inner.kind == "gtpu") && !v6 && !layer.options.contains_key("sum");
    let sum = match layer.options.get("sum") {
        Some(&sum) if sum != "auto" => number(sum)? as u16,
        _ if without => 0,
        _ => match checksum(&[&pseudo(outer, 17, bytes.len())?, &bytes]) {
            0 => 0xffff,
            sum => sum,
        },
    };
    bytes[6..8].copy_from_slice(&sum.to_be_bytes());
    Ok(bytes)
}

/// `tcp FROM TO [sum=auto]`: a bare header, without a checksum unless it is asked for.
fn tcp(layer: &Layer<'_>, outer: Option<&Layer<'_>>, payload: Vec<u8>) -> Result<Vec<u8>, String> {
    let mut bytes = vec![];
    bytes.extend(layer.argument::<u16>(0)?.to_be_bytes());
    bytes.extend(layer.argument::<u16>(1)?.to_be_bytes());
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0, 99, 0, 0, 0, 0]);
    bytes.extend(payload);
    if layer.options.contains_key("sum") {
        let sum = checksum(&[&pseudo(outer.ok_or("tcp without ip")?, 6, bytes.len())?, &bytes]);
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(bytes)
}

/// `icmp request|reply [id=]`: a ping with this identifier, or 1, and sequence number 1, of the version of IP around it. `icmp toolong
/// mtu= [cut=]`: fragmentation needed, or packet too big, with so many bytes of the payload quoted.
fn icmp(layer: &Layer<'_>, outer: Option<&Layer<'_>>, mut payload: Vec<u8>) -> Result<Vec<u8>, String> {
    let outer = outer.ok_or("icmp without ip")?;
    let v6 = outer.argument::<IpAddr>(0)?.is_ipv6();
    let kind = match (layer.has("request"), v6) {
        (true, false) => 8,
        (false, false) => 0,
        (true, true) => 128,
        (false, true) => 129,
    };
    let [high, low] = (layer.number("id")?.unwrap_or(1) as u16).to_be_bytes();
    let mut bytes = vec![kind, 0, 0, 0, high, low, 0, 1];
    if layer.has("toolong") {
        payload.truncate(layer.number("cut")?.map_or(usize::MAX, |cut| cut as usize));
        bytes = if v6 { vec![2, 0, 0, 0] } else { vec![3, 4, 0, 0] };
        bytes.extend((layer.number("mtu")?.ok_or("mtu=")? as u32).to_be_bytes());
    }
    bytes.extend(payload);
    let before = if v6 { pseudo(outer, 58, bytes.len())? } else { vec![] };
    let sum = checksum(&[&before, &bytes]);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    Ok(bytes)
}

/// `nd solicit|advertise TARGET [flags=] [mac=]`, with the sender's Ethernet address as the option unless it is stated.
fn neighbour_discovery(layer: &Layer<'_>, outer: Option<&Layer<'_>>, ends: Ends) -> Result<Vec<u8>, String> {
    let outer = outer.ok_or("nd without ip")?;
    let (kind, option) = if layer.has("solicit") { (135, 1) } else { (136, 2) };
    let mut bytes = vec![kind, 0, 0, 0, layer.number("flags")?.unwrap_or(0) as u8, 0, 0, 0];
    bytes.extend(layer.argument::<std::net::Ipv6Addr>(1)?.octets());
    bytes.extend([option, 1]);
    bytes.extend(layer.options.get("mac").map_or(Ok(ends.from), |text| mac(text))?);
    let sum = checksum(&[&pseudo(outer, 58, bytes.len())?, &bytes]);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    Ok(bytes)
}

/// `gtpu TEID [type=] [seq=] [npdu=] [e] [qfi=|dlqfi= [rqi]] [ext=TYPE:HEX,...] [flags=] [len=]`. `qfi` makes an uplink PDU
/// session container, `dlqfi` a downlink one; `ext` gives other extension headers, with the length octet and without the
/// next type.
fn gtpu(layer: &Layer<'_>, payload: Vec<u8>) -> Result<Vec<u8>, String> {
    let mut extensions: Vec<(u8, Vec<u8>)> = vec![];
    if let Some(qfi) = layer.number("qfi")? {
        extensions.push((0x85, vec![1, 0x10, qfi as u8]));
    }
    if let Some(qfi) = layer.number("dlqfi")? {
        extensions.push((0x85, vec![1, 0x00, qfi as u8 | u8::from(layer.has("rqi")) << 6]));
    }
    for text in layer.options.get("ext").map_or(vec![], |text| text.split(',').collect()) {
        let (kind, content) = text.split_once(':').ok_or("ext=TYPE:HEX")?;
        extensions.push((hex(kind)?[0], hex(content)?));
    }
    let (seq, npdu) = (layer.number("seq")?, layer.number("npdu")?);
    let e = !extensions.is_empty() || layer.has("e");
    let mut options = vec![];
    if e || seq.is_some() || npdu.is_some() {
        options.extend((seq.unwrap_or(0) as u16).to_be_bytes());
        options.push(npdu.unwrap_or(0) as u8);
        let mut next = extensions.iter().map(|(kind, _)| *kind).chain([0]);
        options.extend(next.next());
        for (_, content) in &extensions {
            options.extend(content);
            options.extend(next.next());
        }
    }
    let flags = 0x30 | u8::from(e) << 2 | u8::from(seq.is_some()) << 1 | u8::from(npdu.is_some());
    let len = layer.number("len")?.unwrap_or((options.len() + payload.len()) as u64) as u16;
    let mut bytes =
        vec![layer.number("flags")?.map_or(flags, |flags| flags as u8), layer.number("type")?.unwrap_or(255) as u8];
    bytes.extend(len.to_be_bytes());
    bytes.extend((number(layer.arguments.first().ok_or("gtpu TEID")?)? as u32).to_be_bytes());
    bytes.extend(options);
    bytes.extend(payload);
    Ok(bytes)
}

/// RFC 1071, word by word.
fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let sum: u64 = bytes.chunks(2).map(|c| u64::from(c[0]) << 8 | u64::from(*c.get(1).unwrap_or(&0))).sum();
    let mut folded = sum;
    while folded > 0xffff {
        folded = (folded >> 16) + (folded & 0xffff);
    }
    !(folded as u16)
}
