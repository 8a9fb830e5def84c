//! The image of each container that is to be started.

use std::collections::BTreeMap;

use anyhow::Result;
use runtime::Image;
use slice::Function;

/// What containers are of, by name, with what describes it.
pub(super) type Images = BTreeMap<String, (slice::Image, Image)>;

/// Of each container the image that it was of, where the same is described and its root is there; else as `resolve` finds it, once for
/// all that are of the same.
pub(super) fn of_each<'a>(
    containers: impl Iterator<Item = (&'a String, &'a Function)>,
    were_of: &Images,
    mut resolve: impl FnMut(&Function) -> Result<Image>,
) -> Result<BTreeMap<String, Image>> {
    let mut resolved: Vec<(&slice::Image, Image)> = Vec::new();
    let mut images = BTreeMap::new();
    for (name, function) in containers {
        let was_of =
            were_of.get(name).filter(|(described, image)| *described == function.image && image.rootfs.is_dir());
        let found = || resolved.iter().find(|(described, _)| **described == function.image).map(|(_, image)| image);
        let image = match was_of.map(|(_, image)| image).or_else(found) {
            Some(image) => image.clone(),
            None => {
                let image = resolve(function)?;
                resolved.push((&function.image, image.clone()));
                image
            }
        };
        images.insert(name.clone(), image);
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn function(name: &str, rootfs: &str) -> Function {
        serde_json::from_str(&format!(r#"{{"name": "{name}", "image": {{"rootfs": "{rootfs}"}}}}"#)).unwrap()
    }

    fn unpacked(rootfs: &Path) -> Image {
        Image { rootfs: rootfs.into(), config: Default::default(), user: Default::default(), digest: None }
    }

    #[test]
    fn what_several_are_of_is_resolved_once_and_what_one_was_of_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let (there, gone) = (unpacked(directory.path()), unpacked(&directory.path().join("gone")));
        let all =
            [("a", "/one"), ("b", "/one"), ("c", "/other"), ("known", "/one"), ("lost", "/one"), ("edited", "/other")]
                .map(|(name, rootfs)| (name.to_owned(), function(name, rootfs)));
        let of = |image: &Image| (all[0].1.image.clone(), image.clone());
        let were_of = [("known", of(&there)), ("lost", of(&gone)), ("edited", of(&there))];
        let were_of = were_of.map(|(name, of)| (name.to_owned(), of)).into();

        let mut asked = Vec::new();
        let resolve = |function: &Function| {
            asked.push(function.name.clone());
            Ok(unpacked(Path::new("/resolved").join(&function.name).as_path()))
        };
        let images = of_each(all.iter().map(|(name, function)| (name, function)), &were_of, resolve).unwrap();
        assert_eq!(asked, ["a", "c"]);
        assert_eq!(images["known"], there);
        for (name, like) in [("b", "a"), ("lost", "a"), ("edited", "c")] {
            assert_eq!(images[name], images[like], "{name}");
        }
    }
}
