//! Texts of a format that JSON Schema cannot describe, and objects of which exactly one form may be given.

use crate::{
    address::{Cidr, Mac},
    descriptor::{Image, ImageFields, Outside, OutsideFields, PortRef, is_dns_label},
    quantity::{BitRate, ByteSize, Latency, ValueError},
    tree::excerpt,
};
use serde_json::{Map, Value as Json};
use std::net::IpAddr;

pub fn check_object(definition: &str, object: &Map<String, Json>) -> Result<(), ValueError> {
    let fields = || Json::Object(object.clone());
    match definition {
        "Image" => serde_json::from_value(fields()).map_or(Ok(()), |f: ImageFields| Image::try_from(f).map(drop)),
        "Outside" => serde_json::from_value(fields()).map_or(Ok(()), |f: OutsideFields| Outside::try_from(f).map(drop)),
        _ => Ok(()),
    }
}

pub fn check_format(format: &str, text: &str) -> Result<(), ValueError> {
    if text.contains('\0') {
        return Err(ValueError::new("a text cannot hold a zero byte", "take the \\0 away"));
    }
    match format {
        "latency" => text.parse::<Latency>().map(drop),
        "size" => text.parse::<ByteSize>().map(drop),
        "rate" => text.parse::<BitRate>().map(drop),
        "cidr" => text.parse::<Cidr>().map(drop),
        "mac" => text.parse::<Mac>().map(drop),
        "port-ref" => text.parse::<PortRef>().map(drop),
        "ip-address" => check_ip(text),
        "dns-label" => check_label(text),
        "interface-name" => check_interface(text),
        "absolute-path" => check_absolute(text),
        _ => Ok(()),
    }
}

fn check_ip(text: &str) -> Result<(), ValueError> {
    let no_ip = |_| {
        ValueError::new(
            format!("{:?} is no IP address", excerpt(text)),
            "write for example 10.3.0.2, without a prefix length",
        )
    };
    text.parse::<IpAddr>().map(drop).map_err(no_ip)
}

fn check_label(text: &str) -> Result<(), ValueError> {
    if is_dns_label(text) {
        return Ok(());
    }
    let reason = format!("{:?} is no DNS label", excerpt(text));
    Err(ValueError::new(
        reason,
        "use lower-case letters, digits and inner hyphens, at most 63 characters, for example upf-1",
    ))
}

/// Names of interfaces by the kernel's rules (`dev_valid_name`), without characters that shells or sysctl dislike.
fn check_interface(text: &str) -> Result<(), ValueError> {
    let name = excerpt(text);
    if text.len() > 15 {
        let reason = format!("{name:?} has {} characters", text.len());
        return Err(ValueError::new(reason, "the kernel allows 15 for the name of an interface; choose a shorter one"));
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if !begins_well || !text.bytes().all(allowed) {
        let reason = format!("{name:?} cannot be the name of an interface");
        return Err(ValueError::new(reason, "use letters, digits, -, _ and ., and begin with a letter, digit or _"));
    }
    if matches!(text, "lo" | "all" | "default") {
        return Err(ValueError::new(format!("{name:?} means something else to the kernel"), "choose another name"));
    }
    Ok(())
}

/// An absolute path in its shortest form, so that two different texts are two different places.
pub fn check_absolute(text: &str) -> Result<(), ValueError> {
    let shortest = |rest: &str| rest.split('/').all(|part| !matches!(part, "" | "." | ".."));
    match text.strip_prefix('/') {
        Some(rest) if text.len() < 4096 && (rest.is_empty() || shortest(rest)) => Ok(()),
        _ => {
            let reason = format!("{:?} is no plain absolute path", excerpt(text));
            Err(ValueError::new(reason, "begin with / and leave out . , .. , doubled and final slashes"))
        }
    }
}
