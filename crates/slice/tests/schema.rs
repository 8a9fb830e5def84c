//! The published JSON Schema is the one that the types give.
//! `KAISTA_UPDATE_FIXTURES=1 cargo test -p slice` writes it anew.

use std::{fs, path::Path};

#[test]
fn the_published_schema_is_that_of_the_types() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/slice.schema.json");
    let schema = serde_json::to_string_pretty(&slice::schema()).unwrap() + "\n";
    if std::env::var_os("KAISTA_UPDATE_FIXTURES").is_some() {
        fs::write(&file, &schema).unwrap();
    }
    let published = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(published, schema, "run KAISTA_UPDATE_FIXTURES=1 cargo test -p slice");
}
