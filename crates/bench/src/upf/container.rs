//! One worker in an unprivileged container beside the same program bare on the host, in turns: what the container costs a packet.
//!
//! Each run is a process of its own, started anew, which measures itself: busy time of a packet, over synthetic ports. Its worker is alone
//! on its core over private memory, wherever others are.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use runtime::{Container, ContainerSpec, FunctionId, IdRanges, Image, Layout, OciRuntime, Sandbox, Source};
use serde_json::{Value, json};
use upf::model::Model;

use super::models::rtc;
use super::whole::Whole;
use crate::folder::Folder;
use crate::metric::Samples;
use crate::progress::Progress;
use crate::rig::{Load, Way};

/// What the measured program is asked.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Contained {
    /// Way of the packets
    #[arg(value_enum)]
    way: Way,
    /// Sessions in force
    sessions: u32,
    /// Sessions with traffic
    active: u32,
    /// Bytes of inner payload
    payload: usize,
    /// Core of the worker
    core: usize,
    /// Length of the run in milliseconds
    milliseconds: u64,
}

impl Contained {
    /// As arguments of `kaista`.
    fn args(&self) -> Vec<String> {
        let Self { way, sessions, active, payload, core, milliseconds } = self;
        let numbers = [u64::from(*sessions), u64::from(*active), *payload as u64, *core as u64, *milliseconds];
        let begin = ["bench", "contained", way.name()].map(str::to_owned);
        begin.into_iter().chain(numbers.map(|number| number.to_string())).collect()
    }
}

/// What [`Contained`] asks for: measures, and prints nanoseconds of a packet.
pub fn be_contained(asked: &Contained) -> anyhow::Result<()> {
    let load = Load::of(asked.sessions, asked.active, asked.payload);
    let mut whole = Whole::new(Model::RunToCompletion, 1, asked.way, load)?;
    whole.pass_all(load)?;
    println!("{}", rtc(&mut whole, Duration::from_millis(asked.milliseconds), asked.core)?);
    Ok(())
}

/// Measures both ways; `program` is `kaista`. Where no container can be made that is said.
#[expect(clippy::too_many_arguments, reason = "what is measured, how, and where it is told")]
pub(super) fn measure(
    program: &Path,
    rounds: u32,
    window: Duration,
    load: Load,
    core: usize,
    how: &mut Value,
    samples: &mut Samples,
    progress: &Progress,
) -> anyhow::Result<()> {
    let node = match Node::new(program) {
        Ok(node) => node,
        Err(error) => {
            let reason = format!("not measurable here: {error:#}");
            progress.note(&format!("container: {reason}"));
            *how = reason.into();
            return Ok(());
        }
    };
    let mut runs = vec![];
    let mut each = (1..=rounds).flat_map(|round| Way::BOTH.map(|way| (round, way)));
    let outcome = each.try_for_each(|(round, way)| {
        progress.step(&format!("container, round {round} of {rounds}: {}", way.name()))?;
        let Load { sessions, active, payload, .. } = load;
        let payload = payload.largest();
        let asked = Contained { way, sessions, active, payload, core, milliseconds: window.as_millis() as u64 };
        let (bare_ns, container_ns) = (bare(program, &asked)?, node.run(&asked)?);
        let name = |metric: &str| format!("upf.container.{}.{metric}", way.name());
        samples.add(name("bare_ns"), bare_ns, "ns");
        samples.add(name("container_ns"), container_ns, "ns");
        samples.add(name("over_bare"), container_ns / bare_ns, "1");
        runs.push(json!({"round": round, "way": way.name(), "bare_ns": bare_ns, "container_ns": container_ns}));
        Ok(())
    });
    *how = json!({
        "what": "busy nanoseconds of a packet in one worker that runs to completion, synthetic ports; the same program as a process of the host and as one of a container, in turns",
        "container": format!("no capability, own user namespace, system call filter, read-only root, one core, by {}", node.runtime.version()),
        "runs": runs,
    });
    outcome
}

