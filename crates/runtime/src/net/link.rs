//! Interfaces: made, found, brought up, removed.
//!
//! An interface that was made here says in its alias what it is. That is how a repeated call knows its own work; a pair of
//! interface indices would not do, since they are alike in every namespace.

use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage, MacVlanMode, MacVtapMode,
};
use rtnetlink::{Handle, LinkMacVlan, LinkMacVtap, LinkMessageBuilder, LinkUnspec, LinkVeth};

use super::Namespace;
use crate::{Error, Result};

/// A veth pair, one end in each namespace, both up. In a sandbox an interface of that name that is not this pair is replaced;
/// the host's is left alone, and an error.
pub fn veth(a: (&Namespace, &str), b: (&Namespace, &str)) -> Result<()> {
    let alias = format!("kaista veth {} {} {} {}", a.0.path().display(), a.1, b.0.path().display(), b.1);
    let is_end =
        |namespace: &Namespace, name: &str| Ok::<_, Error>(alias_of(namespace, name)?.as_ref() == Some(&alias));
    if !is_end(a.0, a.1)? || !is_end(b.0, b.1)? {
        let mut ends = [a, b];
        // A sandbox's first: the other end goes with it, also where a killed process has not given it its alias.
        ends.sort_by_key(|end| end.0.is_host());
        for (namespace, name) in ends {
            if !is_end(namespace, name)? {
                refuse_taken(namespace, name)?;
            }
            remove(namespace, name)?;
        }
        let peer = LinkMessageBuilder::<LinkUnspec>::new().name(b.1).setns_by_fd(b.0.raw()).build();
        let message = LinkVeth::new(a.1, b.1).set_info_data(InfoData::Veth(InfoVeth::Peer(peer))).build();
        a.0.netlink(async |handle: Handle| {
            handle.link().add(message).execute().await.map_err(|e| failed(format!("making veth {} - {}", a.1, b.1), e))
        })?;
        set_alias(a.0, a.1, &alias)?;
        set_alias(b.0, b.1, &alias)?;
    }
    up(a.0, a.1)?;
    up(b.0, b.1)
}

/// A macvlan interface (bridge mode) in `namespace` on an interface of the host, up.
pub fn macvlan(namespace: &Namespace, name: &str, host_interface: &str) -> Result<()> {
    on_host_interface(namespace, name, host_interface, "macvlan", |lower| {
        LinkMacVlan::new(name, lower, MacVlanMode::Bridge).setns_by_fd(namespace.raw()).build()
    })
}

/// The same, with a character device to read and write its frames.
pub(super) fn macvtap(namespace: &Namespace, name: &str, host_interface: &str) -> Result<()> {
    on_host_interface(namespace, name, host_interface, "macvtap", |lower| {
        LinkMacVtap::new(name, lower, MacVtapMode::Bridge).setns_by_fd(namespace.raw()).build()
    })
}

/// Makes an interface on the host's one, unless it is there already; `message` gets the host interface's index.
fn on_host_interface(
    namespace: &Namespace,
    name: &str,
    host_interface: &str,
    kind: &str,
    message: impl FnOnce(u32) -> LinkMessage,
) -> Result<()> {
    let host = Namespace::host()?;
    let lower = host
        .netlink(async |handle: Handle| find(&handle, host_interface).await)?
        .ok_or_else(|| Error::Absent(format!("interface {host_interface} of the host")))?;
    let alias = format!("kaista {kind} on {host_interface} {}", lower.header.index);
    if alias_of(namespace, name)?.as_ref() != Some(&alias) {
        remove(namespace, name)?;
        let message = message(lower.header.index);
        host.netlink(async |handle: Handle| {
            let made = handle.link().add(message).execute().await;
            made.map_err(|e| failed(format!("making {kind} {name} on {host_interface}"), e))
        })?;
        set_alias(namespace, name, &alias)?;
    }
    up(namespace, name)
}

/// An error where this is the host, and it has an interface of this name.
pub(super) fn refuse_taken(namespace: &Namespace, name: &str) -> Result<()> {
    if namespace.is_host() && namespace.netlink(async |handle: Handle| find(&handle, name).await)?.is_some() {
        return Err(Error::Taken(name.to_owned()));
    }
    Ok(())
}

/// Brings an interface up.
pub fn up(namespace: &Namespace, name: &str) -> Result<()> {
    change(namespace, name, "bringing up", |builder| builder.up())
}

/// Removes an interface; nothing if there is none.
pub fn remove(namespace: &Namespace, name: &str) -> Result<()> {
    namespace.netlink(async |handle: Handle| {
        let Some(link) = find(&handle, name).await? else { return Ok(()) };
        let removed = handle.link().del(link.header.index).execute().await;
        removed.map_err(|e| failed(format!("removing interface {name}"), e))
    })
}

/// Names of the interfaces, loopback included.
pub fn interfaces(namespace: &Namespace) -> Result<Vec<String>> {
    namespace.netlink(async |handle: Handle| {
        let links: Vec<LinkMessage> =
            handle.link().get().execute().try_collect().await.map_err(|e| failed("listing interfaces".into(), e))?;
        Ok(links.iter().filter_map(name_of).collect())
    })
}

/// Changes what `with` sets of an existing interface.
pub(super) fn change(
    namespace: &Namespace,
    name: &str,
    verb: &str,
    with: impl FnOnce(LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec> + Send,
) -> Result<()> {
    namespace.netlink(async |handle: Handle| {
        let index = index(&handle, name).await?;
        let message = with(LinkUnspec::new_with_index(index)).build();
        let changed = handle.link().change(message).execute().await;
        changed.map_err(|e| failed(format!("{verb} interface {name}"), e))
    })
}

/// The interface's index; an error if there is no such interface.
pub(super) async fn index(handle: &Handle, name: &str) -> Result<u32> {
    let link = find(handle, name).await?;
    link.map(|link| link.header.index).ok_or_else(|| Error::Absent(format!("interface {name}")))
}

pub(super) fn failed(what: String, source: rtnetlink::Error) -> Error {
    Error::Netlink { what, source }
}

/// The interface of this name. All are listed, since asking for an absent one is an error like any other.
async fn find(handle: &Handle, name: &str) -> Result<Option<LinkMessage>> {
    let mut links = Box::pin(handle.link().get().execute());
    while let Some(link) = links.try_next().await.map_err(|e| failed("listing interfaces".into(), e))? {
        if name_of(&link).as_deref() == Some(name) {
            return Ok(Some(link));
        }
    }
    Ok(None)
}

fn name_of(link: &LinkMessage) -> Option<String> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

/// The alias of a veth, macvlan or macvtap interface, if it is there and has one.
fn alias_of(namespace: &Namespace, name: &str) -> Result<Option<String>> {
    let Some(link) = namespace.netlink(async |handle: Handle| find(&handle, name).await)? else { return Ok(None) };
    let is_ours =
        |info: &LinkInfo| matches!(info, LinkInfo::Kind(InfoKind::Veth | InfoKind::MacVlan | InfoKind::MacVtap));
    let ours =
        |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::LinkInfo(infos) if infos.iter().any(is_ours));
    if !link.attributes.iter().any(ours) {
        return Ok(None);
    }
    Ok(link.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::IfAlias(alias) => Some(alias),
        _ => None,
    }))
}

fn set_alias(namespace: &Namespace, name: &str, alias: &str) -> Result<()> {
    change(namespace, name, "naming", |builder| builder.alias(alias))
}
