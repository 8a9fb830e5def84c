//! Packet detection rules.

use rs_pfcp::ie::IeType;

use super::pdi::{FTeid, Pdi};
use super::ue_ip::{UeIp, read_pool, write_pool};
use super::write_ids;
use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie};

/// Outer header removal (8.2.64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterHeaderRemoval {
    /// Which header, such as [`OuterHeaderRemoval::GTPU_UDP_IPV4`].
    pub description: u8,
}

#[allow(missing_docs)]
impl OuterHeaderRemoval {
    pub const GTPU_UDP_IPV4: Self = Self { description: 0 };
    pub const GTPU_UDP_IPV6: Self = Self { description: 1 };
    pub const GTPU_UDP_IP: Self = Self { description: 6 };
}

/// Create PDR (table 7.5.2.2-1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreatePdr {
    /// PDR ID.
    pub id: u16,
    /// Precedence; the lowest value is matched first.
    pub precedence: u32,
    /// Packet detection information.
    pub pdi: Pdi,
    /// Outer header removal.
    pub outer_header_removal: Option<OuterHeaderRemoval>,
    /// FAR ID.
    pub far_id: Option<u32>,
    /// QER IDs.
    pub qer_ids: Vec<u32>,
    /// URR IDs.
    pub urr_ids: Vec<u32>,
    /// Names of predefined rules to activate.
    pub activate: Vec<String>,
    /// Pools that UE addresses are to be chosen from; any if there are none.
    pub address_pools: Vec<String>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

impl CreatePdr {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::PdrId)?.u16()?,
            precedence: ies.mandatory(IeType::Precedence)?.u32()?,
            pdi: Pdi::read(ies.mandatory(IeType::Pdi)?)?,
            outer_header_removal: ies.first(IeType::OuterHeaderRemoval).map(read_removal).transpose()?,
            far_id: ies.first(IeType::FarId).map(|ie| ie.u32()).transpose()?,
            qer_ids: ies.all(IeType::QerId).map(|ie| ie.u32()).collect::<Result<_, _>>()?,
            urr_ids: ies.all(IeType::UrrId).map(|ie| ie.u32()).collect::<Result<_, _>>()?,
            activate: ies.all(IeType::ActivatePredefinedRules).map(read_name).collect::<Result<_, _>>()?,
            address_pools: ies.all(IeType::UeIpAddressPoolIdentity).map(read_pool).collect::<Result<_, _>>()?,
            others: ies.others(&[PDR_KNOWN, &[IeType::UeIpAddressPoolIdentity]].concat()),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::CreatePdr, |out| {
            out.element(IeType::PdrId, &self.id.to_be_bytes());
            out.element(IeType::Precedence, &self.precedence.to_be_bytes());
            self.pdi.write(out);
            if let Some(removal) = self.outer_header_removal {
                out.element(IeType::OuterHeaderRemoval, &[removal.description]);
            }
            write_ids(IeType::FarId, self.far_id.as_slice(), out);
            write_ids(IeType::UrrId, &self.urr_ids, out);
            write_ids(IeType::QerId, &self.qer_ids, out);
            self.activate.iter().for_each(|name| out.element(IeType::ActivatePredefinedRules, name.as_bytes()));
            self.address_pools.iter().for_each(|pool| write_pool(pool, out));
        });
    }
}

/// Update PDR (table 7.5.4.2-1). What is present replaces what the rule had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdatePdr {
    /// PDR ID.
    pub id: u16,
    /// Precedence.
    pub precedence: Option<u32>,
    /// Packet detection information, as a whole.
    pub pdi: Option<Pdi>,
    /// Outer header removal.
    pub outer_header_removal: Option<OuterHeaderRemoval>,
    /// FAR ID.
    pub far_id: Option<u32>,
    /// QER IDs, all of them, if there are any.
    pub qer_ids: Vec<u32>,
    /// URR IDs, all of them, if there are any.
    pub urr_ids: Vec<u32>,
    /// Names of predefined rules to activate.
    pub activate: Vec<String>,
    /// Names of predefined rules to deactivate.
    pub deactivate: Vec<String>,
    /// Types of other elements.
    pub others: Vec<u16>,
}

