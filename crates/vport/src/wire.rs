//! The messages between a port and the broker: one datagram each, little-endian.
//!
//! A message begins with the magic number and its kind; versions are settled by the first. Whatever does not parse to its last
//! byte is refused: neither side guesses.

mod fields;

use fields::{message, open};

use crate::info::{NAME_MAX, PortInfo, QUEUES_MAX};
use crate::layout::VERSION_POOL;
use crate::steering::{BUCKETS, Steering};

/// Longest message in bytes.
pub const MESSAGE_MAX: usize = 8192;
/// Most counters of one report.
pub const REPORT_MAX: usize = 64;
/// Longest name of a counter in bytes.
pub const COUNTER_NAME_MAX: usize = 48;
/// Most bytes of a bucket's state in one message.
pub const STATE_PART_MAX: usize = 8000;
/// Most generations that one end of a link can use.
pub const HOLDS_MAX: usize = 64;

/// From a port to the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Attach to a port, with a version between the two.
    Hello {
        /// Oldest version spoken.
        oldest: u16,
        /// Newest version spoken.
        newest: u16,
        /// The port.
        port: String,
        /// Generation that the sender still holds, from before the connection broke; 0 for none.
        resume: u64,
    },
    /// Instead of [`Request::Hello`], of a process that is to take its function's port over from the one that has it: as that,
    /// but that nothing changes for the other before [`Request::TakeOver`].
    Succeed {
        /// Oldest version spoken.
        oldest: u16,
        /// Newest version spoken.
        newest: u16,
        /// The port.
        port: String,
    },
    /// The sender, which came to succeed, is ready for the next generation.
    TakeOver,
    /// The sender has mapped its own segments, or what [`Reply::Records`] has shown it.
    Mapped {
        /// Of this generation.
        generation: u64,
    },
    /// The sender has mapped its peer's segments.
    Ready {
        /// Of this generation.
        generation: u64,
    },
    /// The sender's peer broke a rule.
    Quarantine {
        /// In this generation.
        generation: u64,
        /// The sender's queue that noticed.
        queue: u16,
        /// Number of the rule.
        violation: u16,
    },
    /// Named counters.
    Report(Vec<(String, u64)>),
    /// On a zero-copy link, once after the greeting: of the generations from before this connection, the sender still uses
    /// these, and no other.
    Holds(Vec<u64>),
    /// On a zero-copy link: the sender uses nothing of this generation any more.
    Released {
        /// This one.
        generation: u64,
    },
    /// On a zero-copy link: the sender closes this connection, and goes on with what it holds.
    Away,
    /// Instead of [`Request::Hello`]: take the function's place among those who steer its pool, with a version between the
    /// two.
    Steer {
        /// Oldest version spoken.
        oldest: u16,
        /// Newest version spoken.
        newest: u16,
        /// How far the sender has come under a former connection.
        progress: Progress,
    },
    /// Frames of buckets that come to the sender in this epoch will wait for them.
    Prepared {
        /// This one.
        epoch: u64,
    },
    /// A bucket leaves the sender: its state, or the next part of it.
    Bucket {
        /// This one.
        bucket: u8,
        /// The queue of the pool that gets it, by the table. The broker goes by its own.
        to: u16,
        /// Whether the next message has more of its state.
        more: bool,
        /// State, as the function writes it.
        state: Vec<u8>,
    },
    /// All that was to leave the sender in this epoch has left it.
    Gave {
        /// This one.
        epoch: u64,
    },
    /// What has come to the sender in this epoch.
    Came {
        /// This one.
        epoch: u64,
        /// Bit *b* for bucket *b*.
        buckets: u128,
    },
}

