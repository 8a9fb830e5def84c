//! The types of a slice descriptor: one type describes a slice in the file, in the daemon and in the published JSON Schema.
//!
//! Everything here is plain data. That it makes sense together (names known, ports linked once, addresses distinct) is
//! for [`crate::check`] to say; a value that came from [`crate::load`] has passed it.

use crate::{
    address::{Cidr, Mac},
    quantity::{BitRate, ByteSize, Latency, ValueError, text_form},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{borrow::Cow, collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, str::FromStr};

/// Network functions, their virtual ports, and the links between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Slice {
    /// Version of this format.
    pub api_version: ApiVersion,
    /// What the document describes.
    pub kind: Kind,
    /// What the slice is called.
    pub metadata: Metadata,
    /// What it consists of.
    pub spec: Spec,
}

/// Version of the descriptor format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ApiVersion {
    /// The first version; it may still change.
    #[serde(rename = "kaista.dev/v1alpha1")]
    V1Alpha1,
}

/// What a document describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Kind {
    /// A slice.
    Slice,
}

/// What a slice is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Name of the slice, a DNS label; unique on the node.
    #[schemars(extend("format" = "dns-label", "pattern" = DNS_LABEL))]
    pub name: String,
}

/// What a slice consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The functions, each one container.
    #[schemars(length(min = 1))]
    pub functions: Vec<Function>,
    /// The links between their ports, and to the outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
}

/// A network function: one unprivileged container and its ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Function {
    /// Name of the function, a DNS label; unique in the slice.
    #[schemars(extend("format" = "dns-label", "pattern" = DNS_LABEL))]
    pub name: String,
    /// Where its programs come from.
    pub image: Image,
    /// What to run, instead of the image's entrypoint (the image's arguments are then not used either).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub command: Option<Vec<String>>,
    /// Arguments, instead of the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Environment variables, over the image's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Directory in which the command starts, instead of the image's; an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "absolute-path"))]
    pub working_directory: Option<String>,
    /// Small files laid over the image, read-only: absolute path to contents.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Which processor cores it runs on.
    #[serde(default)]
    pub cores: Cores,
    /// Limit of its memory; none if absent. Packet buffers of its ports are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// What happens when its program ends.
    #[serde(default)]
    pub restart: Restart,
    /// Functions with the same trust group may share memory with each other without protection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "dns-label", "pattern" = DNS_LABEL))]
    pub trust_group: Option<String>,
    /// Where, in the container, a writable directory of its own appears that outlives the container; an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "absolute-path"))]
    pub state_directory: Option<String>,
    /// Its virtual ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
}

/// Where the programs of a function come from, in one of three forms. Paths are relative to the descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "ImageFields", into = "ImageFields")]
pub enum Image {
    /// A directory that holds a root filesystem.
    Rootfs(PathBuf),
    /// A directory in the OCI image layout.
    OciLayout {
        /// The directory with `oci-layout` and `index.json`.
        directory: PathBuf,
        /// Which of its images; the only one if absent.
        tag: Option<String>,
    },
    /// A tar archive, perhaps compressed, of an OCI image layout or by `docker save`.
    Archive {
        /// The file.
        file: PathBuf,
        /// Which of its images; the only one if absent.
        tag: Option<String>,
    },
}

impl Image {
    /// The directory or file that holds it.
    pub fn path(&self) -> &PathBuf {
        match self {
            Self::Rootfs(path) | Self::OciLayout { directory: path, .. } | Self::Archive { file: path, .. } => path,
        }
    }

    pub(crate) fn path_mut(&mut self) -> &mut PathBuf {
        match self {
            Self::Rootfs(path) | Self::OciLayout { directory: path, .. } | Self::Archive { file: path, .. } => path,
        }
    }
}