impl UpdatePdr {
    /// Changes nothing yet.
    pub fn new(id: u16) -> Self {
        Self { id, ..Self::default() }
    }

    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::PdrId)?.u16()?,
            precedence: ies.first(IeType::Precedence).map(|ie| ie.u32()).transpose()?,
            pdi: ies.first(IeType::Pdi).map(Pdi::read).transpose()?,
            outer_header_removal: ies.first(IeType::OuterHeaderRemoval).map(read_removal).transpose()?,
            far_id: ies.first(IeType::FarId).map(|ie| ie.u32()).transpose()?,
            qer_ids: ies.all(IeType::QerId).map(|ie| ie.u32()).collect::<Result<_, _>>()?,
            urr_ids: ies.all(IeType::UrrId).map(|ie| ie.u32()).collect::<Result<_, _>>()?,
            activate: ies.all(IeType::ActivatePredefinedRules).map(read_name).collect::<Result<_, _>>()?,
            deactivate: ies.all(IeType::DeactivatePredefinedRules).map(read_name).collect::<Result<_, _>>()?,
            others: ies.others(&[PDR_KNOWN, &[IeType::DeactivatePredefinedRules]].concat()),
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::UpdatePdr, |out| {
            out.element(IeType::PdrId, &self.id.to_be_bytes());
            if let Some(removal) = self.outer_header_removal {
                out.element(IeType::OuterHeaderRemoval, &[removal.description]);
            }
            write_ids(IeType::Precedence, self.precedence.as_slice(), out);
            if let Some(pdi) = &self.pdi {
                pdi.write(out);
            }
            write_ids(IeType::FarId, self.far_id.as_slice(), out);
            write_ids(IeType::UrrId, &self.urr_ids, out);
            write_ids(IeType::QerId, &self.qer_ids, out);
            self.activate.iter().for_each(|name| out.element(IeType::ActivatePredefinedRules, name.as_bytes()));
            self.deactivate.iter().for_each(|name| out.element(IeType::DeactivatePredefinedRules, name.as_bytes()));
        });
    }
}

/// Created PDR (table 7.5.3.2-1): what the UPF chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreatedPdr {
    /// PDR ID.
    pub id: u16,
    /// Local F-TEID, never one to be chosen.
    pub f_teid: Option<FTeid>,
    /// UE address, never one to be chosen.
    pub ue_ip: Option<UeIp>,
}

impl CreatedPdr {
    pub(crate) fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        Ok(Self {
            id: ies.mandatory(IeType::PdrId)?.u16()?,
            f_teid: ies.first(IeType::Fteid).map(FTeid::read).transpose()?,
            ue_ip: ies.first(IeType::UeIpAddress).map(UeIp::read).transpose()?,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::CreatedPdr, |out| {
            out.element(IeType::PdrId, &self.id.to_be_bytes());
            if let Some(f_teid) = &self.f_teid {
                f_teid.write(out);
            }
            if let Some(ue_ip) = &self.ue_ip {
                ue_ip.write(out);
            }
        });
    }
}

/// Predefined Rules Name (8.2.72).
fn read_name(ie: Ie) -> Result<String, Fault> {
    String::from_utf8(ie.value.to_vec()).map_err(|_| ie.fault(Cause::UnknownPredefinedRule))
}

fn read_removal(ie: Ie) -> Result<OuterHeaderRemoval, Fault> {
    Ok(OuterHeaderRemoval { description: ie.octet()? })
}

const PDR_KNOWN: &[IeType] = &[
    IeType::PdrId,
    IeType::Precedence,
    IeType::Pdi,
    IeType::OuterHeaderRemoval,
    IeType::FarId,
    IeType::QerId,
    IeType::UrrId,
    IeType::ActivatePredefinedRules,
];
