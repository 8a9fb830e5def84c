//! Rules that are yet to be written, and how they are.

use super::super::Bucket;
use super::super::blocks::BEFORE_BODY;
use super::super::filter;
use super::super::image::{Image, quarters};
use super::Action;
use super::policing::{Limit, Policing};
use super::words::*;
use crate::buffers::Waiting;
use crate::drops::DropReason;
use crate::marking::Marking;
use crate::path::{Relay, Tunnel};
use crate::usage::whole;

/// A rule that is yet to be written.
#[derive(Clone, Debug)]
pub(in super::super) struct Draft {
    /// QFIs that match, as bits; any if there are none.
    pub qfis: u64,
    pub v4: AddressesV4,
    pub v6: AddressesV6,
    /// Networks behind the UE, which count as its address.
    pub framed: Vec<Net>,
    /// Any of these matches; everything does if there are none.
    pub filters: Vec<filter::Draft>,
    /// Maximum bit rates that packets count towards.
    pub limits: Vec<Limit>,
    /// Places of what counts the packets.
    pub usages: Vec<u32>,
    pub pdr: u16,
    /// Whether any UE address matches.
    pub any_ue: bool,
    /// Whether the PDR takes off the outer header.
    pub removes_header: bool,
    /// Whether all gates are open.
    pub open: bool,
    /// Whether packets come from the UE.
    pub uplink: bool,
    pub action: Action,
    /// Whether packets are translated on their way into the data network.
    pub translated: bool,
    /// Tunnels that copies of the packets are put into, or why they are dropped.
    pub copies: Vec<Result<Tunnel, DropReason>>,
    /// In place of the rule, for packets that would go beyond a quota: by the usage whose quota it is.
    pub substitutes: Vec<(usize, Self)>,
}

/// Addresses that match; none matches where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct AddressesV4 {
    /// The UE's.
    pub ue: Option<u32>,
    /// Of the F-TEID.
    pub local: Option<u32>,
}

/// Addresses that match; none matches where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct AddressesV6 {
    /// The UE's network and its mask.
    pub ue: Option<(u128, u128)>,
    /// Of the F-TEID.
    pub local: Option<u128>,
}

/// A network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Net {
    V4 { net: u32, mask: u32 },
    V6 { net: u128, mask: u128 },
}

impl Draft {
    /// The rule, and those that stand in for it.
    pub(super) fn with_substitutes(&self) -> impl Iterator<Item = &Self> + Clone {
        std::iter::once(self).chain(self.substitutes.iter().map(|(_, rule)| rule))
    }

    /// Writes a list of rules, which all have this home, to the end of `image`. Returns where it begins.
    pub fn write_list(rules: &[Self], home: Bucket, policing: &mut Policing, image: &mut Image) -> usize {
        let first = image.add(rules.len());
        let at = |number: usize| first + number;
        for (number, rule) in rules.iter().enumerate() {
            rule.write(at(number), home, rules.len() - number, policing, image);
        }
        // From the first rule with filters on all have some, and packets are held against one after the other.
        let is_filtered = |rule: &Self| !rule.filters.is_empty();
        let Some(begin) = rules.iter().position(is_filtered) else { return first };
        let mut filters = vec![];
        for (number, rule) in rules.iter().enumerate().skip(begin) {
            filters.extend(rule.filters.iter().map(|filter| (at(number), filter.clone())));
            if !is_filtered(rule) {
                filters.push((at(number), filter::Draft::any()));
            }
        }
        let written = filter::Draft::write_all(&filters, image);
        image[at(begin)][BRIEF] |= flag::FILTERED;
        set_second(at(begin), FILTERS, whole((written - at(begin)) as u32, filters.len() as u32), image);
        first
    }

