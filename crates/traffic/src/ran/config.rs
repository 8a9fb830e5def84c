//! The configuration file of `kaista-ran`: the gNB's ports, the session manager, and the sessions that its UEs get.
//!
//! ```yaml
//! gnb: {port: n3}
//! ue: {port: uu}
//! smf: {address: 10.4.0.2, upf: 10.4.0.1}
//! sessions:
//!   - {ue: 10.60.0.1, qfi: 9, downlinkTeid: 0x1001, networkInstance: internet}
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use slice::BitRate;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// The gNB's side of N3.
    pub gnb: Gnb,
    /// Where the UEs' packets come from.
    pub ue: Ue,
    /// The session manager.
    pub smf: Smf,
    /// The sessions to establish.
    pub sessions: Vec<Sessions>,
}

/// The gNB.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gnb {
    /// Port to open for N3.
    pub port: String,
    /// The gNB's GTP-U address; the port's first address where absent.
    #[serde(default)]
    pub address: Option<IpAddr>,
}

/// The UEs' side.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ue {
    /// Port to open, linked to the kernel interface that the UE's programs use.
    pub port: String,
}

/// The session manager.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Smf {
    /// Address to speak PFCP from; it is the node ID, too.
    pub address: IpAddr,
    /// The UPF's address.
    pub upf: IpAddr,
    /// Time between two heartbeats, in milliseconds.
    #[serde(default = "default_heartbeat_ms")]
    pub heartbeat_ms: u64,
    /// Time until a request is sent again (T1 of TS 29.244, 6.4), in milliseconds.
    #[serde(default = "default_t1_ms")]
    pub t1_ms: u64,
    /// How often a request is sent in all (N1).
    #[serde(default = "default_n1")]
    pub n1: u32,
}

/// One session, or a range of sessions that count up.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sessions {
    /// Number of sessions.
    #[serde(default = "one")]
    pub count: u32,
    /// IPv4 address of the first UE; the others count up.
    #[serde(default)]
    pub ue: Option<Ipv4Addr>,
    /// IPv6 prefix of 64 bits of the first UE; the others count up in the 64 bits.
    #[serde(default)]
    pub ue_prefix: Option<Ipv6Addr>,
    /// QoS flow identifier of all packets.
    #[serde(default = "default_qfi")]
    pub qfi: u8,
    /// The gNB's TEID of the first session; the others count up.
    pub downlink_teid: u32,
    /// Network instance of N3.
    #[serde(default)]
    pub access_instance: Option<String>,
    /// Network instance of N6.
    #[serde(default)]
    pub network_instance: Option<String>,
    /// Maximum bit rates.
    #[serde(default)]
    pub mbr: Option<Mbr>,
    /// SDF filters (IPFilterRules), such as `permit out ip from any to assigned`. Without any, everything passes.
    #[serde(default)]
    pub filters: Vec<String>,
    /// Have the UPF measure usage, and print what it reports at the end.
    #[serde(default)]
    pub measure_usage: bool,
}

/// Maximum bit rates of a session.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mbr {
    /// From the UE.
    pub uplink: BitRate,
    /// To the UE.
    pub downlink: BitRate,
}

/// One session to establish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The UE's IPv4 address.
    pub ue_v4: Option<Ipv4Addr>,
    /// The UE's IPv6 prefix, 64 bits long.
    pub ue_v6: Option<Ipv6Addr>,
    /// QoS flow identifier.
    pub qfi: u8,
    /// The gNB's TEID.
    pub downlink_teid: u32,
    /// Network instance of N3.
    pub access_instance: Option<String>,
    /// Network instance of N6.
    pub network_instance: Option<String>,
    /// Maximum bit rates up and down, in bit/s.
    pub mbr_bps: Option<(u64, u64)>,
    /// Whether the UPF is to measure usage.
    pub measure_usage: bool,
    /// SDF filters.
    pub filters: Vec<String>,
}

impl Config {
    /// Reads and checks the file at `path`.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        use anyhow::Context;
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    /// Parses and checks the YAML `text`.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let config: Self = serde_saphyr::from_str(text).map_err(|error| anyhow::anyhow!("{error}"))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.gnb.port != self.ue.port, "ue.port is the gNB's port, too; two ports are needed");
        anyhow::ensure!(
            self.smf.heartbeat_ms > 0 && self.smf.t1_ms > 0 && self.smf.n1 > 0,
            "smf: heartbeatMs, t1Ms and n1 must be over 0"
        );
        let (mut teids, mut addresses) = (std::collections::HashSet::new(), std::collections::HashSet::new());
        for (i, sessions) in self.sessions.iter().enumerate() {
            sessions.check().map_err(|reason| anyhow::anyhow!("sessions[{i}]: {reason}"))?;
            for wanted in sessions.each() {
                let fresh = wanted.ue_v4.is_none_or(|address| addresses.insert(IpAddr::from(address)))
                    && wanted.ue_v6.is_none_or(|address| addresses.insert(IpAddr::from(address)))
                    && teids.insert(wanted.downlink_teid);
                anyhow::ensure!(fresh, "sessions[{i}]: a UE address or TEID is given twice");
            }
        }
        Ok(())
    }

    /// All sessions, ranges written out.
    pub fn wanted(&self) -> Vec<Wanted> {
        self.sessions.iter().flat_map(Sessions::each).collect()
    }
}

