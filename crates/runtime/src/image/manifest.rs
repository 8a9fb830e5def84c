//! Which configuration and layers an image consists of.

use std::io;
use std::path::{Path, PathBuf};

use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, Os};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{ImageConfig, files::Files, limits, quote};

/// Where OCI images carry their tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// What Docker calls a manifest and an index, which have the same content.
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// An image that was found.
pub(super) struct Manifest {
    /// SHA-256, in hexadecimal digits, of what names everything else by digest.
    pub(super) digest: String,
    pub(super) config: ImageConfig,
    /// In the order in which they are laid on each other.
    pub(super) layers: Vec<Layer>,
}

/// A layer, and what it must be.
pub(super) struct Layer {
    pub(super) name: PathBuf,
    /// SHA-256 of the file as it lies there; `docker save` does not say.
    pub(super) digest: Option<String>,
    /// SHA-256 of its plain content.
    pub(super) diff_id: String,
}

type Answer<T> = Result<T, String>;

impl Manifest {
    /// Finds the image with `tag`, or the only one for this machine.
    pub(super) fn find(files: &Files, tag: Option<&str>) -> Answer<Self> {
        if files.has("index.json") {
            return Self::of_layout(files, tag);
        }
        if files.has("manifest.json") {
            return Self::of_docker(files, tag);
        }
        Err("it is neither an OCI image layout (index.json) nor what `docker save` writes (manifest.json)".into())
    }

    fn of_layout(files: &Files, tag: Option<&str>) -> Answer<Self> {
        let index: ImageIndex = document(files, Path::new("index.json"))?;
        let mut found = Vec::new();
        let mut left = limits::DESCRIPTORS;
        let here: Vec<&Descriptor> = index.manifests().iter().filter(|one| has_tag(one, tag)).collect();
        for descriptor in here {
            collect(files, descriptor, 0, &mut left, &mut found)?;
        }
        found.sort_by_key(|one| one.digest().to_string());
        found.dedup_by(|a, b| a.digest() == b.digest());
        let descriptor = match found.as_slice() {
            [one] => one,
            [] => return Err(none_found(tag, index.manifests().iter().filter_map(tag_of))),
            _ => return Err(several_found(index.manifests().iter().filter_map(tag_of))),
        };

        let manifest: ImageManifest = blob(files, descriptor)?;
        let config: ImageConfiguration = blob(files, manifest.config())?;
        let layers = manifest.layers().iter().map(|layer| Ok((blob_path(layer)?, Some(sha256_of(layer)?))));
        Self::assemble(sha256_of(descriptor)?, &config, layers.collect::<Answer<_>>()?)
    }

    fn of_docker(files: &Files, tag: Option<&str>) -> Answer<Self> {
        let images: Vec<Saved> = document(files, Path::new("manifest.json"))?;
        let named = |image: &&Saved| {
            tag.is_none_or(|tag| {
                image.tags().any(|name| name == tag || name.rsplit_once(':').is_some_and(|(_, t)| t == tag))
            })
        };
        let image = match images.iter().filter(named).collect::<Vec<_>>().as_slice() {
            [one] => *one,
            [] => return Err(none_found(tag, images.iter().flat_map(Saved::tags))),
            _ => return Err(several_found(images.iter().flat_map(Saved::tags))),
        };
        let text = files.read(&image.config).map_err(|e| format!("{}: {e}", quote::path(&image.config)))?;
        let config: ImageConfiguration = parse(&image.config, &text)?;
        let layers = image.layers.iter().map(|name| (name.clone(), None)).collect();
        // The configuration names the layers by digest, so its own digest names the image.
        Self::assemble(hexadecimal(&Sha256::digest(&text)), &config, layers)
    }

    fn assemble(digest: String, config: &ImageConfiguration, layers: Vec<(PathBuf, Option<String>)>) -> Answer<Self> {
        if *config.os() != Os::Linux || *config.architecture() != Arch::default() {
            return Err(format!(
                "it is for {}, not for this machine",
                quote::name(&format!("{} on {}", config.os(), config.architecture()))
            ));
        }
        let diff_ids = config.rootfs().diff_ids();
        if layers.len() != diff_ids.len() || layers.len() > limits::LAYERS {
            return Err(format!("it has {} layers and names {} in its configuration", layers.len(), diff_ids.len()));
        }
        let layers = layers.into_iter().zip(diff_ids).map(|((name, digest), diff_id)| {
            let diff_id = diff_id.strip_prefix("sha256:").filter(|hex| is_sha256(hex));
            let diff_id = diff_id.ok_or("a layer's diff id is not a SHA-256")?.to_owned();
            Ok(Layer { name, digest, diff_id })
        });
        Ok(Self { digest, config: defaults(config), layers: layers.collect::<Answer<_>>()? })
    }
}

