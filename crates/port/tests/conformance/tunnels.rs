//! Frames in tunnels of every kind.

/// What tunnels look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// No extension headers, IPv4 inside and out.
    Plain,
    /// A PDU session container, as on N3.
    Qos,
    /// Sequence number and a PDU session container behind another extension header, as another UPF may send on N9.
    N9,
    /// A PDU session container, and IPv6 inside.
    V6Inside,
    /// The same with IPv6 outside.
    V6Outside,
}

pub const KINDS: [Kind; 5] = [Kind::Plain, Kind::Qos, Kind::N9, Kind::V6Inside, Kind::V6Outside];

/// A frame in tunnel `teid`, with a number at its end. Lengths and checksums, which nobody looks at here, are left out.
pub fn frame(kind: Kind, teid: u32, number: u32) -> Vec<u8> {
    const CONTAINER: [u8; 4] = [1, 0x10, 9, 0];
    let (flags, extensions) = match kind {
        Kind::Plain => (0x30, vec![]),
        Kind::Qos | Kind::V6Inside | Kind::V6Outside => (0x34, [&[0, 0, 0, 0x85][..], &CONTAINER].concat()),
        // A PDCP PDU number first.
        Kind::N9 => (0x36, [&[0, 7, 0, 0xc0][..], &[1, 0, 5, 0x85], &CONTAINER].concat()),
    };
    let inner = match kind {
        Kind::V6Inside | Kind::V6Outside => [&[0x60, 0, 0, 0, 0, 0, 17, 64][..], &[0xfd; 32]].concat(),
        _ => [&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0][..], &[10, 60, 0, 1, 10, 6, 0, 2]].concat(),
    };
    let outer = match kind {
        Kind::V6Outside => [&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 17, 64][..], &[0xfc; 32]].concat(),
        _ => [&[8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0][..], &[10, 3, 0, 2, 10, 3, 0, 1]].concat(),
    };
    let udp = [0x08, 0x68, 0x08, 0x68, 0, 0, 0, 0];
    let gtpu = [&[flags, 0xff, 0, 0][..], &teid.to_be_bytes(), &extensions].concat();
    [&[2; 12][..], &outer, &udp, &gtpu, &inner, &[0; 16], &number.to_be_bytes()].concat()
}

/// TEIDs as if by chance, the same at every run.
pub fn teids(count: usize) -> impl Iterator<Item = u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    })
}
