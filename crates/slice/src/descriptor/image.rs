//! Where the programs of a function come from.

use crate::quantity::ValueError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

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
