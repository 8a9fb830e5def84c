//! Traffic through a slice: the function `load` sends by one port and takes by another what has come through the others.

use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::Duration;

use serde_json::Value;

use crate::{Node, eventually, root};

/// Long enough to be no matter of a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

impl Node {
    /// Why [`Node::up_with`] cannot be here, if it cannot.
    pub fn missing_for_load() -> Option<String> {
        let busybox =
            || (!std::path::Path::new("/bin/busybox").exists()).then(|| "busybox-static is not installed".into());
        Self::missing().or_else(busybox)
    }

    /// Brings a slice up whose root filesystem is `rootfs`: busybox and these programs.
    pub fn up_with(&self, programs: &[&str], slice: &str) {
        let bin = self.path().join("rootfs/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::set_permissions(self.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for program in programs {
            std::fs::copy(root().join("target/release").join(program), bin.join(program)).unwrap();
        }
        std::fs::copy("/bin/busybox", bin.join("busybox")).unwrap();
        std::fs::write(self.path().join("slice.yaml"), slice).unwrap();
        self.up_again();
    }

    /// Brings the same slice up once more.
    pub fn up_again(&self) {
        self.kaista(&["up", self.path().join("slice.yaml").to_str().unwrap()]);
    }

    /// Starts `kaista-traffic generate` in `load`, until it is told to stop. Packets come by the port `sink` when this returns: whoever
    /// is killed then is killed under load.
    pub fn generate(&self, sink: &str, arguments: &[&str]) -> Child {
        let begin = self.received(sink).unwrap_or(0);
        let load = self.spawn(&generate(sink, arguments, "100000"));
        eventually("packets pass", PATIENCE, || self.received(sink).filter(|now| *now > begin + 1_000));
        load
    }

    /// Has it go on for these seconds, and says what it has found.
    pub fn try_generate(&self, sink: &str, arguments: &[&str], seconds: &str) -> Option<Value> {
        serde_json::from_slice(&self.run(&generate(sink, arguments, seconds)).stdout).ok()
    }

    /// Packets that `load` has got by a port.
    pub fn received(&self, port: &str) -> Option<u64> {
        let stats: Value = serde_json::from_slice(&self.run(&["top", "--once", "--json"]).stdout).ok()?;
        let named = |at: &&Value| at["function"] == "load" && at["port"] == port;
        stats["ports"].as_array()?.iter().find(named)?["rxPackets"].as_u64()
    }

    /// Waits until `load` has got so many more packets by a port.
    pub fn wait_for_more(&self, port: &str, packets: u64) {
        let begin = eventually("counters", PATIENCE, || self.received(port));
        eventually("packets go on", PATIENCE, || self.received(port).filter(|now| *now >= begin + packets));
    }

    /// Ends the load: what it has sent and found.
    pub fn end_load(&self, load: Child) -> Value {
        self.exec("load", &["/bin/busybox", "killall", "-INT", "kaista-traffic"]).unwrap();
        let output = load.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

fn generate<'a>(sink: &'a str, arguments: &[&'a str], seconds: &'a str) -> Vec<&'a str> {
    let program = ["exec", "load", "--", "/bin/kaista-traffic", "generate", "--json", "--rate", "20k"];
    [&program[..], &["--seconds", seconds, "--sink", sink], arguments].concat()
}

/// Every packet that a port took has come, once and in order.
pub fn assert_nothing_is_missing(result: &Value) {
    let (sent, found) = (&result["sent"], &result["found"]);
    assert_eq!(found["received"], sent["accepted"], "{result}");
    for what in ["lost", "duplicates", "reordered"] {
        assert_eq!(found[what], 0, "{result}");
    }
}
