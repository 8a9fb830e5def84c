//! As much of HTTP/1.1 as a scrape needs: one request a connection, one connection at a time, none for long.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Longest request head.
const HEAD_MAX: usize = 8 << 10;
/// How long a connection may take, whatever its peer does.
const PATIENCE: Duration = Duration::from_secs(2);
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers each `GET /metrics` with a page.
pub(super) fn serve(listener: &TcpListener, page: &dyn Fn() -> String) -> io::Result<()> {
    loop {
        match listener.accept() {
            // What goes wrong with one connection is its peer's business.
            Ok((mut stream, _)) => drop(answer(&mut stream, page)),
            Err(error) if is_passing(&error) => std::thread::sleep(Duration::from_millis(100)),
            Err(error) => return Err(error),
        }
    }
}

/// Errors of one connection, and those that may be over soon: too many files, no memory.
fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(
            Errno::CONNABORTED
                | Errno::INTR
                | Errno::MFILE
                | Errno::NFILE
                | Errno::NOBUFS
                | Errno::NOMEM
                | Errno::PROTO
        )
    )
}

fn answer(stream: &mut TcpStream, page: &dyn Fn() -> String) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let (status, kind, body) = match path(&head(stream, until)?) {
        Some("/metrics") => ("200 OK", TYPE, page()),
        Some(_) => ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned()),
        None => ("400 Bad Request", "text/plain", "only GET is understood\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    write(stream, until, head.as_bytes())?;
    write(stream, until, body.as_bytes())
}

/// Up to the blank line, or as much as there may be.
fn head(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut chunk = [0; 1_024];
    while head.len() < HEAD_MAX && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut chunk)? {
            0 => break,
            len => head.extend_from_slice(&chunk[..len]),
        }
    }
    Ok(head)
}

fn write(stream: &mut TcpStream, until: Instant, mut octets: &[u8]) -> io::Result<()> {
    while !octets.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        let written = stream.write(octets)?;
        octets = &octets[written..];
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// What a GET asks for, without its query.
fn path(head: &[u8]) -> Option<&str> {
    let line = head.split(|&octet| octet == b'\r').next()?;
    let mut words = str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    (method == "GET" && version.starts_with("HTTP/1.")).then(|| target.split('?').next().unwrap_or(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener, &|| "page\n".into()));
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_scrape_gets_the_page_and_others_are_told_why_not() {
        let page = ask(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("\r\n\r\npage\n"), "{page}");
        assert!(page.contains("Content-Length: 5\r\n"), "{page}");
        assert!(ask(b"GET /metrics?a=b HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"));
        assert!(ask(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        for wrong in [&b"POST /metrics HTTP/1.1\r\n\r\n"[..], b"GET /metrics\r\n\r\n", b"\xff\xff", b""] {
            assert!(ask(wrong).starts_with("HTTP/1.1 400"), "{wrong:?}");
        }
    }

    #[test]
    fn who_says_nothing_does_not_keep_others_waiting_for_long() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener, &|| "page\n".into()));
        let _silent = TcpStream::connect(address).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("page\n"));
    }
}
