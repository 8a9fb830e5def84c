//! What N4 has sent and received, and what it holds, for others to read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use pfcp::{Cause, Header, MessageType};

/// The ledger. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Shown>);

#[derive(Debug, Default)]
struct Shown {
    messages: Mutex<BTreeMap<Message, u64>>,
    sessions: AtomicU64,
    associations: AtomicU64,
    unanswered_requests: AtomicU64,
}

/// A kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    /// Whether the UPF sent it.
    pub sent: bool,
    /// Its type; none where the datagram is no message of PFCP's version 1.
    pub message_type: Option<MessageType>,
    /// What its first element of that kind says (8.2.1); none where it has none.
    pub cause: Option<u8>,
}

/// What the node holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Sessions in force.
    pub sessions: usize,
    /// Associations.
    pub associations: usize,
    /// Session reports, and other requests of its own, that are not answered yet.
    pub unanswered_requests: usize,
}

/// The element that tells of a cause.
const CAUSE: u16 = 19;
/// The highest type of a message of TS 29.244.
const TYPE_MAX: u8 = 57;
/// The highest cause of TS 29.244.
const CAUSE_MAX: u8 = 82;

impl Ledger {
    /// Enters a datagram.
    pub(super) fn enter(&self, sent: bool, datagram: &[u8]) {
        *self.messages().entry(Message::of(sent, datagram)).or_default() += 1;
    }

    /// Enters what the node holds.
    pub(super) fn hold(&self, holdings: Holdings) {
        self.0.sessions.store(holdings.sessions as u64, Relaxed);
        self.0.associations.store(holdings.associations as u64, Relaxed);
        self.0.unanswered_requests.store(holdings.unanswered_requests as u64, Relaxed);
    }

    /// How often each kind of message was sent and received.
    pub fn all(&self) -> Vec<(Message, u64)> {
        self.messages().iter().map(|(message, count)| (*message, *count)).collect()
    }

    /// What the node held last.
    pub fn holdings(&self) -> Holdings {
        Holdings {
            sessions: self.0.sessions.load(Relaxed) as usize,
            associations: self.0.associations.load(Relaxed) as usize,
            unanswered_requests: self.0.unanswered_requests.load(Relaxed) as usize,
        }
    }

