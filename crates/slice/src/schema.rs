//! The JSON Schema of a descriptor, generated from its types: what editors read, and what the checks of shape go by.

use crate::descriptor::Slice;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// The JSON Schema (draft 2020-12) of a slice descriptor.
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Slice>();
    schema.insert("$id".into(), json!("https://kaista.dev/schemas/v1alpha1/slice.json"));
    schema.insert("title".into(), json!("Kaista slice"));
    schema.to_value()
}
