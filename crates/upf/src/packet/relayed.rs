//! Packets that came with more in their GTP-U header than a shortest PDU session container. Where they go on in another tunnel the UPF is
//! an intermediate node, and most of that goes on with them (TS 29.281, 5.2.1); elsewhere it ends here.

use gtpu::RelayedHeader;

use super::decide::{User, encapsulate, find_tunnelled, into_tunnel, treat_tunnelled, tunnelled};
use super::{Arrival, Class, ETHERNET_LEN, Forward, Prepend, Verdict};
use crate::drops::DropReason;
use crate::ip::{ETHERTYPE_IPV6, half};
use crate::path::{Path, Relay, Tunnel};
use crate::state::State;
use crate::tables::Version;

const UDP_LEN: usize = 8;

/// What the header of a packet's tunnel has told.
#[derive(Clone, Copy)]
pub(crate) struct Came<'h> {
    /// The QoS flow; see [`gtpu::PduSession::flow`].
    pub flow: Option<u8>,
    /// The whole GTP-U header, if it has more than that.
    pub header: Option<&'h [u8]>,
    /// Whether that has an extension header that the UPF may pass on, and must refuse where the tunnel ends.
    pub must_go_on: bool,
}

impl<'h> Came<'h> {
    /// With nothing beside the QoS flow.
    #[inline(always)]
    pub fn plainly(flow: Option<u8>) -> Self {
        Self { flow, header: None, must_go_on: false }
    }

    /// As the frame says that begins with `head`, of which the user's packet begins at `at`.
    #[cold]
    pub fn of(arrival: Arrival, head: &'h [u8], at: u16) -> Self {
        match arrival {
            Arrival::Extended { .. } => Self::extended(head, at),
            Arrival::Tunnelled { flow, .. } => Self::plainly(flow),
            Arrival::Plain | Arrival::EndMarker { .. } => Self::plainly(None),
        }
    }

    /// The same of a packet that was decided about before, and not refused.
    #[cold]
    pub fn again(flow: Option<u8>, is_extended: bool, head: &'h [u8], at: u16) -> Self {
        let header = is_extended.then(|| gtpu_header(head, at.into())).flatten();
        Self { flow, header, must_go_on: false }
    }

    fn extended(head: &'h [u8], at: u16) -> Self {
        let header = gtpu_header(head, at.into());
        // The payload is not looked at.
        let parsed = header.and_then(|header| gtpu::parse_at_intermediate_node(header, usize::MAX).ok());
        Self {
            flow: parsed.and_then(|parsed| Some(parsed.pdu_session?.flow())),
            header,
            must_go_on: parsed.is_some_and(|parsed| parsed.refused_by_endpoint.is_some()),
        }
    }
}

/// The GTP-U header in a frame whose headers were found sound, and end at `end`.
fn gtpu_header(head: &[u8], end: usize) -> Option<&[u8]> {
    let head = head.get(..end)?;
    let ip_len = match half(head.first_chunk::<{ ETHERNET_LEN + 1 }>()?, ETHERNET_LEN - 2) {
        ETHERTYPE_IPV6 => 40,
        _ => usize::from(head[ETHERNET_LEN] & 0xf) * 4,
    };
    head.get(ETHERNET_LEN + ip_len + UDP_LEN..)
}

/// As [`super::decide()`], of a packet with more in its GTP-U header.
#[cold]
#[inline(never)]
pub(super) fn decide_extended<'t, const V6: bool>(
    tables: &'t Version,
    state: &mut State,
    user: &User<'_>,
    v6: bool,
    now: u64,
) -> Verdict<'t> {
    let came = Came::extended(user.head, user.at);
    let inner = tunnelled::<V6>(user)?;
    let rule = find_tunnelled(tables, user, &inner, v6, came.flow)?;
    treat_tunnelled(tables, state, rule, &inner, user.at, came, now)
}

/// From one tunnel into another. The user's packet begins at `at`.
#[inline(always)]
pub(super) fn relay<'t>(
    tables: &'t Version,
    at: u16,
    len: usize,
    way: &Relay,
    came: Came<'_>,
    counted: u32,
) -> Result<Forward<'t>, DropReason> {
    let tunnel = way.tunnel(came.flow);
    match came.header {
        None => encapsulate(tables, at, len, tunnel, counted),
        Some(header) => relay_with(tables, at, len, tunnel, header, counted),
    }
}

/// The same with what goes on of the packet's GTP-U header.
#[cold]
#[inline(never)]
fn relay_with<'t>(
    tables: &'t Version,
    at: u16,
    len: usize,
    tunnel: Tunnel,
    header: &[u8],
    counted: u32,
) -> Result<Forward<'t>, DropReason> {
    let path = tables.path(tunnel.path);
    let header = path.relayed(tunnel.flow, header).map_err(|_| DropReason::GtpuTooLong)?;
    let longer_by = path.relayed_len(&header) - path.len();
    if len + longer_by > path.inner_max().into() {
        return Err(DropReason::TooLong);
    }
    Ok(into_tunnel(tables, at, len, tunnel, counted))
}

/// Headers for a packet that goes on with what it came with.
pub(crate) struct Relayed<'t> {
    path: &'t Path,
    teid: u32,
    header: RelayedHeader,
}

impl<'t> Relayed<'t> {
    /// Those for a packet in a frame that begins with `head`. None where the headers are just those that the verdict says.
    #[cold]
    pub(crate) fn of(class: &Class, forward: &Forward<'t>, head: &[u8]) -> Option<Self> {
        let Prepend::Tunnel { path, teid, flow } = forward.prepend else { return None };
        let came = class.is_extended().then(|| gtpu_header(head, forward.strip.into())).flatten()?;
        let header = path.relayed(flow, came).ok()?;
        Some(Self { path, teid, header })
    }

    /// Octets that they take.
    pub(crate) fn len(&self) -> usize {
        self.path.relayed_len(&self.header)
    }

    /// Writes them for an inner packet of `inner_len` bytes to `to`, which is as long as they are.
    #[cold]
    pub(crate) fn write(&self, inner_len: usize, to: &mut [u8]) {
        self.path.write_relayed(self.teid, &self.header, inner_len, to);
    }
}
