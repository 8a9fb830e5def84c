//! Lines of JSON over a stream socket, with descriptors beside them.
//!
//! Descriptors are sent with the first byte of their line, and handed out with the line during whose reading they
//! came. One side never has two lines with descriptors under way, so they cannot be mixed up.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest line; a descriptor with many small files fits, an attack on memory does not.
const LINE_MAX: usize = 8 << 20;
/// Most descriptors beside one line.
pub(crate) const DESCRIPTORS_MAX: usize = 4;

/// Sends `line` as JSON with a newline, and `fds` beside it.
pub(crate) fn send(stream: &UnixStream, line: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let mut rest = text.as_slice();
    while !rest.is_empty() {
        match rustix::net::sendmsg(stream, &[IoSlice::new(rest)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                rest = &rest[sent..];
                ancillary.clear();
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// The receiving side of a connection.
pub(crate) struct Lines {
    stream: UnixStream,
    buffer: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Lines {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new(), fds: Vec::new() }
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Whether a whole line has been read already.
    pub(crate) fn is_ready(&self) -> bool {
        self.buffer.contains(&b'\n')
    }

    /// The next line and the descriptors beside it; none when the other side has hung up.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(Some((serde_json::from_slice(&line)?, std::mem::take(&mut self.fds))));
            }
            if self.buffer.len() > LINE_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the line has no end"));
            }
            if !self.fill()? {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "hung up within a line"))
                };
            }
        }
    }

    /// Reads once; false at the end of the stream.
    fn fill(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 16 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.stream, &mut [IoSliceMut::new(&mut chunk)], &mut ancillary, flags) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result?,
            }
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if self.fds.len() > DESCRIPTORS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more descriptors than any message carries"));
        }
        self.buffer.extend_from_slice(&chunk[..received.bytes]);
        Ok(received.bytes > 0)
    }
}

/// The descriptor beside the next bytes, whatever they say.
pub(crate) fn receive_descriptor(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut lines = Lines::new(stream.try_clone()?);
    lines.fill()?;
    Ok(lines.fds.pop())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn a_descriptor_arrives_with_its_line_and_not_with_the_next() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(&a, &"first", &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut lines = Lines::new(b);
        let (line, fds) = lines.next::<String>().unwrap().unwrap();
        assert_eq!((line.as_str(), fds.len()), ("first", 1));
        send(&a, &"second", &[]).unwrap();
        let (line, none) = lines.next::<String>().unwrap().unwrap();
        assert_eq!((line.as_str(), none.len()), ("second", 0));
        std::fs::File::from(fds.into_iter().next().unwrap()).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn lines_longer_than_a_read_are_put_together_and_the_end_is_an_end() {
        let (a, b) = UnixStream::pair().unwrap();
        let long = "x".repeat(100_000);
        let expected = long.clone();
        let sender = std::thread::spawn(move || send(&a, &long, &[]).unwrap());
        let mut lines = Lines::new(b);
        assert_eq!(lines.next::<String>().unwrap().unwrap().0, expected);
        sender.join().unwrap();
        assert!(lines.next::<String>().unwrap().is_none());
    }
}
