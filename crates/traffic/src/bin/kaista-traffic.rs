//! `kaista-traffic`: loads a path, judges what comes through, or just forwards.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use gtpu::Direction;
use port::pool::{self, JoinError, Member};
use port::{OpenOptions, Port, PortSteering, QueuePair, Sleep, Waiter};
use serde::Serialize;
use traffic::cores;
use traffic::forwarder::{Addresses, Forwarder};
use traffic::forwarding::{self, Plan};
use traffic::generator::{Flow, Generator, Macs, Pace, Sent, Tunnel};
use traffic::host::{Host, Outcome};
use traffic::interrupt::Interrupt;
use traffic::replay;
use traffic::sink::{Found, Sink};
use traffic::stamp::{Stamp, now_ns};

/// Traffic for ports of a slice: generate it, judge it, forward it.
///
/// Ports are named as functions name them: `n3` (shared memory, by the broker at $KAISTA_PORTS), `tap:NAME`,
/// `packet:INTERFACE`; for kaista-traffic-dpdk also `dpdk:DEVICE[,ARGUMENT=VALUE...]`, see docs/dpdk.md.
#[derive(Parser)]
#[command(name = env!("CARGO_BIN_NAME"), version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Offer packets at a fixed rate, whether or not anyone keeps up
    ///
    /// SIGINT and SIGTERM end it early; what was sent and found until then is printed.
    Generate(Generate),
    /// Take generated packets and report loss, duplicates, reordering and latency
    ///
    /// SIGINT and SIGTERM end it early; what was found until then is printed.
    Sink(Take),
    /// Send every frame back, or out of a second port
    ///
    /// SIGINT and SIGTERM end it once what waits was sent on; what was counted until then is printed.
    Forward(Forward),
    /// Send the frames of a capture over and over as fast as a port takes them, and count them at another one
    ///
    /// SIGINT and SIGTERM end it early; what was counted until then is printed.
    Replay(Replay),
}

#[derive(Args)]
struct Common {
    /// Stay on this core
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The broker's socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Common {
    fn options(&self) -> OpenOptions {
        let default = OpenOptions::default();
        OpenOptions { socket: self.socket.clone().unwrap_or(default.socket), ..default }
    }

    fn open(&self, name: &str) -> anyhow::Result<Port> {
        port::open(name, &self.options()).with_context(|| format!("cannot open port {name}"))
    }

