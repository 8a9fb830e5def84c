//! 10,000 PFCP messages made and damaged by scapy, over UDP to a running endpoint. It answers or drops each as TS 29.244
//! says, and every session is as it was or properly changed.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::*;
use pfcp::node::Heartbeat;
use pfcp::{Cause, Fault, Header, HeaderError, IeType, MessageType, ParseError, RecoveryTimeStamp, Request, Response};
use upf::bell::Bell;
use upf::clock::Clock;
use upf::function::Meters;
use upf::n4::{Config, Endpoint, Limits};
use upf::rules::Session;

pub const PYTHON: &str = "/usr/bin/python3";
const MESSAGES: usize = 10_000;
const SEED: u32 = 29_244;

#[test]
fn ten_thousand_damaged_messages() {
    if !has_scapy() {
        println!("SKIPPED ten_thousand_damaged_messages: {PYTHON} has no scapy with PFCP");
        return;
    }
    let upf = RunningUpf::start();
    let mut scapy = Scapy::start();
    let (mut answered, mut accepted) = (0, BTreeSet::new());
    let mut counts = [0; 256];
    let mut before = upf.tables.seen();
    while let Some((message, sound)) = scapy.next() {
        let answer = upf.ask(&message);
        let after = upf.tables.seen();
        upf.tables.check();
        let case = Case { message: &message, answer: answer.as_deref(), before: &before, after: &after };
        if case.check() {
            accepted.insert(message[1]);
            counts[usize::from(message[1])] += 1;
        }
        assert!(!sound || case.is_accepted() || case.cannot_be(), "refused: {}", hex(&message));
        answered += usize::from(answer.is_some());
        scapy.answer(answer.as_deref());
        before = after;
    }
    // The messages got somewhere: sessions were established, modified and deleted by the hundred, most were answered.
    assert!([5, 9, 50, 52, 54].iter().all(|message_type| accepted.contains(message_type)), "{accepted:?}");
    assert!(counts[50] > 500 && counts[52] > 500 && counts[54] > 500, "{counts:?}");
    assert!(answered > MESSAGES / 2, "{answered}");
}

pub fn has_scapy() -> bool {
    let import = Command::new(PYTHON).args(["-c", "import scapy.contrib.pfcp"]).stderr(Stdio::null()).status();
    import.is_ok_and(|status| status.success())
}

pub fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

pub fn octets(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// One message, and what came of it.
struct Case<'a> {
    message: &'a [u8],
    answer: Option<&'a [u8]>,
    before: &'a Seen,
    after: &'a Seen,
}

