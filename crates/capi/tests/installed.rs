//! The C library as users get it: installed, found by pkg-config, linked shared and static, run against a broker in this
//! process.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use port::{BURST_MAX, FRAME_MAX, OpenOptions, PacketRef, PortInfo, QueuePair, Route};
use vport::broker::{Broker, Config, EndSpec, LinkKind, LinkSpec, PortStatus, RING_BYTES_DEFAULT};

const PATIENCE: Duration = Duration::from_secs(30);

/// How a program gets the library.
#[derive(Clone, Copy, Debug)]
enum Linked {
    Shared,
    Static,
}

/// A copy of the library below a folder of its own.
struct Installation(PathBuf);

impl Installation {
    /// The one that tests share, or none where this machine cannot build C programs (said on standard output).
    fn shared(test: &str) -> Option<&'static Self> {
        static SHARED: OnceLock<Installation> = OnceLock::new();
        let missing = ["make", "cc", "strip", "pkg-config"].into_iter().find(|tool| !is_there(tool));
        if let Some(tool) = missing {
            println!("SKIPPED {test}: no {tool}");
            return None;
        }
        Some(SHARED.get_or_init(|| {
            let installation = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi-installed"));
            let _ = std::fs::remove_dir_all(&installation.0);
            installation.make("install-capi");
            installation
        }))
    }

    /// `make build` has built the library, and this finds nothing to do but to copy; otherwise it is built now.
    fn make(&self, target: &str) {
        let mut make = Command::new("make");
        make.args([target, "PREFIX=/usr", &format!("DESTDIR={}", self.0.display())]).current_dir(root());
        // Of a make, and of a cargo, that run this test: another compiler would build the library once more.
        for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS", "RUSTC_WORKSPACE_WRAPPER"] {
            make.env_remove(name);
        }
        assert_done(make.output().expect("make runs"));
    }

    fn libraries(&self) -> PathBuf {
        let output = Command::new("cc").arg("-print-multiarch").output().expect("cc runs");
        self.0.join("usr/lib").join(String::from_utf8_lossy(&output.stdout).trim())
    }

    /// Compiles a program as its author would, and strictly.
    fn compile(&self, source: &str, linked: Linked, more: &[&str]) -> PathBuf {
        let name = Path::new(source).file_stem().expect("a file").to_string_lossy();
        let program = self.0.join(format!("{name}-{linked:?}"));
        let mut flags = Command::new("pkg-config");
        // As if the folder were the root.
        flags.env("PKG_CONFIG_LIBDIR", self.libraries().join("pkgconfig")).env("PKG_CONFIG_SYSROOT_DIR", &self.0);
        flags.args(["--cflags", "--libs", "kaista-port"]);
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-Wall", "-Wextra", "-Werror"]).args(more);
        if let Linked::Static = linked {
            flags.arg("--static");
            cc.arg("-static");
        }
        let flags = flags.output().expect("pkg-config runs");
        assert!(flags.status.success(), "{}", String::from_utf8_lossy(&flags.stderr));
        cc.arg("-o").arg(&program).arg(root().join(source));
        cc.args(String::from_utf8_lossy(&flags.stdout).split_whitespace());
        assert_done(cc.output().expect("cc runs"));
        program
    }

    fn start(&self, program: &Path, arguments: &[&str], socket: &Path) -> Program {
        Program(self.command(program, arguments, socket).spawn().expect("the program starts"))
    }

    fn command(&self, program: &Path, arguments: &[&str], socket: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("KAISTA_PORTS", socket).env("LD_LIBRARY_PATH", self.libraries());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }
}

struct Program(Child);