impl Smf {
    /// Time between two heartbeats.
    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    /// T1 of TS 29.244, 6.4.
    pub fn t1(&self) -> Duration {
        Duration::from_millis(self.t1_ms)
    }
}

impl Sessions {
    fn check(&self) -> Result<(), &'static str> {
        let last = self.count.saturating_sub(1);
        match () {
            () if self.count == 0 || self.count > 1 << 20 => Err("count must be from 1 to 1048576"),
            () if self.ue.is_none() && self.ue_prefix.is_none() => Err("needs ue or uePrefix"),
            () if self.qfi > 63 => Err("qfi must be from 0 to 63"),
            () if self.downlink_teid == 0 => Err("downlinkTeid must not be 0"),
            () if self.downlink_teid.checked_add(last).is_none() => Err("the TEIDs count up beyond their end"),
            () if self.ue_prefix.is_some_and(|prefix| prefix.to_bits() as u64 != 0) => {
                Err("uePrefix is 64 bits long; the other bits must be zero")
            }
            () => Ok(()),
        }
    }

    fn each(&self) -> impl Iterator<Item = Wanted> + '_ {
        (0..self.count).map(|number| Wanted {
            ue_v4: self.ue.map(|first| Ipv4Addr::from_bits(first.to_bits().wrapping_add(number))),
            ue_v6: self
                .ue_prefix
                .map(|first| Ipv6Addr::from_bits(first.to_bits().wrapping_add(u128::from(number) << 64))),
            qfi: self.qfi,
            downlink_teid: self.downlink_teid + number,
            access_instance: self.access_instance.clone(),
            network_instance: self.network_instance.clone(),
            mbr_bps: self.mbr.map(|mbr| (mbr.uplink.0, mbr.downlink.0)),
            measure_usage: self.measure_usage,
            filters: self.filters.clone(),
        })
    }
}

fn one() -> u32 {
    1
}

fn default_heartbeat_ms() -> u64 {
    1_000
}

fn default_t1_ms() -> u64 {
    300
}

fn default_n1() -> u32 {
    3
}

fn default_qfi() -> u8 {
    9
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = "
gnb: {port: n3}
ue: {port: uu}
smf: {address: 10.4.0.2, upf: 10.4.0.1}
sessions: [{ue: 10.60.0.1, downlinkTeid: 0x1001}]
";

    #[test]
    fn the_smallest_file_gets_defaults() {
        let config = Config::parse(SMALLEST).expect("a good file");
        assert_eq!(config.smf.heartbeat(), Duration::from_secs(1));
        let wanted = config.wanted();
        assert_eq!((wanted.len(), wanted[0].downlink_teid, wanted[0].qfi), (1, 0x1001, 9));
    }

    #[test]
    fn a_range_counts_up_addresses_and_teids() {
        let text = SMALLEST.replace("{ue: 10.60.0.1,", "{count: 300, ue: 10.60.0.1, uePrefix: '2001:db8::',");
        let wanted = Config::parse(&text).expect("a good file").wanted();
        assert_eq!(wanted.len(), 300);
        assert_eq!(wanted[299].ue_v4, Some(Ipv4Addr::new(10, 60, 1, 44)));
        assert_eq!(wanted[299].ue_v6, "2001:db8:0:12b::".parse().ok());
        assert_eq!(wanted[299].downlink_teid, 0x1001 + 299);
    }

    #[test]
    fn rates_are_read_with_their_units() {
        let text = SMALLEST.replace("{ue:", "{mbr: {uplink: 1Mbps, downlink: 2.5Gbps}, ue:");
        let wanted = Config::parse(&text).expect("a good file").wanted();
        assert_eq!(wanted[0].mbr_bps, Some((1_000_000, 2_500_000_000)));
    }

    #[test]
    fn mistakes_are_refused() {
        for (from, to) in [
            ("port: uu", "port: n3"),
            ("downlinkTeid: 0x1001", "downlinkTeid: 0"),
            ("ue: 10.60.0.1, ", ""),
            ("ue: 10.60.0.1", "count: 0, ue: 10.60.0.1"),
            ("downlinkTeid: 0x1001}", "downlinkTeid: 1}, {ue: 10.60.0.1, downlinkTeid: 2}"),
            ("downlinkTeid: 0x1001", "downlinkTeid: 1, qfi: 64"),
            ("upf: 10.4.0.1", "upf: 10.4.0.1, heartbeatMs: 0"),
            ("ue: {port: uu}", "ue: {port: uu, count: 1}"),
        ] {
            assert!(SMALLEST.contains(from) && Config::parse(&SMALLEST.replace(from, to)).is_err(), "{to}");
        }
    }
}
