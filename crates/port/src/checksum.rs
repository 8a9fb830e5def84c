//! Finishing what the kernel left to a network card: checksums, and the cutting of large TCP and UDP packets.
//!
//! Frames from an `AF_PACKET` socket come with a `virtio_net_hdr` (virtio 1.1, 5.1.6) that says what is missing.

/// Bytes of the header.
pub(crate) const VNET_HEADER: usize = 10;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// A flag beside the type: congestion was experienced on the way. Every segment keeps the mark.
const GSO_ECN: u8 = 0x80;

/// What is missing from a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfinished {
    flags: u8,
    gso: u8,
    gso_size: usize,
    csum_start: usize,
    csum_offset: usize,
}

impl Unfinished {
    /// Parses the header (in host byte order, which is little-endian here).
    pub(crate) fn parse(header: [u8; VNET_HEADER]) -> Self {
        let word = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        Self { flags: header[0], gso: header[1], gso_size: word(4), csum_start: word(6), csum_offset: word(8) }
    }

    /// The same of a frame whose upper layers begin so many bytes later.
    pub(crate) fn moved(self, bytes: usize) -> Self {
        Self { csum_start: self.csum_start + bytes, ..self }
    }

    /// Whether the frame is complete as it is.
    pub(crate) fn is_nothing(self) -> bool {
        self.flags & NEEDS_CSUM == 0 && self.gso == GSO_NONE
    }

    /// Whether the frame is several.
    pub(crate) fn is_large(self) -> bool {
        self.gso != GSO_NONE
    }

    /// Completes the checksum that was left out. False where the header does not fit the frame.
    #[must_use]
    pub(crate) fn complete(self, frame: &mut [u8]) -> bool {
        if self.flags & NEEDS_CSUM == 0 {
            return true;
        }
        let at = self.csum_start + self.csum_offset;
        if at + 2 > frame.len() {
            return false;
        }
        // The field holds the sum of the pseudo header, which makes it part of what is summed.
        let sum = fold(sum(&frame[self.csum_start..]));
        // A UDP checksum of zero would mean "none".
        let value = if sum == 0xffff && self.csum_offset == UDP_CHECKSUM { 0xffff } else { !sum };
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
        true
    }

