//! The session manager that loads N4: real PFCP over a socket, several requests on their way at a time.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pfcp::node::AssociationSetup;
use pfcp::rule::FTeid;
use pfcp::session::FSeid;
use pfcp::{Header, NodeId, RecoveryTimeStamp, Request, Response};
use traffic::ran::config::Wanted;
use traffic::ran::smf::establishment;

use super::subject::MANAGER;
use crate::rig;

/// Requests on their way. More do not make the UPF faster, and fewer leave it waiting.
const WINDOW: usize = 32;
/// No limit that the traffic meets.
const MBR_BPS: u64 = 4_000_000_000;

/// A session that the UPF has accepted.
#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Place in the order of sessions, from 0.
    pub number: u32,
    /// The UPF's SEID.
    pub up_seid: u64,
    /// The UPF's TEID.
    pub teid: u32,
}

/// The session manager.
pub struct Manager {
    socket: UdpSocket,
    sequence: u32,
    buffer: Vec<u8>,
    measures_usage: bool,
}

impl Manager {
    /// A session manager that is associated with the UPF.
    pub fn associate(upf: SocketAddr) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((MANAGER, 0)).context("a socket for the session manager")?;
        socket.connect(upf)?;
        // The UPF answers within milliseconds where it has its core; a loopback loses nothing.
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut manager = Self { socket, sequence: 0, buffer: vec![0; 65_536], measures_usage: true };
        let setup = AssociationSetup::new(NodeId::Address(MANAGER.into()), RecoveryTimeStamp::now());
        manager.send(0, &Request::AssociationSetup(setup))?;
        match manager.receive()?.1 {
            Response::AssociationSetup(response) => response.outcome.map_err(|fault| anyhow::anyhow!("{fault}"))?,
            other => bail!("the UPF answers the association with {other:?}"),
        }
        Ok(manager)
    }

    /// The same, whose sessions have no URR.
    pub fn without_usage(mut self) -> Self {
        self.measures_usage = false;
        self
    }

    /// Establishes the sessions with these numbers, at most `rate` a second, and calls `established` as soon as each is
    /// accepted.
    pub fn establish(
        &mut self,
        numbers: Range<u32>,
        rate: f64,
        mut established: impl FnMut(Session) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut on_their_way = HashMap::new();
        let (begin, first) = (Instant::now(), numbers.start);
        let mut numbers = numbers.peekable();
        while numbers.peek().is_some() || !on_their_way.is_empty() {
            while on_their_way.len() < WINDOW
                && let Some(&number) = numbers.peek()
            {
                let due = Duration::from_secs_f64(f64::from(number - first) / rate);
                let wait = due.saturating_sub(begin.elapsed());
                if !wait.is_zero() && !on_their_way.is_empty() {
                    break;
                }
                std::thread::sleep(wait);
                numbers.next();
                on_their_way.insert(self.send(0, &request(number, self.measures_usage))?, number);
            }
            let (sequence, response) = self.receive()?;
            let number = on_their_way.remove(&sequence).context("an answer to no request")?;
            let Response::SessionEstablishment(response) = response else { bail!("the UPF answers {response:?}") };
            let accepted = response.outcome.map_err(|fault| anyhow::anyhow!("session {number}: {fault}"))?;
            let f_teid = accepted.created_pdrs.first().and_then(|created| created.f_teid);
            let Some(FTeid::Given { teid, .. }) = f_teid else { bail!("session {number} got no F-TEID") };
            established(Session { number, up_seid: accepted.up_f_seid.seid, teid })?;
        }
        Ok(())
    }

    /// Deletes the sessions.
    pub fn delete(&mut self, sessions: &[Session]) -> anyhow::Result<()> {
        let mut waiting = 0;
        let mut sessions = sessions.iter();
        while waiting > 0 || sessions.len() > 0 {
            while waiting < WINDOW
                && let Some(session) = sessions.next()
            {
                self.send(session.up_seid, &Request::SessionDeletion)?;
                waiting += 1;
            }
            match self.receive()?.1 {
                Response::SessionDeletion(response) => response.outcome.map_err(|fault| anyhow::anyhow!("{fault}"))?,
                other => bail!("the UPF answers {other:?}"),
            };
            waiting -= 1;
        }
        Ok(())
    }

    fn send(&mut self, seid: u64, request: &Request) -> anyhow::Result<u32> {
        // Of 24 bits; 0 is a number like others.
        self.sequence = (self.sequence + 1) & 0xff_ffff;
        self.socket.send(&request.encode(seid, self.sequence)).context("cannot send to the UPF")?;
        Ok(self.sequence)
    }

    /// The next response, and the number of the request that it answers.
    fn receive(&mut self) -> anyhow::Result<(u32, Response)> {
        let len = self.socket.recv(&mut self.buffer).context("the UPF does not answer")?;
        let (header, body) = Header::parse(&self.buffer[..len])?;
        Ok((header.sequence, Response::parse(&header, body).map_err(|error| anyhow::anyhow!("{error:?}"))?))
    }
}

/// A session of two PDRs, two FARs, a QER and, where it is to measure usage, a URR.
fn request(number: u32, measure_usage: bool) -> Request {
    let wanted = Wanted {
        ue_v4: Some(rig::ue(number)),
        ue_v6: None,
        qfi: rig::QFI,
        downlink_teid: 0x1000_0000 + number,
        access_instance: Some("access".into()),
        network_instance: Some("internet".into()),
        mbr_bps: Some((MBR_BPS, MBR_BPS)),
        measure_usage,
        filters: vec![],
    };
    let cp_f_seid = FSeid::new(u64::from(number) + 1, MANAGER.into());
    let gnb = IpAddr::from(rig::GNB);
    Request::SessionEstablishment(establishment(&wanted, cp_f_seid, NodeId::Address(MANAGER.into()), gnb))
}
