"""Packet tests whose every frame is scapy's, those that come and those that are to be sent: they share nothing with the UPF's own
encoders, nor with the notation of crates/upf/tests/packets. Prints them in that notation, frames as octets, `=== NAME` before each.
"""

import itertools
import logging

logging.getLogger("scapy").setLevel(logging.ERROR)

from scapy.contrib import gtp
from scapy.layers.inet import ICMP, IP, TCP, UDP, fragment
from scapy.layers.inet6 import (
    ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr, ICMPv6NDOptSrcLLAddr,
    ICMPv6PacketTooBig, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, fragment6,
)
from scapy.layers.ipsec import AH, ESP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

OURS = {"n3": "02:00:00:00:03:01", "n6": "02:00:00:00:06:01"}
THEIRS = {"n3": "02:00:00:00:03:02", "n6": "02:00:00:00:06:02"}
UPF = {4: "10.3.0.1", 6: "2001:db8:3::1"}
GNB = {4: "10.3.0.2", 6: "2001:db8:3::2"}
UE = {4: "10.45.0.1", 6: "2001:db8:45:1::7"}
DN = {4: "192.0.2.1", 6: "2a00::1"}
# Whose users' packets go over whose tunnels: all four combinations.
COMBINATIONS = list(itertools.product((4, 6), repeat=2))
VERSIONS = (4, 6)


# Frames.


def ip(version, source, destination, **more):
    """A header; what the UPF sends has DF, and no identification."""
    if version == 6:
        return IPv6(src=source, dst=destination, hlim=64, **more)
    return IP(src=source, dst=destination, ttl=64, **{"id": 0, "flags": "DF", **more})


def up(version, text="up", port=53, ue=None, **more):
    return ip(version, ue or UE[version], DN[version], **more) / UDP(sport=1000, dport=port) / Raw(text)


def down(version, text="down", port=53, ue=None, **more):
    return ip(version, DN[version], ue or UE[version], **more) / UDP(sport=port, dport=1000) / Raw(text)


def uplink(version, teid, packet, qfi=None, header=None, sport=2152, **more):
    """A gNB's G-PDU."""
    container = [] if qfi is None else [gtp.GTPPDUSessionContainer(type=1, QFI=qfi)]
    return ip(version, GNB[version], UPF[version], **more) / UDP(sport=sport, dport=2152) / gpdu(teid, container, packet, header)


def gpdu(teid, container, packet, header=None):
    header = header or gtp.GTP_U_Header(teid=teid, gtp_type=255)
    if container:
        header.E, header.next_ex = 1, 0x85
        header = header / container[0]
    return header / packet if packet else header


def tunnelled(version, teid, packet, container=None, peer=None, **more):
    """What the UPF puts into a tunnel: without checksum over IPv4."""
    checksum = {"chksum": 0} if version == 4 else {}
    outer = ip(version, UPF[version], peer or GNB[version], **more) / UDP(sport=2152, dport=2152, **checksum)
    return outer / gpdu(teid, [container] if container else [], packet)


def dl(qfi, **more):
    return gtp.GTPPDUSessionContainer(type=0, QFI=qfi, **more)


def ul(qfi):
    return gtp.GTPPDUSessionContainer(type=1, QFI=qfi)


def said(version, message, dport=2152):
    """A message of the UPF's own."""
    return ip(version, UPF[version], GNB[version]) / UDP(sport=2152, dport=dport) / message


def heard(version, message, sport=2152):
    return ip(version, GNB[version], UPF[version]) / UDP(sport=sport, dport=2152) / message


def control(kind, body=b"", teid=0, **more):
    return gtp.GTP_U_Header(gtp_type=kind, teid=teid, **more) / Raw(body) if body else gtp.GTP_U_Header(gtp_type=kind, teid=teid, **more)


