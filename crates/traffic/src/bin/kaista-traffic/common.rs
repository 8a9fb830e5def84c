//! What all commands have: where ports are, which core, how results are printed.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use port::{OpenOptions, Port};
use serde::Serialize;
use traffic::cores;

/// The program was asked for wrongly: status 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Options of all commands.
#[derive(Args)]
pub struct Common {
    /// Stay on this core
    #[arg(long, value_name = "N")]
    pub core: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// The broker's socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl Common {
    /// How ports are opened.
    pub fn options(&self) -> OpenOptions {
        let default = OpenOptions::default();
        OpenOptions { socket: self.socket.clone().unwrap_or(default.socket), ..default }
    }

    /// Opens a port.
    pub fn open(&self, name: &str) -> anyhow::Result<Port> {
        port::open(name, &self.options()).with_context(|| format!("cannot open port {name}"))
    }

    /// Stays on the core that was asked for.
    pub fn stay(&self) -> anyhow::Result<()> {
        self.core.map_or(Ok(()), cores::pin)
    }
}

/// Prints a result, as JSON or line by line.
pub fn print(result: &impl Serialize, json: bool) -> anyhow::Result<()> {
    let value = serde_json::to_value(result)?;
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{value}")?;
    } else {
        print_lines(&mut out, "", &value)?;
    }
    Ok(())
}

/// One `name value` line for each leaf.
fn print_lines(out: &mut impl Write, name: &str, value: &serde_json::Value) -> std::io::Result<()> {
    let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        serde_json::Value::Object(fields) => {
            fields.iter().try_for_each(|(key, field)| print_lines(out, &below(key), field))
        }
        serde_json::Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(i, item)| print_lines(out, &below(&i.to_string()), item))
        }
        leaf => writeln!(out, "{name:24} {leaf}"),
    }
}

/// Seconds of a run: as many as a clock of nanoseconds has room for, by far.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0 to 1000000000".to_owned()),
    }
}
