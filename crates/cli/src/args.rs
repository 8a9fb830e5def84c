//! The command line: commands, options and their help.

use clap::{Args, Parser, Subcommand};
use node::control::FunctionRef;
use slice::Latency;
use std::{path::PathBuf, time::Duration};

/// Runs mobile user planes in containers: functions, their virtual ports, and the links between them.
///
/// A slice is described in a file (`kaista schema` prints what it may say, `kaista check` what is wrong with it) and brought
/// up with one command. Its functions run as unprivileged containers; their ports are shared memory or kernel interfaces.
#[derive(Debug, Parser)]
#[command(
    name = "kaista",
    version,
    propagate_version = false,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    after_help = "Exit status: 0 success; 1 it failed; 2 wrong usage, or mistakes in the descriptor; `exec` gives its program's.\n\
        KAISTA_RUN_DIR and KAISTA_STATE_DIR name other directories than /run/kaista and /var/lib/kaista.",
    after_long_help = "\
Examples:
  kaista check slice.yaml                  find every mistake in a descriptor
  kaista up slice.yaml                     make it so; after an edit, make the difference
  kaista scale upf 4                       let a pool have four replicas
  kaista replace upf                       a new process in place of the one that runs, without a packet lost
  kaista ps                                what runs
  kaista top                               packets, drops and latency at every port, live
  kaista exec ran -- ping -c 3 10.6.0.2    run a program in a function
  kaista pcap upf/n3 | tshark -r -         look at the packets of a port
  kaista logs upf -f                       what a function prints
  kaista down --all                        take everything away

Exit status: 0 success; 1 it failed; 2 wrong usage, or mistakes in the descriptor; `exec` gives its program's.

Environment:
  KAISTA_RUN_DIR    sockets and sandboxes, /run/kaista if unset
  KAISTA_STATE_DIR  images, logs and state, /var/lib/kaista if unset
  KAISTAD           the daemon's executable, if it is neither beside kaista nor in PATH
  NO_COLOR          no colours, if it is not empty"
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Check(Check),
    Up(Up),
    Scale(Scale),
    Replace(Replace),
    Down(Down),
    Ls(Ls),
    Ps(Ps),
    Top(Top),
    Pcap(Pcap),
    Logs(Logs),
    Exec(Exec),
    Status(Status),
    Upf(Upf),
    Bench(bench::cli::Bench),
    /// Print the JSON Schema of slice descriptors
    ///
    /// An editor that knows it completes and checks descriptors while they are written. With the YAML language server, put
    /// this line first into a descriptor: # yaml-language-server: $schema=slice.schema.json
    #[command(after_help = "Example:\n  kaista schema > slice.schema.json")]
    Schema,
    Completions(Completions),
    Man(Man),
    Version(Version),
}

/// Find every mistake in a slice descriptor
///
/// Each mistake comes with its line and column, the reason and the remedy, all at once. What is checked: form and names,
/// units, addresses and routes, links, and what this host cannot give (cores, latency, interfaces). Warnings are about what
/// can be run and is probably not what was meant. Nothing is started.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 no errors (there may be warnings); 1 the file cannot be read; 2 errors.\n\n\
    Examples:\n  kaista check slice.yaml\n  kaista check --json slice.yaml | jq '.[].reason'")]
pub struct Check {
    /// The descriptor; - is standard input
    #[arg(value_name = "FILE", required = true)]
    pub file: PathBuf,
    /// Print a JSON array of findings: severity, line, column, length, reason, remedy
    #[arg(long)]
    pub json: bool,
    /// Leave out what depends on this host: cores, latency, interfaces
    #[arg(long)]
    pub any_host: bool,
}

/// Bring a slice up, or change it to what its file says now
///
/// Starts the daemon if none runs. Makes what is missing, changes what differs and removes what the file no longer has;
/// a second time nothing is left to do. Then waits until every function runs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kaista up examples/first-slice/slice.yaml\n  kaista up slice.yaml --timeout 5s")]
pub struct Up {
    /// The slice's descriptor; paths in it are relative to it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How long to wait until every function runs; 0s does not wait
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
}

/// Change how many replicas a pool has, while packets flow
///
/// A function is a pool if its descriptor says `pool: {max: N}`. New replicas take their share of the flows as soon as they
/// are ready; those that go give theirs away first. No packet is lost or reordered by it. Waits until every replica runs
/// and has its share. `kaista up` leaves the number alone unless the descriptor names one (`replicas`).
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kaista scale upf 4\n  kaista scale first-slice/upf 1 --timeout 10s\n  \
    kaista ps --json | jq '.[] | {name, share}'")]
pub struct Scale {
    /// The pool: FUNCTION, or SLICE/FUNCTION where several slices have such a function
    #[arg(value_name = "FUNCTION")]
    pub pool: FunctionRef,
    /// How many replicas
    #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub replicas: u16,
    /// How long to wait until every function runs and every replica has its share; 0s does not wait
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
}

