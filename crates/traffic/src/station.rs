//! A port with the host that it is on its link: finds neighbours, and answers them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use port::{PacketRef, Port, QueuePair, TxQueue};

use crate::host::{Host, Outcome};
use crate::reflector::Reflector;
use crate::sink::Sink;

/// How long somebody may take to come to the other end of a port.
pub const PEER_WAIT: Duration = Duration::from_secs(10);

/// A port with its one queue, and the host that it is on the link.
pub struct Station {
    /// The queue.
    pub queue: QueuePair,
    host: Host,
    /// The neighbour that its first route leads to.
    gateway: Option<IpAddr>,
    /// Its first IPv4 address.
    own: Option<Ipv4Addr>,
    name: String,
    mtu: u16,
}

impl Station {
    /// On `port`, of which the first queue is used.
    pub fn on(port: Port) -> anyhow::Result<Self> {
        let host = Host::of(&port.info);
        let gateway = port.info.routes.first().map(|route| route.via);
        let own = port.info.addresses.iter().find_map(|(address, _)| match address {
            IpAddr::V4(own) => Some(*own),
            IpAddr::V6(_) => None,
        });
        let (name, mtu) = (port.info.name, port.info.mtu);
        let queue = port.queues.into_iter().next().with_context(|| format!("port {name} has no queue"))?;
        Ok(Self { queue, host, gateway, own, name, mtu })
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> [u8; 6] {
        self.host.mac()
    }

    /// Its first IPv4 address.
    pub fn address(&self) -> anyhow::Result<Ipv4Addr> {
        self.own.with_context(|| {
            format!("port {} has no IPv4 address to send GTP-U from: give --tunnel-from ADDRESS", self.name)
        })
    }

    /// Says why IP packets of `len` bytes cannot leave, if they cannot.
    pub fn check_len(&self, len: usize) -> anyhow::Result<()> {
        anyhow::ensure!(
            len <= self.mtu.into(),
            "IP packets of {len} bytes do not fit port {}, whose MTU is {}: choose a smaller --size, or give the port a larger MTU",
            self.name,
            self.mtu
        );
        Ok(())
    }

    /// The Ethernet address of `neighbour`; asks for it until it answers, which may be by way of `other`.
    pub fn find(&mut self, neighbour: IpAddr, mut other: Option<&mut Self>) -> anyhow::Result<[u8; 6]> {
        const TRIES: usize = 50;
        for _ in 0..TRIES {
            if let Some(mac) = self.host.neighbour(neighbour) {
                return Ok(mac);
            }
            if let Some(question) = self.host.ask(neighbour) {
                self.queue.tx.send(&[PacketRef::from_slice(&question)]);
            }
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(1));
                if let Some(other) = other.as_deref_mut() {
                    other.answer_pending();
                }
            }
            self.answer_pending();
        }
        bail!("neighbour {neighbour} does not answer")
    }

    /// Is on its link: whoever is there knows its addresses, and a gateway has answered, which so has found its way here.
    pub fn appear(&mut self) -> anyhow::Result<()> {
        self.announce()?;
        self.gateway.map_or(Ok(()), |gateway| self.find(gateway, None).map(drop))
    }

    /// Tells the link where this station's addresses are, as soon as somebody is there to hear it.
    fn announce(&mut self) -> anyhow::Result<()> {
        let give_up = Instant::now() + PEER_WAIT;
        for announcement in self.host.announcements() {
            while self.queue.tx.send(&[PacketRef::from_slice(&announcement)]) == 0 {
                if Instant::now() > give_up {
                    bail!("nobody is at the other end of port {}", self.name);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Answers what waits; nothing else is looked at.
    pub fn answer_pending(&mut self) {
        let burst = self.queue.rx.recv();
        for i in 0..burst.len() {
            let mut frame = vec![0; burst.get(i).len()];
            burst.get(i).copy_to(&mut frame);
            answer(&mut self.host, self.queue.tx.as_mut(), &frame);
        }
    }

    /// Has `sink` take a burst, and answers what is not stamped. Returns the number of frames.
    #[inline]
    pub fn take(&mut self, sink: &mut Sink, now_ns: u64) -> usize {
        let Self { queue, host, .. } = self;
        sink.turn(queue.rx.as_mut(), now_ns, |frame| answer(host, queue.tx.as_mut(), frame))
    }

    /// Has `reflector` send a burst back, and answers what is not stamped. Returns the number of frames.
    pub fn reflect(&mut self, reflector: &mut Reflector) -> usize {
        let host = &mut self.host;
        reflector.turn(&mut self.queue, |tx, frame| answer(host, tx, frame))
    }
}

fn answer(host: &mut Host, tx: &mut dyn TxQueue, frame: &[u8]) {
    if let Outcome::Reply(reply) = host.look_at(frame) {
        tx.send(&[PacketRef::from_slice(&reply)]);
    }
}
