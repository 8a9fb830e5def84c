//! From which lines of source an instruction comes: the function that it is in, and those that were inlined into each other
//! there. binutils' `addr2line` reads that from the program's line tables.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// A function, as far as an instruction comes from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub function: String,
    pub file: String,
}

/// The frames of each instruction of `program`, innermost first. Addresses are those of its file.
pub(super) fn of(program: &Path, addresses: BTreeSet<u64>) -> anyhow::Result<BTreeMap<u64, Vec<Frame>>> {
    let mut child = Command::new("addr2line")
        .args(["--inlines", "--functions", "--demangle", "--addresses", "--exe"])
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run addr2line (package binutils)")?;
    let mut stdin = child.stdin.take().context("the process was given a pipe")?;
    let asked: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    // It answers while it reads.
    let asking = std::thread::spawn(move || stdin.write_all(asked.as_bytes()));
    let output = child.wait_with_output()?;
    asking.join().map_err(|_| anyhow::anyhow!("the asking thread panicked"))??;
    ensure!(output.status.success(), "addr2line ended with {}", output.status);
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// For each address a line with it, and then for each frame one with the function and one with file and line.
fn parse(said: &str) -> anyhow::Result<BTreeMap<u64, Vec<Frame>>> {
    let mut all: BTreeMap<u64, Vec<Frame>> = BTreeMap::new();
    let (mut lines, mut at) = (said.lines(), None);
    while let Some(line) = lines.next() {
        if let Some(address) = line.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            at = Some(all.entry(address).or_default());
            continue;
        }
        let place = lines.next().context("addr2line names a function without its file")?;
        let file = place.rsplit_once(':').map_or(place, |(file, _)| file);
        let frames = at.as_deref_mut().context("addr2line names no address")?;
        frames.push(Frame { function: line.to_owned(), file: file.to_owned() });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_innermost_first() {
        let said = "0x0000000000001000\ncore::slice::get\n/rust/core/src/slice.rs:12\nupf::worker::serve\ncrates/upf/src/worker.rs:7 (discriminator 2)\n\
                    0x0000000000001004\n??\n??:0\n";
        let all = parse(said).expect("frames");
        let frame = |function: &str, file: &str| Frame { function: function.into(), file: file.into() };
        assert_eq!(
            all[&0x1000],
            [
                frame("core::slice::get", "/rust/core/src/slice.rs"),
                frame("upf::worker::serve", "crates/upf/src/worker.rs")
            ]
        );
        assert_eq!(all[&0x1004], [frame("??", "??")]);
    }
}
