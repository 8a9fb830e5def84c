//! Functions' output: captured line by line with its time, bounded on disk, read back.
//!
//! Standard output and error of a container are pipes that it holds open for reading and writing, so nobody's death but
//! its own can break them: while no daemon reads, output waits in the pipe. The keeper holds them for the next daemon; if
//! keeper and daemon died together, the pipes are found again in the container's process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Gid, OFlags, Uid};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::control::Event;

/// Size at which a file becomes the older one. A function's output takes at most twice this.
const FILE_MAX: u64 = 4 << 20;
/// Longest line; what is longer is cut into several.
const LINE_MAX: usize = 16 << 10;

/// Standard output and error of a function.
#[derive(Debug)]
pub(crate) struct Pipes {
    /// Standard output, open for reading and writing.
    pub out: OwnedFd,
    /// Standard error.
    pub err: OwnedFd,
}

impl Pipes {
    /// New pipes, which `uid` may reopen by `/dev/stdout` and `/dev/stderr`.
    pub(crate) fn new(uid: u32) -> io::Result<Self> {
        let make = || {
            let (read, _write) = pipe_with(PipeFlags::CLOEXEC)?;
            rustix::fs::fchown(&read, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?;
            reopen(read.as_fd(), OFlags::RDWR)
        };
        Ok(Self { out: make()?, err: make()? })
    }

    /// The pipes that a running container was given.
    pub(crate) fn of_process(pid: i32) -> Option<Self> {
        let find = |fd: u8| {
            let path = format!("/proc/{pid}/fd/{fd}");
            let is_pipe = fs::metadata(&path).is_ok_and(|meta| meta.file_type().is_fifo());
            is_pipe.then(|| File::options().read(true).write(true).open(&path).map(OwnedFd::from).ok()).flatten()
        };
        Some(Self { out: find(1)?, err: find(2)? })
    }
}

/// Opens the same pipe once more: flags of its own, which what was given to a container does not share.
fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, rustix::fs::Mode::empty())?)
}

