//! PDRs as requests create and update them.

use pfcp::rule as wire;
use pfcp::{Cause, Fault, IeType};

use super::super::endpoints::{self, Endpoints};
use super::super::translate::{self, Choice, Place, refuse};
use super::draft::Surroundings;
use crate::rules::Pdr;

pub(super) fn create(
    create: &wire::CreatePdr,
    endpoints: &Endpoints,
    around: Surroundings,
) -> Result<(Pdr, Option<Choice>), Fault> {
    refuse(Place::Pdr, &create.others)?;
    let (pdi, choice) = endpoints::pdi(&create.pdi, endpoints, around)?;
    let removal = create.outer_header_removal;
    let pdr = Pdr {
        id: create.id,
        precedence: create.precedence,
        outer_header_removal: match removal {
            Some(removal) => Some(translate::outer_header_removal(removal, pdi.source_interface)?),
            None => None,
        },
        pdi,
        far_id: create.far_id.ok_or(Fault::of(Cause::ConditionalIeMissing, IeType::FarId))?,
        qer_ids: distinct(&create.qer_ids, IeType::QerId, around)?,
        urr_ids: distinct(&create.urr_ids, IeType::UrrId, around)?,
    };
    Ok((pdr, choice))
}

pub(super) fn update(
    pdr: &mut Pdr,
    update: &wire::UpdatePdr,
    endpoints: &Endpoints,
    around: Surroundings,
) -> Result<(), Fault> {
    refuse(Place::Pdr, &update.others)?;
    if let Some(wire_pdi) = &update.pdi {
        let (pdi, choice) = endpoints::pdi(wire_pdi, endpoints, around)?;
        if wire_pdi.ue_ip.is_some_and(|ue_ip| ue_ip.is_choice()) {
            // So are addresses, and there is no element to tell of another one.
            return Err(Fault::of(Cause::ServiceNotSupported, IeType::UeIpAddress));
        }
        if choice.is_some() {
            // F-TEIDs are chosen when a PDR is created.
            return Err(Fault::of(Cause::InvalidFteidAllocationOption, IeType::Fteid));
        }
        if pdi.source_interface != pdr.pdi.source_interface && update.outer_header_removal.is_none() {
            // What was to be removed on the other side makes no sense on this one.
            pdr.outer_header_removal = None;
        }
        pdr.pdi = pdi;
    }
    if let Some(removal) = update.outer_header_removal {
        pdr.outer_header_removal = Some(translate::outer_header_removal(removal, pdr.pdi.source_interface)?);
    }
    pdr.precedence = update.precedence.unwrap_or(pdr.precedence);
    pdr.far_id = update.far_id.unwrap_or(pdr.far_id);
    if !update.qer_ids.is_empty() {
        pdr.qer_ids = distinct(&update.qer_ids, IeType::QerId, around)?;
    }
    if !update.urr_ids.is_empty() {
        pdr.urr_ids = distinct(&update.urr_ids, IeType::UrrId, around)?;
    }
    Ok(())
}

/// IDs of rules that a PDR names, each once.
fn distinct(ids: &[u32], kind: IeType, around: Surroundings) -> Result<Vec<u32>, Fault> {
    if ids.len() > around.limits().per_pdr {
        return Err(Fault::of(Cause::NoResourcesAvailable, kind));
    }
    let mut distinct = Vec::with_capacity(ids.len());
    ids.iter().for_each(|id| {
        if !distinct.contains(id) {
            distinct.push(*id);
        }
    });
    Ok(distinct)
}
