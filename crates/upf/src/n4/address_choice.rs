//! Which UE addresses a request leaves to the UPF, and which it gets.

use std::cell::RefCell;

use pfcp::rule as wire;
use pfcp::{Cause, Fault, IeType, RuleId};

use super::addresses::{Addresses, Kind, UeAddress, Wanted};
use super::contents::Contents;
use super::endpoints::Chooser;

/// A UE address that the UPF is to choose, beside what is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressChoice {
    pub chooser: Chooser,
    pub kinds: Vec<Kind>,
    /// The data network's, where the PDR tells it.
    pub network_instance: Option<String>,
    /// Names of pools; any where there are none.
    pub pools: Vec<String>,
    pub destination: bool,
}

impl AddressChoice {
    pub fn of_pdr(create: &wire::CreatePdr) -> Option<Self> {
        let wire::CreatePdr { id, pdi, address_pools, .. } = create;
        Self::of(Chooser::Pdr(*id), pdi.ue_ip, pdi.f_teid, &pdi.network_instance, address_pools)
    }

    pub fn of_endpoint(create: &wire::TrafficEndpoint) -> Option<Self> {
        let wire::TrafficEndpoint { id, ue_ip, f_teid, network_instance, .. } = create;
        Self::of(Chooser::Endpoint(*id), *ue_ip, *f_teid, network_instance, &[])
    }

    fn of(
        chooser: Chooser,
        ue_ip: Option<wire::UeIp>,
        f_teid: Option<wire::FTeid>,
        network_instance: &Option<String>,
        pools: &[String],
    ) -> Option<Self> {
        let ue_ip = ue_ip.filter(|ue_ip| ue_ip.is_choice())?;
        Some(Self {
            chooser,
            kinds: ue_ip.choose_v4.then_some(Kind::V4).into_iter().chain(ue_ip.choose_v6.map(Kind::V6)).collect(),
            network_instance: network_instance.clone().filter(|_| f_teid.is_none()),
            pools: pools.to_vec(),
            destination: ue_ip.destination,
        })
    }
}

/// Chooses addresses, and returns those of each PDR and traffic endpoint. A session has one of each kind, unless network instances or pools ask
/// for several. What is given out for it is added to `allocated`, also when that does not suffice.
pub(super) fn choose_addresses(
    addresses: &RefCell<Addresses>,
    mut choices: Vec<AddressChoice>,
    contents: &mut Contents,
    allocated: &mut Vec<UeAddress>,
) -> Result<Vec<(Chooser, wire::UeIp)>, Fault> {
    let mut addresses = addresses.borrow_mut();
    let fault = |cause| Fault::of(cause, IeType::UeIpAddress);
    if !choices.is_empty() && addresses.is_empty() {
        return Err(fault(Cause::ServiceNotSupported));
    }
    // Who says more about the pool chooses first; the others follow.
    choices.sort_by_key(|choice| choice.network_instance.is_none() && choice.pools.is_empty());
    let mut all = vec![];
    for AddressChoice { chooser, kinds, network_instance, pools, destination } in choices {
        if pools.iter().any(|pool| !addresses.has_pool(pool)) {
            let offending_ie = Some(IeType::UeIpAddressPoolIdentity as u16);
            let failed_rule = match chooser {
                Chooser::Pdr(id) => Some(RuleId::Pdr(id)),
                Chooser::Endpoint(_) => None,
            };
            return Err(Fault { cause: Cause::RuleCreationModificationFailure, offending_ie, failed_rule });
        }
        let wanted = Wanted { network_instance: network_instance.as_deref(), pools: &pools };
        let mut chosen = wire::UeIp { destination, ..wire::UeIp::default() };
        for kind in kinds {
            let address = addresses.choose(kind, wanted, &contents.ue_addresses(), allocated);
            let address = address.map_err(|_| fault(Cause::AllDynamicAddressesOccupied))?;
            contents.set_ue_address(chooser, address);
            match address {
                UeAddress::V4(v4) => chosen.v4 = Some(v4),
                UeAddress::V6(net, length) => chosen.v6 = Some((net, length)),
            }
        }
        all.push((chooser, chosen));
    }
    all.sort_by_key(|(chooser, _)| *chooser);
    Ok(all)
}