/// From the broker to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The port is the client's.
    Welcome {
        /// The version to speak.
        version: u16,
        /// What the port is.
        info: PortInfo,
        /// Queues of the peer.
        peer_queues: u16,
        /// Size of every ring in bytes.
        ring_bytes: u32,
        /// Whether the generation that the client holds goes on.
        resumed: bool,
        /// On a link to a pool (version [`VERSION_POOL`]): the client's place, if it is a member.
        place: Option<Place>,
    },
    /// No. The connection is closed after it.
    Refused {
        /// Why, for people.
        reason: String,
        /// Whether it can be otherwise later.
        try_again: bool,
    },
    /// Descriptors of the client's own segments: for each of its queues index, records and the reading end of its doorbell;
    /// then its bucket table, unless it is a member of a pool.
    Own {
        /// Of this generation.
        generation: u64,
        /// Size of each record segment in bytes.
        records_bytes: u64,
    },
    /// In version [`VERSION_SHARED`], between [`Reply::Own`] and [`Reply::Peer`]: descriptors of the record segments of the peer's
    /// queues, to map for writing before nobody can any more. Answered as [`Reply::Own`] is.
    ///
    /// [`VERSION_SHARED`]: crate::layout::VERSION_SHARED
    Records {
        /// Of this generation.
        generation: u64,
        /// Size of each in bytes.
        records_bytes: u64,
    },
    /// Descriptors of the peer's segments: for each of its queues index, records and the writing end of its doorbell; then
    /// its bucket table.
    Peer {
        /// Of this generation.
        generation: u64,
        /// Size of each record segment in bytes.
        records_bytes: u64,
        /// How the peer wants frames spread over its queues.
        steering: Steering,
    },
    /// Descriptors of the arena and the holder table for the next [`Reply::Own`] of a zero-copy link.
    Arena {
        /// Of this generation.
        generation: u64,
        /// Buffers that the arena can have.
        buffers: u32,
        /// Buffers that are there so far.
        present: u32,
        /// The client's id in the holder table.
        own: u16,
        /// Its peer's.
        peer: u16,
    },
    /// A generation is over.
    Over {
        /// This one.
        generation: u64,
        /// Whether the peer's process is known to be gone, so that its heads are final.
        dead: bool,
    },
    /// To one that came to succeed: whoever had the port before is gone. What it was given, it may use.
    Inherit,
    /// A member of the peer, which is a pool, is gone, or has never been given these generations: its heads in them are final.
    Gone {
        /// The first of them; 0 where the member is gone.
        since: u64,
        /// The last.
        generation: u64,
        /// The first of its queues.
        first_queue: u16,
        /// How many it had.
        queues: u16,
    },
    /// To a member: it steers its pool from here on.
    Steers(Place),
    /// To a member: get ready for an epoch.
    Prepare {
        /// Its number.
        epoch: u64,
        /// Which queue of the pool will own which bucket.
        owners: [u8; BUCKETS],
    },
    /// To a member: senders know of the epoch.
    Begun {
        /// This one.
        epoch: u64,
        /// Buckets that have come already, under a former broker: bit *b* for bucket *b*. All others that have left the
        /// client in this epoch are to be sent again.
        come: u128,
    },
    /// To a member: the change of an epoch is complete. What was given away need not be kept any more.
    Closed {
        /// This one.
        epoch: u64,
    },
    /// To a member: a bucket that is to come, or the next part of its state.
    Arrival {
        /// This one.
        bucket: u8,
        /// The queue of the pool that had it.
        from: u16,
        /// Whether the next message has more of its state.
        more: bool,
        /// State, as the function writes it; none of a member that is gone.
        state: Vec<u8>,
    },
}

/// How far a member has come in the changes of its pool. Epochs of zero: it has not steered yet, and holds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last epoch that it knows to be complete.
    pub closed: u64,
    /// The last epoch that it got ready for: `closed`, or the next.
    pub known: u64,
    /// Buckets that have come to it in that one: bit *b* for bucket *b*.
    pub come: u128,
    /// Ports of the pool that it has.
    pub ports: u16,
}

impl Progress {
    /// Whether it has not steered yet.
    pub(crate) fn is_fresh(&self) -> bool {
        (self.closed, self.known) == (0, 0)
    }
}

