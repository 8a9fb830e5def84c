//! What the UPF counts, for Prometheus. Nothing here is on the way of a packet: it reads what workers show of themselves.

mod http;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::drops::DropReason;
use crate::elastic::{Elastic, Standing};
use crate::function::Counts;
use crate::n4::Ledger;
use crate::tables::Tables;

/// What there is to read.
pub struct Sources {
    /// What threads count.
    pub counts: Counts,
    /// What N4 counts.
    pub ledger: Ledger,
    /// The session tables.
    pub tables: Tables,
    /// Who decides over workers, where they come and go.
    pub elastic: Option<Elastic>,
}

/// Serves what there is to read at an address, until the process ends.
pub struct Exporter {
    listener: TcpListener,
    registry: Registry,
}

impl Exporter {
    /// Listens at `address`.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn bind(address: SocketAddr, sources: Sources) -> io::Result<Self> {
        Ok(Self::on(TcpListener::bind(address)?, sources))
    }

    /// On a socket that listens.
    pub fn on(listener: TcpListener, sources: Sources) -> Self {
        let mut registry = Registry::with_prefix("kaista_upf");
        registry.register_collector(Box::new(sources));
        Self { listener, registry }
    }

    /// Another handle of the socket.
    ///
    /// # Errors
    /// The system has no more.
    pub fn socket(&self) -> io::Result<TcpListener> {
        self.listener.try_clone()
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves one scrape after the other.
    ///
    /// # Errors
    /// Nobody can connect any more.
    pub fn run(&self) -> io::Result<()> {
        http::serve(&self.listener, &|| self.text())
    }

    fn text(&self) -> String {
        let mut page = String::new();
        text::encode(&mut page, &self.registry).expect("a string takes everything");
        page
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let page = &mut Page(&mut encoder);
        self.n4(page)?;
        self.ports(page)?;
        self.nat(page)?;
        self.workers(page)?;
        self.drops(page)?;
        page.gauge("table_version", "Versions of the session tables so far", self.tables.version())
    }
}

impl Sources {
    fn n4(&self, page: &mut Page) -> fmt::Result {
        let holdings = self.ledger.holdings();
        page.gauge("sessions", "PFCP sessions in force", holdings.sessions as u64)?;
        page.gauge("associations", "PFCP associations with session managers", holdings.associations as u64)?;
        page.gauge(
            "unanswered_requests",
            "Session reports, and other requests of the UPF, that are not answered yet",
            holdings.unanswered_requests as u64,
        )?;
        let messages = self.ledger.all().into_iter().map(|(message, count)| {
            let direction = if message.sent { "sent" } else { "received" };
            let labels =
                [("direction", direction.to_owned()), ("type", message.type_name()), ("cause", message.cause_name())];
            (labels, count)
        });
        page.counters("n4_messages", "PFCP messages, by type, and by cause where they have one", None, messages)
    }

    fn ports(&self, page: &mut Page) -> fmt::Result {
        let ports = self.counts.ports();
        let each = |count: fn(&crate::board::PortCounts) -> (u64, u64)| {
            let of = ports.iter().flat_map(move |(name, counts)| {
                let (received, sent) = count(counts);
                [("received", received), ("sent", sent)]
                    .map(|(direction, count)| ([("port", name.as_str()), ("direction", direction)], count))
            });
            of.collect::<Vec<_>>()
        };
        page.counters("port_packets", "Frames of a port", None, each(|port| (port.rx_packets, port.tx_packets)))?;
        page.counters(
            "port",
            "Octets of a port's frames",
            Some(&Unit::Bytes),
            each(|port| (port.rx_bytes, port.tx_bytes)),
        )
    }

    fn nat(&self, page: &mut Page) -> fmt::Result {
        let ports = self.counts.ports();
        let each = |in_use: fn(&crate::board::PortCounts) -> u64| {
            let translating = ports.iter().filter(|(name, _)| self.counts.has_nat(name));
            translating.map(move |(name, counts)| ([("port", name.clone())], in_use(counts)))
        };
        page.gauges("nat_bindings", "Bindings of source NAT in use", each(|port| port.nat_bindings))?;
        page.gauges("nat_port_blocks", "Port blocks of source NAT that UEs have", each(|port| port.nat_blocks))
    }

