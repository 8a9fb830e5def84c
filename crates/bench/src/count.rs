//! Instructions of a packet, counted by valgrind's callgrind: the same on every machine, so a test can watch them.
//!
//! The counted program is this one, in a hidden command that forwards packets, by a function over synthetic ports or over a link of
//! shared memory. Only what the forwarding thread does once all is set up counts. Of the UPF the same is done for each stage of a
//! packet's way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::json;
use upf::model::Model;

mod callgrind;
mod frames;
mod hop;
mod stages;

use callgrind::Profile;
use hop::Hops;
use stages::Stage;

use crate::conditions;
use crate::folder::Folder;
use crate::link::Kind;
use crate::metric::{Outcome, Report, Samples};
use crate::progress::Progress;
use crate::rig::{Load, Plain, Subject, Upf, Way};
use crate::upf::Whole;

/// Packets that are sent while instructions are counted; less than a burst more.
const PACKETS: u64 = 100_000;
/// As in `kaista bench upf`.
const LOAD: Load = Load::of(1_000, 1_000, 64);
/// So many instructions more are never too many: of a small stage they are several percent.
const SLACK: f64 = 2.0;
/// PDRs each way of sessions that have many, each PDR with an SDF filter; packets match the last one.
const MANY_PDRS: u16 = 16;
/// Workers among whom a dispatcher has to choose.
const SEVERAL_WORKERS: usize = 2;
/// So many that their lines are asked for ahead.
const MANY_SESSIONS: u32 = 4_096;

/// What to count.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Compare with the figures in this file, and fail where one is exceeded
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// How far a figure may exceed its baseline, in percent
    #[arg(long, default_value_t = 3.0)]
    pub tolerance: f64,
    /// Write the figures to this file, as the new baseline
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// What the counted program does.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Counted {
    /// A function over synthetic ports
    Function {
        /// Which one
        #[arg(value_enum)]
        subject: Subject,
        /// Where its packets go
        #[arg(value_enum)]
        way: Way,
        /// PDRs each way
        pdrs: u16,
        /// Sessions, all with packets
        sessions: u32,
    },
    /// A pipeline over synthetic ports, dispatcher and worker in turns
    Pipeline {
        /// Where its packets go
        #[arg(value_enum)]
        way: Way,
        /// Workers, of whom one has all packets
        workers: usize,
    },
    /// Packets to and fro over a link
    Hop {
        /// Of which kind
        #[arg(value_enum)]
        kind: Kind,
    },
}

/// Counts, and compares or records if asked to.
///
/// # Errors
/// If there is no baseline to compare with, or nothing can be counted.
pub fn run(args: &Args) -> anyhow::Result<Outcome> {
    // Before it may be written anew.
    let baseline = args.baseline.as_deref().map(read).transpose()?;
    let (mut samples, progress) = (Samples::default(), Progress::interruptible()?);
    let counted = count_all(&mut samples, &progress);
    let mut conditions = conditions::of_this_machine();
    conditions["interrupted"] = progress.is_interrupted().into();
    let report = Report { conditions, metrics: samples.summaries() };
    match counted {
        Err(error) if report.metrics.is_empty() => Err(error),
        counted => {
            let failure = counted.and_then(|()| judge(&report, baseline.as_ref(), args)).err();
            Ok(Outcome { report, failure })
        }
    }
}

fn count_all(samples: &mut Samples, progress: &Progress) -> anyhow::Result<()> {
    count_hops(samples, progress)?;
    count_function(Subject::Forwarder, LOAD, "", samples, progress)?;
    count_function(Subject::Upf, LOAD, "", samples, progress)?;
    let many = Load { pdrs: MANY_PDRS, ..LOAD };
    count_function(Subject::Upf, many, &format!(".{MANY_PDRS}_pdrs"), samples, progress)?;
    let many = Load { sessions: MANY_SESSIONS, active: MANY_SESSIONS, ..LOAD };
    count_function(Subject::Upf, many, &format!(".{MANY_SESSIONS}_sessions"), samples, progress)?;
    count_pipelines(samples, progress)
}

/// With one worker, and with several.
fn count_pipelines(samples: &mut Samples, progress: &Progress) -> anyhow::Result<()> {
    progress.step("counting instructions.pipeline")?;
    for (workers, several) in [(1, String::new()), (SEVERAL_WORKERS, format!(".{SEVERAL_WORKERS}_workers"))] {
        let what = |way: Way| vec!["pipeline".into(), way.name().into(), workers.to_string()];
        for (way, count) in Way::BOTH.into_iter().zip(count_each(&Way::BOTH.map(what))?) {
            let name = format!("instructions.pipeline.{}{several}", way.name());
            samples.add(name, of_packet(count.instructions), "instructions");
        }
    }
    Ok(())
}

