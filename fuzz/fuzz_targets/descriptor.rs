//! Any text as a descriptor: it is checked without a panic, and what passes is a slice that everything can be done with.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slice::{HostFacts, Mechanism, Slice, diff, parse, unenforced};
use std::path::Path;

fn host() -> HostFacts {
    HostFacts {
        cores: Some(8),
        exclusive_elsewhere: 1,
        latency_floor_ns: [(Mechanism::SharedMemory, 300), (Mechanism::Pump, 12_000)].into(),
        interfaces: Some(vec!["eth0".into()]),
    }
}

fuzz_target!(|text: &str| {
    let lines = text.chars().filter(|c| matches!(c, '\n' | '\r')).count() + 1;
    let (slice, report) = match parse(text, Path::new("/nowhere"), &host()) {
        Ok((slice, warnings)) => (Some(slice), warnings),
        Err(report) => (None, report),
    };
    assert_eq!(slice.is_some(), report.is_ok());
    for mistake in report.mistakes() {
        assert!(!mistake.reason.is_empty() && !mistake.remedy.is_empty());
        assert!(mistake.at.line <= lines + 1 && mistake.at.column >= 1, "{mistake}");
        // Unless the text itself says so and is quoted.
        assert!(!mistake.remedy.contains("report this") || text.contains("report this"), "{mistake}");
    }
    let Some(slice) = slice else { return };
    assert!(diff(&slice, &slice).is_empty());
    let again: Slice = serde_json::from_str(&serde_json::to_string(&slice).unwrap()).unwrap();
    assert_eq!(slice, again);
    let _ = unenforced(&slice).iter().map(ToString::to_string).count();
    for link in &slice.spec.links {
        assert!(Mechanism::of(&slice, link).is_some());
    }
});