/// A member's place in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number that its first queue has in the pool.
    pub first_queue: u16,
    /// Queues of the whole pool.
    pub queues: u16,
    /// The pool's epoch.
    pub epoch: u64,
    /// Which queue of the pool owns which bucket.
    pub owners: [u8; BUCKETS],
}

/// Descriptors a queue takes in [`Reply::Own`] and [`Reply::Peer`].
pub const FDS_PER_QUEUE: usize = 3;
/// Most descriptors of one message.
pub const FDS_MAX: usize = FDS_PER_QUEUE * QUEUES_MAX + 1;

/// The datagram is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It does not begin with the magic number.
    #[error("not a port message")]
    Magic,
    /// Its kind is not known.
    #[error("unknown message kind {0}")]
    Kind(u16),
    /// It ends too early.
    #[error("the message is too short")]
    Short,
    /// It goes on behind its end.
    #[error("the message is too long")]
    Long,
    /// A field holds what it must not.
    #[error("bad {0}")]
    Field(&'static str),
}

const HELLO: u16 = 1;
const MAPPED: u16 = 2;
const READY: u16 = 3;
const QUARANTINE: u16 = 4;
const REPORT: u16 = 5;
const HOLDS: u16 = 6;
const RELEASED: u16 = 7;
const AWAY: u16 = 8;
const STEER: u16 = 9;
const PREPARED: u16 = 10;
const BUCKET: u16 = 11;
const GAVE: u16 = 12;
const CAME: u16 = 13;
const SUCCEED: u16 = 14;
const TAKE_OVER: u16 = 15;
const WELCOME: u16 = 101;
const REFUSED: u16 = 102;
const OWN: u16 = 103;
const PEER: u16 = 104;
const OVER: u16 = 105;
const ARENA: u16 = 106;
const GONE: u16 = 107;
const STEERS: u16 = 108;
const PREPARE: u16 = 109;
const BEGUN: u16 = 110;
const ARRIVAL: u16 = 111;
const CLOSED: u16 = 112;
const INHERIT: u16 = 113;
const RECORDS: u16 = 114;

