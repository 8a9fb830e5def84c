//! Applications that session managers describe (TS 29.244, 6.2.5): names for sets of filters, which PDRs of all sessions
//! may detect. Descriptions are the UPF's, whoever has sent them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use pfcp::pfd::{ApplicationPfds, PfdContents, PfdManagement};
use pfcp::{Cause, Fault, IeType};

use super::contents::Contents;
use super::filter::parse_flow_description;
use super::held::Open;
use super::{Limits, Node, RuleTables};
use crate::rules::SdfFilter;
use crate::tables::{ApplyError, SessionUpdate};

/// The applications.
#[derive(Debug, Default)]
pub(super) struct Applications {
    known: BTreeMap<String, Vec<SdfFilter>>,
    /// The UPF's SEIDs of sessions with a PDR that detects an application, by its ID.
    users: BTreeMap<String, BTreeSet<u64>>,
}

impl Applications {
    /// The filters of an application that was described.
    fn filters(&self, id: &str) -> Result<&[SdfFilter], Fault> {
        self.known.get(id).map(Vec::as_slice).ok_or(Fault::of(Cause::UnknownApplicationId, IeType::ApplicationId))
    }

    /// What `request` makes of the descriptions.
    fn changed(&self, request: &PfdManagement, limits: &Limits) -> Result<BTreeMap<String, Vec<SdfFilter>>, Fault> {
        let mut known = if request.applications.is_empty() { BTreeMap::new() } else { self.known.clone() };
        for ApplicationPfds { id, pfds } in &request.applications {
            if pfds.len() > limits.pfds {
                return Err(Fault::of(Cause::NoResourcesAvailable, IeType::PfdContext));
            }
            let filters: Vec<_> = pfds.iter().map(filter).collect::<Result<_, _>>()?;
            match filters.is_empty() {
                true => known.remove(id),
                false => known.insert(id.clone(), filters),
            };
        }
        if known.len() > limits.applications {
            return Err(Fault::of(Cause::NoResourcesAvailable, IeType::ApplicationIdsPfds));
        }
        Ok(known)
    }

    /// The session detects these applications.
    pub fn list(&mut self, up_seid: u64, contents: &Contents) {
        for id in contents.applications.values() {
            self.users.entry(id.clone()).or_default().insert(up_seid);
        }
    }

    /// All descriptions.
    pub fn described(&self) -> &BTreeMap<String, Vec<SdfFilter>> {
        &self.known
    }

    /// Applications are described as in a former process.
    pub fn take_in(&mut self, described: BTreeMap<String, Vec<SdfFilter>>) {
        self.known = described;
    }

    /// Applications that a session of a former process detects are described as they were, though that one may not have kept
    /// descriptions.
    pub fn learn(&mut self, contents: &Contents) {
        for (pdr, id) in &contents.applications {
            let Some(rule) = contents.pdrs.get(pdr) else { continue };
            let filters = rule.pdi.sdf_filters.clone();
            if filters != [SdfFilter::nothing()] {
                self.known.insert(id.clone(), filters);
            }
        }
    }

    /// The session does not detect these applications any more.
    pub fn unlist(&mut self, up_seid: u64, contents: &Contents) {
        for id in contents.applications.values() {
            if let Some(users) = self.users.get_mut(id)
                && users.remove(&up_seid)
                && users.is_empty()
            {
                self.users.remove(id);
            }
        }
    }

    /// Sessions that detect any of the applications.
    fn users_of<'a>(&self, ids: impl Iterator<Item = &'a String>) -> BTreeSet<u64> {
        ids.filter_map(|id| self.users.get(id)).flatten().copied().collect()
    }
}

/// A description by addresses, ports and protocol. Other kinds need to look into users' data, which this UPF does not.
fn filter(pfd: &PfdContents) -> Result<SdfFilter, Fault> {
    let fault = |cause| Fault::of(cause, IeType::PfdContents);
    if pfd.has_others {
        return Err(fault(Cause::ServiceNotSupported));
    }
    let text = pfd.flow_description.as_deref().ok_or(fault(Cause::MandatoryIeIncorrect))?;
    parse_flow_description(text).map_err(|error| {
        tracing::debug!("flow description `{}`: {error}", text.escape_default());
        fault(Cause::MandatoryIeIncorrect)
    })
}

impl Contents {
    /// The PDR detects `application`, or none.
    pub fn detect(&mut self, pdr: u16, application: Option<&String>, known: &Applications) -> Result<(), Fault> {
        self.applications.remove(&pdr);
        let (Some(id), Some(rule)) = (application, self.pdrs.get_mut(&pdr)) else { return Ok(()) };
        if !rule.pdi.sdf_filters.is_empty() {
            // Both would have to match.
            return Err(Fault::of(Cause::ServiceNotSupported, IeType::ApplicationId));
        }
        rule.pdi.sdf_filters = known.filters(id)?.to_vec();
        self.applications.insert(pdr, id.clone());
        Ok(())
    }

    /// Gives PDRs that detect applications the filters that these have now.
    fn describe(&mut self, known: &BTreeMap<String, Vec<SdfFilter>>) {
        for (pdr, id) in &self.applications {
            if let Some(rule) = self.pdrs.get_mut(pdr) {
                // A PDR stays where it is while its application is not described.
                rule.pdi.sdf_filters = known.get(id).cloned().unwrap_or_else(|| vec![SdfFilter::nothing()]);
            }
        }
    }
}

impl<T: RuleTables> Node<T> {
    /// Changes the descriptions of applications, in all sessions that detect them, or not at all.
    pub(super) fn manage_pfds(&mut self, request: &PfdManagement, from: SocketAddr) -> Result<(), Fault> {
        match &request.node_id {
            Some(node_id) => self.association_of(node_id).map(|_| ())?,
            None => self.has_association_at(from.ip())?,
        }
        let known = self.applications.changed(request, &self.config.limits)?;
        let former = &self.applications.known;
        let changed = former.keys().chain(known.keys()).filter(|&id| former.get(id) != known.get(id));
        let mut sessions = vec![];
        for up_seid in self.applications.users_of(changed) {
            let Some(held) = self.sessions.get(&up_seid) else { continue };
            let mut open: Open = held.open();
            open.contents.describe(&known);
            sessions.push((up_seid, open));
        }
        let config = &self.config;
        let updates = sessions.iter().map(|(up_seid, open)| SessionUpdate::Put(open.session(*up_seid, config)));
        self.tables.apply(updates.collect()).map_err(|error| match error {
            ApplyError::Stopped => Fault::new(Cause::SystemFailure),
            _ => Fault::new(Cause::NoResourcesAvailable),
        })?;
        sessions.into_iter().for_each(|(up_seid, open)| self.put_back(up_seid, open));
        self.applications.known = known;
        self.journal.applications();
        Ok(())
    }

    fn has_association_at(&self, address: IpAddr) -> Result<(), Fault> {
        let is_there = self.associations.values().any(|association| association.peer.ip() == address);
        if is_there { Ok(()) } else { Err(Fault::new(Cause::NoEstablishedPfcpAssociation)) }
    }
}