impl Case<'_> {
    /// Whether it was a request that was accepted. Fails if anything is not as the standard says.
    fn check(&self) -> bool {
        let (header, body) = match Header::parse(self.message) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.check_header_error(error);
                return false;
            }
        };
        let is_request = matches!(header.message_type.0, 3 | 5 | 7 | 9 | 14 | 16 | 50 | 52 | 54);
        let has_right_header = header.seid.is_some() == header.message_type.is_session_related();
        if header.message_type == MessageType::HEARTBEAT_REQUEST {
            // A faulty one cannot be rejected, as the response has no cause.
            self.check_optional_heartbeat(Request::parse(&header, body).is_ok());
            return false;
        }
        if !is_request || !has_right_header {
            self.nothing_happened();
            return false;
        }
        let Some(response) = self.response(&header) else { panic!("not answered: {}", hex(self.message)) };
        let request = Request::parse(&header, body);
        match (outcome(&response), request) {
            (Err(fault), request) => {
                self.check_rejection(&fault, &request);
                false
            }
            (Ok(()), Ok(request)) => {
                self.check_acceptance(&header, &request, &response);
                true
            }
            (Ok(()), Err(error)) => panic!("accepted in spite of {error}: {}", hex(self.message)),
        }
    }

    fn nothing_happened(&self) {
        assert_eq!(self.answer.map(hex), None, "answered: {}", hex(self.message));
        self.unchanged();
    }

    fn unchanged(&self) {
        assert_eq!(self.before, self.after, "changed: {}", hex(self.message));
    }

    fn check_header_error(&self, error: HeaderError) {
        self.unchanged();
        match error {
            HeaderError::TooShort(_) => self.nothing_happened(),
            HeaderError::Version { message_type, sequence, .. } => {
                let expected = pfcp::version_not_supported(sequence);
                let answers = message_type != MessageType::VERSION_NOT_SUPPORTED_RESPONSE;
                assert_eq!(self.answer, answers.then_some(&expected[..]));
            }
            HeaderError::Length { header, .. } => {
                let is_request = matches!(header.message_type.0, 3 | 5 | 7 | 9 | 14 | 16 | 50 | 52 | 54);
                if !is_request || header.seid.is_some() != header.message_type.is_session_related() {
                    return self.nothing_happened();
                }
                let response = self.response(&header).expect("an answer");
                assert_eq!(outcome(&response), Err(Fault::new(Cause::InvalidLength)));
            }
        }
    }

    fn check_optional_heartbeat(&self, is_sound: bool) {
        assert_eq!(self.answer.is_some(), is_sound);
        if let Some(answer) = self.answer {
            let (header, body) = Header::parse(answer).unwrap();
            let expected = Response::Heartbeat(Heartbeat { recovery: config().recovery });
            assert_eq!(Response::parse(&header, body), Ok(expected));
        } else {
            self.unchanged();
        }
        self.only_removed();
    }

    /// Sessions are gone, if anything: their peer has restarted or released them.
    fn only_removed(&self) {
        for (seid, session) in &self.after.sessions {
            assert_eq!(self.before.sessions.get(seid), Some(session));
        }
    }

    fn response(&self, request: &Header) -> Option<Response> {
        let (header, body) = Header::parse(self.answer?).expect("a well-formed answer");
        assert_eq!((header.sequence, header.message_type.0), (request.sequence, request.message_type.0 + 1));
        Some(Response::parse(&header, body).expect("a response"))
    }

    fn check_rejection(&self, fault: &Fault, request: &Result<Request, ParseError>) {
        self.unchanged();
        match request {
            // What parsing finds is what the peer is told.
            Err(ParseError::Fault(found)) => assert_eq!(fault, found, "{}", hex(self.message)),
            Err(ParseError::Type(_)) => assert_eq!(*fault, Fault::new(Cause::ServiceNotSupported)),
            Err(ParseError::SeidFlag(_)) => panic!("answered: {}", hex(self.message)),
            Ok(_) => {
                let needs_ie = matches!(
                    fault.cause,
                    Cause::MandatoryIeMissing | Cause::ConditionalIeMissing | Cause::MandatoryIeIncorrect
                );
                assert!(!needs_ie || fault.offending_ie.is_some(), "{fault}");
                let is_failure = fault.cause == Cause::RuleCreationModificationFailure;
                // Traffic endpoints have no failed rule ID.
                let has_none = fault.offending_ie.is_some_and(is_endpoint);
                assert_eq!(fault.failed_rule.is_some(), is_failure && !has_none, "{fault}: {}", hex(self.message));
            }
        }
    }

    fn check_acceptance(&self, header: &Header, request: &Request, response: &Response) {
        match (request, response) {
            (Request::AssociationUpdate(_) | Request::PfdManagement(_), _) => self.unchanged(),
            (Request::AssociationSetup(_) | Request::AssociationRelease(_), _) => self.only_removed(),
            (Request::SessionEstablishment(request), Response::SessionEstablishment(response)) => {
                let seid = response.outcome.as_ref().unwrap().up_f_seid.seid;
                assert!(!self.before.sessions.contains_key(&seid));
                self.only_changed(seid);
                let session = &self.after.sessions[&seid];
                assert_eq!(session.cp_f_seid.seid, request.cp_f_seid.seid);
                let pdrs = request.create_pdrs.iter().map(|rule| rule.id).collect();
                let fars = request.create_fars.iter().map(|rule| rule.id).collect();
                let qers = request.create_qers.iter().map(|rule| rule.id).collect();
                assert_eq!(rules(session), (pdrs, fars, qers));
            }
            (Request::SessionModification(request), Response::SessionModification(_)) => {
                let seid = header.seid.unwrap();
                self.only_changed(seid);
                let (mut pdrs, mut fars, mut qers) = rules(&self.before.sessions[&seid]);
                request.remove_pdrs.iter().for_each(|id| assert!(pdrs.remove(id)));
                request.remove_fars.iter().for_each(|id| assert!(fars.remove(id)));
                request.remove_qers.iter().for_each(|id| assert!(qers.remove(id)));
                pdrs.extend(request.create_pdrs.iter().map(|rule| rule.id));
                fars.extend(request.create_fars.iter().map(|rule| rule.id));
                qers.extend(request.create_qers.iter().map(|rule| rule.id));
                assert_eq!(rules(&self.after.sessions[&seid]), (pdrs, fars, qers));
            }
            (Request::SessionDeletion, Response::SessionDeletion(_)) => {
                let seid = header.seid.unwrap();
                assert!(self.before.sessions.contains_key(&seid) && !self.after.sessions.contains_key(&seid));
                self.only_changed(seid);
            }
            other => panic!("{other:?}"),
        }
    }

    /// No session but that of `seid` is another than before.
    fn only_changed(&self, seid: u64) {
        let others = |seen: &Seen| {
            let mut sessions = seen.sessions.clone();
            sessions.remove(&seid);
            sessions
        };
        assert_eq!(others(self.before), others(self.after));
    }

    fn is_accepted(&self) -> bool {
        let Some(Ok((header, body))) = self.answer.map(Header::parse) else { return false };
        outcome(&Response::parse(&header, body).unwrap()).is_ok()
    }

    /// A sound request can still be for a session that another, damaged one has removed, or for an address in use.
    fn cannot_be(&self) -> bool {
        let Some(Ok((header, body))) = self.answer.map(Header::parse) else { return false };
        let fault = outcome(&Response::parse(&header, body).unwrap()).unwrap_err();
        match fault.cause {
            Cause::SessionContextNotFound => {
                let (header, _) = Header::parse(self.message).unwrap();
                !self.before.sessions.contains_key(&header.seid.unwrap())
            }
            Cause::NoEstablishedPfcpAssociation => true,
            Cause::RuleCreationModificationFailure => fault.offending_ie == Some(IeType::UeIpAddress as u16),
            _ => false,
        }
    }
}