impl Program {
    /// Waits for the program's end, and returns what it wrote: less than a pipe holds.
    fn finish(mut self) -> String {
        drop(self.0.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.0.try_wait().expect("a child") {
                Some(status) => break status,
                None => assert!(Instant::now() < deadline, "the program does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut output = String::new();
        self.0.stdout.take().expect("a pipe").read_to_string(&mut output).expect("text");
        assert!(status.success(), "{status}: {output}");
        output
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("it runs");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn is_there(tool: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
}

fn assert_done(output: Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// A broker with a function `program` and a function `peer`: their ports `p` are linked, and their ports `q`.
struct Bench {
    broker: Broker,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self::joined(&LinkKind::Direct, described())
    }

    fn joined(kind: &LinkKind, q: PortInfo) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let broker = Broker::start(Config { hugepages: false }, |_| {}).expect("a broker");
        for function in ["program", "peer"] {
            let socket = Broker::bind(&folder.path().join(function)).expect("a socket");
            broker.listen(function, socket, 0..u32::MAX).expect("a new function");
        }
        for (name, port) in [("p", PortInfo::named("p")), ("q", q)] {
            let end = |function: &str, port| EndSpec::of(function, port);
            let ends = [end("program", port), end("peer", PortInfo::named(name))];
            let kind = kind.clone();
            broker
                .add_link(LinkSpec { name: name.into(), ends, ring_bytes: RING_BYTES_DEFAULT, kind })
                .expect("a new link");
        }
        Self { broker, folder }
    }

    fn socket(&self, function: &str) -> PathBuf {
        self.folder.path().join(function)
    }

    fn open_peer(&self) -> QueuePair {
        self.open_peer_at("p")
    }

    fn open_peer_at(&self, name: &str) -> QueuePair {
        let options = OpenOptions { socket: self.socket("peer"), timeout: PATIENCE, ..OpenOptions::default() };
        port::open(name, &options).expect("a port").queues.remove(0)
    }

    /// Waits for something to be true of the program's port `p`.
    fn until(&self, what: &str, happens: impl Fn(&PortStatus) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_so(&happens) {
            assert!(Instant::now() < deadline, "in vain: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_so(&self, happens: impl Fn(&PortStatus) -> bool) -> bool {
        let known = |status: &PortStatus| status.name.function == "program" && status.name.port == "p";
        self.broker.ports().expect("a broker").iter().any(|status| known(status) && happens(status))
    }
}

/// The port that abi.c finds described.
fn described() -> PortInfo {
    let mut info = PortInfo::named("q");
    (info.mac, info.mtu, info.queues) = ([2, 0, 0, 0, 0, 7], 9_000, 2);
    let ip = |text: &str| text.parse().expect("an address");
    info.addresses = vec![(ip("10.3.0.1"), 24), (ip("2001:db8::1"), 64)];
    info.routes = vec![Route { to: ip("0.0.0.0"), prefix: 0, via: ip("10.3.0.2") }];
    info
}

/// Sends back what comes, until told to stop.
fn echo(mut pair: QueuePair, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let burst = pair.rx.recv();
        let packets: Vec<PacketRef<'_>> = (0..burst.len()).map(|i| burst.get(i)).collect();
        let mut sent = 0;
        while sent < packets.len() && !stop.load(Ordering::Relaxed) {
            sent += pair.tx.send(&packets[sent..]);
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

fn frame(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 256 + len) as u8).collect()
}

/// Frames of many lengths come back in order, whole, and with their addresses swapped.
fn assert_reflects(peer: &mut QueuePair) {
    let lengths: Vec<usize> = (60..=1_600).chain((1_601..FRAME_MAX).step_by(61)).chain([FRAME_MAX]).collect();
    let deadline = Instant::now() + PATIENCE;
    let (mut sent, mut returned) = (0, 0);
    while returned < lengths.len() {
        assert!(Instant::now() < deadline, "{sent} sent, {returned} returned of {}", lengths.len());
        // No more at once than the ring has room for.
        let window = (returned + BURST_MAX).min(lengths.len());
        let frames: Vec<Vec<u8>> = lengths[sent..window].iter().map(|len| frame(*len)).collect();
        let packets: Vec<PacketRef<'_>> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
        sent += peer.tx.send(&packets);
        let burst = peer.rx.recv();
        for i in 0..burst.len() {
            let mut got = vec![0; burst.get(i).len()];
            burst.get(i).copy_to(&mut got);
            let mut expected = frame(lengths[returned]);
            let (destination, source) = expected[..12].split_at_mut(6);
            destination.swap_with_slice(source);
            assert!(got == expected, "frame of {} bytes", lengths[returned]);
            returned += 1;
        }
    }
}

fn reflects(linked: Linked, test: &str) {
    let Some(installation) = Installation::shared(test) else { return };
    let program = installation.compile("examples/reflector/reflector.c", linked, &[]);
    let bench = Bench::new();
    let mut peer = bench.open_peer();
    let start = |peer: &mut QueuePair| {
        let reflector = installation.start(&program, &["p"], &bench.socket("program"));
        bench.until("the link is up", |status| status.up);
        assert!(peer.rx.recv().is_empty());
        reflector
    };

    let reflector = start(&mut peer);
    assert_reflects(&mut peer);
    bench.until("it sleeps when idle", |status| status.rx[0].sleeps > 0);
    assert_reflects(&mut peer);
    reflector.signal(Signal::SIGKILL);
    bench.until("it is gone", |status| status.pid.is_none());
    drop(reflector);

    let reflector = start(&mut peer);
    assert_reflects(&mut peer);

    drop(peer);
    let mut peer = bench.open_peer();
    bench.until("the link is up again", |status| status.up);
    assert!(peer.rx.recv().is_empty());
    assert_reflects(&mut peer);
    reflector.signal(Signal::SIGTERM);
    let said = reflector.finish();
    assert!(said.ends_with(" packets reflected\n"), "{said}");
}

#[test]
fn the_reflector_sends_back_every_frame_and_comes_back_after_a_kill() {
    reflects(Linked::Shared, "the_reflector_sends_back_every_frame_and_comes_back_after_a_kill");
}

#[test]
fn a_static_reflector_does_the_same() {
    reflects(Linked::Static, "a_static_reflector_does_the_same");
}

/// Frames that a peer sends and gets back: numbered, and never so many at once that a ring were full.
#[derive(Default)]
struct Course {
    sent: u64,
    returned: u64,
}

impl Course {
    const LEN: usize = 64;
    /// Of frames under way.
    const WINDOW: u64 = 2_000;

    fn frame(number: u64) -> [u8; Self::LEN] {
        let mut frame = [0; Self::LEN];
        frame[Self::LEN - 8..].copy_from_slice(&number.to_be_bytes());
        frame
    }

    fn has_room(&self) -> bool {
        self.sent - self.returned <= Self::WINDOW - BURST_MAX as u64
    }

    /// Sends a burst if there is room for one, and looks at one that comes back.
    fn turn(&mut self, peer: &mut QueuePair) {
        if self.has_room() {
            let frames: Vec<_> = (self.sent..).take(BURST_MAX).map(Self::frame).collect();
            let packets: Vec<PacketRef<'_>> = frames.iter().map(|frame| PacketRef::from_slice(frame)).collect();
            self.sent += peer.tx.send(&packets) as u64;
        }
        let burst = peer.rx.recv();
        for i in 0..burst.len() {
            let mut came = [0; Self::LEN];
            burst.get(i).copy_to(&mut came);
            assert!(
                came == Self::frame(self.returned),
                "in place of frame {}, of {}: {came:?}",
                self.returned,
                self.sent
            );
            self.returned += 1;
        }
    }

    /// Goes on until something is so.
    fn until(&mut self, peer: &mut QueuePair, what: &str, mut happens: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !happens(self) {
            assert!(Instant::now() < deadline, "in vain, {} of {} returned: {what}", self.returned, self.sent);
            (0..100).for_each(|_| self.turn(peer));
        }
    }
}

#[test]
fn a_reflector_that_another_one_succeeds_sends_back_all_that_came_for_it() {
    let test = "a_reflector_that_another_one_succeeds_sends_back_all_that_came_for_it";
    let Some(installation) = Installation::shared(test) else { return };
    let program = installation.compile("examples/reflector/reflector.c", Linked::Shared, &[]);
    let bench = Bench::new();
    bench.broker.allow_succession("program", true).expect("a function");
    let mut peer = bench.open_peer();
    let start = |succeeds| {
        let mut command = installation.command(&program, &["p"], &bench.socket("program"));
        Program(command.envs(succeeds).spawn().expect("the program starts"))
    };
    let mut reflector = start(None);
    bench.until("the link is up", |status| status.up);

    let mut course = Course::default();
    for _ in 0..5 {
        let goal = course.returned + 10_000;
        course.until(&mut peer, "frames come back", |course| course.returned >= goal);
        // Many frames wait for it, and it knows that it is to end before it looks at them.
        reflector.signal(Signal::SIGSTOP);
        course.until(&mut peer, "nothing more can be sent", |course| !course.has_room());
        let heir = start(Some(("KAISTA_SUCCEEDS", "1")));
        let pid = heir.0.id() as i32;
        course.until(&mut peer, "the other one has the port", |_| bench.is_so(|status| status.pid == Some(pid)));
        let former = std::mem::replace(&mut reflector, heir);
        former.signal(Signal::SIGTERM);
        former.signal(Signal::SIGCONT);
        let ending = std::thread::spawn(|| former.finish());
        course.until(&mut peer, "the first one ends", |_| ending.is_finished());
        assert!(ending.join().expect("it has ended well").ends_with(" packets reflected\n"));
    }
    let all = course.sent;
    course.until(&mut peer, "all have come back", |course| course.returned >= all);
}

/// Runs abi.c, which checks everything that the header says.
fn holds(linked: Linked, flags: &[&str], test: &str) {
    let Some(installation) = Installation::shared(test) else { return };
    let program = installation.compile("crates/capi/tests/abi.c", linked, flags);
    let bench = Bench::new();
    let peer = bench.open_peer();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(peer, &stop));
        let mut running = installation.start(&program, &[], &bench.socket("program"));
        // A program that failed has ended, and has said why.
        let reported = |status: &PortStatus| status.report == [("drop.no-session".to_owned(), 7)];
        let deadline = Instant::now() + PATIENCE;
        let ports = || bench.broker.ports().expect("a broker");
        while !ports().iter().any(reported) && running.0.try_wait().expect("a child").is_none() {
            if Instant::now() > deadline {
                stop.store(true, Ordering::Relaxed);
                panic!("the program neither ends nor reports");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = running.0.stdin.as_mut().expect("a pipe").write_all(b"\n");
        stop.store(true, Ordering::Relaxed);
        assert_eq!(running.finish(), "done\n");
    });
}

#[test]
fn the_interface_does_what_its_header_says() {
    // Looked at by the sanitizers: what the library gives is closed again, and no structure is written past its end.
    let flags = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    holds(Linked::Shared, &flags, "the_interface_does_what_its_header_says");
}

#[test]
fn a_static_program_finds_the_same_interface() {
    holds(Linked::Static, &[], "a_static_program_finds_the_same_interface");
}

/// Waits for a frame.
fn receive(peer: &mut QueuePair) -> Vec<u8> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "no frame comes");
        let burst = peer.rx.recv();
        if !burst.is_empty() {
            let mut frame = vec![0; burst.get(0).len()];
            burst.get(0).copy_to(&mut frame);
            return frame;
        }
    }
}

/// Frames with a rest, and such as are all head. Over zero-copy links, whose frames lie in buffers that change hands.
#[test]
fn what_was_accepted_may_be_overwritten_at_once() {
    let Some(installation) = Installation::shared("what_was_accepted_may_be_overwritten_at_once") else { return };
    let program = installation.compile("crates/capi/tests/zero_copy.c", Linked::Shared, &[]);
    let bench = Bench::joined(&LinkKind::ZeroCopy { group: "group".into() }, PortInfo::named("q"));
    let [mut p, mut q] = ["p", "q"].map(|name| bench.open_peer_at(name));
    let running = installation.start(&program, &[], &bench.socket("program"));
    for len in [1_000, 100] {
        let sent = frame(len);
        let deadline = Instant::now() + PATIENCE;
        while p.tx.send(&[PacketRef::from_slice(&sent)]) == 0 {
            assert!(Instant::now() < deadline, "nobody takes the frame");
        }
        let changed = receive(&mut p);
        assert!(changed == [&[0xee; 12], &sent[12..]].concat(), "{len} bytes, sent afterwards");
        assert!(receive(&mut q) == sent, "{len} bytes, sent first");
    }
    assert_eq!(running.finish(), "done\n");
}

#[test]
fn the_library_exports_what_the_header_declares_and_the_manual_names() {
    let test = "the_library_exports_what_the_header_declares_and_the_manual_names";
    let Some(installation) = Installation::shared(test) else { return };
    let header = std::fs::read_to_string(installation.0.join("usr/include/kaista/port.h")).expect("a header");
    // A declaration begins its line, and has its arguments' parenthesis right behind its name.
    let declared = |inline: bool| -> BTreeSet<String> {
        let lines = header.lines().filter(|line| !line.starts_with([' ', '/', '}']));
        let named = lines.filter(|line| line.starts_with("static inline") == inline);
        let name = |line: &str| line.split_once('(')?.0.rsplit([' ', '*']).next().map(str::to_owned);
        named.filter_map(name).filter(|name| name.starts_with("kaista_")).collect()
    };
    let library = installation.libraries().join("libkaista-port.so");
    let symbols = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm runs");
    let exported: BTreeSet<String> = String::from_utf8_lossy(&symbols.stdout)
        .lines()
        .map(|line| line.split_whitespace().next_back().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(declared(false), exported);

    let manuals = std::fs::read_dir(installation.0.join("usr/share/man/man3")).expect("manual pages");
    let pages: BTreeSet<String> = manuals
        .map(|page| page.expect("a page").file_name().to_string_lossy().trim_end_matches(".3").to_owned())
        .filter(|page| page != "kaista_port")
        .collect();
    assert_eq!(pages, &declared(false) | &declared(true));
}

#[test]
fn the_manual_is_well_formed() {
    let test = "the_manual_is_well_formed";
    let Some(installation) = Installation::shared(test) else { return };
    if !is_there("man") {
        return println!("SKIPPED {test}: no man");
    }
    let page = installation.0.join("usr/share/man/man3/kaista_rx_burst.3");
    let mut man = Command::new("man");
    man.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8"]).arg(page).env("MANWIDTH", "100");
    let output = man.output().expect("man runs");
    assert!(output.status.success() && output.stdout.len() > 5_000);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn what_is_installed_is_uninstalled() {
    if Installation::shared("what_is_installed_is_uninstalled").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let installation = Installation(folder.path().to_owned());
    installation.make("install-capi");
    let libraries = installation.libraries();
    let soname = std::fs::read_link(libraries.join("libkaista-port.so")).expect("a link for the linker");
    let file = std::fs::read_link(libraries.join(&soname)).expect("a link for the loader");
    assert!(libraries.join(file).is_file() && libraries.join("libkaista-port.a").is_file());
    let dynamic = Command::new("readelf").arg("-d").arg(libraries.join(&soname)).output().expect("readelf runs");
    let named = format!("soname: [{}]", soname.display());
    assert!(String::from_utf8_lossy(&dynamic.stdout).contains(&named));
    installation.make("uninstall-capi");
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() && !path.is_symlink() { files(&path) } else { vec![path] }).collect()
}
