"""PFCP by scapy, for tests: a second opinion on how messages are encoded, and a source of damaged ones.

  build            prints known messages, one a line in hexadecimal
  dissect          reads messages in hexadecimal, prints what scapy sees in each
  mutate SEED N    prints N messages, most of them damaged, as JSON lines; reads the answer to each, `-` for none
"""

import json
import logging
import random
import sys

# Scapy reads every network instance as labels, and complains of those that are text.
logging.getLogger("scapy").setLevel(logging.ERROR)

from scapy.contrib import pfcp as p
from scapy.packet import Raw

UPF, GNB, SMF = "10.3.0.1", "10.3.0.2", "10.4.0.2"
SEID, SEQUENCE = 0x0102030405060708, 0x0A0B0C


def message(body, seid=None, seq=SEQUENCE):
    """The message with this body, which stays the caller's (`header / body` would copy it)."""
    header = p.PFCP(S=0, seq=seq) if seid is None else p.PFCP(S=1, seid=seid, seq=seq)
    header.add_payload(body)
    return header


def encode(packet):
    """What `bytes(packet)` is, in a third of the time: scapy copies each element, with all in it, lest values be random."""
    for layer in packet.iterpayloads():
        layer.explicit = 1
        for group in groups(layer.fields.get("IE_list") or []):
            for element in group:
                element.explicit = 1
    return bytes(packet)


def node_id(name="smf"):
    return p.IE_NodeId(id_type="FQDN", id=name)


def setup(recovery=1000):
    return p.PFCPAssociationSetupRequest(IE_list=[node_id(), p.IE_RecoveryTimeStamp(timestamp=recovery)])


def heartbeat(recovery=1000):
    return p.PFCPHeartbeatRequest(IE_list=[p.IE_RecoveryTimeStamp(timestamp=recovery)])


def f_teid(choose_id=None):
    if choose_id is None:
        return p.IE_FTEID(CH=1, V4=1)
    return p.IE_FTEID(CH=1, V4=1, CHID=1, choose_id=choose_id)


def uplink_pdr(pdr, far, qers, ue, teid, filters=()):
    pdi = [
        p.IE_SourceInterface(interface="Access"),
        teid,
        p.IE_NetworkInstance(instance="access"),
        p.IE_UE_IP_Address(V4=1, SD=0, ipv4=ue),
    ]
    pdi += [p.IE_SDF_Filter(FD=1, flow_description=text) for text in filters]
    return p.IE_CreatePDR(IE_list=[
        p.IE_PDR_Id(id=pdr),
        p.IE_Precedence(precedence=100 + pdr),
        p.IE_PDI(IE_list=pdi + [p.IE_QFI(QFI=9)]),
        p.IE_OuterHeaderRemoval(header="GTP-U/UDP/IPv4"),
        p.IE_FAR_Id(id=far),
    ] + [p.IE_QER_Id(id=qer) for qer in qers])


def downlink_pdr(pdr, far, qers, ue):
    return p.IE_CreatePDR(IE_list=[
        p.IE_PDR_Id(id=pdr),
        p.IE_Precedence(precedence=100 + pdr),
        p.IE_PDI(IE_list=[
            p.IE_SourceInterface(interface="SGi-LAN/N6-LAN"),
            p.IE_NetworkInstance(instance="internet"),
            p.IE_UE_IP_Address(V4=1, SD=1, ipv4=ue),
        ]),
        p.IE_FAR_Id(id=far),
    ] + [p.IE_QER_Id(id=qer) for qer in qers])


def uplink_far(far):
    return p.IE_CreateFAR(IE_list=[
        p.IE_FAR_Id(id=far),
        p.IE_ApplyAction(FORW=1),
        p.IE_ForwardingParameters(IE_list=[
            p.IE_DestinationInterface(interface="SGi-LAN/N6-LAN"),
            p.IE_NetworkInstance(instance="internet"),
        ]),
    ])


def tunnel(teid):
    return p.IE_OuterHeaderCreation(GTPUUDPIPV4=1, TEID=teid, ipv4=GNB)


def downlink_far(far, teid):
    return p.IE_CreateFAR(IE_list=[
        p.IE_FAR_Id(id=far),
        p.IE_ApplyAction(FORW=1),
        p.IE_ForwardingParameters(IE_list=[p.IE_DestinationInterface(interface="Access"), tunnel(teid)]),
    ])


