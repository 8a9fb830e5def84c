//! Predefined rules (TS 29.244, 5.19): filters and QoS that session managers activate by a name.
//!
//! ```yaml
//! predefinedRules:
//!   video: {filters: [permit out 17 from 203.0.113.0/24 443 to assigned], qer: {downlinkMbrKbps: 4000, qfi: 6}}
//! ```

use serde::Deserialize;

use crate::n4::parse_flow_description;
use crate::rules::{Qer, SdfFilter};

/// A rule as it is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PredefinedConfig {
    /// Flow descriptions: of the packets that a PDR matches but for its filters, those that match any of these. Without any
    /// it is all that the PDR matches.
    #[serde(default)]
    pub filters: Vec<String>,
    /// How these packets are treated, besides what the PDR's own QERs say.
    pub qer: Option<QerConfig>,
}

/// The QoS of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QerConfig {
    /// Drop uplink packets.
    #[serde(default)]
    pub uplink_gate_closed: bool,
    /// Drop downlink packets.
    #[serde(default)]
    pub downlink_gate_closed: bool,
    /// Maximum bit rate uplink; unlimited where absent.
    pub uplink_mbr_kbps: Option<u64>,
    /// Maximum bit rate downlink; unlimited where absent.
    pub downlink_mbr_kbps: Option<u64>,
    /// QoS flow identifier of downlink packets.
    pub qfi: Option<u8>,
}

/// A rule that can be activated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PredefinedRule {
    /// What it matches.
    pub filters: Vec<SdfFilter>,
    /// Its QER. Of the ID the highest bit is set, as of rules that no session manager has made (8.2.75).
    pub qer: Option<Qer>,
}

/// IDs of predefined rules begin here.
const PREDEFINED: u32 = 1 << 31;
/// Most kilobits per second that an MBR can state on N4.
const MAX_KBPS: u64 = (1 << 40) - 1;

impl PredefinedRule {
    /// The rule with this number that `config` describes.
    pub fn new(number: usize, config: &PredefinedConfig) -> Result<Self, &'static str> {
        let parse = |text: &String| parse_flow_description(text).map_err(|_| "a filter is not a flow description");
        let filters = config.filters.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if filters.len() > 64 {
            return Err("a rule can have 64 filters");
        }
        let Some(qer) = config.qer else { return Ok(Self { filters, qer: None }) };
        let rates = [qer.uplink_mbr_kbps, qer.downlink_mbr_kbps];
        if qer.qfi.is_some_and(|qfi| qfi > 63) || rates.into_iter().flatten().any(|kbps| kbps > MAX_KBPS) {
            return Err("qfi must be below 64, and a maximum bit rate below 2^40 kbit/s");
        }
        let qer = Qer {
            id: PREDEFINED + number as u32,
            uplink_gate_open: !qer.uplink_gate_closed,
            downlink_gate_open: !qer.downlink_gate_closed,
            uplink_mbr_bps: qer.uplink_mbr_kbps.map(|kbps| kbps * 1_000),
            downlink_mbr_bps: qer.downlink_mbr_kbps.map(|kbps| kbps * 1_000),
            qfi: qer.qfi,
            ..Qer::default()
        };
        Ok(Self { filters, qer: Some(qer) })
    }
}
