//! A broker in a process of its own that can be killed, and what outlives it: the sockets that functions connect to, and the
//! segments that it deposited.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use vport::broker::{Broker, Config, Event, LinkSpec};
use vport::steering::BUCKETS;

pub const PATIENCE: Duration = Duration::from_secs(60);
/// In the environment of the broker's process.
const CHILD: &str = "KAISTA_TEST_BROKER";
const FDS_MAX: usize = 64;

/// Sends words and descriptors. The other side may be gone.
fn tell(socket: BorrowedFd<'_>, words: &str, fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    let _ = sendmsg(socket, &[IoSlice::new(words.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL);
}

/// The next words and descriptors; none once the other side is gone.
fn hear(socket: BorrowedFd<'_>) -> Option<(String, Vec<OwnedFd>)> {
    let mut bytes = vec![0; 16_384];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let len = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(message) => break message.bytes,
            // What a process that was killed had not read.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            Err(_) => break 0,
        }
    };
    let fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = fds.flatten().collect();
    bytes.truncate(len);
    (len > 0).then(|| (String::from_utf8(bytes).unwrap(), fds))
}

/// What the test binary does as the broker's process, in its test `name`. Returns where it is not that.
pub fn serve(specs: &[LinkSpec]) {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let control = Arc::new(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let events = control.clone();
    let broker = Broker::start(Config { hugepages: false }, move |event| match event {
        Event::Deposit { link, segments, .. } => {
            let labels: Vec<&str> = segments.iter().map(|(label, _)| label.as_str()).collect();
            let fds: Vec<BorrowedFd<'_>> = segments.iter().map(|(_, fd)| fd.as_fd()).collect();
            tell(events.as_fd(), &format!("deposit {link} {}", labels.join(" ")), &fds);
        }
        Event::Steered { epoch, .. } => tell(events.as_fd(), &format!("steered {epoch}"), &[]),
        Event::Attached { port, resumed, .. } => {
            tell(events.as_fd(), &format!("attached {}/{} {resumed}", port.function, port.port), &[]);
        }
        Event::Refused { function, reason } => eprintln!("{function} was refused: {reason}"),
        _ => {}
    })
    .unwrap();
    while let Some((words, fds)) = hear(control.as_fd()) {
        let mut words = words.split(' ');
        let (what, name) = (words.next().unwrap(), words.next().unwrap());
        let spec = || specs.iter().find(|spec| spec.name == name).unwrap().clone();
        match what {
            "listen" => broker.listen(name, fds.into_iter().next().unwrap(), 0..u32::MAX).unwrap(),
            "link" => broker.adopt(spec(), words.map(str::to_owned).zip(fds).collect()).unwrap(),
            "owners" => {
                let owners: Vec<u8> = words.map(|owner| owner.parse().unwrap()).collect();
                let answer = match broker.set_owners(name, owners.as_slice().try_into().unwrap()) {
                    Ok(epoch) => format!("answer {epoch}"),
                    Err(error) => format!("answer {error}"),
                };
                tell(control.as_fd(), &answer, &[]);
            }
            "pool" => {
                let pool = broker.pools().unwrap().remove(0);
                let present = pool.present.iter().filter(|present| **present).count();
                let owners = pool.owners.map(|owner| owner.to_string()).join(" ");
                let answer = format!("answer {} {} {present} {owners}", pool.epoch, pool.is_changing);
                tell(control.as_fd(), &answer, &[]);
            }
            _ => unreachable!(),
        }
    }
    std::process::exit(0);
}

/// A pool as the broker tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub epoch: u64,
    pub is_changing: bool,
    pub present: usize,
    pub owners: [u8; BUCKETS],
}

type Deposits = BTreeMap<String, Vec<(String, OwnedFd)>>;

/// Has a broker, and what the next one will need.
pub struct Keeper {
    test: &'static str,
    pub directory: PathBuf,
    sockets: Vec<(String, OwnedFd)>,
    specs: Vec<LinkSpec>,
    deposits: Arc<Mutex<Deposits>>,
    pub events: Receiver<String>,
    answers: Receiver<String>,
    broker: Option<Running>,
}