    fn messages(&self) -> MutexGuard<'_, BTreeMap<Message, u64>> {
        self.0.messages.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Message {
    /// What a datagram is. Whatever a peer sends, there are few kinds.
    fn of(sent: bool, datagram: &[u8]) -> Self {
        let Ok((header, body)) = Header::parse(datagram) else { return Self { sent, message_type: None, cause: None } };
        let is_known = header.message_type.0 <= TYPE_MAX;
        Self {
            sent,
            message_type: is_known.then_some(header.message_type),
            cause: cause(body).filter(|&cause| is_known && cause <= CAUSE_MAX),
        }
    }

    /// The type in the words of TS 29.244, 7.3, as a label; `other` where it has none.
    pub fn type_name(&self) -> String {
        let Some(message_type) = self.message_type else { return "other".into() };
        match message_type {
            MessageType::HEARTBEAT_REQUEST => "heartbeat_request",
            MessageType::HEARTBEAT_RESPONSE => "heartbeat_response",
            MessageType::PFD_MANAGEMENT_REQUEST => "pfd_management_request",
            MessageType::PFD_MANAGEMENT_RESPONSE => "pfd_management_response",
            MessageType::ASSOCIATION_SETUP_REQUEST => "association_setup_request",
            MessageType::ASSOCIATION_SETUP_RESPONSE => "association_setup_response",
            MessageType::ASSOCIATION_UPDATE_REQUEST => "association_update_request",
            MessageType::ASSOCIATION_UPDATE_RESPONSE => "association_update_response",
            MessageType::ASSOCIATION_RELEASE_REQUEST => "association_release_request",
            MessageType::ASSOCIATION_RELEASE_RESPONSE => "association_release_response",
            MessageType::VERSION_NOT_SUPPORTED_RESPONSE => "version_not_supported_response",
            MessageType::NODE_REPORT_REQUEST => "node_report_request",
            MessageType::NODE_REPORT_RESPONSE => "node_report_response",
            MessageType::SESSION_SET_DELETION_REQUEST => "session_set_deletion_request",
            MessageType::SESSION_SET_DELETION_RESPONSE => "session_set_deletion_response",
            MessageType::SESSION_SET_MODIFICATION_REQUEST => "session_set_modification_request",
            MessageType::SESSION_SET_MODIFICATION_RESPONSE => "session_set_modification_response",
            MessageType::SESSION_ESTABLISHMENT_REQUEST => "session_establishment_request",
            MessageType::SESSION_ESTABLISHMENT_RESPONSE => "session_establishment_response",
            MessageType::SESSION_MODIFICATION_REQUEST => "session_modification_request",
            MessageType::SESSION_MODIFICATION_RESPONSE => "session_modification_response",
            MessageType::SESSION_DELETION_REQUEST => "session_deletion_request",
            MessageType::SESSION_DELETION_RESPONSE => "session_deletion_response",
            MessageType::SESSION_REPORT_REQUEST => "session_report_request",
            MessageType::SESSION_REPORT_RESPONSE => "session_report_response",
            _ => "other",
        }
        .into()
    }

    /// The cause as a label: its name in TS 29.244, or its number; empty where there is none.
    pub fn cause_name(&self) -> String {
        match self.cause {
            None => String::new(),
            Some(number) => match Cause::from(number) {
                Cause::Unknown => number.to_string(),
                known => snake(&format!("{known:?}")),
            },
        }
    }
}

/// The first cause among the elements.
fn cause(mut body: &[u8]) -> Option<u8> {
    while let [t0, t1, l0, l1, rest @ ..] = body {
        let len = usize::from(u16::from_be_bytes([*l0, *l1]));
        let value = rest.get(..len)?;
        if u16::from_be_bytes([*t0, *t1]) == CAUSE {
            return value.first().copied();
        }
        body = &rest[len..];
    }
    None
}

/// `RequestAccepted` as `request_accepted`.
fn snake(name: &str) -> String {
    let mut label = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !label.is_empty() {
            label.push('_');
        }
        label.push(letter.to_ascii_lowercase());
    }
    label
}

#[cfg(test)]
mod tests {
    use pfcp::node::Heartbeat;
    use pfcp::session::DeletionResponse;
    use pfcp::{Fault, RecoveryTimeStamp, Request, Response};

    use super::*;

    #[test]
    fn messages_are_told_apart_by_direction_type_and_cause() {
        let ledger = Ledger::default();
        let heartbeat = Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1) }).encode(0, 1);
        let fault = Fault::new(Cause::SessionContextNotFound);
        let deletion = Response::SessionDeletion(DeletionResponse { outcome: Err(fault) }).encode(1, 2);
        ledger.enter(false, &heartbeat);
        ledger.enter(false, &heartbeat);
        ledger.enter(true, &deletion);
        let seen: Vec<_> =
            ledger.all().into_iter().map(|(m, count)| (m.sent, m.type_name(), m.cause_name(), count)).collect();
        assert_eq!(
            seen,
            [
                (false, "heartbeat_request".to_owned(), String::new(), 2),
                (true, "session_deletion_response".to_owned(), "session_context_not_found".to_owned(), 1),
            ]
        );
    }

    #[test]
    fn whatever_peers_send_there_are_few_kinds() {
        let ledger = Ledger::default();
        for first in 0..=255 {
            for second in 0..=255 {
                // A header of a message that says that it is 17 octets long, and a cause.
                ledger.enter(false, &[first, second, 0, 9, 0, 0, 0, 0, 0, 19, 0, 1, second]);
            }
        }
        assert!(ledger.all().len() < 200, "{}", ledger.all().len());
    }
}
