//! `kaista upf`: a UPF without a slice, between real interfaces, with sessions by real PFCP.

mod lab;

use lab::{Lab, N6};

#[test]
fn a_upf_without_a_slice_forwards_between_interfaces_and_ends_at_ctrl_c() {
    if lab::skip("a_upf_without_a_slice_forwards_between_interfaces_and_ends_at_ctrl_c") {
        return;
    }
    for n6 in [N6::Veth, N6::Tap] {
        let here = tempfile::tempdir().unwrap();
        let lab = Lab::start(here.path(), n6, "");
        let mut ran = lab.attach();
        assert_eq!(ran.tell("ping 20")["replies"], 20);
        assert_eq!(ran.tell("ping 3 1400")["replies"], 3);
        assert_eq!(ran.tell("delete")["cause"], 1);
        assert_eq!(lab.interrupt(), Some(0));
    }
}

#[test]
fn a_upf_that_cannot_run_says_why_and_fails() {
    let here = tempfile::tempdir().unwrap();
    let config = "n4: {listen: '127.0.0.1:0', nodeId: 127.0.0.1}\n\
        n3: {port: 'packet:kaista-none', addresses: [10.3.0.1/24]}\n\
        n6: {port: 'packet:kaista-none6', addresses: [10.6.0.1/24]}\n";
    std::fs::write(here.path().join("upf.yaml"), config).unwrap();
    for (file, said) in [("upf.yaml", "packet:kaista-none"), ("missing.yaml", "missing.yaml")] {
        let arguments = ["upf", "--config", file];
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_kaista"))
            .args(arguments)
            .current_dir(here.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{file}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{:?}", output.stderr);
    }
}