/// Start a function anew, and lose no packet
///
/// A new process, of the image as it is now, is started beside the one that runs. It takes the ports over when it is ready; the
/// old one works off what it has, and ends. A UPF with a `stateDirectory` also hands over its sessions, N4's socket and the packets
/// that wait. If the new process does not get that far, the old one goes on as if nothing had been.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kaista replace upf\n  kaista replace first-slice/upf --json | jq .pid")]
pub struct Replace {
    /// The function: FUNCTION, or SLICE/FUNCTION where several slices have one of that name
    #[arg(value_name = "FUNCTION")]
    pub function: FunctionRef,
    /// Print the function and its new process as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// Take slices away, with everything that belonged to them
///
/// Containers, namespaces, links, sockets and shared memory go; images and state directories stay. A slice that is not up
/// is no error. With the last slice the daemon ends, unless it was started as a service.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kaista down first-slice\n  kaista down -f slice.yaml\n  kaista down --all")]
#[group(id = "what", required = true, multiple = false)]
pub struct Down {
    /// Names of slices
    #[arg(value_name = "SLICE", group = "what")]
    pub slices: Vec<String>,
    /// The slice that this descriptor describes
    #[arg(short, long, value_name = "FILE", group = "what")]
    pub file: Option<PathBuf>,
    /// Every slice on this node
    #[arg(long, group = "what")]
    pub all: bool,
}

/// List slices
#[derive(Debug, Args)]
pub struct Ls {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// List functions and pumps with their processes
///
/// A pump is a process of the platform that carries packets between a shared-memory port and a kernel interface. SHARE is
/// there where a function is a pool: how much of what the pool serves is the replica's.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kaista ps\n  kaista ps first-slice --json | jq -r '.[] | select(.name == \"upf\").pid'"
)]
pub struct Ps {
    /// Only this slice
    pub slice: Option<String>,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// Show packets, bytes, drops and latency of every port, live
///
/// On a terminal: q ends, arrows and page keys scroll, s changes the order, space holds the picture. Elsewhere, or with
/// --once, one table of totals. Latency is one-way, of what a port received, sampled since its link was made anew last.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kaista top\n  kaista top first-slice --once\n  kaista top --once --json | jq '.ports[].drops'"
)]
pub struct Top {
    /// Only this slice
    pub slice: Option<String>,
    /// Print one table of totals and end
    #[arg(long)]
    pub once: bool,
    /// Print the counters as a JSON object, once
    #[arg(long)]
    pub json: bool,
    /// Time between two pictures
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
}

/// Capture the packets of a port, as pcapng
///
/// Writes to standard output, for tshark, Wireshark or a file; Ctrl-C ends the capture in good order. Any port but those of
/// zero-copy links can be captured at any time, without its function taking notice. Packets that pass faster than they can
/// be copied are missed, and counted.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kaista pcap upf/n3 | tshark -r -\n  kaista pcap upf/n3 -c 100 > n3.pcapng\n  \
    kaista pcap first-slice/upf/n6 --duration 10s -w n6.pcapng\n  ssh host kaista pcap upf/n3 | wireshark -k -i -")]
pub struct Pcap {
    /// The port: FUNCTION/PORT, or SLICE/FUNCTION/PORT where several slices have such a function
    #[arg(value_name = "FUNCTION/PORT")]
    pub port: String,
    /// The slice of the function
    #[arg(short, long)]
    pub slice: Option<String>,
    /// End after this many packets
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this time
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Keep at most this many bytes of each packet
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(14..))]
    pub snap_length: Option<u32>,
    /// Write to a file instead of standard output; it is left alone if the capture cannot be had
    #[arg(short, long, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

/// Print what a function wrote to its output
///
/// What it wrote to standard error goes to standard error here, too.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kaista logs upf\n  kaista logs first-slice/upf -f --tail 20")]
pub struct Logs {
    /// The function: FUNCTION, or SLICE/FUNCTION where several slices have such a function
    #[arg(value_name = "FUNCTION")]
    pub function: FunctionRef,
    /// Go on with what is yet to come, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last lines
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<usize>,
    /// Begin each line with its time (UTC)
    #[arg(short, long)]
    pub timestamps: bool,
}

/// Run a program in a function's container
///
/// It sees what the function sees: its image, its network, its limits. Standard input, output and error are those of this
/// command, and so is the exit status; 128 + N if signal N ended it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  kaista exec ran -- ip address\n  kaista exec -t first-slice/dn -- sh\n  \
    echo hello | kaista exec dn -- cat")]