/// An entry of `docker save`'s manifest.json.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: PathBuf,
    repo_tags: Option<Vec<String>>,
    layers: Vec<PathBuf>,
}

impl Saved {
    fn tags(&self) -> impl Iterator<Item = String> {
        self.repo_tags.iter().flatten().cloned()
    }
}

/// Adds the image manifests for this machine that `descriptor` leads to; an index may name others. `left`: how many descriptors may
/// yet be looked at, since indexes that name each other many times over would have no end.
fn collect(
    files: &Files,
    descriptor: &Descriptor,
    depth: usize,
    left: &mut usize,
    found: &mut Vec<Descriptor>,
) -> Answer<()> {
    const NESTED: usize = 4;
    *left = left.checked_sub(1).ok_or("its indexes name too many images")?;
    if descriptor.platform().as_ref().is_some_and(|p| *p.os() != Os::Linux || *p.architecture() != Arch::default()) {
        return Ok(());
    }
    let kind = descriptor.media_type().to_string();
    if *descriptor.media_type() == MediaType::ImageManifest || kind == DOCKER_MANIFEST {
        found.push(descriptor.clone());
        return Ok(());
    }
    if *descriptor.media_type() != MediaType::ImageIndex && kind != DOCKER_LIST {
        // A signature, an attestation or such.
        return Ok(());
    }
    if depth >= NESTED {
        return Err("its indexes are nested too deeply".into());
    }
    let index: ImageIndex = blob(files, descriptor)?;
    index.manifests().iter().try_for_each(|inner| collect(files, inner, depth + 1, left, found))
}

/// A document that is named by its digest, and is what that says.
fn blob<T: DeserializeOwned>(files: &Files, descriptor: &Descriptor) -> Answer<T> {
    let (path, wanted) = (blob_path(descriptor)?, sha256_of(descriptor)?);
    let text = files.read(&path).map_err(|e| format!("{}: {e}", quote::path(&path)))?;
    if hexadecimal(&Sha256::digest(&text)) != wanted {
        return Err(format!("{} is not what its digest says", quote::path(&path)));
    }
    parse(&path, &text)
}

fn document<T: DeserializeOwned>(files: &Files, path: &Path) -> Answer<T> {
    let text = files.read(path).map_err(|e: io::Error| format!("{}: {e}", quote::path(path)))?;
    parse(path, &text)
}

fn parse<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Answer<T> {
    serde_json::from_slice(text).map_err(|e| format!("{}: {e}", quote::path(path)))
}

fn blob_path(descriptor: &Descriptor) -> Answer<PathBuf> {
    Ok(Path::new("blobs/sha256").join(sha256_of(descriptor)?))
}

fn sha256_of(descriptor: &Descriptor) -> Answer<String> {
    let hex = descriptor.as_digest_sha256().filter(|hex| is_sha256(hex));
    hex.map(String::from)
        .ok_or_else(|| format!("digest {} is not a SHA-256", quote::name(descriptor.digest().as_ref())))
}

/// Lower case only: as a file name each digest has one spelling.
fn is_sha256(hex: &str) -> bool {
    hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tag_of(descriptor: &Descriptor) -> Option<String> {
    descriptor.annotations().as_ref()?.get(REF_NAME).cloned()
}

/// Tools write the tag alone or the whole reference.
fn has_tag(descriptor: &Descriptor, tag: Option<&str>) -> bool {
    let Some(tag) = tag else { return true };
    tag_of(descriptor).is_some_and(|name| name == tag || name.rsplit_once(':').is_some_and(|(_, theirs)| theirs == tag))
}

fn none_found(tag: Option<&str>, tags: impl Iterator<Item = String>) -> String {
    let tags = quote::names(tags);
    match tag {
        Some(tag) => format!("it has no image '{tag}' for this machine; its tags are {tags}"),
        None => format!("it has no image for this machine; its tags are {tags}"),
    }
}

fn several_found(tags: impl Iterator<Item = String>) -> String {
    format!("it has several images; choose one by its tag: {}", quote::names(tags))
}

fn defaults(config: &ImageConfiguration) -> ImageConfig {
    let Some(config) = config.config() else { return ImageConfig::default() };
    ImageConfig {
        entrypoint: config.entrypoint().clone().unwrap_or_default(),
        cmd: config.cmd().clone().unwrap_or_default(),
        env: config.env().clone().unwrap_or_default(),
        user: config.user().clone().unwrap_or_default(),
        working_directory: config.working_dir().clone().unwrap_or_default(),
    }
}
