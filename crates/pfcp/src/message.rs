//! Requests and responses as a whole.

use crate::fault::Fault;
use crate::header::{Header, MessageType};
use crate::ie::Ies;
use crate::node::{
    AssociationRelease, AssociationSetup, AssociationSetupResponse, AssociationUpdate, Heartbeat, NodeOutcome,
    NodeReport,
};
use crate::pfd::PfdManagement;
use crate::report::{SessionReport, SessionReportResponse};
use crate::session::{DeletionResponse, Establishment, EstablishmentResponse, Modification, ModificationResponse};

/// A request that this crate can parse and build.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and it is not moved about")]
pub enum Request {
    Heartbeat(Heartbeat),
    PfdManagement(PfdManagement),
    AssociationSetup(AssociationSetup),
    AssociationUpdate(AssociationUpdate),
    AssociationRelease(AssociationRelease),
    NodeReport(NodeReport),
    SessionEstablishment(Establishment),
    SessionModification(Modification),
    SessionDeletion,
    SessionReport(SessionReport),
}

/// A response that this crate can parse and build.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Response {
    Heartbeat(Heartbeat),
    PfdManagement(Result<(), Fault>),
    AssociationSetup(AssociationSetupResponse),
    AssociationUpdate(NodeOutcome),
    AssociationRelease(NodeOutcome),
    NodeReport(NodeOutcome),
    VersionNotSupported,
    SessionSetDeletion(NodeOutcome),
    SessionSetModification(Result<(), Fault>),
    SessionEstablishment(EstablishmentResponse),
    SessionModification(ModificationResponse),
    SessionDeletion(DeletionResponse),
    SessionReport(SessionReportResponse),
}

/// Why a message's elements are not a request or response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Its type is not one that is parsed.
    #[error("messages of type {} are not expected", .0.0)]
    Type(MessageType),
    /// Its header has an SEID where there should be none, or has none where there should be one (7.2.2.4).
    #[error("messages of type {} have an SEID if they concern a session, and none otherwise", .0.0)]
    SeidFlag(MessageType),
    /// What is wrong with an element.
    #[error("{0}")]
    Fault(#[from] Fault),
}

fn check_seid_flag(header: &Header) -> Result<(), ParseError> {
    if header.seid.is_some() == header.message_type.is_session_related() {
        Ok(())
    } else {
        Err(ParseError::SeidFlag(header.message_type))
    }
}

impl Request {
    /// Parses the elements `body` of a message with `header`.
    pub fn parse(header: &Header, body: &[u8]) -> Result<Self, ParseError> {
        check_seid_flag(header)?;
        let ies = || Ies::parse(body);
        Ok(match header.message_type {
            MessageType::HEARTBEAT_REQUEST => Self::Heartbeat(Heartbeat::read(&ies()?)?),
            MessageType::PFD_MANAGEMENT_REQUEST => Self::PfdManagement(PfdManagement::read(&ies()?)?),
            MessageType::ASSOCIATION_SETUP_REQUEST => Self::AssociationSetup(AssociationSetup::read(&ies()?)?),
            MessageType::ASSOCIATION_UPDATE_REQUEST => Self::AssociationUpdate(AssociationUpdate::read(&ies()?)?),
            MessageType::ASSOCIATION_RELEASE_REQUEST => Self::AssociationRelease(AssociationRelease::read(&ies()?)?),
            MessageType::NODE_REPORT_REQUEST => Self::NodeReport(NodeReport::read(&ies()?)?),
            MessageType::SESSION_ESTABLISHMENT_REQUEST => Self::SessionEstablishment(Establishment::read(&ies()?)?),
            MessageType::SESSION_MODIFICATION_REQUEST => Self::SessionModification(Modification::read(&ies()?)?),
            MessageType::SESSION_DELETION_REQUEST => {
                ies()?;
                Self::SessionDeletion
            }
            MessageType::SESSION_REPORT_REQUEST => Self::SessionReport(SessionReport::read(&ies()?)?),
            other => return Err(ParseError::Type(other)),
        })
    }

    /// The request's type.
    pub fn message_type(&self) -> MessageType {
        match self {
            Self::Heartbeat(_) => MessageType::HEARTBEAT_REQUEST,
            Self::PfdManagement(_) => MessageType::PFD_MANAGEMENT_REQUEST,
            Self::AssociationSetup(_) => MessageType::ASSOCIATION_SETUP_REQUEST,
            Self::AssociationUpdate(_) => MessageType::ASSOCIATION_UPDATE_REQUEST,
            Self::AssociationRelease(_) => MessageType::ASSOCIATION_RELEASE_REQUEST,
            Self::NodeReport(_) => MessageType::NODE_REPORT_REQUEST,
            Self::SessionEstablishment(_) => MessageType::SESSION_ESTABLISHMENT_REQUEST,
            Self::SessionModification(_) => MessageType::SESSION_MODIFICATION_REQUEST,
            Self::SessionDeletion => MessageType::SESSION_DELETION_REQUEST,
            Self::SessionReport(_) => MessageType::SESSION_REPORT_REQUEST,
        }
    }