fn count_hops(samples: &mut Samples, progress: &Progress) -> anyhow::Result<()> {
    progress.step("counting instructions.hop")?;
    let counted = count_each(&Kind::USUAL.map(|kind| vec!["hop".into(), kind.name().into()]))?;
    for (kind, count) in Kind::USUAL.into_iter().zip(counted) {
        samples.add(format!("instructions.hop.{}", kind.name()), of_packet(count.instructions), "instructions");
    }
    Ok(())
}

/// Adds the figures of a function with this load, whose names end so.
fn count_function(
    subject: Subject,
    load: Load,
    many: &str,
    samples: &mut Samples,
    progress: &Progress,
) -> anyhow::Result<()> {
    progress.step(&format!("counting instructions.{}{many}", subject.name()))?;
    let Load { pdrs, sessions, .. } = load;
    let what = |way: Way| {
        let numbers = [pdrs.to_string(), sessions.to_string()];
        [vec!["function".into(), subject.name().into(), way.name().into()], numbers.into()].concat()
    };
    let counted = count_each(&Way::BOTH.map(what))?;
    for (way, count) in Way::BOTH.into_iter().zip(counted) {
        let name = format!("instructions.{}.{}{many}", subject.name(), way.name());
        samples.add(&name, of_packet(count.instructions), "instructions");
        if subject == Subject::Upf && pdrs == LOAD.pdrs {
            for (stage, cost) in of_stages(&count)? {
                samples.add(format!("{name}.{}", stage.name()), cost, "instructions");
            }
        }
    }
    Ok(())
}

/// Records the figures where that is asked for, and fails where the baseline is exceeded.
fn judge(report: &Report, baseline: Option<&Figures>, args: &Args) -> anyhow::Result<()> {
    let figures: Figures = report.metrics.iter().map(|(name, summary)| (name.clone(), summary.median)).collect();
    if let Some(path) = &args.record {
        let mut text = serde_json::to_string_pretty(&json!(figures))?;
        text.push('\n');
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let exceeded = baseline.map(|baseline| exceeded(&figures, baseline, args.tolerance)).unwrap_or_default();
    ensure!(exceeded.is_empty(), "more instructions than the baseline:\n  {}", exceeded.join("\n  "));
    Ok(())
}

/// Instructions by name.
type Figures = BTreeMap<String, f64>;

fn read(path: &Path) -> anyhow::Result<Figures> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))
}

fn exceeded(figures: &Figures, baseline: &Figures, tolerance: f64) -> Vec<String> {
    let over = |(name, figure): (&String, &f64)| {
        let base = baseline.get(name)?;
        let more = (figure / base - 1.0) * 100.0;
        (more > tolerance && figure - base > SLACK)
            .then(|| format!("{name}: {figure:.1} instead of {base:.1} ({more:+.1} %)"))
    };
    let missing = baseline.keys().filter(|name| !figures.contains_key(*name));
    figures.iter().filter_map(over).chain(missing.map(|name| format!("{name}: was not counted"))).collect()
}

/// Instructions of a packet, from those of all.
fn of_packet(instructions: u64) -> f64 {
    instructions as f64 / PACKETS as f64
}

/// Instructions of a packet in each stage.
fn of_stages(count: &Count) -> anyhow::Result<Vec<(Stage, f64)>> {
    let frames = frames::of(&std::env::current_exe()?, count.profile.addresses())?;
    let costs = stages::costs(&count.profile, &frames);
    ensure!(costs.values().any(|cost| *cost > 0), "the program has no line tables, which tell stages apart");
    Ok(Stage::ALL.iter().map(|stage| (*stage, of_packet(costs[stage]))).collect())
}

/// What was counted.
struct Count {
    instructions: u64,
    profile: Profile,
}

/// What each of these arguments of [`Counted`] say: beside each other, as no time is taken.
fn count_each(whats: &[Vec<String>]) -> anyhow::Result<Vec<Count>> {
    std::thread::scope(|scope| {
        let all: Vec<_> = whats.iter().map(|what| scope.spawn(|| count(what))).collect();
        all.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(anyhow!("a count panicked")))).collect()
    })
}

fn count(what: &[String]) -> anyhow::Result<Count> {
    let folder = Folder::new()?;
    let file = folder.path().join("out");
    let output = Command::new("valgrind")
        .args(callgrind::ARGUMENTS)
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe()?)
        .args(["bench", "counted"])
        .args(what)
        .stdin(Stdio::null())
        .output()
        .context("cannot run valgrind (package valgrind)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the counted program ended with {}:\n{said}", output.status);
    let instructions = collected(&said).with_context(|| format!("valgrind did not say what it counted:\n{said}"))?;
    ensure!(instructions > 0, "the program has no function of the name in which instructions are counted");
    let profile = Profile::parse(&std::fs::read_to_string(&file)?)?;
    Ok(Count { instructions, profile })
}