    fn workers(&self, page: &mut Page) -> fmt::Result {
        page.gauge("buffered_packets", "Packets that wait for their UEs", self.counts.buffered_packets())?;
        let busy = self.counts.busy().into_iter().enumerate();
        page.counters(
            "worker_busy",
            "How long a worker has had packets to treat",
            Some(&Unit::Seconds),
            busy.map(|(worker, busy)| ([("worker", worker.to_string())], busy.as_secs_f64())),
        )?;
        if let Some(busy) = self.counts.dispatcher_busy() {
            let help = "How long the dispatcher of a pipeline has had packets to hand on";
            page.counter("dispatcher_busy", help, Some(&Unit::Seconds), busy.as_secs_f64())?;
        }
        if let Some(busy) = self.counts.sender_busy() {
            let help = "How long the sender of a pipeline has had packets to send";
            page.counter("sender_busy", help, Some(&Unit::Seconds), busy.as_secs_f64())?;
        }
        self.elastic(page)
    }

    fn elastic(&self, page: &mut Page) -> fmt::Result {
        let Some(elastic) = &self.elastic else { return Ok(()) };
        let Standing { workers, moved, changes, hot, .. } = elastic.standing();
        page.gauge("active_workers", "Workers that own buckets", workers as u64)?;
        page.counter("buckets_moved", "Buckets that went from one worker to another", None, moved)?;
        let help = "Times that buckets went from workers to others, several at a time";
        page.counter("bucket_changes", help, None, changes)?;
        let help = "1 for a bucket that fills a worker by itself, so that moving it would not help";
        page.gauges("hot_bucket", help, hot.map(|bucket| ([("bucket", bucket.to_string())], 1)))
    }

    fn drops(&self, page: &mut Page) -> fmt::Result {
        let drops = DropReason::ALL.iter().map(|&reason| {
            let name = reason.name().trim_start_matches("drop.").to_owned();
            ([("reason", name)], self.counts.dropped(reason))
        });
        page.counters("dropped_packets", "Packets that were discarded", None, drops)?;
        let slow_path = self.counts.slow_path();
        let kinds = [
            ("answer_sent", &slow_path.answers),
            ("complaint_sent", &slow_path.complaints_sent),
            ("error_indication_received", &slow_path.error_indications),
            ("too_long_told", &slow_path.too_long_told),
        ];
        let kinds = kinds.map(|(kind, count)| ([("kind", kind.to_owned())], count.load(Relaxed)));
        page.counters("slow_path_messages", "Messages of the UPF as a host on its links", None, kinds)
    }
}

/// What is being written.
struct Page<'p, 'e>(&'p mut DescriptorEncoder<'e>);

impl Page<'_, '_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        gauge.encode(self.0.encode_descriptor(name, help, None, gauge.metric_type())?)
    }

    fn counter<N>(&mut self, name: &str, help: &str, unit: Option<&Unit>, value: N) -> fmt::Result
    where
        ConstCounter<N>: EncodeMetric,
    {
        let counter = ConstCounter::new(value);
        counter.encode(self.0.encode_descriptor(name, help, unit, counter.metric_type())?)
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut values = values.into_iter().peekable();
        let Some((_, _)) = values.peek() else { return Ok(()) };
        let mut metric = self.0.encode_descriptor(name, help, None, prometheus_client::metrics::MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counters<L: EncodeLabelSet, N>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl IntoIterator<Item = (L, N)>,
    ) -> fmt::Result
    where
        ConstCounter<N>: EncodeMetric,
    {
        let mut values = values.into_iter().peekable();
        let Some((_, _)) = values.peek() else { return Ok(()) };
        let mut metric = self.0.encode_descriptor(name, help, unit, prometheus_client::metrics::MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
