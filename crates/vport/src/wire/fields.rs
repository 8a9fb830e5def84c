//! The fields of messages, as they are written and read.

use std::net::IpAddr;

use super::{Malformed, Place, STATE_PART_MAX, is_name_byte};
use crate::info::{ADDRESSES_MAX, NAME_MAX, PortInfo, QUEUES_MAX, Route};
use crate::steering::{BUCKETS, Steering};

const MAGIC: u32 = u32::from_le_bytes(*b"KPRT");

/// A message that is being written.
pub(super) struct Out(pub(super) Vec<u8>);

/// Begins a message.
pub(super) fn message(kind: u16) -> Out {
    Out(Vec::with_capacity(64)).u32(MAGIC).u16(kind)
}

impl Out {
    pub(super) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(super) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u128(self, value: u128) -> Self {
        self.u64(value as u64).u64((value >> 64) as u64)
    }

    pub(super) fn text(self, text: &str) -> Self {
        let mut out = self.u16(text.len() as u16);
        out.0.extend(text.as_bytes());
        out
    }

    pub(super) fn address(mut self, address: IpAddr, prefix: u8) -> Self {
        match address {
            IpAddr::V4(v4) => {
                self = self.u8(4);
                self.0.extend(v4.octets());
            }
            IpAddr::V6(v6) => {
                self = self.u8(6);
                self.0.extend(v6.octets());
            }
        }
        self.u8(prefix)
    }

    pub(super) fn place(mut self, place: Option<&Place>) -> Self {
        let Some(Place { first_queue, queues, epoch, owners }) = place else { return self.u8(0) };
        self = self.u8(1).u16(*first_queue).u16(*queues).u64(*epoch);
        self.bytes(owners)
    }

    pub(super) fn state(self, bucket: u8, queue: u16, more: bool, state: &[u8]) -> Self {
        self.u8(bucket).u16(queue).u8(u8::from(more)).u16(state.len() as u16).bytes(state)
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(super) fn info(mut self, info: &PortInfo) -> Self {
        self = self.text(&info.name);
        self.0.extend(info.mac);
        self = self.u16(info.mtu).u16(info.queues).u8(info.steering.code());
        self = self.u16(info.addresses.len() as u16);
        self = info.addresses.iter().fold(self, |out, (address, prefix)| out.address(*address, *prefix));
        self = self.u16(info.routes.len() as u16);
        info.routes.iter().fold(self, |out, route| out.address(route.to, route.prefix).address(route.via, 0))
    }
}

/// What is left of a message that is being read.
pub(super) struct In<'a>(&'a [u8]);

/// The kind of a message, and its fields.
pub(super) fn open(datagram: &[u8]) -> Result<(u16, In<'_>), Malformed> {
    let mut fields = In(datagram);
    if fields.u32() != Ok(MAGIC) {
        return Err(Malformed::Magic);
    }
    Ok((fields.u16()?, fields))
}

impl In<'_> {
    pub(super) fn take(&mut self, count: usize) -> Result<&[u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed::Short)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_le_bytes)
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Field("flag")),
        }
    }

    pub(super) fn count(&mut self, what: &'static str, max: usize) -> Result<usize, Malformed> {
        let count = usize::from(self.u16()?);
        if count > max { Err(Malformed::Field(what)) } else { Ok(count) }
    }

    pub(super) fn text(&mut self, max: usize) -> Result<String, Malformed> {
        let len = self.count("length of a text", max)?;
        let bytes = self.take(len)?;
        str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed::Field("text"))
    }

    pub(super) fn name(&mut self, what: &'static str, max: usize) -> Result<String, Malformed> {
        let name = self.text(max)?;
        if name.is_empty() || !name.bytes().all(is_name_byte) { Err(Malformed::Field(what)) } else { Ok(name) }
    }

    pub(super) fn address(&mut self) -> Result<(IpAddr, u8), Malformed> {
        let address: IpAddr = match self.u8()? {
            4 => IpAddr::from(self.array::<4>()?),
            6 => IpAddr::from(self.array::<16>()?),
            _ => return Err(Malformed::Field("address family")),
        };
        let prefix = self.u8()?;
        if prefix > if address.is_ipv4() { 32 } else { 128 } {
            return Err(Malformed::Field("prefix length"));
        }
        Ok((address, prefix))
    }

    pub(super) fn info(&mut self) -> Result<PortInfo, Malformed> {
        let name = self.name("port name", NAME_MAX)?;
        let mac = self.array()?;
        let mtu = self.u16()?;
        let queues = self.count("number of queues", QUEUES_MAX)? as u16;
        let steering = Steering::from_code(self.u8()?).ok_or(Malformed::Field("steering"))?;
        let count = self.count("number of addresses", ADDRESSES_MAX)?;
        let addresses = (0..count).map(|_| self.address()).collect::<Result<_, _>>()?;
        let count = self.count("number of routes", ADDRESSES_MAX)?;
        let routes = (0..count).map(|_| self.route()).collect::<Result<_, _>>()?;
        Ok(PortInfo { name, mac, mtu, queues, steering, addresses, routes })
    }

    pub(super) fn place(&mut self) -> Result<Option<Place>, Malformed> {
        if !self.flag()? {
            return Ok(None);
        }
        let place = Place { first_queue: self.u16()?, queues: self.u16()?, epoch: self.u64()?, owners: self.array()? };
        let inside = place.first_queue < place.queues && usize::from(place.queues) <= QUEUES_MAX;
        let owned = place.owners.iter().all(|&owner| u16::from(owner) < place.queues);
        if inside && owned { Ok(Some(place)) } else { Err(Malformed::Field("place in a pool")) }
    }

    pub(super) fn state(&mut self) -> Result<(u8, u16, bool, Vec<u8>), Malformed> {
        let (bucket, queue, more) = (self.u8()?, self.count("queue", QUEUES_MAX - 1)? as u16, self.flag()?);
        if usize::from(bucket) >= BUCKETS {
            return Err(Malformed::Field("bucket"));
        }
        let len = self.count("length of a state", STATE_PART_MAX)?;
        Ok((bucket, queue, more, self.take(len)?.to_vec()))
    }

    pub(super) fn route(&mut self) -> Result<Route, Malformed> {
        let (to, prefix) = self.address()?;
        let (via, _) = self.address()?;
        Ok(Route { to, prefix, via })
    }

    pub(super) fn end<T>(self, message: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(message) } else { Err(Malformed::Long) }
    }
}