pub struct Exec {
    /// The function: FUNCTION, or SLICE/FUNCTION where several slices have such a function
    #[arg(value_name = "FUNCTION")]
    pub function: FunctionRef,
    /// Give the program a terminal of its own
    #[arg(short, long)]
    pub tty: bool,
    /// Accepted for habit's sake: standard input is always passed
    #[arg(short, long, hide = true)]
    pub interactive: bool,
    /// Set an environment variable
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub env: Vec<(String, String)>,
    /// Start in this directory
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// The program and its arguments; -- keeps its options apart from ours
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

/// Show whether the daemon runs, and what it holds
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 it runs; 1 it does not.")]
pub struct Status {
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// Look into a UPF, or run one without a slice
///
/// With --config it is the program kaista-upf: the configuration names Linux interfaces, or ports of shared memory, and any
/// session manager may be pointed at it. It runs until Ctrl-C or SIGTERM; RUST_LOG sets what it logs to standard error.
///
/// The commands ask a UPF that runs, in a slice or without one.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    after_help = "Examples:\n  kaista upf --config upf.yaml\n  kaista upf sessions\n  kaista upf session 0x65f01a7300000001\n  \
        kaista upf drops upf\n  kaista upf trace 10.60.0.1"
)]
pub struct Upf {
    #[command(subcommand)]
    pub command: Option<UpfCommand>,
    /// Run a UPF with this configuration, see docs/upf.md
    #[arg(long, value_name = "FILE", required = true)]
    pub config: Option<PathBuf>,
    /// End when the process ends that started this one, however it ends
    #[arg(long, hide = true)]
    pub die_with_parent: bool,
}

#[derive(Debug, Subcommand)]
pub enum UpfCommand {
    /// List sessions
    ///
    /// UP and DOWN are what the usage reporting rule that has counted most has counted; a session without one has none.
    #[command(after_help = "Examples:\n  kaista upf sessions\n  kaista upf sessions upf --json | jq '.[].ues'")]
    Sessions(UpfOf),
    /// Show all rules of a session, and what they have counted
    Session(UpfSession),
    /// Show how many packets were discarded, by reason, and what that means
    ///
    /// With --json, reasons that have not occurred are there, too.
    Drops(UpfOf),
    /// Show what becomes of a UE's packets, and by which rules, while they pass
    ///
    /// A line for each packet: when (UTC), which way, what it is, the PDR that it matched with its FAR, QERs and URRs, and
    /// what became of it. The UE may get its session later, and lose it. Packets never wait for whoever watches: those that
    /// come too fast are not shown, and counted. One UE of a UPF can be watched at a time.
    #[command(after_help = "Examples:\n  kaista upf trace 10.60.0.1\n  kaista upf trace 2001:db8:60::1 upf -c 10\n  \
        kaista upf trace 10.60.0.1 --duration 10s --json | jq .verdict")]
    Trace(UpfTrace),
}

/// Which UPF, and how its answer is shown.
#[derive(Debug, Args)]
pub struct UpfOf {
    /// The UPF: FUNCTION, or SLICE/FUNCTION where several slices have such a function; the only one there is if left out
    #[arg(value_name = "FUNCTION")]
    pub function: Option<FunctionRef>,
    /// A UPF without a slice, by its control socket: a path, or @NAME
    #[arg(long, value_name = "SOCKET", conflicts_with = "function")]
    pub socket: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct UpfSession {
    /// The UPF's SEID of the session, as `kaista upf sessions` shows it
    #[arg(value_name = "SEID")]
    pub seid: upf::control::Seid,
    #[command(flatten)]
    pub of: UpfOf,
}

#[derive(Debug, Args)]
pub struct UpfTrace {
    /// An address of the UE, or the UPF's SEID of its session
    #[arg(value_name = "UE", value_parser = ue)]
    pub ue: upf::control::Ue,
    #[command(flatten)]
    pub of: UpfOf,
    /// End after this many packets
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this time
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kaista completions bash > /etc/bash_completion.d/kaista\n  source <(kaista completions bash)"
)]
pub struct Completions {
    /// Which shell
    pub shell: clap_complete::Shell,
}

/// Write manual pages into a directory
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Man {
    /// The directory; made if need be
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Print the version of this program, and of the daemon if one runs
#[derive(Debug, Args)]
pub struct Version {
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// A time as descriptors write it: `500ms`, `10s`.
fn duration(text: &str) -> Result<Duration, String> {
    let latency: Latency = text.parse().map_err(|e: slice::ValueError| format!("{}; {}", e.reason, e.remedy))?;
    Ok(latency.duration())
}

fn ue(text: &str) -> Result<upf::control::Ue, String> {
    let address = text.parse().map(upf::control::Ue::Address);
    address
        .or_else(|_| text.parse().map(upf::control::Ue::Session))
        .map_err(|_: upf::control::NoSeid| "it is neither an address nor a SEID".into())
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if interval < Duration::from_millis(100) { Err("it must be 100ms at least".into()) } else { Ok(interval) }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("it is not of the form NAME=VALUE".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn times_are_written_as_in_descriptors() {
        assert_eq!(duration("1500ms"), Ok(Duration::from_millis(1500)));
        assert!(duration("10").unwrap_err().contains("has no unit"));
        assert!(interval("1ms").is_err());
    }
}