def create_qer(qer):
    return p.IE_CreateQER(IE_list=[
        p.IE_QER_Id(id=qer),
        p.IE_GateStatus(ul="OPEN", dl="CLOSED"),
        p.IE_MBR(ul=50000, dl=200000),
        p.IE_QFI(QFI=9),
    ])


def establishment(cp_seid, ue, teid, filters=(), choose_id=None):
    return p.PFCPSessionEstablishmentRequest(IE_list=[
        node_id(),
        p.IE_FSEID(v4=1, seid=cp_seid, ipv4=SMF),
        uplink_pdr(1, 1, [1], ue, f_teid(choose_id), filters),
        downlink_pdr(2, 2, [1], ue),
        uplink_far(1),
        downlink_far(2, teid),
        create_qer(1),
        p.IE_PDNType(pdn_type=1),  # IPv4; the name that scapy has for 0.
    ])


def modifications(rng, ue):
    """Modifications that fit a session as `establishment` makes it; each leaves it so that the others still fit."""
    far = p.IE_UpdateFAR(IE_list=[
        p.IE_FAR_Id(id=2),
        p.IE_ApplyAction(FORW=1),
        p.IE_UpdateForwardingParameters(IE_list=[tunnel(rng.randrange(1, 1 << 32))]),
    ])
    qer = p.IE_UpdateQER(IE_list=[p.IE_QER_Id(id=1), p.IE_MBR(ul=rng.randrange(1 << 40), dl=rng.randrange(1 << 40))])
    pdr = p.IE_UpdatePDR(IE_list=[p.IE_PDR_Id(id=2), p.IE_Precedence(precedence=rng.randrange(1 << 32))])
    drop = p.IE_UpdateFAR(IE_list=[p.IE_FAR_Id(id=2), p.IE_ApplyAction(DROP=1)])
    extra = [
        uplink_pdr(3, 3, [2], ue, f_teid(), ["permit out 17 from 203.0.113.0/24 53 to assigned"]),
        uplink_far(3),
        create_qer(2),
    ]
    removal = [
        p.IE_RemovePDR(IE_list=[p.IE_PDR_Id(id=3)]),
        p.IE_RemoveFAR(IE_list=[p.IE_FAR_Id(id=3)]),
        p.IE_RemoveQER(IE_list=[p.IE_QER_Id(id=2)]),
    ]
    return [[far], [qer], [pdr], [drop], [far, qer, pdr], extra, removal]


# Second opinion.


def known_messages():
    bodies = [
        (None, heartbeat()),
        (None, setup()),
        (None, p.PFCPAssociationReleaseRequest(IE_list=[node_id()])),
        (0, establishment(0x5001, "10.60.0.1", 0x7001, ["permit out 17 from 203.0.113.0/24 53 to assigned"], 7)),
        (SEID, p.PFCPSessionModificationRequest(IE_list=[
            p.IE_RemovePDR(IE_list=[p.IE_PDR_Id(id=3)]),
            p.IE_UpdateFAR(IE_list=[
                p.IE_FAR_Id(id=2),
                p.IE_ApplyAction(DROP=1),
                p.IE_UpdateForwardingParameters(IE_list=[tunnel(5)]),
            ]),
        ])),
        (SEID, p.PFCPSessionDeletionRequest()),
    ]
    return [message(body, seid) for seid, body in bodies]


def build():
    for packet in known_messages():
        print(encode(packet).hex())


HEADERS = {"ietype", "length"}


def fields(elements, path):
    for element in elements or []:
        name = path + type(element).__name__.removeprefix("IE_")
        if isinstance(element, (Raw, p.IE_NotImplemented)):
            yield f"{name}: not understood"
        yield name
        for field in element.fields_desc:
            value = element.getfieldval(field.name)
            if field.name == "IE_list":
                yield from fields(value, name + "/")
            elif field.name not in HEADERS and value not in (None, b""):
                shown = value.decode() if isinstance(value, bytes) else value
                yield f"{name}.{field.name}={shown}"


def dissect():
    for line in sys.stdin:
        octets = bytes.fromhex(line)
        packet = p.PFCP(octets)
        body = packet.payload
        seen = [f"{type(body).__name__}", f"seid={packet.seid if packet.S else '-'}", f"seq={packet.seq}"]
        if packet.length != len(octets) - 4 or Raw in packet:
            seen.append("not understood")
        seen += fields(getattr(body, "IE_list", []), "")
        print(json.dumps(seen))


