//! `kaista-traffic replay`: a capture, over and over.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use traffic::host::Host;
use traffic::interrupt::Interrupt;
use traffic::replay::{self, Frames};
use traffic::station::PEER_WAIT;

use super::common::{Common, print, seconds};
use super::forward::first_queue;

/// Its options.
#[derive(Args)]
pub struct Replay {
    /// Capture (pcap or pcapng) with the frames
    #[arg(long, value_name = "FILE")]
    frames: PathBuf,
    /// Port to send on
    #[arg(long)]
    port: String,
    /// Port where frames come out
    #[arg(long)]
    sink: String,
    /// How long to go on before counting begins, in seconds
    #[arg(long, default_value_t = 0.0, value_parser = seconds)]
    warm_up: f64,
    /// How long to count, in seconds
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    #[command(flatten)]
    common: Common,
}

/// Sends and counts until its time is over.
pub fn run(args: &Replay) -> anyhow::Result<()> {
    let interrupt = Interrupt::take()?;
    args.common.stay()?;
    let frames = Frames::read(&args.frames)?;
    let end = |name: &String| -> anyhow::Result<replay::End> {
        let port = args.common.open(name)?;
        let host = Host::of(&port.info);
        Ok(replay::End { queue: first_queue(port)?, host })
    };
    let mut replay = replay::Replay::new(frames, end(&args.port)?, end(&args.sink)?);
    let [warm_up, window] = [args.warm_up, args.seconds].map(Duration::from_secs_f64);
    // Whoever forwards may have neighbours to find first.
    print(&replay.run(6 * PEER_WAIT, warm_up, window, Some(&interrupt))?, args.common.json)
}