def error_indication(version, teid, address):
    of = {"ipv4_address": address} if version == 4 else {"ipv6_address": address}
    told = [gtp.IE_TEIDI(TEIDI=teid), gtp.IE_GSNAddress(length=4 if version == 4 else 16, **of)]
    return gtp.GTP_U_Header(gtp_type=26, teid=0, S=1, seq=0) / gtp.GTPErrorIndication(IE_list=told)


# Tests.


def line(*words):
    print(*words)


def test(name):
    line("===", name)


def rules(text):
    print(text)


def comes(port, packet, source=None, destination=None):
    frame = Ether(src=source or THEIRS[port], dst=destination or OURS[port]) / packet
    line(port, "x:" + bytes(frame).hex())


def goes(port, packet, destination=None):
    frame = Ether(src=OURS[port], dst=destination or THEIRS[port]) / packet
    line("->", port, "x:" + bytes(frame).hex())


def dropped(reason):
    line("->", "drop." + reason)


SESSION = """
session 1
  pdr 1 from access teid 0x11 ue 10.45.0.1 ue6 2001:db8:45:1::/64 far 1
  pdr 2 from n6 ue 10.45.0.1 ue6 2001:db8:45:1::/64 far 2 qer 1
  far 1 to n6
  far 2 to access tunnel 0x22 peer PEER
  qer 1 qfi 9
"""


def session(version):
    rules(SESSION.replace("PEER", GNB[version]))


def both_ways():
    for inner, outer in COMBINATIONS:
        test(f"users' IPv{inner} in tunnels over IPv{outer}, both ways")
        session(outer)
        comes("n3", uplink(outer, 0x11, up(inner), qfi=9))
        goes("n6", up(inner))
        comes("n6", down(inner))
        goes("n3", tunnelled(outer, 0x22, down(inner), dl(9)))
        test(f"impostors' IPv{inner} in tunnels over IPv{outer}")
        session(outer)
        comes("n3", uplink(outer, 0x11, up(inner, ue={4: "10.45.0.9", 6: "2001:db8:45:2::7"}[inner])))
        dropped("spoofed_source")
        comes("n6", down(inner, ue={4: "10.45.0.9", 6: "2001:db8:45:2::7"}[inner]))
        dropped("unknown_ue_address")


def header_forms():
    for version in VERSIONS:
        test(f"forms of the GTP-U header over IPv{version}")
        session(version)
        for flags in ({"S": 1, "seq": 7}, {"PN": 1, "npdu": 7}, {"S": 1, "PN": 1, "seq": 7, "npdu": 7}, {"E": 1}, {"S": 1, "E": 1, "seq": 65535}):
            packet = up(version, "x" * len(flags))
            comes("n3", uplink(version, 0x11, packet, header=gtp.GTP_U_Header(teid=0x11, gtp_type=255, **flags), sport=40000))
            goes("n6", packet)
        delays = gtp.GTPPDUSessionContainer(type=1, QMP=1, QFI=5, dlSendTimeRpt=1, dlRecvTime=2, ulSendTime=3)
        comes("n3", heard(version, gpdu(0x11, [delays], up(version, "delays"))))
        goes("n6", up(version, "delays"))
        comes("n3", heard(version, gpdu(0x11, [gtp.GTPPDUSessionContainer(type=1, QFI=9, NextExtHdr=0x20)], Raw(b"\x01\x07\0\0" + bytes(up(version, "class"))))))
        goes("n6", up(version, "class"))
        # Version 2, GTP', a length that lies, extension headers of no length and without end.
        for header, reason in (
            ({"version": 2}, "gtpu_version"),
            ({"PT": 0}, "gtpu_version"),
            ({"length": 500}, "gtpu_malformed"),
        ):
            comes("n3", uplink(version, 0x11, up(version), header=gtp.GTP_U_Header(teid=0x11, gtp_type=255, **header)))
            dropped(reason)
        for chain in (b"\0\0\0\0", b"\xff\0\0\0", b"\x01\0\0\x20" * 5):
            header = gtp.GTP_U_Header(teid=0x11, gtp_type=255, E=1, next_ex=0x20)
            comes("n3", heard(version, header / Raw(chain)))
            dropped("gtpu_malformed")
        comes("n3", heard(version, gtp.GTP_U_Header(teid=0x11, gtp_type=255, E=1, next_ex=0xC0) / Raw(b"\x01\0\0\0" + bytes(up(version)))))
        dropped("gtpu_extension")
        goes("n3", said(version, control(31, b"\x8d\x01\x85", S=1, seq=0)))


