//! What messages call things, and what was probably meant.

use crate::tree::Value;
use serde_json::Value as Json;

pub fn required(schema: &Json) -> impl Iterator<Item = &str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str)
}

/// The texts of which a value must be one; empty if it may be others.
pub fn choices(schema: &Json) -> Vec<&str> {
    let listed = schema["enum"].as_array().into_iter().flatten();
    let constants = schema["oneOf"].as_array().into_iter().flatten().map(|s| &s["const"]);
    listed.chain(constants).filter_map(Json::as_str).collect()
}

pub fn has_type(schema: &Json, kind: &str) -> bool {
    match &schema["type"] {
        Json::String(one) => one == kind,
        Json::Array(several) => several.iter().any(|one| one == kind),
        _ => kind == "string" && !choices(schema).is_empty(),
    }
}

/// Whether any text will do, or nearly.
pub fn is_free_text(schema: &Json) -> bool {
    let format = schema["format"].as_str().unwrap_or_default();
    has_type(schema, "string") && choices(schema).is_empty() && matches!(format, "" | "dns-label" | "interface-name")
}

pub fn accepts(schema: &Json, value: &Value) -> bool {
    match value {
        Value::Text(_) => has_type(schema, "string"),
        Value::Integer(_) => has_type(schema, "integer"),
        Value::List(_) => has_type(schema, "array"),
        Value::Mapping(_) => has_type(schema, "object"),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// What a value of this schema looks like, after "write".
pub fn expects(schema: &Json) -> String {
    let choices = choices(schema);
    if !choices.is_empty() {
        return any_of(&choices);
    }
    if has_type(schema, "array") {
        return "a list".into();
    }
    if has_type(schema, "integer") {
        return match (&schema["minimum"], &schema["maximum"]) {
            (Json::Number(least), Json::Number(most)) => format!("a whole number from {least} to {most}"),
            _ => "a whole number".into(),
        };
    }
    if has_type(schema, "object") {
        let forms: Vec<_> = schema["oneOf"].as_array().into_iter().flatten().flat_map(required).collect();
        if !forms.is_empty() {
            return format!("a mapping with {}", any_of(&forms));
        }
        let fields: Vec<_> = schema["properties"].as_object().into_iter().flat_map(|p| p.keys()).cloned().collect();
        let what = if fields.is_empty() { "names to texts".into() } else { fields.join(", ") };
        return format!("a mapping ({what})");
    }
    let what = match schema["format"].as_str().unwrap_or_default() {
        "latency" => "a latency such as 100us",
        "size" => "a size such as 256MiB",
        "rate" => "a rate such as 1Gbps",
        "cidr" => "an address with prefix length such as 10.3.0.1/24",
        "ip-address" => "an IP address",
        "mac" => "a MAC address such as 02:00:5e:00:53:01",
        "port-ref" => "FUNCTION/PORT",
        "dns-label" => "a name",
        "interface-name" => "the name of an interface",
        "absolute-path" => "an absolute path",
        _ => "a text",
    };
    what.into()
}

pub fn any_of(choices: &[&str]) -> String {
    match choices {
        [one] => (*one).into(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
        [] => "nothing".into(),
    }
}

/// What a message calls a thing of this definition.
pub fn noun_of(definition: &str) -> String {
    match definition {
        "Metadata" => "metadata".into(),
        "Spec" => "spec".into(),
        "Image" => "an image".into(),
        "Outside" => "the host's end of a link".into(),
        "End" => "an end of a link".into(),
        "Cores" => "cores".into(),
        other => format!("a {}", other.to_lowercase()),
    }
}

/// The known name that was probably meant.
pub fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let plain = |s: &str| s.chars().filter(|c| c.is_alphanumeric()).take(64).collect::<String>().to_lowercase();
    let wanted = plain(name);
    let distance = |k: &str| strsim::damerau_levenshtein(&wanted, &plain(k));
    let (distance, near) = known.map(|k| (distance(k), k)).min_by_key(|(distance, _)| *distance)?;
    let longest = wanted.len().max(near.len());
    // A third of the letters may differ; of two or three letters one.
    (distance * 3 <= longest.max(3) && distance < wanted.len().max(1)).then_some(near)
}