/// An image as a descriptor writes it: exactly one of `rootfs`, `ociLayout` and `archive`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename = "Image", rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["rootfs"]}, {"required": ["ociLayout"]}, {"required": ["archive"]}]))]
pub(crate) struct ImageFields {
    /// A directory that holds a root filesystem, relative to the descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rootfs: Option<PathBuf>,
    /// A directory in the OCI image layout, relative to the descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) oci_layout: Option<PathBuf>,
    /// A tar archive, perhaps compressed, of an OCI image layout or by `docker save`, relative to the descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) archive: Option<PathBuf>,
    /// Which image of the layout or archive, if it holds several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
}

impl TryFrom<ImageFields> for Image {
    type Error = ValueError;

    fn try_from(fields: ImageFields) -> Result<Self, ValueError> {
        const REMEDY: &str = "give exactly one of rootfs, ociLayout and archive";
        match (fields.rootfs, fields.oci_layout, fields.archive, fields.tag) {
            (Some(directory), None, None, None) => Ok(Self::Rootfs(directory)),
            (None, Some(directory), None, tag) => Ok(Self::OciLayout { directory, tag }),
            (None, None, Some(file), tag) => Ok(Self::Archive { file, tag }),
            (Some(_), None, None, Some(_)) => {
                Err(ValueError::new("a root filesystem has no tag", "take tag away, or give ociLayout or archive"))
            }
            (None, None, None, _) => Err(ValueError::new("the image says not where it is", REMEDY)),
            _ => Err(ValueError::new("the image is given in several forms", REMEDY)),
        }
    }
}

impl From<Image> for ImageFields {
    fn from(image: Image) -> Self {
        match image {
            Image::Rootfs(directory) => Self { rootfs: Some(directory), ..Self::default() },
            Image::OciLayout { directory, tag } => Self { oci_layout: Some(directory), tag, ..Self::default() },
            Image::Archive { file, tag } => Self { archive: Some(file), tag, ..Self::default() },
        }
    }
}

/// Which processor cores a function runs on: `shared`, `exclusive`, or `{exclusive: N}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "CoresForm", into = "CoresForm")]
pub enum Cores {
    /// Those that no function has for itself.
    #[default]
    Shared,
    /// This many, which nothing else that Kaista runs may use; for functions that poll.
    Exclusive(u32),
}