# Damage.


def groups(elements):
    """All lists of elements in a message."""
    lists = [elements]
    for element in elements:
        if isinstance(element, p.IE_Compound):
            lists += groups(element.IE_list or [])
    return lists


def simple_elements(elements):
    for group in groups(elements):
        yield from (element for element in group if not isinstance(element, p.IE_Compound))


ALL_ELEMENTS = [cls for cls in p.ietypecls.values()]


def damage_element_value(rng, elements):
    element = rng.choice(list(simple_elements(elements)))
    names = [f for f in element.fields_desc if f.name not in ("ietype", "IE_list", "extra_data")]
    field = rng.choice(names)
    element.setfieldval(field.name, random_value(rng, field, element.getfieldval(field.name)))


def random_value(rng, field, value):
    if field.name == "length":
        return rng.choice([0, 1, 2, 3, 255, 65535, rng.randrange(64)])
    if isinstance(value, (bytes, str)) and field.name.startswith("ipv4"):
        return ".".join(str(rng.choice([0, 1, 10, 224, 255, rng.randrange(256)])) for _ in range(4))
    if isinstance(value, (bytes, str)) and field.name.startswith("ipv6"):
        return "2001:db8::%x" % rng.randrange(65536)
    if isinstance(value, (bytes, str)):
        return bytes(rng.choice(b"permit out from to any 0123456789./:-\xff\x00") for _ in range(rng.randrange(40)))
    bits = getattr(field, "size", None) or 8 * max(1, int(getattr(field, "sz", 1)))
    bits = {"BI": 40}.get(getattr(field, "fmt", "")[1:], bits)
    return rng.choice([0, 1, (1 << bits) - 1, rng.randrange(1 << bits)])


def remove_element(rng, elements):
    group = rng.choice([group for group in groups(elements) if group])
    del group[rng.randrange(len(group))]


def repeat_element(rng, elements):
    group = rng.choice([group for group in groups(elements) if group])
    group.insert(rng.randrange(len(group) + 1), rng.choice(group).copy())


def add_element(rng, elements):
    group = rng.choice(groups(elements))
    cls = rng.choice(ALL_ELEMENTS)
    if rng.random() < 0.5:
        added = cls(IE_list=[]) if issubclass(cls, p.IE_Compound) else cls()
    else:
        data = bytes(rng.randrange(256) for _ in range(rng.randrange(24)))
        added = p.IE_NotImplemented(ietype=rng.choice([cls.ie_type, rng.randrange(0x8000)]), data=data)
    group.insert(rng.randrange(len(group) + 1), added)


def move_element(rng, elements):
    source, target = (rng.choice([group for group in groups(elements) if group]) for _ in range(2))
    element = source[rng.randrange(len(source))]
    if not isinstance(element, p.IE_Compound):
        source.remove(element)
        target.append(element)


ELEMENT_DAMAGES = [damage_element_value] * 4 + [remove_element, repeat_element, add_element, add_element, move_element]


def damage_header(rng, packet):
    field, values = rng.choice([
        ("version", range(8)),
        ("S", range(2)),
        ("MP", range(2)),
        ("spare_b4", range(2)),
        ("message_type", range(256)),
        ("length", [0, 4, 11, 12, 13, 100, 65535]),
        ("seid", [0, 1, (1 << 64) - 1]),
        ("seq", [0, 1, (1 << 24) - 1]),
    ])
    packet.setfieldval(field, rng.choice(values))


def damage_octets(rng, octets):
    octets = bytearray(octets)
    kind = rng.randrange(4)
    if kind == 0:
        del octets[rng.randrange(len(octets)):]
    elif kind == 1:
        octets += bytes(rng.randrange(256) for _ in range(rng.randrange(1, 32)))
    else:
        for _ in range(rng.randrange(1, 9)):
            octets[rng.randrange(len(octets))] ^= 1 << rng.randrange(8)
    if kind != 3 and len(octets) >= 4 and rng.random() < 0.7:
        octets[2:4] = ((len(octets) - 4) & 0xFFFF).to_bytes(2, "big")
    return bytes(octets)