/// The number in `==1== Collected : 12345`.
fn collected(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.split("Collected :").nth(1)?.split_whitespace().next()?.parse().ok())
}

/// What [`Counted`] asks for: forwards the packets and returns.
pub fn be_counted(counted: &Counted) -> anyhow::Result<()> {
    let sent = match *counted {
        Counted::Function { subject, way, pdrs, sessions } => {
            let load = Load { pdrs, sessions, active: sessions, ..LOAD };
            match subject {
                Subject::Forwarder => {
                    let mut plain = Plain::new(way, load)?;
                    forward(|| {
                        plain.turn();
                        plain.sent()
                    })
                }
                Subject::Upf => {
                    let mut upf = Upf::new(way, load)?;
                    forward(|| {
                        upf.turn();
                        upf.sent()
                    })
                }
            }
        }
        Counted::Pipeline { way, workers } => {
            let mut whole = Whole::new(Model::Pipeline, workers, way, LOAD)?;
            forward(|| whole.pass())
        }
        Counted::Hop { kind } => {
            let mut hops = Hops::over(kind)?;
            forward(|| hops.turn())
        }
    };
    match sent {
        Some(_) => Ok(()),
        None => bail!("the function sends nothing"),
    }
}

/// Takes turns until [`PACKETS`] are sent. None where a turn sends nothing. This alone is counted: how long it took to set up what takes
/// the turns, and what other threads do meanwhile, differs from run to run.
#[inline(never)]
fn forward(mut turn: impl FnMut() -> u64) -> Option<u64> {
    let mut sent = 0;
    while sent < PACKETS {
        let now = turn();
        if now == sent {
            return None;
        }
        sent = now;
    }
    Some(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_what_valgrind_says() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 123456\n==7== \n"), Some(123_456));
        assert_eq!(collected("==7== nothing"), None);
    }

    #[test]
    fn a_figure_may_exceed_its_baseline_by_the_tolerance() {
        let figures = |value: f64| Figures::from([("instructions.upf.uplink".to_owned(), value)]);
        assert!(exceeded(&figures(109.0), &figures(100.0), 10.0).is_empty());
        assert!(exceeded(&figures(50.0), &figures(100.0), 10.0).is_empty());
        assert_eq!(exceeded(&figures(115.0), &figures(100.0), 10.0).len(), 1);
        assert!(exceeded(&figures(115.0), &Figures::new(), 10.0).is_empty());
    }

    #[test]
    fn what_exceeds_its_baseline_is_reported_all_the_same_and_may_be_recorded_over_it() {
        let folder = Folder::new().expect("a folder");
        let path = folder.path().join("baseline.json");
        std::fs::write(&path, r#"{"instructions.upf.uplink": 100.0}"#).expect("a file");
        let args = Args { baseline: Some(path.clone()), tolerance: 3.0, record: Some(path.clone()) };
        let baseline = read(&path).expect("a baseline");
        let mut samples = Samples::default();
        samples.add("instructions.upf.uplink", 115.0, "instructions");
        let report = Report { conditions: json!({}), metrics: samples.summaries() };
        let failure = judge(&report, Some(&baseline), &args).expect_err("it is exceeded").to_string();
        assert!(failure.contains("115.0 instead of 100.0"), "{failure}");
        assert_eq!(read(&path).expect("a baseline")["instructions.upf.uplink"], 115.0);
    }

    #[test]
    fn of_a_small_stage_an_instruction_or_two_is_not_too_many() {
        let figures = |value: f64| Figures::from([("instructions.upf.uplink.count".to_owned(), value)]);
        assert!(exceeded(&figures(12.0), &figures(10.0), 3.0).is_empty());
        assert_eq!(exceeded(&figures(12.5), &figures(10.0), 3.0).len(), 1);
        // It was never there before.
        assert_eq!(exceeded(&figures(3.0), &figures(0.0), 3.0).len(), 1);
    }

    #[test]
    fn a_figure_of_the_baseline_must_be_there() {
        let baseline = Figures::from([("instructions.upf.uplink.send".to_owned(), 100.0)]);
        assert_eq!(exceeded(&Figures::new(), &baseline, 3.0).len(), 1);
    }

    #[test]
    fn the_counted_program_forwards_what_it_is_told_to() {
        for subject in [Subject::Forwarder, Subject::Upf] {
            for way in Way::BOTH {
                be_counted(&Counted::Function { subject, way, pdrs: 1, sessions: MANY_SESSIONS })
                    .expect("packets flow");
            }
        }
        for workers in [1, SEVERAL_WORKERS] {
            be_counted(&Counted::Pipeline { way: Way::Uplink, workers }).expect("packets flow");
        }
        for kind in Kind::USUAL {
            be_counted(&Counted::Hop { kind }).expect("packets flow");
        }
    }
}
