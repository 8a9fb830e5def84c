//! The load on a path, as options describe it: whose packets, of which size, how shared, from where to where.

use std::net::Ipv4Addr;

use clap::{Args, ValueEnum};
use gtpu::Direction;
use traffic::generator::{self, Flow, Generator, Macs, Pace, Tunnel};
use traffic::path::{End, Path};
use traffic::share::Share;
use traffic::sink::Sink;
use traffic::sizes::Sizes;
use traffic::station::Station;

use super::common::{Common, Usage};

/// What packets travel in.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Through {
    /// UDP from each flow's address to `--to`
    Plain,
    /// The same inside GTP-U with a PDU session container, as a gNB sends it
    Uplink,
    /// The same inside GTP-U with a PDU session container, as a UPF sends it
    Downlink,
}

/// Options of what loads a path.
#[derive(Args)]
pub struct Load {
    /// Port to send on
    #[arg(long)]
    port: String,
    /// Number of flows (UEs with a session each)
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    flows: u32,
    /// Bytes of (inner) UDP payload: a number; a sweep FIRST..LAST/STEP; a mix BYTESxWEIGHT,...; or imix
    ///
    /// imix is 7:4:1 of user packets that in Ethernet have frames of 64, 594 and 1,518 bytes, check sequence included:
    /// 18x7,548x4,1472x1. Every flow goes through the sizes by itself.
    #[arg(long, value_name = "SIZES", default_value = "64")]
    pub size: Sizes,
    /// How the load is shared among flows: uniform, zipf:EXPONENT, hot-ues:COUNTxTIMES or hot-buckets:ONE_INxTIMES
    ///
    /// zipf:1 gives flow number r the part 1/r of the first one's load. hot-ues:10x4 gives the first ten four times the
    /// others'. hot-buckets:8x4 does so to the flows in every eighth steering bucket, by TEID in a tunnel, or else by
    /// destination address: of a port with eight queues, those of the first.
    #[arg(long, value_name = "SHARE", default_value = "uniform")]
    share: Share,
    /// What the packets travel in
    #[arg(long, value_enum, default_value = "plain")]
    through: Through,
    /// (Inner) source address of the first flow; the next flows count up from it
    #[arg(long, value_name = "ADDRESS", default_value = "10.60.0.1")]
    from: Ipv4Addr,
    /// (Inner) destination address
    #[arg(long, value_name = "ADDRESS", default_value = "10.6.0.2")]
    to: Ipv4Addr,
    /// Let the destination address count up with the flows, too
    #[arg(long)]
    to_counts: bool,
    /// Address of the tunnel's other end
    #[arg(long, value_name = "ADDRESS", required_if_eq_any([("through", "uplink"), ("through", "downlink")]))]
    tunnel_to: Option<Ipv4Addr>,
    /// Address of this end of the tunnel; the port's first one where absent
    #[arg(long, value_name = "ADDRESS")]
    tunnel_from: Option<Ipv4Addr>,
    /// TEID of the first flow; the next flows count up from it [default: 1]
    #[arg(long, value_name = "TEID")]
    teid: Option<u32>,
    /// QoS flow identifier [default: 9]
    #[arg(long, value_name = "QFI", value_parser = clap::value_parser!(u8).range(0..=63))]
    qfi: Option<u8>,
    /// Neighbour to send to; found by ARP. Without it the tunnel's other end or `--to` is the neighbour
    #[arg(long, value_name = "ADDRESS")]
    via: Option<Ipv4Addr>,
    /// A port whose packets are taken and judged by this process too
    #[arg(long, value_name = "PORT", conflicts_with = "mirrored")]
    sink: Option<String>,
    /// Judge what comes back to the sending port, from `kaista-traffic reflect` at the far end: latency is there and back
    #[arg(long)]
    mirrored: bool,
    #[command(flatten)]
    pub common: Common,
}

