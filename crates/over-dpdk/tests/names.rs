//! One file acts as all programs over DPDK, by the name that it is called by.

use std::process::Output;

mod program;
use program::program;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

#[test]
fn it_is_the_program_by_whose_name_it_is_called() {
    for (name, of_its_own) in [
        ("kaista-upf-dpdk", "User Plane Function"),
        ("kaista-ran-dpdk", "RAN simulator"),
        ("kaista-traffic-dpdk", "replay"),
    ] {
        for called in [name.to_owned(), format!("/usr/libexec/kaista/{name}")] {
            let output = program(&called).arg("--help").output().expect("the program runs");
            let said = said(&output);
            assert!(output.status.success() && said.contains(&format!("Usage: {name}")), "{said}");
            assert!(said.contains(of_its_own), "{said}");
        }
        let output = program(name).arg("--version").output().expect("the program runs");
        assert_eq!(said(&output), format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
    }
}

#[test]
fn called_by_another_name_it_says_which_there_are() {
    for called in ["kaista-dpdk", "/tmp/kaista-upf", "", ".."] {
        let output = program(called).arg("--help").output().expect("the program runs");
        let said = said(&output);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("kaista-upf-dpdk, kaista-ran-dpdk, kaista-traffic-dpdk"), "{said}");
    }
}