class Manager:
    """A session manager that keeps a few sessions, so that damaged requests meet something to damage."""

    MOST = 16

    def __init__(self, rng):
        self.rng, self.seq, self.sessions, self.associated, self.number = rng, 0, {}, False, 0

    def next_request(self):
        """A sound request, and whether it must be accepted."""
        rng = self.rng
        if not self.associated:
            self.associated = True
            return None, setup(1000), True
        free = [n for n in range(1, 200) if n not in self.sessions]
        choice = rng.randrange(100)
        if choice < 2:
            return None, heartbeat(), False
        if choice < 3:
            self.associated = False
            return None, p.PFCPAssociationReleaseRequest(IE_list=[node_id()]), False
        if choice < 6:
            body = rng.choice([p.PFCPPFDManagementRequest, p.PFCPNodeReportRequest, p.PFCPSessionSetDeletionRequest,
                               p.PFCPSessionReportRequest, p.PFCPAssociationUpdateRequest, p.PFCPHeartbeatResponse,
                               p.PFCPSessionModificationResponse])(IE_list=[node_id()])
            return rng.choice([None, 1]), body, False
        if len(self.sessions) < 4 or (choice < 45 and len(self.sessions) < self.MOST):
            number = rng.choice(free)
            filters = rng.sample(["permit out ip from any to assigned",
                                  "permit out 6 from 198.51.100.0/24 80,443 to assigned 1024-65535"], rng.randrange(3))
            choose_id = rng.choice([None, rng.randrange(256)])
            self.number = number
            body = establishment(0x5000 + number, f"10.60.0.{number}", 0x7000 + number, filters, choose_id)
            return 0, body, True
        number = rng.choice(list(self.sessions))
        if choice < 55 or len(self.sessions) >= self.MOST:
            return self.sessions[number], p.PFCPSessionDeletionRequest(), True
        elements = rng.choice(modifications(rng, f"10.60.0.{number}"))
        return self.sessions[number], p.PFCPSessionModificationRequest(IE_list=elements), False

    def note(self, answer, known):
        """Learns from an answer which sessions there are, by scapy's reading of it."""
        if answer is None:
            return
        packet = p.PFCP(answer)
        elements = {type(element).__name__: element for element in getattr(packet.payload, "IE_list", [])}
        accepted = "IE_Cause" in elements and elements["IE_Cause"].cause == 1
        if isinstance(packet.payload, p.PFCPSessionEstablishmentResponse) and accepted:
            self.sessions[self.number] = elements["IE_FSEID"].seid
        if isinstance(packet.payload, p.PFCPSessionDeletionResponse) and known is not None:
            self.sessions = {n: seid for n, seid in self.sessions.items() if seid != known}
        if isinstance(packet.payload, (p.PFCPAssociationReleaseResponse, p.PFCPAssociationSetupResponse)) and accepted:
            self.sessions = {}
            self.associated = isinstance(packet.payload, p.PFCPAssociationSetupResponse)
        if "IE_Cause" in elements and elements["IE_Cause"].cause in (65, 72):
            self.sessions.pop(next((n for n, seid in self.sessions.items() if seid == known), None), None)
            self.associated = self.associated and elements["IE_Cause"].cause != 72


def mutate(seed, count):
    rng = random.Random(seed)
    manager = Manager(rng)
    for _ in range(count):
        manager.seq = (manager.seq + 1) & 0xFFFFFF
        seid, body, sound = manager.next_request()
        packet = message(body, seid, manager.seq)
        damage = rng.random()
        elements = body.fields.get("IE_list") or []
        if damage < 0.55 and elements:
            for _ in range(rng.choice([1, 1, 1, 2, 3])):
                if elements:
                    rng.choice(ELEMENT_DAMAGES)(rng, elements)
            body.setfieldval("IE_list", elements)
        elif damage < 0.65:
            damage_header(rng, packet)
        try:
            octets = encode(packet)
        except Exception:  # Scapy cannot encode such a value.
            octets = encode(message(heartbeat(), None, manager.seq))
        if 0.65 <= damage < 0.85:
            octets = damage_octets(rng, octets)
        print(json.dumps({"message": octets.hex(), "sound": sound and damage >= 0.85}), flush=True)
        answer = sys.stdin.readline().strip()
        manager.note(None if answer == "-" else bytes.fromhex(answer), seid)


if __name__ == "__main__":
    {
        "build": build,
        "dissect": dissect,
        "mutate": lambda: mutate(int(sys.argv[2]), int(sys.argv[3])),
    }[sys.argv[1]]()