impl Load {
    /// The path, once both ends are on their links, and the Ethernet addresses of frames that go into it.
    pub fn open(&self) -> anyhow::Result<(Path, Macs)> {
        self.check()?;
        let mut into = Station::on(self.common.open(&self.port)?)?;
        let mut end = match &self.sink {
            Some(name) => End::At(Station::on(self.common.open(name)?)?),
            None if self.mirrored => End::Mirrored,
            None => End::Elsewhere,
        };
        let other = match &mut end {
            End::At(station) => {
                station.appear()?;
                Some(station)
            }
            End::Mirrored => {
                into.appear()?;
                None
            }
            End::Elsewhere => None,
        };
        let to = into.find(self.via.or(self.tunnel_to).unwrap_or(self.to).into(), other)?;
        let macs = Macs { from: into.mac(), to };
        Ok((Path { into, end }, macs))
    }

    /// Fails where something is said of a tunnel and there is none.
    fn check(&self) -> Result<(), Usage> {
        let said = [
            ("--tunnel-to", self.tunnel_to.is_some()),
            ("--tunnel-from", self.tunnel_from.is_some()),
            ("--teid", self.teid.is_some()),
            ("--qfi", self.qfi.is_some()),
        ];
        match said.into_iter().find(|(_, is_said)| *is_said && self.through == Through::Plain) {
            Some((name, _)) => Err(Usage(format!("{name} is of a tunnel: add --through uplink or --through downlink"))),
            None => Ok(()),
        }
    }

    /// Whether what goes into the path is judged by this process.
    pub fn is_judged(&self) -> bool {
        self.mirrored || self.sink.is_some()
    }

    /// A generator for the path, with payloads of these sizes; nothing is due before it is given a pace.
    pub fn generator(&self, path: &Path, macs: Macs, sizes: &Sizes) -> anyhow::Result<Generator> {
        let flow = |number| self.flow(&path.into, number);
        let flows = (0..self.flows).map(flow).collect::<anyhow::Result<Vec<Flow>>>()?;
        path.into.check_len(generator::packet(&flows[0], 0, sizes.largest()).len())?;
        let order = self.share.order(flows.len(), |number| flows[number].bucket())?;
        Ok(Generator::of(&flows, sizes.clone(), macs, Pace::PerSecond(0.0), u64::MAX).in_order(order))
    }

    /// A sink for all flows.
    pub fn sink(&self) -> Sink {
        if self.is_judged() { Sink::expecting(self.flows as usize) } else { Sink::new() }
    }

    fn flow(&self, station: &Station, number: u32) -> anyhow::Result<Flow> {
        let counted = |address: Ipv4Addr| Ipv4Addr::from_bits(address.to_bits().wrapping_add(number));
        let tunnel = match (self.through, self.tunnel_to) {
            (Through::Plain, _) | (_, None) => None,
            (through, Some(to)) => Some(Tunnel {
                from: self.tunnel_from.map_or_else(|| station.address(), Ok)?,
                to,
                teid: self.teid.unwrap_or(1).wrapping_add(number),
                qfi: self.qfi.unwrap_or(9),
                direction: if through == Through::Uplink { Direction::Uplink } else { Direction::Downlink },
            }),
        };
        let to = if self.to_counts { counted(self.to) } else { self.to };
        Ok(Flow { from: counted(self.from), to, tunnel })
    }
}

/// Packets a second, with suffix k or M.
pub fn rate_pps(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.strip_suffix(['k', 'M']) {
        Some(number) if text.ends_with('k') => (number, 1e3),
        Some(number) => (number, 1e6),
        None => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(rate) if (0.001..=1e12).contains(&(rate * factor)) => Ok(rate * factor),
        _ => Err("expected packets a second from 0.001 on, such as 500, 20k or 1.5M".to_owned()),
    }
}

/// The same, or `max`.
pub fn pace(text: &str) -> Result<Pace, String> {
    match text {
        "max" => Ok(Pace::Unlimited),
        _ => rate_pps(text).map(Pace::PerSecond).map_err(|error| format!("{error}, or max")),
    }
}