    fn write(&self, at: usize, home: Bucket, left: usize, policing: &mut Policing, image: &mut Image) {
        let (kind, port, flow, marking, tunnel, other, waiting) = self.action_words();
        let (matched, relay) = if kind == kind::TUNNEL { (tunnel, self.qfis) } else { (self.qfis, tunnel) };
        let policed = policing.write_rule(at, &self.limits, image);
        let flags = [
            (self.any_ue, flag::ANY_UE),
            (self.removes_header, flag::REMOVES_HEADER),
            (self.open, flag::OPEN),
            (self.uplink, flag::UPLINK),
            (self.v4.ue.is_some(), flag::HAS_UE_V4),
            (self.v4.local.is_some(), flag::HAS_LOCAL_V4),
            (!self.usages.is_empty(), flag::COUNTED | flag::BEHIND),
            (policed == policed::SLOTS, flag::BEHIND),
            (self.translated || !self.copies.is_empty() || !self.substitutes.is_empty(), flag::ASIDE),
        ];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag);
        let octets = flags | u64::from(kind) << 8 | u64::from(port) << 16 | u64::from(home) << 24;
        image[at][BRIEF] = octets | (left as u64 & 0xffff) << 32 | u64::from(self.pdr) << 48;
        image[at][V4] = whole(self.v4.local.unwrap_or(0), self.v4.ue.unwrap_or(0));
        image[at][QFIS_OR_TUNNEL] = matched;
        self.write_usages(at, image);
        let addresses = self.write_addresses(at, image);
        image[at][BEHIND] = quarters([addresses, policed, 0, BEFORE_BODY + at]);
        let flow = u64::from(flow.unwrap_or(0)) | u64::from(flow.is_some()) << 8;
        let marking = u64::from(marking.tos) << 16 | u64::from(marking.mask) << 24;
        let manner = flow | marking | waiting | u64::from(self.translated) << 56;
        set_second(at, RELAY_OR_QFIS, relay, image);
        set_second(at, MANNER, manner, image);
        set_second(at, OTHER_PATHS, other, image);
        self.write_copies(at, image);
        self.write_substitutes(at, home, policing, image);
    }

    /// Kind, port, flow, marking, tunnel, other paths, and how packets wait.
    fn action_words(&self) -> (u8, u8, Option<u8>, Marking, u64, u64, u64) {
        let none = Marking::default();
        match self.action {
            Action::Drop(reason) => (kind::DROP, reason as u8, None, none, 0, 0, 0),
            Action::Route(port) => (kind::ROUTE, port.number() as u8, None, none, 0, 0, 0),
            Action::RouteMarked(port, marking) => (kind::ROUTE_MARKED, port.number() as u8, None, marking, 0, 0, 0),
            Action::Tunnel(Tunnel { path, teid, flow }) => {
                (kind::TUNNEL, flow & 0x7f, None, none, whole(path, teid), 0, 0)
            }
            Action::Relay(Relay { bare, marked, marker, teid, flow, downlink }) => {
                (kind::RELAY, downlink.into(), flow, none, whole(marked, teid), whole(bare, marker), 0)
            }
            Action::Buffer(Waiting { max_packets, notify, duration, .. }) => {
                let waiting = u64::from(max_packets) << 32 | u64::from(notify) << 48;
                (kind::BUFFER, 0, None, none, 0, duration.0.into(), waiting)
            }
        }
    }

    fn write_usages(&self, at: usize, image: &mut Image) {
        let place = match self.usages[..] {
            [] => 0,
            [place] => place,
            [..] => {
                let words = self.usages.chunks(2).map(|pair| whole(pair[0], pair.get(1).copied().unwrap_or(0)));
                (image.append(words) - at) as u32
            }
        };
        image[at][USAGES] = whole(place, self.usages.len() as u32);
    }

    /// UE's network and mask, local address, how many framed networks, and these.
    fn write_addresses(&self, at: usize, image: &mut Image) -> usize {
        if self.v6 == AddressesV6::default() && self.framed.is_empty() {
            return 0;
        }
        let wide = |bits: u128| [bits as u64, (bits >> 64) as u64];
        let (net, mask) = self.v6.ue.unwrap_or_default();
        let has = u64::from(self.v6.ue.is_some()) | u64::from(self.v6.local.is_some()) << 1;
        let head = [has, self.framed.len() as u64].into_iter();
        let addresses = [net, mask, self.v6.local.unwrap_or_default()].into_iter().flat_map(wide);
        let framed = self.framed.iter().flat_map(|net| {
            let (is_v6, net, mask) = match *net {
                Net::V4 { net, mask } => (0, net.into(), mask.into()),
                Net::V6 { net, mask } => (1, net, mask),
            };
            [is_v6].into_iter().chain(wide(net)).chain(wide(mask))
        });
        image.append(head.chain(addresses).chain(framed)) - at
    }

    fn write_copies(&self, at: usize, image: &mut Image) {
        if self.copies.is_empty() {
            return;
        }
        let words = self.copies.iter().flat_map(|copy| match *copy {
            Ok(Tunnel { path, teid, flow }) => [u64::from(flow) << 8, whole(path, teid)],
            Err(reason) => [1 | u64::from(reason as u8) << 8, 0],
        });
        let behind = image.append(words) - at;
        set_second(at, COPIES, whole(behind as u32, self.copies.len() as u32), image);
    }

    fn write_substitutes(&self, at: usize, home: Bucket, policing: &mut Policing, image: &mut Image) {
        if self.substitutes.is_empty() {
            return;
        }
        let first = image.add(self.substitutes.len());
        for (own, (usage, rule)) in (first..).zip(&self.substitutes) {
            rule.write(own, home, 1, policing, image);
            set_second(own, STANDS_FOR, *usage as u64, image);
        }
        set_second(at, SUBSTITUTES, whole((first - at) as u32, self.substitutes.len() as u32), image);
    }
}