fn is_endpoint(kind: u16) -> bool {
    let kinds = [IeType::CreateTrafficEndpoint, IeType::UpdateTrafficEndpoint, IeType::RemoveTrafficEndpoint];
    kinds.iter().any(|&of| of as u16 == kind)
}

fn outcome(response: &Response) -> Result<(), Fault> {
    match response {
        Response::PfdManagement(outcome) | Response::SessionSetModification(outcome) => *outcome,
        Response::AssociationSetup(response) => response.outcome,
        Response::AssociationUpdate(response)
        | Response::AssociationRelease(response)
        | Response::NodeReport(response)
        | Response::SessionSetDeletion(response) => response.outcome,
        Response::SessionEstablishment(response) => response.outcome.as_ref().map(|_| ()).map_err(|fault| *fault),
        Response::SessionModification(response) => response.outcome.as_ref().map(|_| ()).map_err(|fault| *fault),
        Response::SessionDeletion(response) => response.outcome.as_ref().map(|_| ()).map_err(|fault| *fault),
        Response::SessionReport(response) => response.outcome,
        Response::Heartbeat(_) | Response::VersionNotSupported => Ok(()),
    }
}

fn rules(session: &Session) -> (BTreeSet<u16>, BTreeSet<u32>, BTreeSet<u32>) {
    let pdrs = session.pdrs.iter().map(|rule| rule.id).collect();
    let fars = session.fars.iter().map(|rule| rule.id).collect();
    (pdrs, fars, session.qers.iter().map(|rule| rule.id).collect())
}

/// An endpoint on a thread of its own.
struct RunningUpf {
    tables: Watched,
    address: SocketAddr,
    socket: UdpSocket,
    /// At another address, so that it has nothing to do with the session manager's associations.
    other: UdpSocket,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl RunningUpf {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let limits = Limits { associations: 4_096, sessions: 4_096, ..config().limits };
        let config = Config { heartbeat: Duration::from_secs(3_600), limits, ..config() };
        let tables = Watched::new(4_096);
        let stop = Arc::new(AtomicBool::new(false));
        let meters = Meters { clock: Clock::new(), alarms: vec![], bell: Arc::new(Bell::new().unwrap()), echoes: None };
        let mut endpoint = Endpoint::new(socket, config, tables.clone(), meters);
        let stopped = stop.clone();
        let thread = Some(std::thread::spawn(move || endpoint.run(&stopped)));
        let bind = |address: &str| UdpSocket::bind(address).unwrap();
        let upf = Self { tables, address, socket: bind("127.0.0.1:0"), other: bind("127.0.0.2:0"), stop, thread };
        upf.socket.set_nonblocking(true).unwrap();
        upf.other.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        upf
    }

    /// What `message` is answered. A heartbeat after it tells when it has been dealt with.
    fn ask(&self, message: &[u8]) -> Option<Vec<u8>> {
        let heartbeat = Request::Heartbeat(Heartbeat { recovery: RecoveryTimeStamp(1) }).encode(0, 7);
        self.socket.send_to(message, self.address).unwrap();
        self.other.send_to(&heartbeat, self.address).unwrap();
        let mut buffer = [0; 65_535];
        let (len, _) = self.other.recv_from(&mut buffer).expect("the endpoint lives");
        assert_eq!(Header::parse(&buffer[..len]).unwrap().0.message_type, MessageType::HEARTBEAT_RESPONSE);
        let answer = self.socket.recv_from(&mut buffer).ok().map(|(len, _)| buffer[..len].to_vec());
        assert!(self.socket.recv_from(&mut buffer).is_err(), "one answer at most");
        answer
    }
}

impl Drop for RunningUpf {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.expect("the endpoint has not panicked").expect("nor failed");
        }
    }
}

/// The script that makes the messages.
struct Scapy {
    child: Child,
    answers: ChildStdin,
    messages: BufReader<ChildStdout>,
}

impl Scapy {
    fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scapy/pfcp_messages.py");
        let mut child = Command::new(PYTHON)
            .arg(script)
            .args(["mutate", &SEED.to_string(), &MESSAGES.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (answers, messages) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, answers, messages }
    }

    /// The next message, and whether nothing is wrong with it.
    fn next(&mut self) -> Option<(Vec<u8>, bool)> {
        let mut line = String::new();
        if self.messages.read_line(&mut line).unwrap() == 0 {
            assert!(self.child.wait().unwrap().success());
            return None;
        }
        Some((octets(line.split('"').nth(3).unwrap()), line.contains("\"sound\": true")))
    }

    fn answer(&mut self, answer: Option<&[u8]>) {
        writeln!(self.answers, "{}", answer.map_or("-".into(), hex)).unwrap();
    }
}

impl Drop for Scapy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
