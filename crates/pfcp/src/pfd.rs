//! PFD Management (TS 29.244, 7.4.3): packet flow descriptions, by which a UPF detects applications.

use rs_pfcp::ie::IeType;

use crate::fault::{Cause, Fault};
use crate::ie::{Elements, Ie, Ies};
use crate::node::NodeId;

/// PFD Management Request (7.4.3.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PfdManagement {
    /// The sender, where it says so.
    pub node_id: Option<NodeId>,
    /// Applications whose descriptions are to be replaced. If there are none, all descriptions of all are to be removed.
    pub applications: Vec<ApplicationPfds>,
}

/// Application ID's PFDs (table 7.4.3.1-2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplicationPfds {
    /// Application ID.
    pub id: String,
    /// Its descriptions. If there are none, those that there were are to be removed.
    pub pfds: Vec<PfdContents>,
}

/// PFD Contents (8.2.39).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PfdContents {
    /// Flow description: an IPFilterRule.
    pub flow_description: Option<String>,
    /// Whether it also has what is not a flow description: URLs, domain names and their protocols, customs, additions.
    pub has_others: bool,
}

/// Flow description.
const FD: u8 = 1;
/// Custom PFD content, as a stand-in for all that is not modelled.
const CP: u8 = 1 << 3;

impl PfdManagement {
    pub(crate) fn read(ies: &Ies) -> Result<Self, Fault> {
        Ok(Self {
            node_id: ies.first(IeType::NodeId).map(NodeId::read).transpose()?,
            applications: ies.all(IeType::ApplicationIdsPfds).map(ApplicationPfds::read).collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.applications.iter().for_each(|application| application.write(out));
        if let Some(node_id) = &self.node_id {
            node_id.write(out);
        }
    }
}

impl ApplicationPfds {
    fn read(ie: Ie) -> Result<Self, Fault> {
        let ies = ie.group()?;
        let id = read_application_id(ies.mandatory(IeType::ApplicationId)?)?;
        let mut pfds = vec![];
        for context in ies.all(IeType::PfdContext) {
            let context = context.group()?;
            context.mandatory(IeType::PfdContents)?;
            for contents in context.all(IeType::PfdContents) {
                pfds.push(PfdContents::read(contents)?);
            }
        }
        Ok(Self { id, pfds })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.grouped(IeType::ApplicationIdsPfds, |out| {
            out.element(IeType::ApplicationId, self.id.as_bytes());
            for pfd in &self.pfds {
                out.grouped(IeType::PfdContext, |out| pfd.write(out));
            }
        });
    }
}

/// An application's name (8.2.6), which is not empty.
pub(crate) fn read_application_id(ie: Ie) -> Result<String, Fault> {
    match std::str::from_utf8(ie.value) {
        Ok("") => Err(ie.fault(Cause::InvalidLength)),
        Ok(id) => Ok(id.into()),
        Err(_) => Err(ie.fault(Cause::MandatoryIeIncorrect)),
    }
}

impl PfdContents {
    /// A flow description alone.
    pub fn flow(description: impl Into<String>) -> Self {
        Self { flow_description: Some(description.into()), has_others: false }
    }

    // Read here, as every length is to be checked.
    fn read(ie: Ie) -> Result<Self, Fault> {
        let too_short = ie.fault(Cause::InvalidLength);
        let &[flags, _spare, ref fields @ ..] = ie.value else { return Err(too_short) };
        let mut fields = fields;
        let mut contents = Self { flow_description: None, has_others: flags & !FD != 0 };
        // Each bit stands for a field with its length before it, in this order.
        for _ in 0..flags.count_ones() {
            let (length, rest) = fields.split_first_chunk().ok_or(too_short)?;
            let (field, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into()).ok_or(too_short)?;
            fields = rest;
            if flags & FD != 0 && contents.flow_description.is_none() {
                let text = std::str::from_utf8(field).map_err(|_| ie.fault(Cause::MandatoryIeIncorrect))?;
                contents.flow_description = Some(text.into());
            }
        }
        Ok(contents)
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut value = vec![0, 0];
        if let Some(text) = &self.flow_description {
            value[0] |= FD;
            value.extend_from_slice(&(text.len() as u16).to_be_bytes());
            value.extend_from_slice(text.as_bytes());
        }
        if self.has_others {
            value[0] |= CP;
            value.extend_from_slice(&[0, 1, b'?']);
        }
        out.element(IeType::PfdContents, &value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_description_must_fit_it() {
        let read = |value| PfdContents::read(Ie { kind: IeType::PfdContents as u16, value });
        let fault = |cause| Err(Fault::of(cause, IeType::PfdContents));
        let whole = [0b1111_1111, 0, 0, 1, b'a', 0, 1, b'b', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, b'c', b'd'];
        assert_eq!(read(&whole), Ok(PfdContents { flow_description: Some("a".into()), has_others: true }));
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len]), fault(Cause::InvalidLength), "{len}");
        }
        assert_eq!(read(&[1, 0, 0, 1, 0xff]), fault(Cause::MandatoryIeIncorrect));
        assert_eq!(read(&[0, 0]), Ok(PfdContents::default()));
    }
}