/// Sets a word of the second line of the rule at `at`, which gets one if it has none and needs it.
fn set_second(at: usize, word: usize, value: u64, image: &mut Image) {
    if value == 0 {
        return;
    }
    let behind = usize::from((image[at][BEHIND] >> (16 * quarter::SECOND)) as u16);
    let second = if behind == 0 { image.add(1) } else { at + behind };
    image[at][BEHIND] |= quarters([0, 0, second - at, 0]);
    image[at][BRIEF] |= flag::BEHIND;
    image[second][word] = value;
}

#[cfg(test)]
mod tests {
    use super::super::super::compile::MeterKey;
    use super::super::super::policers::Policer;
    use super::*;

    fn limit(id: u32) -> Limit {
        Limit { key: MeterKey { id, correlated: false, uplink: false }, rate: 1_000, shared: None }
    }

    fn usual() -> Draft {
        Draft {
            qfis: 0,
            v4: AddressesV4 { ue: Some(1), local: None },
            v6: AddressesV6::default(),
            framed: vec![],
            filters: vec![],
            limits: vec![limit(1)],
            usages: vec![7],
            pdr: 1,
            any_ue: false,
            removes_header: false,
            open: true,
            uplink: false,
            action: Action::Tunnel(Tunnel { path: 1, teid: 2, flow: 9 }),
            translated: false,
            copies: vec![],
            substitutes: vec![],
        }
    }

    fn lines(rules: &[Draft]) -> usize {
        let mut image = Image::default();
        let mut policing = Policing::write(rules.iter(), &mut image);
        Draft::write_list(rules, 0, &mut policing, &mut image);
        image.len()
    }

    #[test]
    fn only_what_few_rules_have_takes_more_than_a_line() {
        let other = || Draft { limits: vec![limit(2)], ..usual() };
        assert_eq!((lines(&[usual()]), lines(&[usual(), other()])), (1, 2));
        assert_eq!(lines(&[Draft { qfis: 1 << 9, ..usual() }]), 2, "QFIs of what comes by a tunnel");
        assert_eq!(lines(&[Draft { translated: true, qfis: 1 << 9, ..usual() }]), 2, "share a second line");
        let copies = vec![Ok(Tunnel { path: 1, teid: 3, flow: 0 })];
        assert_eq!(lines(&[usual(), Draft { copies, ..other() }]), 4);
    }

    #[test]
    fn a_rule_says_whether_more_lines_are_looked_at_for_it() {
        let is_behind = |rule: Draft| {
            let mut image = Image::default();
            let mut policing = Policing::write([&rule].into_iter(), &mut image);
            let at = Draft::write_list(&[rule], 0, &mut policing, &mut image);
            image[at][BRIEF] & flag::BEHIND != 0
        };
        let bare = || Draft { usages: vec![], ..usual() };
        assert!(!is_behind(bare()));
        assert!(is_behind(usual()), "counters");
        assert!(is_behind(Draft { qfis: 1 << 9, ..bare() }), "a second line");
        assert!(is_behind(Draft { limits: vec![limit(1), limit(2)], ..bare() }), "policers in slots");
    }

    #[test]
    fn policers_of_several_rules_and_several_of_one_have_half_a_line_each() {
        assert_eq!(lines(&[usual(), usual()]), 3);
        assert_eq!(lines(&[Draft { limits: vec![limit(1), limit(2)], ..usual() }]), 2);
        assert_eq!(lines(&[usual(), Draft { limits: vec![limit(1), limit(2), limit(3)], ..usual() }]), 4);
        let policer = Policer { index: 7, generation: std::num::NonZeroU32::MIN };
        assert_eq!(lines(&[Draft { limits: vec![Limit { shared: Some(policer), ..limit(1) }], ..usual() }]), 2);
        let substitutes = vec![(1, usual())];
        assert_eq!(lines(&[Draft { substitutes, ..usual() }]), 5, "what stands in, and the second line of both");
    }
}
