//! What nodes can do beyond the necessary, as they tell when they associate: sets of bits, an octet for eight of them.

use rs_pfcp::ie::cp_function_features::CPFunctionFeatures;
use rs_pfcp::ie::up_function_features::UPFunctionFeatures;

pub use rs_pfcp::ie::cp_function_features::{CPFunctionFeature as CpFeature, CPFunctionFeatures as CpFeatures};
pub use rs_pfcp::ie::up_function_features::{UPFunctionFeature as UpFeature, UPFunctionFeatures as UpFeatures};

/// UP Function Features (8.2.25), such as `UpFeatures::FTUP`.
pub fn up_features(all: &[UpFeature]) -> Vec<u8> {
    let mut features = UPFunctionFeatures::new();
    all.iter().for_each(|&feature| features.insert(feature));
    let mut octets = features.marshal();
    // The element has at least its first two octets.
    octets.resize(octets.len().max(2), 0);
    octets
}

/// CP Function Features (8.2.58), such as `CpFeatures::MPAS`.
pub fn cp_features(all: &[CpFeature]) -> Vec<u8> {
    let mut features = CPFunctionFeatures::from_octets([0]);
    all.iter().for_each(|&feature| features.insert(feature));
    features.marshal()
}

/// Whether an SMF that told `octets` has `feature`.
pub fn has_cp_feature(octets: &[u8], feature: CpFeature) -> bool {
    CPFunctionFeatures::from_octets(octets).contains(feature)
}