impl Cores {
    /// How many cores it takes away from everybody else.
    pub fn exclusive(self) -> u32 {
        match self {
            Self::Shared => 0,
            Self::Exclusive(count) => count,
        }
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum CoresForm {
    Word(CoresWord),
    Count { exclusive: u32 },
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CoresWord {
    Shared,
    Exclusive,
}

impl From<CoresForm> for Cores {
    fn from(form: CoresForm) -> Self {
        match form {
            CoresForm::Word(CoresWord::Shared) => Self::Shared,
            CoresForm::Word(CoresWord::Exclusive) => Self::Exclusive(1),
            CoresForm::Count { exclusive } => Self::Exclusive(exclusive),
        }
    }
}

impl From<Cores> for CoresForm {
    fn from(cores: Cores) -> Self {
        match cores {
            Cores::Shared => Self::Word(CoresWord::Shared),
            Cores::Exclusive(1) => Self::Word(CoresWord::Exclusive),
            Cores::Exclusive(exclusive) => Self::Count { exclusive },
        }
    }
}

impl JsonSchema for Cores {
    fn schema_name() -> Cow<'static, str> {
        "Cores".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Which processor cores a function runs on: `shared` (those that no function has for itself), \
                `exclusive` (one of its own), or `{exclusive: N}`.",
            "anyOf": [
                {"type": "string", "enum": ["shared", "exclusive"]},
                {
                    "type": "object",
                    "properties": {
                        "exclusive": {"description": "How many cores.", "type": "integer", "minimum": 1, "maximum": 4096}
                    },
                    "required": ["exclusive"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

/// What happens when the program of a function ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// It is started again.
    #[default]
    Always,
    /// It is started again unless it ended with status 0.
    OnFailure,
    /// It stays ended.
    Never,
}

/// A virtual port of a function: shared memory by default, a kernel interface if `interface` is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Port {
    /// Name of the port, a DNS label; unique in the function.
    #[schemars(extend("format" = "dns-label", "pattern" = DNS_LABEL))]
    pub name: String,
    /// The port is a kernel interface of this name in the container, for any program to use; shared memory if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "interface-name", "pattern" = INTERFACE_NAME))]
    pub interface: Option<String>,
    /// Number of queue pairs (shared memory only).
    #[serde(default = "one_queue")]
    #[schemars(range(min = 1, max = 32))]
    pub queues: u16,
    /// By what received packets are spread over the queues (shared memory only).
    #[serde(default)]
    pub steering: Steering,
    /// Addresses of the port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Cidr>,
    /// Routes through the port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Largest IP packet in bytes; the frame is 14 longer.
    #[serde(default = "ethernet_mtu")]
    #[schemars(range(min = 576, max = 9586))]
    pub mtu: u16,
    /// Ethernet address; one is made from the names if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
}

impl Port {
    /// Whether the port is an interface of the kernel; else it is shared memory.
    pub fn is_kernel(&self) -> bool {
        self.interface.is_some()
    }
}

fn one_queue() -> u16 {
    1
}

fn ethernet_mtu() -> u16 {
    1500
}

/// By what packets that a port receives are spread over its queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// Not at all: everything comes on queue 0.
    #[default]
    None,
    /// The TEID of a GTP-U packet, whatever extension headers it has.
    Teid,
    /// The UE's address: the destination of a downlink packet.
    UeAddress,
    /// Addresses, protocol and ports.
    FiveTuple,
}

/// A route through a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// Destinations; `0.0.0.0/0` and `::/0` are the default routes.
    pub to: Cidr,
    /// Next hop, an address that the port reaches directly.
    #[schemars(extend("format" = "ip-address"))]
    pub via: IpAddr,
}

/// A link between two ports, or between a port and the outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Link {
    /// Name of the link, a DNS label; unique in the slice. Without one it is known by its ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "dns-label", "pattern" = DNS_LABEL))]
    pub name: Option<String>,
    /// Its two ends.
    pub between: [End; 2],
    /// How it is to be built.
    #[serde(default)]
    pub kind: LinkKind,
    /// Latency that a packet may have from one end to the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_latency: Option<Latency>,
    /// Bit rate that each direction must carry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_bandwidth: Option<BitRate>,
}

impl Link {
    /// Its name, or its ends where it has none: `ran/n3--upf/n3`.
    pub fn label(&self) -> String {
        let [a, b] = &self.between;
        self.name.clone().unwrap_or_else(|| format!("{a}--{b}"))
    }
}

/// How a link is to be built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// By the fastest way that the two ends allow.
    #[default]
    Auto,
    /// Point to point, without a switch.
    Direct,
}

/// One end of a link: `FUNCTION/PORT`, or `{host: ...}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum End {
    /// A port of a function of the slice.
    Port(PortRef),
    /// Something outside the slice.
    Outside {
        /// What of the host it is.
        host: Outside,
    },
}

impl End {
    /// The port, if the end is one.
    pub fn port(&self) -> Option<&PortRef> {
        match self {
            Self::Port(port) => Some(port),
            Self::Outside { .. } => None,
        }
    }

    /// What of the host, if the end is outside.
    pub fn outside(&self) -> Option<&Outside> {
        match self {
            Self::Port(_) => None,
            Self::Outside { host } => Some(host),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => port.fmt(f),
            Self::Outside { host } => host.fmt(f),
        }
    }
}

