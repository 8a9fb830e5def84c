//! Somebody else's image, made with somebody else's tools, joins a slice beside one of ours.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::{Node, eventually, skip};

fn tool(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An OCI image layout with busybox in it, by umoci, that serves a page; and the same as `docker save` writes it, by skopeo.
fn make_images(folder: &Path) {
    let layout = folder.join("web");
    let image = format!("{}:latest", layout.display());
    tool("umoci", &["init", "--layout", layout.to_str().expect("UTF-8")]);
    tool("umoci", &["new", "--image", &image]);
    let bundle = folder.join("bundle");
    tool("umoci", &["unpack", "--image", &image, bundle.to_str().expect("UTF-8")]);
    let rootfs = bundle.join("rootfs");
    for directory in ["bin", "www"] {
        fs::create_dir_all(rootfs.join(directory)).expect("a directory of the image");
    }
    fs::copy("/bin/busybox", rootfs.join("bin/busybox")).expect("busybox-static is installed");
    std::os::unix::fs::symlink("busybox", rootfs.join("bin/sh")).expect("a link of the image");
    fs::write(rootfs.join("www/index.html"), "somebody else's page\n").expect("a page of the image");
    tool("umoci", &["repack", "--image", &image, bundle.to_str().expect("UTF-8")]);
    tool(
        "umoci",
        &[
            "config",
            "--image",
            &image,
            "--config.entrypoint",
            "/bin/busybox",
            "--config.cmd",
            "httpd",
            "--config.cmd",
            "-f",
            "--config.cmd",
            "-h",
            "--config.cmd",
            "/www",
        ],
    );
    tool(
        "skopeo",
        &["copy", &format!("oci:{image}"), &format!("docker-archive:{}/web.tar:web:latest", folder.display())],
    );
}

#[test]
fn an_image_made_elsewhere_joins_a_slice() {
    if skip("an_image_made_elsewhere_joins_a_slice", Node::missing()) {
        return;
    }
    let node = Node::new();
    make_images(node.path());
    let descriptor = node.path().join("slice.yaml");
    fs::write(
        &descriptor,
        "apiVersion: kaista.dev/v1alpha1\n\
         kind: Slice\n\
         metadata: {name: foreign}\n\
         spec:\n\
         \x20 functions:\n\
         \x20   - name: web\n\
         \x20     image: {ociLayout: web, tag: latest}\n\
         \x20     ports: [{name: lan, interface: eth0, addresses: [10.77.0.1/24]}]\n\
         \x20   - name: client\n\
         \x20     image: {archive: web.tar}\n\
         \x20     command: [/bin/busybox, sleep, \"100000\"]\n\
         \x20     ports: [{name: lan, interface: eth0, addresses: [10.77.0.2/24]}]\n\
         \x20 links:\n\
         \x20   - {between: [web/lan, client/lan]}\n",
    )
    .expect("a descriptor");
    node.kaista(&["up", descriptor.to_str().expect("UTF-8")]);
    let page = eventually("the page is served", Duration::from_secs(10), || {
        node.exec("client", &["/bin/busybox", "wget", "-q", "-O", "-", "http://10.77.0.1/"]).ok()
    });
    assert_eq!(page, "somebody else's page\n");
}