def gtpu_messages():
    for version in VERSIONS:
        test(f"GTP-U messages over IPv{version}")
        session(version)
        comes("n3", heard(version, control(1, S=1, seq=0x1234), sport=4000))
        goes("n3", said(version, control(2, b"\x0e\0", S=1, seq=0x1234), dport=4000))
        comes("n3", uplink(version, 0x99, up(version)))
        dropped("unknown_teid")
        goes("n3", said(version, error_indication(version, 0x99, UPF[version])))
        comes("n3", heard(version, error_indication(version, 0x22, GNB[version])))
        line("unknown", GNB[version], "0x22")
        comes("n3", heard(version, control(2, b"\x0e\x05", S=1, seq=3)))
        line("alive", GNB[version], 3)
        comes("n3", heard(version, control(254, teid=0x11)))
        dropped("end_marker")
        test(f"nobody is told of a tunnel over IPv{version} soon after a start")
        line("quiet 60")
        comes("n3", uplink(version, 0x99, up(version)))
        dropped("unknown_teid")
        test(f"a deleted session's tunnel over IPv{version}")
        session(version)
        line("then")
        line("removed 1")
        comes("n3", uplink(version, 0x11, up(version)))
        dropped("unknown_teid")
        goes("n3", said(version, error_indication(version, 0x11, UPF[version])))


def between_tunnels():
    for inner, towards_ran in COMBINATIONS:
        beyond = 10 - towards_ran
        test(f"N9: users' IPv{inner}, from IPv{towards_ran} to IPv{beyond} and back")
        rules(f"""
session 1
  pdr 1 from access teid 0x11 ue 10.45.0.1 ue6 2001:db8:45:1::/64 sdf any,{DN[inner]}/{32 if inner == 4 else 128},any far 1
  pdr 2 from access teid 0x11 ue 10.45.0.1 ue6 2001:db8:45:1::/64 far 3
  pdr 3 from core teid 0x12 ue 10.45.0.1 ue6 2001:db8:45:1::/64 remove any far 2
  far 1 to core tunnel 0x91 peer {GNB[beyond]} tos 0xb8
  far 2 to access tunnel 0x71 peer {GNB[towards_ran]}
  far 3 to n6
""")
        marking = {"tos": 0xB8} if beyond == 4 else {"tc": 0xB8}
        comes("n3", uplink(towards_ran, 0x11, up(inner), qfi=5))
        goes("n3", tunnelled(beyond, 0x91, up(inner), ul(5), **marking))
        elsewhere = ip(inner, UE[inner], {4: "192.0.2.9", 6: "2a00::9"}[inner]) / UDP(sport=1, dport=2) / Raw("here")
        comes("n3", uplink(towards_ran, 0x11, elsewhere))
        goes("n6", elsewhere)
        comes("n3", heard(beyond, gpdu(0x12, [dl(7, RQI=1)], down(inner))))
        goes("n3", tunnelled(towards_ran, 0x71, down(inner), dl(7, RQI=1)))
        # With a PDCP PDU number, and without the source's UDP port, which is for the next node alone.
        numbered = Raw(b"\x01\x12\x34\0" + bytes(down(inner)))
        comes("n3", heard(beyond, gpdu(0x12, [dl(7, NextExtHdr=0xC0)], numbered)))
        goes("n3", tunnelled(towards_ran, 0x71, numbered, dl(7, NextExtHdr=0xC0)))
        comes("n3", heard(beyond, gpdu(0x12, [dl(7, NextExtHdr=0x40)], Raw(b"\x01\x08\x68\0" + bytes(down(inner))))))
        goes("n3", tunnelled(towards_ran, 0x71, down(inner), dl(7)))
        comes("n3", heard(beyond, control(254, teid=0x12)))
        goes("n3", end_marker(towards_ran, 0x71))
    test("a branching point")
    rules(f"""
session 1
  pdr 1 from access teid 0x11 ue6 2001:db8:a:1::/64 far 1
  pdr 2 from access teid 0x11 ue6 2001:db8:b:1::/64 far 2
  far 1 to core tunnel 0x91 peer {GNB[6]}
  far 2 to n6
""")
    anchored, local = (up(6, ue=f"2001:db8:{prefix}:1::7") for prefix in "ab")
    comes("n3", uplink(4, 0x11, anchored, qfi=1))
    goes("n3", tunnelled(6, 0x91, anchored, ul(1)))
    comes("n3", uplink(4, 0x11, local, qfi=1))
    goes("n6", local)