struct Running {
    child: Child,
    control: OwnedFd,
    reader: JoinHandle<()>,
}

impl Keeper {
    /// `test` is that which calls [`serve`] first.
    pub fn new(test: &'static str, directory: &Path, functions: &[String], specs: &[LinkSpec]) -> Self {
        let _ = std::fs::remove_dir_all(directory);
        std::fs::create_dir_all(directory).unwrap();
        let sockets = functions.iter().map(|name| (name.clone(), Broker::bind(&directory.join(name)).unwrap()));
        let mut keeper = Self {
            test,
            directory: directory.to_owned(),
            sockets: sockets.collect(),
            specs: specs.to_vec(),
            deposits: Arc::default(),
            events: channel().1,
            answers: channel().1,
            broker: None,
        };
        keeper.start(true);
        keeper
    }

    /// Starts a broker, which gets what there is of the former one: its links before or after functions can connect.
    pub fn start(&mut self, links_first: bool) {
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([self.test, "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (events, answers);
        (events, self.events) = channel();
        (answers, self.answers) = channel();
        let (deposits, from) = (self.deposits.clone(), control.try_clone().unwrap());
        let reader = std::thread::spawn(move || read(&from, &deposits, &events, &answers));
        self.broker = Some(Running { child, control, reader });
        let listen = |keeper: &Self| {
            keeper.sockets.iter().for_each(|(name, socket)| keeper.say(&format!("listen {name}"), &[socket.as_fd()]));
        };
        if !links_first {
            listen(self);
        }
        for spec in &self.specs {
            let deposits = self.deposits.lock().unwrap();
            let (labels, fds): (Vec<_>, Vec<_>) =
                deposits.get(&spec.name).into_iter().flatten().map(|(label, fd)| (label.as_str(), fd.as_fd())).unzip();
            self.say(&["link", &spec.name].into_iter().chain(labels).collect::<Vec<_>>().join(" "), &fds);
        }
        if links_first {
            listen(self);
        }
    }

    /// Kills the broker, and takes what it had said before.
    pub fn kill(&mut self) {
        if let Some(Running { mut child, reader, .. }) = self.broker.take() {
            child.kill().unwrap();
            child.wait().unwrap();
            reader.join().unwrap();
        }
    }

    fn say(&self, words: &str, fds: &[BorrowedFd<'_>]) {
        tell(self.broker.as_ref().unwrap().control.as_fd(), words, fds);
    }

    pub fn pool(&self) -> Pool {
        self.say("pool x", &[]);
        let answer = self.answers.recv_timeout(PATIENCE).unwrap();
        let words: Vec<&str> = answer.split(' ').collect();
        let owners: Vec<u8> = words[3..].iter().map(|owner| owner.parse().unwrap()).collect();
        Pool {
            epoch: words[0].parse().unwrap(),
            is_changing: words[1] == "true",
            present: words[2].parse().unwrap(),
            owners: owners.try_into().unwrap(),
        }
    }

    /// Begins a change. In words why not, if it cannot be.
    pub fn set_owners(&self, function: &str, owners: &[u8; BUCKETS]) -> Result<u64, String> {
        self.say(&format!("owners {function} {}", owners.map(|owner| owner.to_string()).join(" ")), &[]);
        let answer = self.answers.recv_timeout(PATIENCE).unwrap();
        answer.parse().map_err(|_| answer)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Takes what a broker says, until it is gone.
fn read(from: &OwnedFd, deposits: &Mutex<Deposits>, events: &Sender<String>, answers: &Sender<String>) {
    while let Some((words, fds)) = hear(from.as_fd()) {
        if let Some(answer) = words.strip_prefix("answer ") {
            let _ = answers.send(answer.to_owned());
        } else if let Some(deposit) = words.strip_prefix("deposit ") {
            let mut words = deposit.split(' ').map(str::to_owned);
            deposits.lock().unwrap().insert(words.next().unwrap(), words.zip(fds).collect());
        } else {
            let _ = events.send(words);
        }
    }
}