    /// The datagram. `seid` is the receiver's SEID: 0 in an establishment, of no account in messages between nodes.
    pub fn encode(&self, seid: u64, sequence: u32) -> Vec<u8> {
        let mut body = vec![];
        match self {
            Self::Heartbeat(message) => message.write(&mut body),
            Self::PfdManagement(message) => message.write(&mut body),
            Self::AssociationSetup(message) => message.write(&mut body),
            Self::AssociationUpdate(message) => message.write(&mut body),
            Self::AssociationRelease(message) => message.write(&mut body),
            Self::NodeReport(message) => message.write(&mut body),
            Self::SessionEstablishment(message) => message.write(&mut body),
            Self::SessionModification(message) => message.write(&mut body),
            Self::SessionDeletion => {}
            Self::SessionReport(message) => message.write(&mut body),
        }
        datagram(self.message_type(), seid, sequence, &body)
    }
}

impl Response {
    /// Parses the elements `body` of a message with `header`.
    pub fn parse(header: &Header, body: &[u8]) -> Result<Self, ParseError> {
        check_seid_flag(header)?;
        let ies = || Ies::parse(body);
        Ok(match header.message_type {
            MessageType::HEARTBEAT_RESPONSE => Self::Heartbeat(Heartbeat::read(&ies()?)?),
            MessageType::PFD_MANAGEMENT_RESPONSE => Self::PfdManagement(crate::node::read_outcome(&ies()?)?),
            MessageType::ASSOCIATION_SETUP_RESPONSE => Self::AssociationSetup(AssociationSetupResponse::read(&ies()?)?),
            MessageType::ASSOCIATION_UPDATE_RESPONSE => Self::AssociationUpdate(NodeOutcome::read(&ies()?)?),
            MessageType::ASSOCIATION_RELEASE_RESPONSE => Self::AssociationRelease(NodeOutcome::read(&ies()?)?),
            MessageType::NODE_REPORT_RESPONSE => Self::NodeReport(NodeOutcome::read(&ies()?)?),
            MessageType::VERSION_NOT_SUPPORTED_RESPONSE => Self::VersionNotSupported,
            MessageType::SESSION_SET_DELETION_RESPONSE => Self::SessionSetDeletion(NodeOutcome::read(&ies()?)?),
            MessageType::SESSION_SET_MODIFICATION_RESPONSE => {
                Self::SessionSetModification(crate::node::read_outcome(&ies()?)?)
            }
            MessageType::SESSION_ESTABLISHMENT_RESPONSE => {
                Self::SessionEstablishment(EstablishmentResponse::read(&ies()?)?)
            }
            MessageType::SESSION_MODIFICATION_RESPONSE => {
                Self::SessionModification(ModificationResponse::read(&ies()?)?)
            }
            MessageType::SESSION_DELETION_RESPONSE => Self::SessionDeletion(DeletionResponse::read(&ies()?)?),
            MessageType::SESSION_REPORT_RESPONSE => Self::SessionReport(SessionReportResponse::read(&ies()?)?),
            other => return Err(ParseError::Type(other)),
        })
    }

    /// The response's type.
    pub fn message_type(&self) -> MessageType {
        match self {
            Self::Heartbeat(_) => MessageType::HEARTBEAT_RESPONSE,
            Self::PfdManagement(_) => MessageType::PFD_MANAGEMENT_RESPONSE,
            Self::AssociationSetup(_) => MessageType::ASSOCIATION_SETUP_RESPONSE,
            Self::AssociationUpdate(_) => MessageType::ASSOCIATION_UPDATE_RESPONSE,
            Self::AssociationRelease(_) => MessageType::ASSOCIATION_RELEASE_RESPONSE,
            Self::NodeReport(_) => MessageType::NODE_REPORT_RESPONSE,
            Self::VersionNotSupported => MessageType::VERSION_NOT_SUPPORTED_RESPONSE,
            Self::SessionSetDeletion(_) => MessageType::SESSION_SET_DELETION_RESPONSE,
            Self::SessionSetModification(_) => MessageType::SESSION_SET_MODIFICATION_RESPONSE,
            Self::SessionEstablishment(_) => MessageType::SESSION_ESTABLISHMENT_RESPONSE,
            Self::SessionModification(_) => MessageType::SESSION_MODIFICATION_RESPONSE,
            Self::SessionDeletion(_) => MessageType::SESSION_DELETION_RESPONSE,
            Self::SessionReport(_) => MessageType::SESSION_REPORT_RESPONSE,
        }
    }

    /// The datagram. `seid` is the receiver's SEID: 0 where it is not known, of no account in messages between nodes.
    pub fn encode(&self, seid: u64, sequence: u32) -> Vec<u8> {
        let mut body = vec![];
        match self {
            Self::Heartbeat(message) => message.write(&mut body),
            Self::AssociationSetup(message) => message.write(&mut body),
            Self::PfdManagement(outcome) | Self::SessionSetModification(outcome) => {
                crate::node::write_outcome(outcome, &mut body);
            }
            Self::AssociationUpdate(message)
            | Self::AssociationRelease(message)
            | Self::NodeReport(message)
            | Self::SessionSetDeletion(message) => {
                message.write(&mut body);
            }
            Self::VersionNotSupported => {}
            Self::SessionEstablishment(message) => message.write(&mut body),
            Self::SessionModification(message) => message.write(&mut body),
            Self::SessionDeletion(message) => message.write(&mut body),
            Self::SessionReport(message) => message.write(&mut body),
        }
        datagram(self.message_type(), seid, sequence, &body)
    }
}

fn datagram(message_type: MessageType, seid: u64, sequence: u32, body: &[u8]) -> Vec<u8> {
    let seid = message_type.is_session_related().then_some(seid);
    Header { message_type, seid, sequence }.prepend_to(body)
}