def end_marker(version, teid):
    checksum = {"chksum": 0} if version == 4 else {}
    return ip(version, UPF[version], GNB[version]) / UDP(sport=2152, dport=2152, **checksum) / control(254, teid=teid)


def paging():
    for inner, outer in COMBINATIONS:
        test(f"users' IPv{inner} waits, and leaves over IPv{outer}; the tunnel that is left gets its end marker")
        first = f"""
session 1
  pdr 1 from n6 ue 10.45.0.1 ue6 2001:db8:45:1::/64 far 1 urr 1
  far 1 buffer 2 notify
  urr 1"""
        forwards = first.replace("buffer 2 notify", f"to access tunnel 0x22 peer {GNB[outer]}")
        line("in-order")
        rules(first)
        packets = [down(inner, text) for text in ("one", "two", "three", "newer")]
        for packet in packets[:3]:
            comes("n6", packet)
        line("told 1 1")
        dropped("buffer_full")
        line("then")
        rules(forwards)
        comes("n6", packets[3])
        sent = [packets[0], packets[1], packets[3]]
        for packet in sent:
            goes("n3", tunnelled(outer, 0x22, packet))
        line("then")
        rules(forwards.replace("0x22", "0x23").replace("urr 1", "urr 2").replace("session 1", f"session 1 leaves 0x22 at {GNB[outer]}"))
        goes("n3", end_marker(outer, 0x22))
        last = down(inner, "last")
        comes("n6", last)
        goes("n3", tunnelled(outer, 0x23, last))
        line("used 1 0 0", sum(map(len, sent)), 3)
        line("used 2 0 0", len(last), 1)