impl Request {
    /// The datagram.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { oldest, newest, port, resume } => {
                message(HELLO).u16(*oldest).u16(*newest).u64(*resume).text(port).0
            }
            Self::Succeed { oldest, newest, port } => message(SUCCEED).u16(*oldest).u16(*newest).text(port).0,
            Self::TakeOver => message(TAKE_OVER).0,
            Self::Mapped { generation } => message(MAPPED).u64(*generation).0,
            Self::Ready { generation } => message(READY).u64(*generation).0,
            Self::Quarantine { generation, queue, violation } => {
                message(QUARANTINE).u64(*generation).u16(*queue).u16(*violation).0
            }
            Self::Report(counters) => {
                let start = message(REPORT).u16(counters.len() as u16);
                counters.iter().fold(start, |out, (name, value)| out.text(name).u64(*value)).0
            }
            Self::Holds(generations) => {
                let start = message(HOLDS).u16(generations.len() as u16);
                generations.iter().fold(start, |out, generation| out.u64(*generation)).0
            }
            Self::Released { generation } => message(RELEASED).u64(*generation).0,
            Self::Away => message(AWAY).0,
            Self::Steer { oldest, newest, progress: Progress { closed, known, come, ports } } => {
                message(STEER).u16(*oldest).u16(*newest).u64(*closed).u64(*known).u128(*come).u16(*ports).0
            }
            Self::Prepared { epoch } => message(PREPARED).u64(*epoch).0,
            Self::Bucket { bucket, to, more, state } => message(BUCKET).state(*bucket, *to, *more, state).0,
            Self::Gave { epoch } => message(GAVE).u64(*epoch).0,
            Self::Came { epoch, buckets } => message(CAME).u64(*epoch).u128(*buckets).0,
        }
    }

    /// The message in a datagram.
    pub fn decode(datagram: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut fields) = open(datagram)?;
        let message = match kind {
            HELLO => Self::Hello {
                oldest: fields.u16()?,
                newest: fields.u16()?,
                resume: fields.u64()?,
                port: fields.name("port name", NAME_MAX)?,
            },
            SUCCEED => Self::Succeed {
                oldest: fields.u16()?,
                newest: fields.u16()?,
                port: fields.name("port name", NAME_MAX)?,
            },
            TAKE_OVER => Self::TakeOver,
            MAPPED => Self::Mapped { generation: fields.u64()? },
            READY => Self::Ready { generation: fields.u64()? },
            QUARANTINE => {
                Self::Quarantine { generation: fields.u64()?, queue: fields.u16()?, violation: fields.u16()? }
            }
            REPORT => {
                let count = fields.count("number of counters", REPORT_MAX)?;
                let counter = |_| Ok((fields.name("counter name", COUNTER_NAME_MAX)?, fields.u64()?));
                Self::Report((0..count).map(counter).collect::<Result<_, Malformed>>()?)
            }
            HOLDS => {
                let count = fields.count("number of generations", HOLDS_MAX)?;
                Self::Holds((0..count).map(|_| fields.u64()).collect::<Result<_, _>>()?)
            }
            RELEASED => Self::Released { generation: fields.u64()? },
            AWAY => Self::Away,
            STEER => Self::Steer {
                oldest: fields.u16()?,
                newest: fields.u16()?,
                progress: Progress {
                    closed: fields.u64()?,
                    known: fields.u64()?,
                    come: fields.u128()?,
                    ports: fields.u16()?,
                },
            },
            PREPARED => Self::Prepared { epoch: fields.u64()? },
            BUCKET => {
                let (bucket, to, more, state) = fields.state()?;
                Self::Bucket { bucket, to, more, state }
            }
            GAVE => Self::Gave { epoch: fields.u64()? },
            CAME => Self::Came { epoch: fields.u64()?, buckets: fields.u128()? },
            other => return Err(Malformed::Kind(other)),
        };
        fields.end(message)
    }
}

