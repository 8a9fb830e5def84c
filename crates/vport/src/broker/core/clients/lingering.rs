//! A client that sends descriptors which take as long to be closed as it likes.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::broker::{Broker, Config, Core};
use crate::layout::VERSION;
use crate::socket::{self, Received};
use crate::wire::{Reply, Request};

/// How long its closing takes. Much longer than anything here may.
const LINGER: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection with more on its way than its other end, which does not read, has room for.
fn lingering(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 1 << 16]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: LINGER.as_secs() as libc::c_int };
    let (from, len) = (std::ptr::from_ref(&linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
    // SAFETY: `from` and `len` describe `linger`.
    let set = unsafe { libc::setsockopt(sender.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, from, len) };
    assert_eq!(set, 0);
    (sender, receiver)
}

/// A broker with a function `a`. `passes`: as on a kernel that lets clients send descriptors.
fn start(directory: &Path, passes: bool) -> Broker {
    let broker = Broker::start(Config { hugepages: false }, |_| {}).unwrap();
    if passes {
        broker.call(|core| core.refuses_descriptors = false).unwrap();
    }
    let listening = Broker::bind(&directory.join("a")).unwrap();
    socket::pass_descriptors(listening.as_fd(), passes);
    broker.listen("a", listening, 0..u32::MAX).unwrap();
    broker
}

/// Sends the messages, the last one with these descriptors, and closes them. The broker reads nothing meanwhile.
fn send(broker: &Broker, directory: &Path, messages: &[&[u8]], fds: Vec<OwnedFd>) -> (OwnedFd, bool) {
    let connection = socket::connected(&directory.join("a")).unwrap();
    let messages: Vec<Vec<u8>> = messages.iter().map(|message| message.to_vec()).collect();
    let send = move |_: &mut Core| {
        let (last, before) = messages.split_last().unwrap();
        before.iter().for_each(|message| socket::send(connection.as_fd(), message, &[]).unwrap());
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let sent = socket::send(connection.as_fd(), last, &fds).is_ok();
        (connection, sent)
    };
    broker.call(send).unwrap()
}

fn refusal(connection: &OwnedFd) -> String {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Received::Message { bytes, .. } = socket::receive(connection.as_fd()).unwrap()
            && let Reply::Refused { reason, .. } = Reply::decode(&bytes).unwrap()
        {
            return reason;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("in vain: words")
}

#[test]
fn nobody_waits_for_descriptors_that_a_client_sends() {
    let hello = Request::Hello { oldest: VERSION, newest: VERSION, port: "p".into(), resume: 0 }.encode();
    let (directory, listener) = (tempfile::tempdir().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let broker = start(directory.path(), true);
    let mut receivers = Vec::new();
    let mut some = |count| {
        let (senders, receiving): (Vec<_>, Vec<_>) = (0..count).map(|_| lingering(&listener)).unzip();
        receivers.extend(receiving);
        senders.into_iter().map(OwnedFd::from).collect::<Vec<_>>()
    };
    let start = Instant::now();
    let (read, sent) = send(&broker, directory.path(), &[&hello], some(2));
    assert!(sent);
    assert_eq!(refusal(&read), "a port sends no file descriptors");
    // Behind what the broker cuts it off for: it reads no further.
    let (unread, sent) = send(&broker, directory.path(), &[b"nonsense", &hello], some(1));
    assert!(sent);
    assert_eq!(refusal(&unread), "not a port message");
    assert!(broker.ports().unwrap().is_empty() && start.elapsed() < LINGER / 2);
    // What was sent is on its way to being closed, for as long as its receivers are there.
    let until_closing = |count| {
        let deadline = Instant::now() + PATIENCE;
        while broker.call(|core| core.functions["a"].closing()).unwrap() != count {
            assert!(Instant::now() < deadline, "in vain: {count} are being closed");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until_closing(2);
    drop(receivers);
    until_closing(0);
}

#[test]
fn where_the_kernel_can_refuse_descriptors_none_comes() {
    if !socket::can_refuse_descriptors() {
        println!("SKIPPED where_the_kernel_can_refuse_descriptors_none_comes: Linux before 6.16");
        return;
    }
    let (directory, listener) = (tempfile::tempdir().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let broker = start(directory.path(), false);
    let hello = Request::Hello { oldest: VERSION, newest: VERSION, port: "p".into(), resume: 0 }.encode();
    let (sender, receiver) = lingering(&listener);
    let (connection, sent) = send(&broker, directory.path(), &[&hello], vec![sender.try_clone().unwrap().into()]);
    assert!(!sent);
    // The same once it is accepted.
    socket::send(connection.as_fd(), &hello, &[]).unwrap();
    assert_eq!(refusal(&connection), "port p is not known (yet)");
    drop((receiver, sender, broker));
}

#[test]
fn a_function_is_not_listened_to_while_too_much_of_it_is_being_closed() {
    let directory = tempfile::tempdir().unwrap();
    let broker = start(directory.path(), true);
    let held: Vec<_> = broker.call(|core| vec![core.functions["a"].closing.clone(); super::CLIENTS_MAX]).unwrap();
    let connection = socket::connected(&directory.path().join("a")).unwrap();
    std::thread::sleep(2 * super::DEAF_FOR);
    assert_eq!(broker.call(|core| core.clients.len()).unwrap(), 0);
    drop(held);
    let deadline = Instant::now() + PATIENCE;
    while broker.call(|core| core.clients.len()).unwrap() == 0 {
        assert!(Instant::now() < deadline, "in vain: it is let in");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(connection);
}
