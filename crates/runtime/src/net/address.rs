//! Addresses and routes of an interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
};
use rtnetlink::{Handle, RouteMessageBuilder};

use super::link::{change, failed, index};
use super::{Interface, Namespace, Prefix, Route};
use crate::{Error, Result};

/// Makes an existing interface what `wanted` says, and brings it up.
pub fn configure(namespace: &Namespace, wanted: &Interface) -> Result<()> {
    change(namespace, &wanted.name, "configuring", |mut builder| {
        if let Some(mac) = wanted.mac {
            builder = builder.address(mac.to_vec());
        }
        if let Some(mtu) = wanted.mtu {
            builder = builder.mtu(mtu);
        }
        builder.up()
    })?;
    namespace.netlink(async |handle: Handle| {
        let index = index(&handle, &wanted.name).await?;
        set_addresses(&handle, index, wanted).await?;
        set_routes(&handle, index, wanted).await
    })
}

async fn set_addresses(handle: &Handle, index: u32, wanted: &Interface) -> Result<()> {
    let name = &wanted.name;
    let request = handle.address().get().set_link_index_filter(index).execute();
    let present: Vec<AddressMessage> =
        request.try_collect().await.map_err(|e| failed(format!("listing addresses of {name}"), e))?;
    for message in &present {
        let Some(prefix) = prefix_of(message) else { continue };
        if !is_link_local(prefix.0) && !wanted.addresses.contains(&prefix) {
            let removed = handle.address().del(message.clone()).execute().await;
            removed.map_err(|e| failed(format!("removing {} from {name}", prefix.0), e))?;
        }
    }
    for &(address, length) in &wanted.addresses {
        if present.iter().any(|message| prefix_of(message) == Some((address, length))) {
            continue;
        }
        let mut request = handle.address().add(index, address, length);
        // The descriptor has seen to it that nobody else has the address; it is usable at once.
        request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        request.execute().await.map_err(|e| failed(format!("giving {address}/{length} to {name}"), e))?;
    }
    Ok(())
}

async fn set_routes(handle: &Handle, index: u32, wanted: &Interface) -> Result<()> {
    let name = &wanted.name;
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut query = RouteMessage::default();
        query.header.address_family = family;
        let present: Vec<RouteMessage> = match handle.route().get(query).execute().try_collect().await {
            Ok(routes) => routes,
            // A kernel without IPv6.
            Err(_) if family == AddressFamily::Inet6 => Vec::new(),
            Err(error) => return Err(failed(format!("listing routes by {name}"), error)),
        };
        for message in present {
            let Some(route) = static_route_by(&message, index) else { continue };
            let is_it = |wanted: &Route| {
                network(wanted.to) == route.to.0 && wanted.to.1 == route.to.1 && wanted.via == route.via
            };
            if !wanted.routes.iter().any(is_it) {
                let removed = handle.route().del(message).execute().await;
                removed.map_err(|e| failed(format!("removing the route to {} by {name}", route.to.0), e))?;
            }
        }
    }
    for route in &wanted.routes {
        let added = handle.route().add(route_message(route, index)?).replace().execute().await;
        added.map_err(|e| failed(format!("adding the route to {}/{} by {name}", route.to.0, route.to.1), e))?;
    }
    Ok(())
}

fn route_message(route: &Route, index: u32) -> Result<RouteMessage> {
    let (to, length) = (network(route.to), route.to.1);
    let message = match (to, route.via) {
        (IpAddr::V4(to), None) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to, length)
            .scope(RouteScope::Link)
            .output_interface(index)
            .build(),
        (IpAddr::V4(to), Some(IpAddr::V4(via))) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to, length)
            .gateway(via)
            .output_interface(index)
            .build(),
        (IpAddr::V4(to), Some(IpAddr::V6(via))) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to, length)
            .via(via)
            .output_interface(index)
            .build(),
        (IpAddr::V6(to), None) => {
            RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(to, length).output_interface(index).build()
        }
        (IpAddr::V6(to), Some(IpAddr::V6(via))) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(to, length)
            .gateway(via)
            .output_interface(index)
            .build(),
        (IpAddr::V6(to), Some(IpAddr::V4(via))) => {
            return Err(Error::Spec(format!("the route to {to}/{length} cannot have the IPv4 next hop {via}")));
        }
    };
    Ok(message)
}

/// The route, if it is one that `configure` makes and goes by this interface.
fn static_route_by(message: &RouteMessage, index: u32) -> Option<Route> {
    let by_index =
        message.attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::Oif(i) if *i == index));
    if !by_index
        || message.header.protocol != RouteProtocol::Static
        || message.header.table != RouteHeader::RT_TABLE_MAIN
    {
        return None;
    }
    let unspecified = match message.header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let mut route = Route { to: (unspecified, message.header.destination_prefix_length), via: None };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => route.to.0 = ip(address)?,
            RouteAttribute::Gateway(address) => route.via = ip(address),
            _ => {}
        }
    }
    Some(route)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

fn prefix_of(message: &AddressMessage) -> Option<Prefix> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    Some((local.or(address)?, message.header.prefix_len))
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// The network's own address: host bits zero.
fn network((address, length): Prefix) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            Ipv4Addr::from(u32::from(address) & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            Ipv6Addr::from(u128::from(address) & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_of_a_destination_are_dropped() {
        let prefix = |text: &str, length| (text.parse::<IpAddr>().expect("an address"), length);
        assert_eq!(network(prefix("10.1.2.3", 24)).to_string(), "10.1.2.0");
        assert_eq!(network(prefix("10.1.2.3", 32)).to_string(), "10.1.2.3");
        assert_eq!(network(prefix("10.1.2.3", 0)).to_string(), "0.0.0.0");
        assert_eq!(network(prefix("2001:db8::1", 64)).to_string(), "2001:db8::");
        assert_eq!(network(prefix("2001:db8::1", 0)).to_string(), "::");
    }
}