    /// Cuts a large frame into those that a network card would have sent. None where it is not what the header says.
    pub(crate) fn cut(self, frame: &[u8]) -> Option<Vec<Vec<u8>>> {
        let layers = Layers::of(frame)?;
        let tcp = match self.gso & !GSO_ECN {
            GSO_TCPV4 | GSO_TCPV6 if layers.protocol == TCP => true,
            GSO_UDP_L4 if layers.protocol == UDP => false,
            _ => return None,
        };
        let header_len = if tcp { usize::from(*frame.get(layers.upper + 12)? >> 4) * 4 } else { 8 };
        let (headers, payload) = frame.split_at_checked(layers.upper + header_len)?;
        if self.gso_size == 0 || header_len < 8 || payload.is_empty() || (tcp && header_len < 20) {
            return None;
        }
        let last = (payload.len() - 1) / self.gso_size;
        let cut = payload.chunks(self.gso_size).enumerate();
        Some(cut.map(|(n, part)| layers.segment(headers, part, n, n * self.gso_size, n == last, tcp)).collect())
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;

/// Where the headers of a frame begin.
struct Layers {
    ip: usize,
    upper: usize,
    protocol: u8,
    v4: bool,
}

impl Layers {
    fn of(frame: &[u8]) -> Option<Self> {
        let ip = match frame.get(12..14)? {
            [0x81, 0x00] | [0x88, 0xa8] => 18,
            _ => 14,
        };
        match *frame.get(ip - 2..ip)? {
            [0x08, 0x00] => {
                let header = frame.get(ip..ip + 20)?;
                let len = usize::from(header[0] & 15) * 4;
                (len >= 20).then_some(Self { ip, upper: ip + len, protocol: header[9], v4: true })
            }
            [0x86, 0xdd] => {
                let header = frame.get(ip..ip + 40)?;
                Some(Self { ip, upper: ip + 40, protocol: header[6], v4: false })
            }
            _ => None,
        }
    }

    fn segment(&self, headers: &[u8], part: &[u8], n: usize, offset: usize, last: bool, tcp: bool) -> Vec<u8> {
        const FIN: u8 = 1;
        const PSH: u8 = 8;
        const CWR: u8 = 0x80;
        let mut frame = [headers, part].concat();
        let len = (frame.len() - self.ip) as u16;
        if self.v4 {
            let id = u16::from_be_bytes([frame[self.ip + 4], frame[self.ip + 5]]).wrapping_add(n as u16);
            frame[self.ip + 2..self.ip + 4].copy_from_slice(&len.to_be_bytes());
            frame[self.ip + 4..self.ip + 6].copy_from_slice(&id.to_be_bytes());
            frame[self.ip + 10..self.ip + 12].fill(0);
            let sum = !fold(sum(&frame[self.ip..self.upper]));
            frame[self.ip + 10..self.ip + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            frame[self.ip + 4..self.ip + 6].copy_from_slice(&(len - 40).to_be_bytes());
        }
        let upper = &mut frame[self.upper..];
        if tcp {
            let sequence = u32::from_be_bytes([upper[4], upper[5], upper[6], upper[7]]).wrapping_add(offset as u32);
            upper[4..8].copy_from_slice(&sequence.to_be_bytes());
            if !last {
                upper[13] &= !(FIN | PSH);
            }
            if n > 0 {
                upper[13] &= !CWR;
            }
        } else {
            let len = upper.len() as u16;
            upper[4..6].copy_from_slice(&len.to_be_bytes());
        }
        self.checksum(&mut frame, if tcp { TCP_CHECKSUM } else { UDP_CHECKSUM });
        frame
    }

    /// Computes the checksum of the upper layer from nothing.
    fn checksum(&self, frame: &mut [u8], field: usize) {
        let at = self.upper + field;
        frame[at..at + 2].fill(0);
        let addresses = if self.v4 { self.ip + 12..self.ip + 20 } else { self.ip + 8..self.ip + 40 };
        let upper = &frame[self.upper..];
        let pseudo = sum(&frame[addresses]) + u64::from(self.protocol) + upper.len() as u64;
        let value = match !fold(pseudo + sum(upper)) {
            0 if field == UDP_CHECKSUM => 0xffff,
            value => value,
        };
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let (pairs, odd) = bytes.as_chunks::<2>();
    let last = odd.first().map_or(0, |byte| u64::from(*byte) << 8);
    pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum::<u64>() + last
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp_frame(v4: bool, payload: usize) -> Vec<u8> {
        let mut frame = vec![0; 12];
        if v4 {
            frame.extend([8, 0, 0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, TCP, 64]);
            frame.extend([1; 16]);
            frame.extend([2; 16]);
        }
        // Sequence number close to its end; flags CWR, ACK, PSH, FIN; header of 24 bytes.
        frame.extend([0, 80, 1, 2, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 1, 0x60, 0x99, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1]);
        frame.extend((0..payload).map(|n| n as u8));
        frame
    }

    fn is_sound(frame: &[u8]) -> bool {
        let layers = Layers::of(frame).unwrap();
        let addresses = if layers.v4 { layers.ip + 12..layers.ip + 20 } else { layers.ip + 8..layers.ip + 40 };
        let upper = &frame[layers.upper..];
        let whole = sum(&frame[addresses]) + u64::from(layers.protocol) + upper.len() as u64 + sum(upper);
        fold(whole) == 0xffff && (!layers.v4 || fold(sum(&frame[layers.ip..layers.upper])) == 0xffff)
    }

    #[test]
    fn a_large_tcp_packet_becomes_segments_with_sound_checksums() {
        for (v4, gso) in [(true, GSO_TCPV4), (true, GSO_TCPV4 | GSO_ECN), (false, GSO_TCPV6)] {
            let frame = tcp_frame(v4, 3_500);
            let header = Unfinished { flags: NEEDS_CSUM, gso, gso_size: 1_000, csum_start: 0, csum_offset: 0 };
            let segments = header.cut(&frame).unwrap();
            assert_eq!(segments.len(), 4);
            let headers = frame.len() - 3_500;
            let payload: Vec<u8> = segments.iter().flat_map(|segment| segment[headers..].to_vec()).collect();
            assert_eq!(payload, frame[headers..]);
            let upper = headers - 24;
            let sequence = |segment: &Vec<u8>| u32::from_be_bytes(segment[upper + 4..upper + 8].try_into().unwrap());
            let first = 0xffff_fff0_u32;
            for (n, segment) in segments.iter().enumerate() {
                assert!(is_sound(segment));
                assert_eq!(sequence(segment), first.wrapping_add(1_000 * n as u32));
            }
            let flags: Vec<u8> = segments.iter().map(|segment| segment[upper + 13]).collect();
            assert_eq!(flags, [0x90, 0x10, 0x10, 0x19]);
        }
    }

    #[test]
    fn a_missing_checksum_is_completed() {
        let mut frame = tcp_frame(true, 99);
        let at = 34 + TCP_CHECKSUM;
        frame[16..18].copy_from_slice(&(20_u16 + 24 + 99).to_be_bytes());
        let ip = !fold(sum(&frame[14..34]));
        frame[24..26].copy_from_slice(&ip.to_be_bytes());
        let pseudo = fold(sum(&frame[26..34]) + u64::from(TCP) + 24 + 99);
        frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        let header = Unfinished::parse([NEEDS_CSUM, 0, 0, 0, 0, 0, 34, 0, TCP_CHECKSUM as u8, 0]);
        assert!(header.complete(&mut frame));
        assert!(is_sound(&frame));
    }

    #[test]
    fn so_is_one_behind_a_tag_of_which_the_header_does_not_know() {
        let tag = [0x81, 0x00, 0, 5];
        let (plain, at) = (tcp_frame(true, 99), 34 + TCP_CHECKSUM);
        let mut tagged = plain.clone();
        tagged.splice(12..12, tag);
        let header = Unfinished::parse([NEEDS_CSUM, 0, 0, 0, 0, 0, 34, 0, TCP_CHECKSUM as u8, 0]);
        let mut finished = plain.clone();
        assert!(header.complete(&mut finished) && header.moved(tag.len()).complete(&mut tagged));
        assert_eq!(tagged[tag.len()..][at..at + 2], finished[at..at + 2]);
        assert_ne!(finished, plain);
    }

    #[test]
    fn headers_that_do_not_fit_their_frame_are_refused() {
        let header = Unfinished::parse([NEEDS_CSUM, GSO_TCPV4, 0, 0, 1, 0, 255, 255, 255, 255]);
        assert!(!header.complete(&mut [0; 60]));
        let frame = tcp_frame(true, 100);
        for len in 0..frame.len() - 100 {
            assert_eq!(header.cut(&frame[..len]), None);
        }
        let wrong_protocol = Unfinished { gso: GSO_UDP_L4, ..header };
        assert_eq!(wrong_protocol.cut(&frame), None);
    }
}