def fragments():
    for inner, outer in COMBINATIONS:
        test(f"users' IPv{inner} in tunnels over IPv{outer} in fragments")
        session(outer)
        packet = up(inner, "f" * 1000)
        whole = uplink(outer, 0x11, packet, qfi=1)
        if outer == 4:
            whole.flags, whole.id = 0, 77
            parts = fragment(whole, fragsize=400)
        else:
            whole = whole[IPv6]
            upper = whole.payload
            parts = fragment6(IPv6(src=whole.src, dst=whole.dst, hlim=64) / IPv6ExtHdrFragment(id=77) / upper, 500)
        assert len(parts) >= 3
        for part in reversed(parts):
            comes("n3", part)
        goes("n6", packet)
        # Those of users pass as they are.
        if inner == 4:
            pieces = fragment(up(4, "g" * 900, flags=0, id=5), fragsize=400)
        else:
            own = up(6, "g" * 900)
            pieces = fragment6(IPv6(src=own.src, dst=own.dst, hlim=64) / IPv6ExtHdrFragment(id=5) / own.payload, 400)
        for piece in pieces:
            comes("n3", uplink(outer, 0x11, piece))
            goes("n6", piece)
    test("fragments that overlap")
    session(4)
    whole = uplink(4, 0x11, up(4, "o" * 64))
    whole.flags, whole.id = 0, 78
    octets = bytes(whole)[20:]
    for at, piece, more in ((0, octets[:48], 1), (40, octets[40:80], 1), (80, octets[80:], 0)):
        comes("n3", IP(src=GNB[4], dst=UPF[4], id=78, flags=more, frag=at // 8, proto=17) / Raw(piece))
        dropped("fragment_overlap")


def too_long():
    for version in VERSIONS:
        test(f"users' IPv{version} too long")
        line("mtu 1044 1200")
        session(4)
        long, longer = down(version, "l" * 1000), up(version, "u" * 1300)
        comes("n6", long)
        dropped("too_long")
        comes("n3", uplink(4, 0x11, longer))
        dropped("too_long")
        n6 = {4: "10.6.0.1", 6: "2001:db8:6::1"}
        if version == 4:
            quoted = 548
            tell = lambda mtu, packet: ip(4, n6[4], packet.src) / ICMP(type=3, code=4, nexthopmtu=mtu) / Raw(bytes(packet)[:quoted])
            goes("n6", tell(1000, long))
            goes("n3", tunnelled(4, 0x22, tell(1200, longer), dl(9)))
        else:
            tell = lambda mtu, packet, quoted: ip(6, n6[6], packet.src) / ICMPv6PacketTooBig(mtu=mtu) / Raw(bytes(packet)[:quoted])
            goes("n6", tell(1000, long, 1152))
            goes("n3", tunnelled(4, 0x22, tell(1200, longer, 932), dl(9)))
    test("users' IPv4 that may be cut")
    line("mtu 1044 1200")
    session(4)
    packet = down(4, "c" * 1500, flags=0, id=9)
    comes("n6", packet)
    for part in fragment(packet, fragsize=976):
        part = IP(bytes(part))
        part.chksum = None
        goes("n3", tunnelled(4, 0x22, part, dl(9)))


def kinds_of_rules():
    for version in VERSIONS:
        ue, dn = UE[version], DN[version]
        net = f"ue {ue}" if version == 4 else "ue6 2001:db8:45:1::/64"
        far = 32 if version == 4 else 128
        test(f"rules for users' IPv{version}")
        line("mtu 9000 9000")
        rules(f"""
session 1
  pdr 1 from n6 {net} sdf 17,{dn}/{far}@53,any far 2
  pdr 2 from n6 {net} sdf 6,any@80+443-444,{ue}/{far}@1000 far 1 qer 1
  pdr 3 from n6 {net} sdf any,any,any,0xb8/0xfc far 1 qer 2
  pdr 4 from n6 {net} sdf 50,any,any,spi:0x01020304 far 2
  pdr 5 from n6 {net} sdf {51 if version == 4 else 'any'},any,any,spi:0x0a0b0c0d far 2
  pdr 6 from n6 {net} sdf any,any,any,label:0xabcde far 2
  pdr 7 from n6 {net} sdf 17,any@54,any far 3
  pdr 8 from n6 {net} sdf 17,any@55,any far 1 qer 3
  pdr 9 from n6 {net} sdf 17,any@56,any far 1 urr 2
  pdr 10 from n6 {net} far 1 qer 4 urr 1
  pdr 11 from access teid 0x11 {net} qfi 5 far 4
  pdr 12 from access teid 0x11 {net} sdf 17,any@57,any far 4 qer 3
  pdr 13 from access teid 0x11 {net} sdf 17,any@58,any far 5
  pdr 14 from access teid 0x11 {net} far 6 qer 5 urr 1
  far 1 to access tunnel 0x22 peer {GNB[4]} tos 0x88
  far 2 drop
  far 3 drop copy 0x33@{GNB[6]}
  far 4 drop
  far 5 to core tunnel 0x44 peer {GNB[6]}
  far 6 to n6
  qer 1 qfi 1
  qer 2 qfi 2 rqi
  qer 3 dl-closed ul-closed
  qer 4 qfi 4
  qer 5 ul-mbr 8
  urr 1
  urr 2 quota 10
""")
        tcp = ip(version, dn, ue) / TCP(sport=444, dport=1000, flags="A") / Raw("web")
        traffic_class = {"tos": 0xB9} if version == 4 else {"tc": 0xB9}
        sends = lambda packet, container: goes("n3", tunnelled(4, 0x22, packet, container, tos=0x88))
        comes("n6", down(version))
        dropped("far_drop")
        comes("n6", tcp)
        sends(tcp, dl(1))
        comes("n6", down(version, "marked", port=9, **traffic_class))
        sends(down(version, "marked", port=9, **traffic_class), dl(2, RQI=1))
        for ipsec in (ESP(spi=0x01020304, seq=1, data=b"secret"), AH(nh=17, spi=0x0A0B0C0D, seq=1, icv=b"0" * 12, payloadlen=4) / Raw("12345678")):
            comes("n6", ip(version, dn, ue) / ipsec)
            dropped("far_drop")
        if version == 6:
            comes("n6", down(6, "label", port=9, fl=0xABCDE))
            dropped("far_drop")
            behind = ip(6, dn, ue) / IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt() / UDP(sport=53, dport=1000) / Raw("behind")
            comes("n6", behind)
            dropped("far_drop")
        comes("n6", down(version, "copied", port=54))
        dropped("far_drop")
        goes("n3", tunnelled(6, 0x33, down(version, "copied", port=54)))
        comes("n6", down(version, "gate", port=55))
        dropped("gate_closed")
        comes("n6", down(version, "quota", port=56))
        dropped("quota_exhausted")
        rest = down(version, "rest", port=9)
        comes("n6", rest)
        sends(rest, dl(4))
        comes("n3", uplink(6, 0x11, up(version), qfi=5))
        dropped("far_drop")
        comes("n3", uplink(6, 0x11, up(version, port=57)))
        dropped("gate_closed")
        comes("n3", uplink(6, 0x11, up(version, port=58)))
        goes("n3", tunnelled(6, 0x44, up(version, port=58)))
        # 9,600 octets may pass at once.
        burst = up(version, "b" * 4700, port=59)
        for _ in range(2):
            comes("n3", uplink(6, 0x11, burst))
            goes("n6", burst)
        comes("n3", uplink(6, 0x11, burst))
        dropped("mbr_exceeded")
        line("used 1", 2 * len(burst), 2, len(rest), 1)
        line("used 2 0 0 0 0")


def routes_and_marking():
    for version in VERSIONS:
        behind = {4: "192.168.7.9", 6: "2001:db8:77::9"}[version]
        test(f"networks of IPv{version} behind a UE, and marking towards the data network")
        rules(f"""
session 1
  pdr 1 from access teid 0x11 ue 10.45.0.1 ue6 2001:db8:45:1::/64 behind 192.168.7.0/24 behind 2001:db8:77::/48 far 1
  pdr 2 from n6 ue 10.45.0.1 ue6 2001:db8:45:1::/64 behind 192.168.7.0/24 behind 2001:db8:77::/48 far 2
  far 1 to n6 tos 0xb8/0xfc
  far 2 to access tunnel 0x22 peer {GNB[version]}
""")
        before, after = ({"tos": 1}, {"tos": 0xB9}) if version == 4 else ({"tc": 1}, {"tc": 0xB9})
        comes("n3", uplink(version, 0x11, up(version, ue=behind, **before)))
        goes("n6", up(version, ue=behind, **after))
        comes("n6", down(version, ue=behind))
        goes("n3", tunnelled(version, 0x22, down(version, ue=behind)))
        comes("n3", uplink(version, 0x11, up(version, ue={4: "192.168.8.9", 6: "2001:db8:78::9"}[version])))
        dropped("spoofed_source")
        # What would be a tunnel of its own is the user's.
        within = ip(version, UE[version], DN[version]) / UDP(sport=2152, dport=2152) / gpdu(0x11, [], up(4))
        marked = ip(version, UE[version], DN[version], **({"tos": 0xB8} if version == 4 else {"tc": 0xB8})) / within.payload
        comes("n3", uplink(version, 0x11, within))
        goes("n6", marked)


def hostile():
    for version in VERSIONS:
        test(f"broken packets over and with IPv{version}")
        session(version)
        length = lambda value: {"len": value} if version == 4 else {"plen": value}
        comes("n3", uplink(version, 0x11, up(version), **length(900)))
        dropped("ip_malformed")
        comes("n6", down(version, **length(900)))
        dropped("ip_malformed")
        comes("n3", uplink(version, 0x11, up(version, **length(900))))
        dropped("inner_malformed")
        comes("n3", uplink(version, 0x11, Raw(bytes(up(version))[:19])))
        dropped("inner_malformed")
        comes("n3", uplink(version, 0x11, Raw(b"\x12 not a version of IP")))
        dropped("inner_not_ip")
        comes("n3", ip(version, GNB[version], UPF[version]) / UDP(sport=2152, dport=2152, len=900) / gpdu(0x11, [], up(version)))
        dropped("ip_malformed")
        comes("n3", ip(version, GNB[version], UPF[version]) / UDP(sport=2152, dport=2153) / gpdu(0x11, [], up(version)))
        dropped("not_gtpu")
    comes("n3", uplink(4, 0x11, up(4), chksum=0x1234))
    dropped("ip_checksum")
    test("options in outer IPv4")
    session(4)
    comes("n3", ip(4, GNB[4], UPF[4], options=b"\x94\x04\0\0") / UDP(sport=2152, dport=2152) / gpdu(0x11, [], up(4)))
    goes("n6", up(4))


def hosts():
    test("the UPF as a host")
    comes("n3", ARP(op=1, hwsrc=THEIRS["n3"], psrc=GNB[4], pdst=UPF[4]), destination="ff:ff:ff:ff:ff:ff")
    goes("n3", ARP(op=2, hwsrc=OURS["n3"], psrc=UPF[4], hwdst=THEIRS["n3"], pdst=GNB[4]))
    comes("n6", ip(4, "10.6.0.2", "10.6.0.1") / ICMP(type=8, id=3, seq=4) / Raw("ping"))
    goes("n6", ip(4, "10.6.0.1", "10.6.0.2") / ICMP(type=0, id=3, seq=4) / Raw("ping"))
    comes("n6", ip(6, "2001:db8:6::2", "2001:db8:6::1") / ICMPv6EchoRequest(id=3, seq=4, data=b"ping"))
    goes("n6", ip(6, "2001:db8:6::1", "2001:db8:6::2") / ICMPv6EchoReply(id=3, seq=4, data=b"ping"))
    solicit = IPv6(src="2001:db8:6::2", dst="ff02::1:ff00:1", hlim=255) / ICMPv6ND_NS(tgt="2001:db8:6::1") / ICMPv6NDOptSrcLLAddr(lladdr=THEIRS["n6"])
    comes("n6", solicit, destination="33:33:ff:00:00:01")
    advertise = IPv6(src="2001:db8:6::1", dst="2001:db8:6::2", hlim=255) / ICMPv6ND_NA(R=0, S=1, O=1, tgt="2001:db8:6::1")
    goes("n6", advertise / ICMPv6NDOptDstLLAddr(lladdr=OURS["n6"]))


for write in (both_ways, header_forms, gtpu_messages, between_tunnels, paging, fragments, too_long, kinds_of_rules, routes_and_marking, hostile, hosts):
    write()