impl Reply {
    /// The datagram.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome { version, info, peer_queues, ring_bytes, resumed, place } => {
                let start = message(WELCOME).u16(*version).u16(*peer_queues).u32(*ring_bytes).u8(u8::from(*resumed));
                let all = start.info(info);
                if *version == VERSION_POOL { all.place(place.as_ref()).0 } else { all.0 }
            }
            Self::Refused { reason, try_again } => message(REFUSED).u8(u8::from(*try_again)).text(reason).0,
            Self::Own { generation, records_bytes } => message(OWN).u64(*generation).u64(*records_bytes).0,
            Self::Records { generation, records_bytes } => message(RECORDS).u64(*generation).u64(*records_bytes).0,
            Self::Peer { generation, records_bytes, steering } => {
                message(PEER).u64(*generation).u64(*records_bytes).u8(steering.code()).0
            }
            Self::Arena { generation, buffers, present, own, peer } => {
                message(ARENA).u64(*generation).u32(*buffers).u32(*present).u16(*own).u16(*peer).0
            }
            Self::Over { generation, dead } => message(OVER).u64(*generation).u8(u8::from(*dead)).0,
            Self::Inherit => message(INHERIT).0,
            Self::Gone { since, generation, first_queue, queues } => {
                message(GONE).u64(*since).u64(*generation).u16(*first_queue).u16(*queues).0
            }
            Self::Steers(place) => message(STEERS).place(Some(place)).0,
            Self::Prepare { epoch, owners } => message(PREPARE).u64(*epoch).bytes(owners).0,
            Self::Begun { epoch, come } => message(BEGUN).u64(*epoch).u128(*come).0,
            Self::Closed { epoch } => message(CLOSED).u64(*epoch).0,
            Self::Arrival { bucket, from, more, state } => message(ARRIVAL).state(*bucket, *from, *more, state).0,
        }
    }

    /// The message in a datagram.
    pub fn decode(datagram: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut fields) = open(datagram)?;
        let message = match kind {
            WELCOME => {
                let version = fields.u16()?;
                let peer_queues = fields.count("number of queues", QUEUES_MAX)? as u16;
                let ring_bytes = fields.u32()?;
                let resumed = fields.flag()?;
                let info = fields.info()?;
                let place = if version == VERSION_POOL { fields.place()? } else { None };
                Self::Welcome { version, info, peer_queues, ring_bytes, resumed, place }
            }
            REFUSED => Self::Refused { try_again: fields.flag()?, reason: fields.text(MESSAGE_MAX)? },
            OWN => Self::Own { generation: fields.u64()?, records_bytes: fields.u64()? },
            RECORDS => Self::Records { generation: fields.u64()?, records_bytes: fields.u64()? },
            PEER => Self::Peer {
                generation: fields.u64()?,
                records_bytes: fields.u64()?,
                steering: Steering::from_code(fields.u8()?).ok_or(Malformed::Field("steering"))?,
            },
            ARENA => Self::Arena {
                generation: fields.u64()?,
                buffers: fields.u32()?,
                present: fields.u32()?,
                own: fields.u16()?,
                peer: fields.u16()?,
            },
            OVER => Self::Over { generation: fields.u64()?, dead: fields.flag()? },
            INHERIT => Self::Inherit,
            GONE => Self::Gone {
                since: fields.u64()?,
                generation: fields.u64()?,
                first_queue: fields.u16()?,
                queues: fields.u16()?,
            },
            STEERS => Self::Steers(fields.place()?.ok_or(Malformed::Field("place in a pool"))?),
            PREPARE => Self::Prepare { epoch: fields.u64()?, owners: fields.array()? },
            BEGUN => Self::Begun { epoch: fields.u64()?, come: fields.u128()? },
            CLOSED => Self::Closed { epoch: fields.u64()? },
            ARRIVAL => {
                let (bucket, from, more, state) = fields.state()?;
                Self::Arrival { bucket, from, more, state }
            }
            other => return Err(Malformed::Kind(other)),
        };
        fields.end(message)
    }
}

/// Whether a name of a port or function may be used: letters, digits, `-`, `_`, `.` and `/`.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(is_name_byte)
}