fn bare(program: &Path, asked: &Contained) -> anyhow::Result<f64> {
    let output = Command::new(program).args(asked.args()).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(output.status.success(), "the measured program ended with {}", output.status);
    said(&String::from_utf8_lossy(&output.stdout))
}

fn said(text: &str) -> anyhow::Result<f64> {
    text.trim().parse().with_context(|| format!("the measured program said {text:?}"))
}

/// A place for one container, which is removed with all that is in it.
struct Node {
    layout: Layout,
    runtime: OciRuntime,
    id: FunctionId,
    image: Image,
    _folder: Folder,
}

impl Node {
    /// With an image that has the program as its only one.
    fn new(program: &Path) -> anyhow::Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "containers are made by root");
        let folder = Folder::new()?;
        // A container's first process opens its own mounts after it has given up root.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let layout = Layout::new(folder.path().join("run"), folder.path().join("state"));
        let runtime = OciRuntime::probe(&layout)?;
        let root = folder.path().join("image");
        fs::create_dir_all(root.join("etc"))?;
        fs::copy(program, root.join("kaista")).with_context(|| format!("cannot copy {}", program.display()))?;
        let image = Image::resolve(&layout, &Source::Rootfs(root))?;
        Ok(Self { layout, runtime, id: FunctionId::new("bench", "upf")?, image, _folder: folder })
    }

    fn run(&self, asked: &Contained) -> anyhow::Result<f64> {
        let sandbox = Sandbox::create(&self.layout, &self.id)?;
        let container = Container::new(&self.layout, &self.runtime, &self.id);
        let command = Some([vec!["/kaista".to_owned()], asked.args()].concat());
        let cores = vec![asked.core];
        container
            .prepare(&sandbox, &ContainerSpec { command, cores, ..ContainerSpec::new(self.image.clone(), "upf") })?;
        let (mut reader, writer) = std::io::pipe()?;
        let mut create = container.create_command().to_command();
        let created = create.stdin(Stdio::null()).stdout(writer).stderr(Stdio::inherit()).status()?;
        // The writing end is the container's alone: its end is that of the text.
        drop(create);
        ensure!(created.success(), "the container cannot be made: {}", container.create_log());
        container.after_create()?;
        let shortcomings = container.confinement()?.shortcomings();
        ensure!(shortcomings.is_empty(), "the container is not confined: {shortcomings:?}");
        container.start()?;
        let mut text = String::new();
        reader.read_to_string(&mut text)?;
        container.delete()?;
        said(&text)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // What is left would be found by its name only while the folder is there.
        let _ = Container::new(&self.layout, &self.runtime, &self.id).delete();
        let _ = Sandbox::delete(&self.layout, &self.id);
        let _ = IdRanges::release(&self.layout, &self.id);
    }
}

/// This program, if it is `kaista`; else that one beside it.
pub(super) fn program() -> anyhow::Result<PathBuf> {
    crate::companion::path("kaista")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_program_runs_bare_and_in_a_container() {
        let name = "the_same_program_runs_bare_and_in_a_container";
        let Ok(program) = program() else {
            println!("SKIPPED {name}: kaista is not built");
            return;
        };
        let (mut samples, progress) = (Samples::default(), Progress::new());
        let load = Load::of(20, 20, 64);
        let core = traffic::cores::allowed().expect("cores")[0];
        let window = Duration::from_millis(20);
        let mut how = Value::Null;
        measure(&program, 1, window, load, core, &mut how, &mut samples, &progress).expect("a run");
        if let Some(reason) = how.as_str() {
            println!("SKIPPED {name}: {reason}");
            return;
        }
        for way in Way::BOTH {
            for metric in ["bare_ns", "container_ns", "over_bare"] {
                assert!(samples.of(&format!("upf.container.{}.{metric}", way.name()))[0] > 0.0, "{way:?} {metric}");
            }
        }
    }

    #[test]
    fn what_is_asked_are_arguments_of_the_program() {
        let asked = Contained { way: Way::Uplink, sessions: 5, active: 4, payload: 64, core: 1, milliseconds: 20 };
        assert_eq!(asked.args(), ["bench", "contained", "uplink", "5", "4", "64", "1", "20"]);
    }
}
