//! Watches a UE's packets for an operator.

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::server::{Peer, Sources};
use super::{Event, Inner, Packet, Seid, Ue, Verdict};
use crate::drops::DropReason;
use crate::rules::{Pdr, Session};
use crate::side::Sides;
use crate::trace::{Record, Traced};

/// Between two looks at what workers have left.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two looks whose session the UE's is: it may come and go while it is watched.
const FIND_EVERY: Duration = Duration::from_millis(200);
/// Records that are taken from each worker at a time.
const AT_A_TIME: usize = 256;

/// Tells of packets until the peer hangs up.
pub(super) fn serve(peer: &mut Peer, ue: Ue, sources: &Sources) -> io::Result<Result<(), String>> {
    let Some(mut watching) = sources.traces.watch() else {
        return Ok(Err("somebody else watches a UE already, and only one can be watched at a time".into()));
    };
    let began_ns =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64 - sources.clock.now_ns();
    let (mut known, mut session) = (None, None);
    let mut find_at = Instant::now();
    let sides = sources.tables.sides();
    loop {
        if find_at <= Instant::now() {
            let up_seid = find(ue, sources);
            watching.set(address(ue), up_seid);
            // Before anybody is told, who might send a packet and remove the session then.
            session = look(session, up_seid, sources);
            if known != Some(up_seid) {
                peer.tell(&Event::Watching { up_seid: up_seid.map(Seid) })?;
                known = Some(up_seid);
            }
            find_at = Instant::now() + FIND_EVERY;
        }
        let records = watching.take(AT_A_TIME);
        if !records.is_empty() {
            session = look(session, known.flatten(), sources);
        }
        for record in &records {
            peer.tell(&Event::Packet(Box::new(packet(record, session.as_ref(), began_ns, &sides))))?;
        }
        match watching.lost() {
            0 => {}
            packets => peer.tell(&Event::Missed { packets })?,
        }
        if has_hung_up(peer, if records.is_empty() { LOOK_EVERY } else { Duration::ZERO })? {
            return Ok(Ok(()));
        }
    }
}

/// The session as it is now. One that is gone is still what packets met that came before.
fn look(before: Option<Session>, up_seid: Option<u64>, sources: &Sources) -> Option<Session> {
    up_seid.and_then(|up_seid| sources.session(up_seid).ok()).or(before)
}

/// The UPF's SEID of the UE's session.
fn find(ue: Ue, sources: &Sources) -> Option<u64> {
    match ue {
        Ue::Address(address) => sources.tables.session_of(address),
        Ue::Session(Seid(up_seid)) => Some(up_seid),
    }
}

fn address(ue: Ue) -> Option<std::net::IpAddr> {
    match ue {
        Ue::Address(address) => Some(address),
        Ue::Session(_) => None,
    }
}

/// Waits; true if the peer has gone, or says something, which can only be that it has enough.
fn has_hung_up(peer: &Peer, wait: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
    match poll(&mut [PollFd::new(peer.stream(), PollFlags::IN | PollFlags::RDHUP)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The record in words, with the rules that the session's PDR names.
fn packet(record: &Record, session: Option<&Session>, began_ns: u64, sides: &Sides) -> Packet {
    let session = session.filter(|session| session.up_seid == record.up_seid);
    let pdr = session.and_then(|session| session.pdrs.iter().find(|pdr| Some(pdr.id) == record.pdr));
    let ids = |ids: fn(&Pdr) -> &Vec<u32>| pdr.map(ids).cloned().unwrap_or_default();
    let inner = record.inner.map(|inner| Inner {
        source: inner.source,
        destination: inner.destination,
        protocol: inner.protocol,
        source_port: inner.ports.map(|(source, _)| source),
        destination_port: inner.ports.map(|(_, destination)| destination),
        octets: inner.len,
    });
    Packet {
        at_ns: began_ns + record.at_ns,
        uplink: record.is_uplink,
        from: sides.label(record.from),
        frame_octets: record.frame_len,
        inner,
        up_seid: (record.up_seid != 0).then_some(Seid(record.up_seid)),
        pdr: record.pdr,
        far: pdr.map(|pdr| pdr.far_id),
        qers: ids(|pdr| &pdr.qer_ids),
        urrs: ids(|pdr| &pdr.urr_ids),
        outside: record.outside,
        verdict: verdict(record.fate, sides),
    }
}

fn verdict(fate: Traced, sides: &Sides) -> Verdict {
    match fate {
        Traced::Sent { port, frame_len } => Verdict::Sent { port: sides.label(port), frame_octets: frame_len },
        Traced::Unresolved { port, neighbour } => Verdict::Unresolved { port: sides.label(port), neighbour },
        Traced::Waits => Verdict::Waits,
        Traced::Dropped(reason) => dropped(reason),
        Traced::SlowPath => Verdict::SlowPath,
    }
}

fn dropped(reason: DropReason) -> Verdict {
    Verdict::Dropped { reason: reason.name().into(), meaning: reason.meaning().into() }
}
