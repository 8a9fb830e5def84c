"""A session manager and a gNB with one UE, made of scapy, for tests of a running UPF.

Associates, establishes a session whose usage is measured, and says {"upSeid": .., "teid": ..}. Then reads commands, a line each:

  ping N [LENGTH]   the UE pings the data network; says {"replies": ..}
  send N SOURCE     the UE sends N UDP packets as SOURCE; says {"sent": N}
  delete            deletes the session; says {"cause": ..}
"""

import json
import socket
import sys

import pfcp_messages as m
from scapy.contrib import gtp
from scapy.contrib import pfcp as p
from scapy.layers.inet import ICMP, IP, UDP

UE, DN, SMF_SEID, GNB_TEID = "10.60.0.1", "10.6.0.2", 0x51F, 0x1001
n4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
n4.bind((m.SMF, 8805))
n3 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
n3.bind((m.GNB, 2152))
n3.settimeout(5)
sequence = 0


def ask(body, seid=None):
    """Sends a request, again each second as T1 and N1 have it, and returns the response."""
    global sequence
    sequence += 1
    n4.settimeout(1)
    for _ in range(30):
        n4.sendto(bytes(m.message(body, seid, sequence)), ("10.4.0.1", 8805))
        try:
            while True:
                answer = p.PFCP(n4.recv(65535))
                if answer.seq == sequence and answer.message_type % 2 == (1 if answer.message_type > 49 else 0):
                    return answer
        except (socket.timeout, ConnectionRefusedError):
            pass
    raise SystemExit("the UPF does not answer")


def element(message, kind):
    """The first element of the kind, however deep."""
    for ie in message.fields.get("IE_list") or []:
        found = ie if isinstance(ie, kind) else element(ie, kind)
        if found is not None:
            return found
    return None


def measured(rule):
    rule.fields["IE_list"].append(p.IE_URR_Id(id=7))
    return rule


def say(**what):
    print(json.dumps(what), flush=True)


def attach():
    assert element(ask(m.setup()).payload, p.IE_Cause).cause == 1
    request = p.PFCPSessionEstablishmentRequest(IE_list=[
        m.node_id(),
        p.IE_FSEID(v4=1, seid=SMF_SEID, ipv4=m.SMF),
        measured(m.uplink_pdr(1, 11, [5], UE, m.f_teid())),
        measured(m.downlink_pdr(2, 12, [5], UE)),
        m.uplink_far(11),
        m.downlink_far(12, GNB_TEID),
        p.IE_CreateURR(IE_list=[
            p.IE_URR_Id(id=7),
            p.IE_MeasurementMethod(VOLUM=1),
            p.IE_ReportingTriggers(volume_threshold=1),
            p.IE_VolumeThreshold(TOVOL=1, total=1 << 40),
        ]),
        p.IE_CreateQER(IE_list=[
            p.IE_QER_Id(id=5),
            p.IE_GateStatus(ul="OPEN", dl="OPEN"),
            p.IE_MBR(ul=1000000, dl=1000000),
            p.IE_QFI(QFI=9),
        ]),
        p.IE_PDNType(pdn_type=1),
    ])
    response = ask(request, 0).payload
    assert element(response, p.IE_Cause).cause == 1, response.show(dump=True)
    return element(response, p.IE_FSEID).seid, element(response, p.IE_FTEID).TEID


def uplink(packet):
    container = gtp.GTPPDUSessionContainer(type=1, QFI=9)
    n3.sendto(bytes(gtp.GTP_U_Header(teid=teid, E=1, next_ex=0x85) / container / packet), ("10.3.0.1", 2152))


def next_packet():
    """The next packet for the UE. Echo requests that come before are answered (TS 29.281, 7.2)."""
    while True:
        octets, peer = n3.recvfrom(65535)
        if octets[1] == 0xFF:
            return gtp.GTP_U_Header(octets)
        if octets[1] == 1:
            n3.sendto(b"\x32\x02\0\6\0\0\0\0" + octets[8:10] + b"\0\0\x0e\0", peer)


def ping(count, length=56):
    replies = 0
    for number in range(count):
        uplink(IP(src=UE, dst=DN) / ICMP(id=1, seq=number) / (b"k" * length))
        try:
            reply = next_packet()
        except socket.timeout:
            continue
        inner = IP(bytes(reply[IP]))
        replies += reply.teid == GNB_TEID and inner.dst == UE and inner[ICMP].type == 0 and inner[ICMP].seq == number
    return replies


up_seid, teid = attach()
say(upSeid=up_seid, teid=teid)
for line in sys.stdin:
    command, *arguments = line.split()
    if command == "ping":
        say(replies=ping(*map(int, arguments)))
    elif command == "send":
        for _ in range(int(arguments[0])):
            uplink(IP(src=arguments[1], dst=DN) / UDP(sport=4000, dport=9) / b"kaista")
        say(sent=int(arguments[0]))
    elif command == "delete":
        say(cause=element(ask(p.PFCPSessionDeletionRequest(IE_list=[]), up_seid).payload, p.IE_Cause).cause)
