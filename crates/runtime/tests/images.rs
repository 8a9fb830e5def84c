//! Images: those that other people's tools make are run as they are, those that nobody should make are refused.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use runtime::{ContainerSpec, Image, Layout, Source};
use sha2::{Digest, Sha256};
use support::{Node, containers, host, program, root};
use tar::{EntryType, Header};

/// What a test puts into a layer.
enum Put<'a> {
    File(&'a str, &'a str),
    Dir(&'a str),
    Symlink(&'a str, &'a str),
    HardLink(&'a str, &'a str),
    Special(&'a str, EntryType),
    Owned(&'a str, u64),
    Setuid(&'a str),
    /// A sparse file that is one hole of so many bytes.
    Hole(&'a str, u64),
    /// What the next entry is called or how it is, of so many bytes.
    Long(EntryType, usize),
    /// A sparse file with so many blocks of headers that say where its holes are.
    Sieve(usize),
}

/// A tar stream, with names as they are given: the tar crate's own checks are not in the way.
fn layer(content: &[Put<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for put in content {
        match put {
            Put::Long(kind, length) => {
                append_long(&mut tar, *kind, *length);
                continue;
            }
            Put::Sieve(blocks) => {
                append_sieve(&mut tar, *blocks);
                continue;
            }
            _ => {}
        }
        let mut header = Header::new_gnu();
        let (path, kind, target, text) = match put {
            Put::File(path, text) => (*path, EntryType::Regular, "", *text),
            Put::Dir(path) => (*path, EntryType::Directory, "", ""),
            Put::Symlink(path, target) => (*path, EntryType::Symlink, *target, ""),
            Put::HardLink(path, target) => (*path, EntryType::Link, *target, ""),
            Put::Special(path, kind) => (*path, *kind, "", ""),
            Put::Owned(path, _) | Put::Setuid(path) => (*path, EntryType::Regular, "", "x"),
            Put::Hole(path, _) => (*path, EntryType::GNUSparse, "", ""),
            Put::Long(..) | Put::Sieve(_) => unreachable!("handled above"),
        };
        let old = header.as_old_mut();
        old.name[..path.len()].copy_from_slice(path.as_bytes());
        old.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(if matches!(put, Put::Setuid(_)) { 0o6755 } else { 0o755 });
        let owner = if let Put::Owned(_, owner) = put { *owner } else { 0 };
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_mtime(1);
        header.set_size(text.len() as u64);
        if let Put::Hole(_, hole) = put {
            let gnu = header.as_gnu_mut().expect("a GNU header");
            gnu.set_real_size(*hole);
            gnu.sparse[0].set_offset(*hole);
            gnu.sparse[0].set_length(0);
        }
        header.set_cksum();
        tar.append(&header, text.as_bytes()).expect("appended");
    }
    tar.into_inner().expect("written")
}

fn append_long(tar: &mut tar::Builder<Vec<u8>>, kind: EntryType, length: usize) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(length as u64);
    header.set_cksum();
    tar.append(&header, &b"n/".repeat(length)[..length]).expect("appended");
}

fn append_sieve(tar: &mut tar::Builder<Vec<u8>>, blocks: usize) {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.as_old_mut().name[..5].copy_from_slice(b"sieve");
    header.set_size(0);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    let gnu = header.as_gnu_mut().expect("a GNU header");
    gnu.set_real_size(0);
    gnu.set_is_extended(true);
    header.set_cksum();
    let mut more = tar::GnuExtSparseHeader::new();
    let mut all = Vec::with_capacity(blocks * 512);
    for left in (0..blocks).rev() {
        more.isextended = [u8::from(left > 0)];
        all.extend_from_slice(more.as_bytes());
    }
    tar.append(&header, all.as_slice()).expect("appended");
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes an OCI image layout of the given layers.
fn layout(dir: &Path, layers: &[Vec<u8>]) -> Source {
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("made");
    let put = |content: &[u8], kind: &str| {
        fs::write(blobs.join(sha256(content)), content).expect("written");
        format!(r#"{{"mediaType":"{kind}","digest":"sha256:{}","size":{}}}"#, sha256(content), content.len())
    };
    let diff_ids = layers.iter().map(|layer| format!("\"sha256:{}\"", sha256(layer))).collect::<Vec<_>>().join(",");
    let config = format!(
        r#"{{"architecture":"{}","os":"linux","rootfs":{{"type":"layers","diff_ids":[{diff_ids}]}},"config":{{"Cmd":["/bin/busybox"]}}}}"#,
        if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
    );
    let layers: Vec<String> = layers.iter().map(|layer| put(layer, "application/vnd.oci.image.layer.v1.tar")).collect();
    let config = put(config.as_bytes(), "application/vnd.oci.image.config.v1+json");
    let manifest = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#, layers.join(","));
    let manifest = put(manifest.as_bytes(), "application/vnd.oci.image.manifest.v1+json");
    fs::write(dir.join("index.json"), format!(r#"{{"schemaVersion":2,"manifests":[{manifest}]}}"#)).expect("written");
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("written");
    Source::OciLayout { directory: dir.into(), tag: None }
}

/// Unpacks layers in a place of their own.
fn unpack(layers: &[&[Put<'_>]]) -> (tempfile::TempDir, Result<Image, runtime::Error>) {
    let dir = tempfile::tempdir().expect("a directory");
    let layers: Vec<Vec<u8>> = layers.iter().map(|content| layer(content)).collect();
    let source = layout(&dir.path().join("layout"), &layers);
    let image = Image::resolve(&Layout::new(dir.path().join("run"), dir.path().join("state")), &source);
    (dir, image)
}

fn refusal(content: &[Put<'_>]) -> String {
    let (dir, image) = unpack(&[content]);
    let reason = image.expect_err("refused").to_string();
    let left: Vec<PathBuf> = walk(&dir.path().join("state/images"));
    assert_eq!(left, [dir.path().join("state/images/.lock")], "nothing is left of a refused image");
    reason
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        all.push(path.clone());
        if path.is_dir() && !path.is_symlink() {
            all.extend(walk(&path));
        }
    }
    all
}

#[test]
fn layers_are_laid_on_each_other() {
    needs!("layers_are_laid_on_each_other", root());
    let (_dir, image) = unpack(&[
        &[
            Put::Dir("usr/"),
            Put::Dir("usr/lib/"),
            Put::Symlink("lib", "usr/lib"),
            Put::File("usr/lib/a", "a"),
            Put::File("gone", "x"),
            Put::File("was-file", "x"),
            Put::File("dir/old/x", "x"),
            Put::File("dir/kept-not", "x"),
        ],
        &[
            Put::File("lib/b", "b"),
            Put::File(".wh.gone", ""),
            Put::Dir("was-file/"),
            Put::HardLink("linked", "lib/a"),
            Put::File("dir/new/y", "y"),
            Put::File("dir/.wh..wh..opq", ""),
            Put::Special("dev/null", EntryType::Char),
        ],
    ]);
    let root = image.expect("an image").rootfs;
    let mut names: Vec<String> =
        walk(&root).iter().map(|path| path.strip_prefix(&root).expect("below").display().to_string()).collect();
    names.sort();
    assert_eq!(
        names,
        ["dir", "dir/new", "dir/new/y", "lib", "linked", "usr", "usr/lib", "usr/lib/a", "usr/lib/b", "was-file"]
    );
    assert_eq!(fs::read_to_string(root.join("linked")).expect("a file"), "a");
}

#[test]
fn an_image_that_reaches_out_of_its_directory_is_refused_or_held_inside() {
    needs!("an_image_that_reaches_out_of_its_directory_is_refused_or_held_inside", root());
    for name in ["../x", "a/../../x", "/../x"] {
        assert!(refusal(&[Put::File(name, "x")]).contains("leads out"), "{name}");
    }
    assert!(refusal(&[Put::HardLink("passwd", "../../../../etc/passwd")]).contains("leads out"));
    // An absolute target is one within the image, where there is no such file.
    assert!(refusal(&[Put::HardLink("passwd", "/etc/passwd")]).contains("passwd"));

    // A link that points out is a link that points to the image's own root, for us as for the container.
    let victim = tempfile::tempdir().expect("a directory");
    let outside = victim.path().to_str().expect("UTF-8");
    let (_dir, image) = unpack(&[
        &[Put::Symlink("out", outside), Put::Symlink("up", "../../../../../..")],
        &[Put::File("up/tmp/here", "x"), Put::File("up/.wh.out", "")],
    ]);
    let root = image.expect("an image").rootfs;
    assert_eq!(fs::read_to_string(root.join("tmp/here")).expect("inside"), "x");
    assert!(fs::symlink_metadata(root.join("out")).is_err());

    let through = refusal(&[Put::Symlink("out", outside), Put::File("out/x", "x")]);
    assert!(through.contains("out/x"), "{through}");
    assert_eq!(walk(victim.path()), Vec::<PathBuf>::new(), "nothing was written there");

    // A file replaces a link, it is not written through it.
    let (_dir, image) = unpack(&[&[Put::Symlink("file", "/etc/passwd")], &[Put::File("file", "mine")]]);
    assert_eq!(fs::read_to_string(image.expect("an image").rootfs.join("file")).expect("a file"), "mine");
}

#[test]
fn an_image_with_what_no_function_needs_is_refused() {
    needs!("an_image_with_what_no_function_needs_is_refused", root());
    assert!(refusal(&[Put::Special("disk", EntryType::Block)]).contains("device node"));
    assert!(refusal(&[Put::Special("mem", EntryType::Char)]).contains("device node"));
    assert!(refusal(&[Put::Owned("x", 65536)]).contains("beyond"));
    assert!(refusal(&[Put::File(".wh.", "")]).contains("whiteout"));
    assert!(refusal(&[Put::Hole("hole", 1 << 40)]).contains("too large"));
    let deep = "d/".repeat(45);
    let (a, b) = (format!("{deep}x"), format!("x/{deep}y"));
    let content = [Put::Symlink("x", &deep), Put::Dir(&deep), Put::File(&a, ""), Put::File(&b, "")];
    unpack(&[&content]).1.expect("ninety deep is fine");

    let link_of = |parts: usize| [Put::Long(EntryType::GNULongLink, 2 * parts - 1), Put::Symlink("x", "y")];
    assert!(refusal(&link_of(129)).contains("too many parts"));
    unpack(&[&link_of(128)]).1.expect("so many are fine");

    let (_dir, image) = unpack(&[&[Put::Setuid("su")]]);
    let mode =
        std::os::unix::fs::MetadataExt::mode(&fs::metadata(image.expect("an image").rootfs.join("su")).expect("there"));
    assert_eq!(mode & 0o7777, 0o755, "set-id bits are not carried over");
}

#[test]
fn an_image_takes_no_more_memory_than_it_may() {
    needs!("an_image_takes_no_more_memory_than_it_may", root());
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let said = refusal(&[Put::Long(kind, 2 << 20), Put::File("x", "x")]);
        assert!(said.contains("too long"), "{kind:?}: {said}");
    }
    assert!(refusal(&[Put::Sieve(4_096)]).contains("too long"));
    // As much as that of what is content, or nobody's, is well.
    let text = "x".repeat(3 << 20);
    unpack(&[&[Put::Sieve(8), Put::File("x", &text), Put::Long(EntryType::XGlobalHeader, 2 << 20), Put::Dir("y")]])
        .1
        .expect("an image");

    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("x.tar");
    let place = Layout::new(dir.path().join("run"), dir.path().join("state"));
    fs::write(&file, layer(&[Put::Long(EntryType::GNULongName, 65 << 20), Put::File("x", "x")])).expect("written");
    let said = Image::resolve(&place, &Source::Archive { file, tag: None }).expect_err("refused").to_string();
    assert!(said.contains("too long"), "{said}");
}

#[test]
fn what_an_image_claims_is_counted_whether_or_not_anything_is_made_of_it() {
    needs!("what_an_image_claims_is_counted_whether_or_not_anything_is_made_of_it", root());
    for name in ["./", ".wh.x", ".wh..wh..opq", ".wh..wh.plnk", "dev/null"] {
        assert!(refusal(&[Put::Hole(name, 1 << 62)]).contains("too large"), "{name}");
        // Nor may several make up what one may not claim.
        assert!(refusal(&[Put::Hole(name, 1), Put::Hole(name, 16 << 30)]).contains("too large"), "{name}");
    }
}

#[test]
fn an_opaque_directory_is_gone_through_once_a_layer() {
    needs!("an_opaque_directory_is_gone_through_once_a_layer", root());
    let names: Vec<String> = (0..8_000).map(|n| format!("d/{n}")).collect();
    let mut content: Vec<Put<'_>> = names.iter().map(|name| Put::File(name, "")).collect();
    content.extend(names.iter().map(|_| Put::File("d/.wh..wh..opq", "")));
    let begin = Instant::now();
    let (_dir, image) = unpack(&[&[Put::File("d/older", "")], &content, &[Put::File("d/.wh..wh..opq", "")]]);
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    assert_eq!(walk(&image.expect("an image").rootfs).len(), 1, "and once in every layer");
}

#[test]
fn indexes_that_name_each_other_over_and_over_are_refused() {
    needs!("indexes_that_name_each_other_over_and_over_are_refused", root());
    let dir = tempfile::tempdir().expect("a directory");
    let source = layout(&dir.path().join("layout"), &[layer(&[Put::File("a", "x")])]);
    let index = dir.path().join("layout/index.json");
    let mut text = fs::read_to_string(&index).expect("an index");
    for _ in 0..3 {
        let digest = sha256(text.as_bytes());
        fs::write(dir.path().join("layout/blobs/sha256").join(&digest), &text).expect("written");
        let kind = "application/vnd.oci.image.index.v1+json";
        let one = format!(r#"{{"mediaType":"{kind}","digest":"sha256:{digest}","size":{}}}"#, text.len());
        text = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, vec![one; 200].join(","));
    }
    fs::write(index, text).expect("written");
    let answer = Image::resolve(&Layout::new(dir.path().join("run"), dir.path().join("state")), &source);
    assert!(answer.expect_err("refused").to_string().contains("too many images"));
}

#[test]
fn what_an_image_says_is_repeated_within_bounds_and_tells_a_terminal_nothing() {
    needs!("what_an_image_says_is_repeated_within_bounds_and_tells_a_terminal_nothing", root());
    let said = refusal(&[Put::Long(EntryType::GNULongName, 500_000), Put::File("x", "x")]);
    assert!(said.len() < 1_000 && said.ends_with("nested too deeply"), "{} bytes", said.len());
    let said = refusal(&[Put::Special("di\x1b[2Jsk", EntryType::Block)]);
    assert!(said.contains("di\u{fffd}[2Jsk: a device node"), "{said:?}");

    let dir = tempfile::tempdir().expect("a directory");
    let source = layout(&dir.path().join("layout"), &[]);
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let one = |n: usize| {
        let (digest, tag) = (sha256(&n.to_ne_bytes()), "x".repeat(1_000));
        let tag = format!(r#""annotations":{{"org.opencontainers.image.ref.name":"v{n}-{tag}"}}"#);
        format!(r#"{{"mediaType":"{kind}","digest":"sha256:{digest}","size":1,{tag}}}"#)
    };
    let all: Vec<String> = (0..2_000).map(one).collect();
    let text = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, all.join(","));
    fs::write(dir.path().join("layout/index.json"), text).expect("written");
    let answer = Image::resolve(&Layout::new(dir.path().join("run"), dir.path().join("state")), &source);
    let said = answer.expect_err("refused").to_string();
    assert!(said.len() < 5_000 && said.contains("choose one by its tag: v0-x"), "{} bytes", said.len());
}

#[test]
fn a_blob_that_is_not_what_its_digest_says_is_refused() {
    needs!("a_blob_that_is_not_what_its_digest_says_is_refused", root());
    let dir = tempfile::tempdir().expect("a directory");
    let good = layer(&[Put::File("a", "good")]);
    let source = layout(&dir.path().join("layout"), std::slice::from_ref(&good));
    let evil = layer(&[Put::File("a", "evil")]);
    fs::write(dir.path().join("layout/blobs/sha256").join(sha256(&good)), evil).expect("written");
    let answer = Image::resolve(&Layout::new(dir.path().join("run"), dir.path().join("state")), &source);
    assert!(answer.expect_err("refused").to_string().contains("digest"));
}

#[test]
fn an_image_is_unpacked_once() {
    needs!("an_image_is_unpacked_once", root());
    let dir = tempfile::tempdir().expect("a directory");
    let source = layout(&dir.path().join("layout"), &[layer(&[Put::File("a", "x")])]);
    let place = Layout::new(dir.path().join("run"), dir.path().join("state"));
    let first = Image::resolve(&place, &source).expect("an image");
    let made = fs::metadata(&first.rootfs).expect("there").modified().expect("a time");
    let second = Image::resolve(&place, &source).expect("an image");
    assert_eq!(first, second);
    assert_eq!(fs::metadata(&second.rootfs).expect("there").modified().expect("a time"), made);

    // What a killed process left is removed, not mistaken for an image.
    fs::create_dir_all(place.images().join(".new-half/x")).expect("made");
    let other = layout(&dir.path().join("other"), &[layer(&[Put::File("b", "x")])]);
    Image::resolve(&place, &other).expect("an image");
    assert!(!place.images().join(".new-half").exists());
}

#[test]
fn what_is_unpacked_is_found_while_another_image_is_being_unpacked() {
    needs!("what_is_unpacked_is_found_while_another_image_is_being_unpacked", root());
    let dir = tempfile::tempdir().expect("a directory");
    let place = Layout::new(dir.path().join("run"), dir.path().join("state"));
    let [one, other] = ["one", "other"].map(|name| layout(&dir.path().join(name), &[layer(&[Put::File(name, "x")])]));
    let found = Image::resolve(&place, &one).expect("an image");

    let unpacking = File::create(place.images().join(".lock")).expect("a file");
    unpacking.lock().expect("locked");
    let (tell, told) = std::sync::mpsc::channel();
    let resolve = |source: Source| {
        let (place, tell) = (place.clone(), tell.clone());
        std::thread::spawn(move || _ = tell.send(Image::resolve(&place, &source).expect("an image")));
    };
    resolve(one);
    assert_eq!(told.recv_timeout(Duration::from_secs(5)).expect("nobody waits for the other"), found);
    resolve(other);
    told.recv_timeout(Duration::from_millis(300)).expect_err("one at a time");
    drop(unpacking);
    told.recv_timeout(Duration::from_secs(20)).expect("it is unpacked");
}

/// A compressed archive of an image with one file. All such with as long a text are as long.
fn zip(file: &Path, text: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    layout(&dir.path().join("x"), &[layer(&[Put::File("x", text)])]);
    let packed = flate2::write::GzEncoder::new(File::create(file).expect("a file"), flate2::Compression::none());
    let mut tar = tar::Builder::new(packed);
    tar.append_dir_all("", dir.path().join("x")).expect("packed");
    tar.into_inner().and_then(flate2::write::GzEncoder::finish).expect("compressed");
}

#[test]
fn a_compressed_archive_is_decompressed_once_as_long_as_it_is_the_same_file() {
    needs!("a_compressed_archive_is_decompressed_once_as_long_as_it_is_the_same_file", root());
    let dir = tempfile::tempdir().expect("a directory");
    let place = Layout::new(dir.path().join("run"), dir.path().join("state"));
    let file = dir.path().join("x.tar.gz");
    let resolve = |tag: Option<&str>| {
        Image::resolve(&place, &Source::Archive { file: file.clone(), tag: tag.map(str::to_owned) })
    };
    zip(&file, "one");
    let written = fs::metadata(&file).expect("there");
    // What has just been written may be written to again and be as old.
    std::thread::sleep(Duration::from_millis(200));
    let found = resolve(None).expect("an image");
    resolve(Some("absent")).expect_err("another tag is another question");

    // Whoever decompresses waits for this.
    let unpacking = File::create(place.images().join(".lock")).expect("a file");
    unpacking.lock().expect("locked");
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        scope.spawn(move || _ = tell.send(resolve(None).expect("an image")));
        let again = told.recv_timeout(Duration::from_secs(5));
        drop(unpacking);
        assert_eq!(again.expect("nobody decompresses it"), found);
    });

    // Another one in its place, as long and as old; and one that is gone.
    zip(&file, "two");
    let changed = File::options().write(true).open(&file).expect("a file");
    changed.set_modified(written.modified().expect("a time")).expect("set");
    assert_eq!(fs::metadata(&file).expect("there").len(), written.len());
    std::thread::sleep(Duration::from_millis(200));
    let other = resolve(None).expect("an image");
    assert_eq!(fs::read_to_string(other.rootfs.join("x")).expect("a file"), "two");
    fs::remove_dir_all(&other.rootfs).expect("removed");
    assert_eq!(resolve(None).expect("an image"), other);
    assert!(other.rootfs.join("x").exists());
}

/// An image that others' tools made: a layer of busybox, a second one that changes it, an own user, entrypoint, environment.
fn foreign(dir: &Path) -> PathBuf {
    let oci = dir.join("oci");
    let image = format!("{}:v1", oci.display());
    host("umoci", &["init", "--layout", oci.to_str().expect("UTF-8")]);
    host("umoci", &["new", "--image", &image]);
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("bin")).expect("made");
    fs::create_dir_all(tree.join("etc")).expect("made");
    fs::copy(support::find("busybox").expect("busybox"), tree.join("bin/busybox")).expect("copied");
    std::os::unix::fs::symlink("busybox", tree.join("bin/sh")).expect("linked");
    fs::write(tree.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\napp:x:77:78::/srv:/bin/sh\n").expect("written");
    fs::write(tree.join("etc/removed"), "x").expect("written");
    host("umoci", &["insert", "--image", &image, tree.to_str().expect("UTF-8"), "/"]);
    host("umoci", &["insert", "--image", &image, "--whiteout", "/etc/removed"]);
    host(
        "umoci",
        &[
            "config",
            "--image",
            &image,
            "--config.user=app",
            "--config.entrypoint=/bin/sh",
            "--config.entrypoint=-c",
            "--config.cmd=id -u; id -g; echo $GREETING; pwd; ls /etc; test -r /etc/passwd && echo readable",
            "--config.env=GREETING=hello",
            "--config.workingdir=/bin",
        ],
    );
    oci
}

#[test]
fn an_image_made_by_others_runs_as_it_says() {
    let name = "an_image_made_by_others_runs_as_it_says";
    needs!(name, containers(), program("umoci"), program("skopeo"));
    let node = Node::new();
    let oci = foreign(node.dir());
    let from = format!("oci:{}:v1", oci.display());
    let copy = |to: &str, file: &str, tag: &str| {
        let path = node.dir().join(file);
        host("skopeo", &["copy", "--quiet", &from, &format!("{to}:{}:{tag}", path.display())]);
        path
    };
    let oci_archive = copy("oci-archive", "oci.tar", "v1");
    let docker_archive = copy("docker-archive", "docker.tar", "example.org/app:v1");
    let zipped = node.dir().join("docker.tar.gz");
    let mut gzip = Command::new("gzip");
    gzip.arg("--stdout").arg(&docker_archive).stdout(File::create(&zipped).expect("a file"));
    assert!(gzip.status().expect("gzip").success());
    let zstd_compressed = node.dir().join("oci-zstd");
    host(
        "skopeo",
        &["copy", "--quiet", "--dest-compress-format=zstd", &from, &format!("oci:{}:v1", zstd_compressed.display())],
    );

    let tag = Some("v1".to_owned());
    let sources = [
        Source::OciLayout { directory: oci.clone(), tag: tag.clone() },
        Source::OciLayout { directory: oci, tag: None },
        Source::OciLayout { directory: zstd_compressed, tag: None },
        Source::Archive { file: oci_archive, tag: None },
        Source::Archive { file: docker_archive.clone(), tag: tag.clone() },
        Source::Archive { file: zipped, tag: Some("example.org/app:v1".into()) },
    ];
    for (n, source) in sources.iter().enumerate() {
        let image = Image::resolve(&node.layout, source).unwrap_or_else(|e| panic!("{source:?}: {e}"));
        let id = node.function(&format!("foreign-{n}"));
        let printed = node.run(&id, &ContainerSpec::new(image, "foreign"));
        assert_eq!(printed, "77\n78\nhello\n/bin\nhosts\npasswd\nreadable\n", "{source:?}");
    }

    let wrong = Source::Archive { file: docker_archive, tag: Some("v2".into()) };
    let reason = Image::resolve(&node.layout, &wrong).expect_err("no such tag").to_string();
    assert!(reason.contains("'v2'") && reason.contains("example.org/app:v1"), "{reason}");
}

#[test]
fn garbage_is_refused_with_a_reason() {
    needs!("garbage_is_refused_with_a_reason", root());
    let dir = tempfile::tempdir().expect("a directory");
    let place = Layout::new(dir.path().join("run"), dir.path().join("state"));
    let file = dir.path().join("x.tar");
    File::create(&file).expect("a file").write_all(&[7; 4096]).expect("written");
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).expect("made");
    let waits = layout(&dir.path().join("layout"), &[]);
    for blob in fs::read_dir(dir.path().join("layout/blobs/sha256")).expect("a directory").flatten() {
        fs::remove_file(blob.path()).expect("removed");
        nix::unistd::mkfifo(&blob.path(), nix::sys::stat::Mode::S_IRUSR).expect("made");
    }
    for source in [
        waits,
        Source::Archive { file: fifo, tag: None },
        Source::Archive { file: file.clone(), tag: None },
        Source::Archive { file: dir.path().join("absent"), tag: None },
        Source::OciLayout { directory: dir.path().into(), tag: None },
        Source::Rootfs(file),
        Source::Rootfs("/".into()),
    ] {
        let reason = Image::resolve(&place, &source).expect_err("refused").to_string();
        assert!(reason.len() > 20, "{reason}");
    }
}