/// A thread that writes a function's output to its file. Dropping it ends it when the pipes are empty.
#[derive(Debug)]
pub(crate) struct Capture {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Captures from now on.
    pub(crate) fn start(pipes: &Pipes, directory: &Path, function: &str) -> io::Result<Self> {
        let read = |fd: &OwnedFd| reopen(fd.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK).map(File::from);
        let mut streams = [Stream::new(read(&pipes.out)?, 'o'), Stream::new(read(&pipes.err)?, 'e')];
        let mut journal = Journal::open(directory, function)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let stopped = stop.try_clone()?;
        let thread = std::thread::Builder::new().name(format!("log {function}")).spawn(move || {
            let result = capture(&mut streams, &stopped, &mut journal);
            if let Err(e) = result {
                tracing::error!("output is captured no more: {e}");
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn capture(streams: &mut [Stream; 2], stop: &OwnedFd, journal: &mut Journal) -> io::Result<()> {
    loop {
        let stopping = {
            let mut fds = [
                PollFd::new(stop, PollFlags::IN),
                PollFd::new(&streams[0].pipe, PollFlags::IN),
                PollFd::new(&streams[1].pipe, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            !fds[0].revents().is_empty()
        };
        for stream in streams.iter_mut() {
            stream.take(journal)?;
            if stopping {
                stream.flush(journal);
            }
        }
        if stopping {
            return Ok(());
        }
    }
}

/// One of the two pipes, and the line that is not complete yet.
struct Stream {
    pipe: File,
    mark: char,
    partial: Vec<u8>,
}

impl Stream {
    fn new(pipe: File, mark: char) -> Self {
        Self { pipe, mark, partial: Vec::new() }
    }

    /// Takes what is there, at most a pipe's worth, so that one stream does not starve the other.
    fn take(&mut self, journal: &mut Journal) -> io::Result<()> {
        let mut chunk = [0; 64 << 10];
        let read = match self.pipe.read(&mut chunk) {
            Ok(read) => read,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(e) => return Err(e),
        };
        for piece in chunk[..read].split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            while self.partial.last() == Some(&b'\n') || self.partial.len() > LINE_MAX {
                self.flush(journal);
            }
        }
        Ok(())
    }

    fn flush(&mut self, journal: &mut Journal) {
        if !self.partial.is_empty() {
            let end = self.partial.len() - usize::from(self.partial.last() == Some(&b'\n'));
            journal.append(self.mark, &self.partial[..end]);
            self.partial.clear();
        }
    }
}

/// A function's file, and the older one beside it.
struct Journal {
    path: PathBuf,
    file: File,
    size: u64,
    /// Lines in a row that could not be written.
    lost: u64,
}

impl Journal {
    fn open(directory: &Path, function: &str) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).create(directory)?;
        let path = path(directory, function);
        let file = OpenOptions::new().create(true).append(true).mode(0o640).open(&path)?;
        Ok(Self { size: file.metadata()?.size(), path, file, lost: 0 })
    }

    /// Keeps one line. Where that cannot be, as on a full disk, the line is lost and counted: a function must not wait for room in its
    /// pipe. The first line that can be kept again says how many were lost.
    fn append(&mut self, mark: char, text: &[u8]) {
        if let Err(e) = self.tell_lost().and_then(|()| self.write(mark, text)) {
            if self.lost == 0 {
                tracing::error!("{}: output is lost: {e}", self.path.display());
            }
            self.lost += 1;
        }
    }

    fn tell_lost(&mut self) -> io::Result<()> {
        if self.lost > 0 {
            self.write('e', format!("kaistad: {} lines of output could not be kept", self.lost).as_bytes())?;
            self.lost = 0;
        }
        Ok(())
    }

    /// One line, one write: `<nanoseconds since 1970> <o|e> <text>`.
    fn write(&mut self, mark: char, text: &[u8]) -> io::Result<()> {
        if self.size >= FILE_MAX {
            match fs::rename(&self.path, older(&self.path)) {
                // Done before, when there could be no new one.
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            self.file = OpenOptions::new().create(true).append(true).mode(0o640).open(&self.path)?;
            self.size = 0;
        }
        // What was written of a lost line is a line of its own.
        let begin = if self.lost > 0 { "\n" } else { "" };
        let mut line = format!("{begin}{} {mark} ", now_ns()).into_bytes();
        line.extend_from_slice(text);
        line.push(b'\n');
        let written = self.file.write_all(&line);
        self.size = if written.is_ok() { self.size + line.len() as u64 } else { self.file.metadata()?.size() };
        written
    }
}

fn path(directory: &Path, function: &str) -> PathBuf {
    directory.join(format!("{function}.log"))
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// Nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Removes a function's captured output.
pub(crate) fn remove(directory: &Path, function: &str) {
    let path = path(directory, function);
    let _ = fs::remove_file(older(&path));
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir(directory);
}

/// The last `lines` lines (or all) that were captured, oldest first.
pub(crate) fn last(directory: &Path, function: &str, lines: Option<usize>) -> Vec<Event> {
    Reader::open(directory, function, lines).map_or_else(|_| Vec::new(), |(_, events)| events)
}

/// Reads on where it stopped, through changes of file.
pub(crate) struct Reader {
    path: PathBuf,
    inode: u64,
    file: BufReader<File>,
    partial: Vec<u8>,
}

impl Reader {
    /// The last `lines` lines (or all), and a reader of what comes after them.
    pub(crate) fn open(directory: &Path, function: &str, lines: Option<usize>) -> io::Result<(Self, Vec<Event>)> {
        let path = path(directory, function);
        let mut before = Vec::new();
        if let Ok(mut file) = File::open(older(&path)) {
            file.read_to_end(&mut before)?;
        }
        let mut events: Vec<Event> = before.split(|byte| *byte == b'\n').filter_map(parse).collect();
        let file = File::open(&path)?;
        let inode = file.metadata()?.ino();
        let mut reader = Self { path, inode, file: BufReader::new(file), partial: Vec::new() };
        events.extend(reader.take()?);
        let skip = lines.map_or(0, |lines| events.len().saturating_sub(lines));
        events.drain(..skip);
        Ok((reader, events))
    }

    /// What was captured since.
    pub(crate) fn take(&mut self) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        loop {
            while self.file.read_until(b'\n', &mut self.partial)? > 0 && self.partial.ends_with(b"\n") {
                events.extend(parse(self.partial.strip_suffix(b"\n").unwrap_or_default()));
                self.partial.clear();
            }
            let Ok(next) = File::open(&self.path) else { return Ok(events) };
            let inode = next.metadata()?.ino();
            if inode == self.inode {
                return Ok(events);
            }
            (self.inode, self.file) = (inode, BufReader::new(next));
            self.file.seek(SeekFrom::Start(0))?;
        }
    }
}

fn parse(line: &[u8]) -> Option<Event> {
    let text = String::from_utf8_lossy(line);
    let (at, rest) = text.split_once(' ')?;
    let (mark, text) = rest.split_once(' ')?;
    Some(Event::Line { at_ns: at.parse().ok()?, error: mark == "e", text: text.to_owned() })
}

/// Waits until the other side hangs up, or for so long; whether it did.
pub(crate) fn hung_up(stream: impl AsFd, patience: Duration) -> bool {
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    let mut fds = [PollFd::new(&stream, PollFlags::RDHUP)];
    matches!(poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("kaista-logs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn texts(events: &[Event]) -> Vec<String> {
        let text = |event: &Event| match event {
            Event::Line { error, text, .. } => format!("{}{text}", if *error { "! " } else { "" }),
            other => panic!("{other:?} is no line"),
        };
        events.iter().map(text).collect()
    }

    #[test]
    fn lines_of_both_streams_are_captured_and_an_unfinished_one_at_the_end() {
        let directory = directory("capture");
        let pipes = Pipes::new(rustix::process::getuid().as_raw()).unwrap();
        let capture = Capture::start(&pipes, &directory, "f").unwrap();
        rustix::io::write(&pipes.out, b"one\ntwo\nunfin").unwrap();
        rustix::io::write(&pipes.out, b"ished").unwrap();
        rustix::io::write(&pipes.err, b"bad\n").unwrap();
        drop(capture);
        let mut lines = texts(&last(&directory, "f", None));
        lines.sort();
        assert_eq!(lines, ["! bad", "one", "two", "unfinished"]);
        assert_eq!(last(&directory, "f", Some(1)).len(), 1);
        remove(&directory, "f");
        assert!(!directory.exists());
    }

    #[test]
    fn output_waits_in_the_pipe_while_nobody_captures() {
        let directory = directory("gap");
        let pipes = Pipes::new(rustix::process::getuid().as_raw()).unwrap();
        drop(Capture::start(&pipes, &directory, "f").unwrap());
        rustix::io::write(&pipes.out, b"meanwhile\n").unwrap();
        drop(Capture::start(&pipes, &directory, "f").unwrap());
        assert_eq!(texts(&last(&directory, "f", None)), ["meanwhile"]);
        remove(&directory, "f");
    }

    #[test]
    fn files_are_bounded_and_a_reader_follows_into_the_new_one() {
        let directory = directory("bound");
        let mut journal = Journal::open(&directory, "f").unwrap();
        journal.append('o', b"first");
        let (mut reader, first) = Reader::open(&directory, "f", None).unwrap();
        assert_eq!(texts(&first), ["first"]);
        let line = vec![b'x'; 64 << 10];
        for _ in 0..=(FILE_MAX / line.len() as u64) {
            journal.append('o', &line);
        }
        journal.append('o', b"last");
        let read = texts(&reader.take().unwrap());
        assert_eq!(read.last().map(String::as_str), Some("last"));
        assert!(fs::metadata(path(&directory, "f")).unwrap().len() < FILE_MAX);
        remove(&directory, "f");
    }

    #[test]
    fn what_a_full_disk_cannot_keep_is_counted_and_the_function_never_waits() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED what_a_full_disk_cannot_keep_is_counted_and_the_function_never_waits: needs root");
            return;
        }
        let disk = SmallDisk::new();
        let pipes = Pipes::new(0).unwrap();
        let capture = Capture::start(&pipes, &disk.0, "f").unwrap();
        let filler = disk.0.join("filler");
        fs::write(&filler, vec![0; 192 << 10]).unwrap();
        let line = [b"x".repeat(1_000), b"\n".to_vec()].concat();
        let writer = std::thread::spawn({
            let out = pipes.out.try_clone().unwrap();
            // Many times what pipe and disk hold.
            move || (0..1_000).for_each(|_| assert!(rustix::io::write(&out, &line).is_ok()))
        });
        let begin = std::time::Instant::now();
        while !writer.is_finished() {
            assert!(begin.elapsed() < Duration::from_secs(20), "the writer waits");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(capture);
        fs::remove_file(filler).unwrap();
        let before = texts(&last(&disk.0, "f", None));
        assert!(before.len() < 200, "{} lines were kept", before.len());

        let mut journal = Journal::open(&disk.0, "f").unwrap();
        journal.file.write_all(b"\n1 o half a li").unwrap();
        journal.lost = 7;
        journal.append('o', b"again");
        journal.append('o', b"and again");
        let after = texts(&last(&disk.0, "f", None));
        let said = "! kaistad: 7 lines of output could not be kept";
        assert!(after.ends_with(&["half a li", said, "again", "and again"].map(str::to_owned)), "{after:?}");
    }

    /// A filesystem of 256 KiB.
    struct SmallDisk(PathBuf);

    impl SmallDisk {
        fn new() -> Self {
            let path = directory("disk");
            fs::create_dir_all(&path).unwrap();
            let flags = nix::mount::MsFlags::empty();
            nix::mount::mount(Some("tmpfs"), &path, Some("tmpfs"), flags, Some("size=256k")).unwrap();
            Self(path)
        }
    }

    impl Drop for SmallDisk {
        fn drop(&mut self) {
            let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
            let _ = fs::remove_dir(&self.0);
        }
    }
}