impl JsonSchema for End {
    fn schema_name() -> Cow<'static, str> {
        "End".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let port = generator.subschema_for::<PortRef>();
        let host = generator.subschema_for::<Outside>();
        json_schema!({
            "description": "One end of a link: `FUNCTION/PORT`, or `{host: ...}`.",
            "anyOf": [
                port,
                {
                    "type": "object",
                    "properties": {"host": host},
                    "required": ["host"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

/// A port of a function, written `FUNCTION/PORT`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRef {
    /// Name of the function.
    pub function: String,
    /// Name of its port.
    pub port: String,
}

impl fmt::Display for PortRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.function, self.port)
    }
}

impl FromStr for PortRef {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.split_once('/') {
            Some((function, port)) if is_dns_label(function) && is_dns_label(port) => {
                Ok(Self { function: function.into(), port: port.into() })
            }
            _ => Err(ValueError::new(
                format!("{text:?} names no port"),
                "write FUNCTION/PORT, for example upf/n3; an interface of the host is {host: {interface: eth1}}",
            )),
        }
    }
}

text_form!(PortRef, "port-ref", r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$");

/// The end of a link that belongs to the host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "OutsideFields", into = "OutsideFields")]
pub enum Outside {
    /// An interface that the host already has; the port shares it under a MAC address of its own.
    Interface(String),
    /// A new interface in the host's own network, by which host and port reach each other.
    Veth {
        /// Its name.
        name: String,
        /// Its addresses.
        addresses: Vec<Cidr>,
    },
}

impl Outside {
    /// Name of the interface of the host.
    pub fn interface(&self) -> &str {
        match self {
            Self::Interface(name) | Self::Veth { name, .. } => name,
        }
    }
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host:{}", self.interface())
    }
}

/// The host's end as a descriptor writes it: exactly one of `interface` and `veth`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename = "Outside", rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["interface"]}, {"required": ["veth"]}]))]
pub(crate) struct OutsideFields {
    /// An interface that the host already has; the port shares it under a MAC address of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "interface-name", "pattern" = INTERFACE_NAME))]
    pub(crate) interface: Option<String>,
    /// A new interface of this name in the host's own network, by which host and port reach each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "interface-name", "pattern" = INTERFACE_NAME))]
    pub(crate) veth: Option<String>,
    /// Addresses of the new interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) addresses: Vec<Cidr>,
}

impl TryFrom<OutsideFields> for Outside {
    type Error = ValueError;

    fn try_from(fields: OutsideFields) -> Result<Self, ValueError> {
        const REMEDY: &str = "give interface (one that the host has) or veth (a new one), not both";
        match (fields.interface, fields.veth) {
            (Some(name), None) if fields.addresses.is_empty() => Ok(Self::Interface(name)),
            (Some(_), None) => Err(ValueError::new(
                "an interface that the host already has keeps its own addresses",
                "take addresses away here and give them to the port at the other end",
            )),
            (None, Some(name)) => Ok(Self::Veth { name, addresses: fields.addresses }),
            (None, None) => Err(ValueError::new("the host's end of the link is not named", REMEDY)),
            (Some(_), Some(_)) => Err(ValueError::new("the host's end of the link is given in two forms", REMEDY)),
        }
    }
}

impl From<Outside> for OutsideFields {
    fn from(outside: Outside) -> Self {
        match outside {
            Outside::Interface(name) => Self { interface: Some(name), ..Self::default() },
            Outside::Veth { name, addresses } => Self { veth: Some(name), addresses, ..Self::default() },
        }
    }
}

impl Slice {
    /// Name of the slice.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The function of this name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.spec.functions.iter().find(|f| f.name == name)
    }

    /// The port of this name.
    pub fn port(&self, at: &PortRef) -> Option<&Port> {
        self.function(&at.function)?.ports.iter().find(|p| p.name == at.port)
    }

    /// The link that ends at this port.
    pub fn link_of(&self, at: &PortRef) -> Option<&Link> {
        self.spec.links.iter().find(|l| l.between.iter().any(|end| end.port() == Some(at)))
    }
}

const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$";
const INTERFACE_NAME: &str = "^[A-Za-z0-9_][-A-Za-z0-9_.]{0,14}$";

/// Whether a name is a DNS label (RFC 1123): lower-case letters, digits and inner hyphens, at most 63.
pub(crate) fn is_dns_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|&b| inner(b) || b == b'-')
        && bytes.first().is_some_and(|&b| inner(b))
        && bytes.last().is_some_and(|&b| inner(b))
}