    fn stay(&self) -> anyhow::Result<()> {
        self.core.map_or(Ok(()), cores::pin)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Through {
    /// UDP from each flow's address to `--to`
    Plain,
    /// The same inside GTP-U with a PDU session container, as a gNB sends it
    Uplink,
    /// The same inside GTP-U with a PDU session container, as a UPF sends it
    Downlink,
}

#[derive(Args)]
struct Generate {
    /// Port to send on
    #[arg(long)]
    port: String,
    /// Packets a second over all flows, with suffix k or M; `max` for as many as the port takes
    #[arg(long, default_value = "1k", value_parser = pace)]
    rate: Pace,
    /// Number of flows (UEs)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    flows: u32,
    /// Bytes of (inner) UDP payload
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(Stamp::LEN as i64..=9_000))]
    size: u16,
    /// How long to send, in seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// What the packets travel in
    #[arg(long, value_enum, default_value = "plain")]
    through: Through,
    /// (Inner) source address of the first flow; the next flows count up from it
    #[arg(long, default_value = "10.60.0.1")]
    from: Ipv4Addr,
    /// (Inner) destination address
    #[arg(long, default_value = "10.6.0.2")]
    to: Ipv4Addr,
    /// Let the destination address count up with the flows, too
    #[arg(long)]
    to_counts: bool,
    /// Address of the tunnel's other end
    #[arg(long, required_if_eq_any([("through", "uplink"), ("through", "downlink")]))]
    tunnel_to: Option<Ipv4Addr>,
    /// TEID of the first flow; the next flows count up from it
    #[arg(long, default_value_t = 1)]
    teid: u32,
    /// QoS flow identifier
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u8).range(0..=63))]
    qfi: u8,
    /// Neighbour to send to; found by ARP. Without it the tunnel's other end or `--to` is the neighbour
    #[arg(long)]
    via: Option<Ipv4Addr>,
    /// A port whose packets are taken and judged by this process too
    #[arg(long)]
    sink: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Take {
    /// Port to receive on
    #[arg(long)]
    port: String,
    /// How long to listen, in seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Forward {
    /// Port to forward on; given twice, frames go from each to the other
    #[arg(long = "port", required = true)]
    ports: Vec<String>,
    /// What to do with Ethernet addresses
    #[arg(long, value_enum, default_value = "swap")]
    addresses: Addresses,
    /// How often to offer a frame again that a port refused, before it is discarded
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    retry: u32,
    /// Frames to send out of each port at the start
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    send_first: usize,
    /// Their length in bytes
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=9_600))]
    size: u16,
    /// How long to forward before counting begins, in seconds
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
    /// How long to count, in seconds; for ever where absent
    #[arg(long)]
    seconds: Option<f64>,
    /// Poll without pause instead of sleeping when there is nothing to do
    #[arg(long)]
    poll: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Replay {
    /// Capture (pcap or pcapng) with the frames
    #[arg(long, value_name = "FILE")]
    frames: PathBuf,
    /// Port to send on
    #[arg(long)]
    port: String,
    /// Port where frames come out
    #[arg(long)]
    sink: String,
    /// How long to go on before counting begins, in seconds
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
    /// How long to count, in seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

fn pace(text: &str) -> Result<Pace, String> {
    if text == "max" {
        return Ok(Pace::Unlimited);
    }
    let (number, factor) = match text.strip_suffix(['k', 'M']) {
        Some(number) if text.ends_with('k') => (number, 1e3),
        Some(number) => (number, 1e6),
        None => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(Pace::PerSecond(rate * factor)),
        _ => Err("expected packets a second over 0, such as 500, 20k, 1.5M, or max".to_owned()),
    }
}

/// What the program does; `kaista-traffic-dpdk` does the same.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Generate(args) => generate(&args),
        Command::Sink(args) => sink(&args),
        Command::Forward(args) => forward(&args),
        Command::Replay(args) => replay(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", env!("CARGO_BIN_NAME"));
            ExitCode::FAILURE
        }
    }
}

/// How long somebody may take to come to the other end of a port.
const PEER_WAIT: Duration = Duration::from_secs(10);

/// A port with its one queue, and the host that it is on the link.
struct Station {
    queue: QueuePair,
    host: Host,
    /// The neighbour that its first route leads to.
    gateway: Option<IpAddr>,
}

impl Station {
    fn on(port: Port) -> anyhow::Result<Self> {
        let host = Host::of(&port.info);
        let gateway = port.info.routes.first().map(|route| route.via);
        let name = port.info.name;
        let queue = port.queues.into_iter().next().with_context(|| format!("port {name} has no queue"))?;
        Ok(Self { queue, host, gateway })
    }