/// As much of a counter's name as may be reported.
pub(crate) fn counter_name(name: &str) -> String {
    let named = |char: char| if u8::try_from(char).is_ok_and(is_name_byte) { char } else { '_' };
    name.chars().map(named).take(COUNTER_NAME_MAX).collect()
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_./".contains(&byte)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::info::{ADDRESSES_MAX, Route};

    fn requests() -> Vec<Request> {
        vec![
            Request::Hello { oldest: 1, newest: 3, port: "n3".into(), resume: 7 },
            Request::Succeed { oldest: 1, newest: 3, port: "n3".into() },
            Request::TakeOver,
            Request::Mapped { generation: u64::MAX },
            Request::Ready { generation: 1 },
            Request::Quarantine { generation: 2, queue: 3, violation: 4 },
            Request::Report(vec![("drop.no-session".into(), 5), ("x".into(), u64::MAX)]),
            Request::Report(vec![]),
            Request::Holds(vec![]),
            Request::Holds((0..HOLDS_MAX as u64).collect()),
            Request::Released { generation: 9 },
            Request::Away,
            Request::Steer { oldest: 4, newest: 4, progress: Progress::default() },
            Request::Steer {
                oldest: 4,
                newest: 5,
                progress: Progress { closed: 6, known: 7, come: 1 | 1 << 127, ports: 2 },
            },
            Request::Prepared { epoch: 5 },
            Request::Bucket { bucket: 127, to: 15, more: true, state: vec![7; STATE_PART_MAX] },
            Request::Gave { epoch: 5 },
            Request::Came { epoch: 5, buckets: 1 | 1 << 127 },
        ]
    }

    fn replies() -> Vec<Reply> {
        let mut info = PortInfo::named("n3");
        info.addresses = vec![("10.3.0.1".parse().unwrap(), 24), ("2001:db8::1".parse().unwrap(), 64)];
        info.routes = vec![Route { to: "0.0.0.0".parse().unwrap(), prefix: 0, via: "10.3.0.2".parse().unwrap() }];
        info.steering = Steering::Teid;
        info.queues = 4;
        vec![
            Reply::Welcome {
                version: 1,
                info: info.clone(),
                peer_queues: 2,
                ring_bytes: 1 << 18,
                resumed: true,
                place: None,
            },
            Reply::Welcome {
                version: VERSION_POOL,
                info: info.clone(),
                peer_queues: 2,
                ring_bytes: 1 << 18,
                resumed: false,
                place: None,
            },
            Reply::Welcome {
                version: VERSION_POOL,
                info,
                peer_queues: 1,
                ring_bytes: 1 << 18,
                resumed: false,
                place: Some(Place { first_queue: 2, queues: 4, epoch: 7, owners: [3; BUCKETS] }),
            },
            Reply::Gone { since: 2, generation: 3, first_queue: 2, queues: 2 },
            Reply::Steers(Place { first_queue: 0, queues: 1, epoch: 1, owners: [0; BUCKETS] }),
            Reply::Prepare { epoch: 5, owners: core::array::from_fn(|bucket| bucket as u8) },
            Reply::Begun { epoch: 5, come: 1 | 1 << 127 },
            Reply::Closed { epoch: 5 },
            Reply::Arrival { bucket: 0, from: 3, more: false, state: vec![] },
            Reply::Refused { reason: "port n9 is not known".into(), try_again: true },
            Reply::Own { generation: 3, records_bytes: 2 << 20 },
            Reply::Records { generation: 3, records_bytes: 2 << 20 },
            Reply::Peer { generation: 3, records_bytes: 2 << 20, steering: Steering::UeAddress },
            Reply::Arena { generation: 3, buffers: 1 << 17, present: 2_048, own: 4, peer: 5 },
            Reply::Over { generation: 3, dead: true },
            Reply::Inherit,
        ]
    }

    #[test]
    fn messages_round_trip() {
        for request in requests() {
            assert_eq!(Request::decode(&request.encode()).as_ref(), Ok(&request));
        }
        for reply in replies() {
            assert_eq!(Reply::decode(&reply.encode()).as_ref(), Ok(&reply));
        }
    }

    #[test]
    fn nothing_shorter_or_longer_is_accepted() {
        for datagram in requests().iter().map(Request::encode) {
            for len in 0..datagram.len() {
                assert!(Request::decode(&datagram[..len]).is_err());
            }
            assert_eq!(Request::decode(&[&datagram[..], &[0]].concat()), Err(Malformed::Long));
        }
        for datagram in replies().iter().map(Reply::encode) {
            for len in 0..datagram.len() {
                assert!(Reply::decode(&datagram[..len]).is_err());
            }
            assert_eq!(Reply::decode(&[&datagram[..], &[0]].concat()), Err(Malformed::Long));
        }
    }

    #[test]
    fn the_longest_messages_fit() {
        let report = vec![("x".repeat(COUNTER_NAME_MAX), u64::MAX); REPORT_MAX];
        assert!(Request::Report(report).encode().len() <= MESSAGE_MAX);
        let mut info = PortInfo::named(&"x".repeat(NAME_MAX));
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        info.addresses = vec![(address, 128); ADDRESSES_MAX];
        info.routes = vec![Route { to: address, prefix: 128, via: address }; ADDRESSES_MAX];
        let welcome =
            Reply::Welcome { version: 1, info, peer_queues: 16, ring_bytes: 1 << 20, resumed: false, place: None };
        assert!(welcome.encode().len() <= MESSAGE_MAX);
    }

    #[test]
    fn names_are_restricted_to_what_needs_no_quoting() {
        assert!(is_name("slice-a/upf.n3_1"));
        for bad in ["", "a b", "a\n", "ä", &"x".repeat(NAME_MAX + 1)] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