    /// The Ethernet address of `neighbour`; asks for it until it answers, which may be by way of `other`.
    fn find(&mut self, neighbour: IpAddr, mut other: Option<&mut Self>) -> anyhow::Result<[u8; 6]> {
        const TRIES: usize = 50;
        for _ in 0..TRIES {
            if let Some(mac) = self.host.neighbour(neighbour) {
                return Ok(mac);
            }
            if let Some(question) = self.host.ask(neighbour) {
                self.queue.tx.send(&[port::PacketRef::from_slice(&question)]);
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
    fn appear(&mut self) -> anyhow::Result<()> {
        self.announce()?;
        self.gateway.map_or(Ok(()), |gateway| self.find(gateway, None).map(drop))
    }

    /// Tells the link where this station's addresses are, as soon as somebody is there to hear it.
    fn announce(&mut self) -> anyhow::Result<()> {
        let give_up = Instant::now() + PEER_WAIT;
        for announcement in self.host.announcements() {
            while self.queue.tx.send(&[port::PacketRef::from_slice(&announcement)]) == 0 {
                if Instant::now() > give_up {
                    bail!("nobody is at the other end of the sink's port");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn answer_pending(&mut self) {
        let burst = self.queue.rx.recv();
        for i in 0..burst.len() {
            let mut frame = vec![0; burst.get(i).len()];
            burst.get(i).copy_to(&mut frame);
            answer(&mut self.host, self.queue.tx.as_mut(), &frame);
        }
    }
}

fn answer(host: &mut Host, tx: &mut dyn port::TxQueue, frame: &[u8]) {
    if let Outcome::Reply(reply) = host.look_at(frame) {
        tx.send(&[port::PacketRef::from_slice(&reply)]);
    }
}

/// What `generate` prints.
#[derive(Serialize)]
struct Generated {
    sent: Sent,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<Found>,
}

fn generate(args: &Generate) -> anyhow::Result<()> {
    let interrupt = Interrupt::take()?;
    args.common.stay()?;
    let port = args.common.open(&args.port)?;
    let own = port.info.addresses.iter().find_map(|(address, _)| match address {
        IpAddr::V4(own) => Some(*own),
        IpAddr::V6(_) => None,
    });
    let mut station = Station::on(port)?;
    let mut sink_station = args.sink.as_ref().map(|name| Station::on(args.common.open(name)?)).transpose()?;
    sink_station.as_mut().map_or(Ok(()), Station::appear)?;
    let to = station.find(args.via.or(args.tunnel_to).unwrap_or(args.to).into(), sink_station.as_mut())?;
    let flows = (0..args.flows).map(|number| flow(args, own, number)).collect::<anyhow::Result<Vec<Flow>>>()?;
    let macs = Macs { from: station.host.mac(), to };

    let begin = now_ns();
    let end = begin + (args.seconds * 1e9) as u64;
    let mut generator = Generator::new(&flows, args.size.into(), macs, args.rate, begin);
    let mut sink = Sink::new();
    let mut now = begin;
    while now < end && !interrupt.came() {
        let offered = generator.turn(station.queue.tx.as_mut(), now);
        station.answer_pending();
        if let Some(Station { queue, host, .. }) = &mut sink_station {
            sink.turn(queue.rx.as_mut(), now, |frame| answer(host, queue.tx.as_mut(), frame));
        }
        now = now_ns();
        // Sleep through long gaps, but wake in time to be punctual.
        if offered == 0 && sink_station.is_none() {
            let gap = generator.next_due_ns().saturating_sub(now);
            if gap > 200_000 {
                std::thread::sleep(Duration::from_nanos((gap - 100_000).min(10_000_000)));
                now = now_ns();
            }
        }
    }
    let sent = Sent::of(&generator, (now - begin) as f64 / 1e9);
    let found = sink_station.map(|mut station| {
        drain(&mut sink, &mut station, sent.accepted);
        sink.found()
    });
    print(&Generated { sent, found }, args.common.json)
}

fn flow(args: &Generate, own: Option<Ipv4Addr>, number: u32) -> anyhow::Result<Flow> {
    let counted = |address: Ipv4Addr| Ipv4Addr::from_bits(address.to_bits().wrapping_add(number));
    let tunnel = match (args.through, args.tunnel_to) {
        (Through::Plain, _) | (_, None) => None,
        (through, Some(to)) => Some(Tunnel {
            from: own.with_context(|| format!("port {} has no IPv4 address to send GTP-U from", args.port))?,
            to,
            teid: args.teid.wrapping_add(number),
            qfi: args.qfi,
            direction: if through == Through::Uplink { Direction::Uplink } else { Direction::Downlink },
        }),
    };
    let to = if args.to_counts { counted(args.to) } else { args.to };
    Ok(Flow { from: counted(args.from), to, tunnel })
}

/// Takes packets until none comes any more. While some of those `accepted` have not come, that takes longer to believe.
fn drain(sink: &mut Sink, station: &mut Station, accepted: u64) {
    let mut last = now_ns();
    loop {
        let quiet = Duration::from_millis(if sink.received() < accepted { 1_000 } else { 200 });
        if now_ns() - last >= quiet.as_nanos() as u64 {
            return;
        }
        let Station { queue, host, .. } = &mut *station;
        if sink.turn(queue.rx.as_mut(), now_ns(), |frame| answer(host, queue.tx.as_mut(), frame)) > 0 {
            last = now_ns();
        }
    }
}

fn sink(args: &Take) -> anyhow::Result<()> {
    let interrupt = Interrupt::take()?;
    args.common.stay()?;
    let mut station = Station::on(args.common.open(&args.port)?)?;
    let mut sink = Sink::new();
    let mut waiter = Waiter::new(Sleep::After(Duration::from_micros(50)));
    let end = now_ns() + (args.seconds * 1e9) as u64;
    loop {
        let now = now_ns();
        if now >= end || interrupt.came() {
            break;
        }
        let Station { queue, host, .. } = &mut station;
        if sink.turn(queue.rx.as_mut(), now, |frame| answer(host, queue.tx.as_mut(), frame)) > 0 {
            waiter.worked();
        } else {
            waiter.wait(&mut [queue.rx.as_mut()], &[], Some(Duration::from_nanos(end - now)))?;
        }
    }
    print(&sink.found(), args.common.json)
}

/// The queue of each port, and the place in the pool that they are of, if they are.
fn open_to_forward(args: &Forward) -> anyhow::Result<(Vec<QueuePair>, Option<Member>)> {
    loop {
        let ports = args.ports.iter().map(|name| args.common.open(name)).collect::<anyhow::Result<Vec<_>>>()?;
        let pooled: Vec<_> = ports.iter().filter_map(Port::steering).filter(PortSteering::is_pooled).collect();
        let options = args.common.options();
        let member = match pooled.is_empty() {
            true => None,
            false => match pool::join(&options.socket, &pooled, &[], options.timeout) {
                // What was opened is of a former table.
                Err(JoinError::Changed) => continue,
                joined => joined.context("cannot take the place in the pool")?.into_iter().next(),
            },
        };
        let controls: Vec<_> = ports.iter().map(Port::control).collect();
        if !port::await_ports(&controls, PEER_WAIT) {
            bail!("whoever has the ports does not leave them");
        }
        let queues = ports.into_iter().map(|port| Ok(Station::on(port)?.queue)).collect::<anyhow::Result<_>>()?;
        return Ok((queues, member));
    }
}

fn forward(args: &Forward) -> anyhow::Result<()> {
    let interrupt = Interrupt::take()?;
    args.common.stay()?;
    let (queues, member) = open_to_forward(args)?;
    let mut queues = queues.into_iter();
    let mut forwarder = match (queues.next(), queues.next(), queues.next()) {
        (Some(only), None, None) => Forwarder::within(only, args.addresses),
        (Some(first), Some(second), None) => Forwarder::between(first, second, args.addresses),
        _ => bail!("expected one or two ports"),
    };
    forwarder = forwarder.retrying(args.retry);
    if let Some(member) = member {
        forwarder = forwarder.as_member(member);
    }
    let plan = Plan {
        send_first: args.send_first,
        size: args.size.into(),
        warm_up: Duration::from_secs_f64(args.warm_up),
        window: args.seconds.map(Duration::from_secs_f64),
        poll: args.poll,
    };
    let forwarded = forwarding::run_until(Some(&interrupt), &mut forwarder, &args.ports, plan)?;
    print(&forwarded, args.common.json)
}

fn replay(args: &Replay) -> anyhow::Result<()> {
    let interrupt = Interrupt::take()?;
    args.common.stay()?;
    let frames = replay::Frames::read(&args.frames)?;
    let end = |name: &String| -> anyhow::Result<replay::End> {
        let Station { queue, host, .. } = Station::on(args.common.open(name)?)?;
        Ok(replay::End { queue, host })
    };
    let mut replay = replay::Replay::new(frames, end(&args.port)?, end(&args.sink)?);
    let [warm_up, window] = [args.warm_up, args.seconds].map(Duration::from_secs_f64);
    // Whoever forwards may have neighbours to find first.
    print(&replay.run(6 * PEER_WAIT, warm_up, window, Some(&interrupt))?, args.common.json)
}

fn print(result: &impl Serialize, json: bool) -> anyhow::Result<()> {
    let value = serde_json::to_value(result)?;
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{value}")?;
    } else {
        print_lines(&mut out, "", &value)?;
    }
    Ok(())
}

/// One `name value` line for each leaf.
fn print_lines(out: &mut impl Write, name: &str, value: &serde_json::Value) -> std::io::Result<()> {
    let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        serde_json::Value::Object(fields) => {
            fields.iter().try_for_each(|(key, field)| print_lines(out, &below(key), field))
        }
        serde_json::Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(i, item)| print_lines(out, &below(&i.to_string()), item))
        }
        leaf => writeln!(out, "{name:24} {leaf}"),
    }
}
