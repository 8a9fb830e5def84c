"""The world around a UPF, made of scapy: a session manager, a gNB and a data network. What the UPF sends is read by scapy.

N4 is a UDP socket. Frames go to and come from the test that runs this, a line each: `n3 HEX` or `n6 HEX`.
"""

import os
import select
import socket
import sys
import time

import pfcp_messages as m
from scapy.contrib import gtp
from scapy.contrib import pfcp as p
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

PATIENCE_S = 20
RESPONSES = {2, 4, 6, 8, 10, 13, 15, 51, 53, 55, 57}
GNB, N3, DN = "10.3.0.2", "10.3.0.1", "192.0.2.1"


def elements(message, kind):
    """All elements of the kind, however deep."""
    found = []
    for ie in message.fields.get("IE_list") or []:
        found += [ie] if isinstance(ie, kind) else []
        found += elements(ie, kind)
    return found


def element(message, kind):
    (found,) = elements(message, kind)
    return found


def cause(response):
    return p.CauseValues[element(response, p.IE_Cause).cause]


class World:
    def __init__(self, smf, upf, macs):
        self.n4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.n4.bind((smf, 8805))
        self.smf, self.upf, self.macs = smf, (upf, 8805), macs
        self.sequence, self.rest = 0, b""
        self.answers, self.requests, self.frames, self.seen = {}, [], {"n3": [], "n6": []}, []
        self.answers_echoes = True
        # The UPF's SEIDs by ours, and what was answered, as answers get lost.
        self.seids, self.answered = {}, {}

    # N4.

    def ask(self, body, seid=None):
        """The response to a request, which is sent again each second as T1 has it."""
        self.sequence += 1
        number, octets = self.sequence, m.encode(m.message(body, seid, self.sequence))
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            self.n4.sendto(octets, self.upf)
            if self.wait(lambda: number in self.answers, 1):
                return self.answers.pop(number)
        raise SystemExit("not answered: " + octets.hex())

    def request(self, kind):
        """The next request of the UPF's own of this kind, to be answered."""
        is_it = lambda packet: isinstance(packet.payload, kind)
        assert self.wait(lambda: any(map(is_it, self.requests))), f"no {kind.__name__} comes"
        found = next(filter(is_it, self.requests))
        self.requests.remove(found)
        return found

    def answer(self, request, body):
        seid = self.seids.get(request.seid, 0) if request.S else None
        octets = m.encode(m.message(body, seid, request.seq))
        self.answered[bytes(request.original)] = octets
        self.n4.sendto(octets, self.upf)

    def report(self, *more):
        """The next session report."""
        report = self.request(p.PFCPSessionReportRequest)
        self.answer(report, p.PFCPSessionReportResponse(IE_list=[p.IE_Cause(cause=1), *more]))
        return report

    # Users' packets.

    def uplink(self, teid, packet, qfi=9):
        container = gtp.GTPPDUSessionContainer(type=1, QFI=qfi)
        self.to_n3(gtp.GTP_U_Header(teid=teid, E=1, next_ex=0x85) / container / packet)

    def to_n3(self, message):
        ends = {"src": self.macs["gnb"], "dst": self.macs["n3"]}
        self.put("n3", Ether(**ends) / IP(src=GNB, dst=N3) / UDP(sport=2152, dport=2152) / message)

    def to_n6(self, packet):
        self.put("n6", Ether(src=self.macs["dn"], dst=self.macs["n6"]) / packet)

    def put(self, port, frame):
        print(port, bytes(frame).hex(), flush=True)

    def frame(self, port):
        """The next frame out of the port, but for the UPF's questions for neighbours and paths."""
        assert self.wait(lambda: self.frames[port]), f"nothing comes out of {port}"
        return self.frames[port].pop(0)

    def is_quiet(self, port, seconds=0.3):
        return not self.wait(lambda: self.frames[port], seconds)

    # What comes.

    def wait(self, until, seconds=PATIENCE_S):
        end = time.monotonic() + seconds
        while not until():
            left = end - time.monotonic()
            if left <= 0:
                return False
            ready, _, _ = select.select([self.n4, sys.stdin], [], [], left)
            if self.n4 in ready:
                self.take_message(self.n4.recv(65535))
            if sys.stdin in ready:
                self.take_frames(os.read(0, 1 << 16))
        return True

    def take_message(self, octets):
        self.seen.append(Ether() / IP(src=self.upf[0], dst=self.smf) / UDP(sport=8805, dport=8805) / octets)
        packet = p.PFCP(octets)
        assert packet.length == len(octets) - 4 and not elements(packet.payload, p.IE_NotImplemented), octets.hex()
        if packet.message_type in RESPONSES:
            self.answers[packet.seq] = packet.payload
        elif isinstance(packet.payload, p.PFCPHeartbeatRequest):
            self.answer(packet, p.PFCPHeartbeatResponse(IE_list=[p.IE_RecoveryTimeStamp(timestamp=1000)]))
        elif octets in self.answered:
            self.n4.sendto(self.answered[octets], self.upf)
        elif octets not in [bytes(request.original) for request in self.requests]:
            self.requests.append(packet)

    def take_frames(self, octets):
        if not octets:
            raise SystemExit("the test has ended")
        *lines, self.rest = (self.rest + octets).split(b"\n")
        for line in lines:
            port, frame = line.split()
            self.take_frame(port.decode(), Ether(bytes.fromhex(frame.decode())))

    def take_frame(self, port, frame):
        self.seen.append(frame)
        if gtp.GTP_U_Header in frame and frame[gtp.GTP_U_Header].gtp_type == 1:
            if self.answers_echoes:
                number = bytes(frame[gtp.GTP_U_Header])[8:10]
                self.to_n3(b"\x32\x02\0\6\0\0\0\0" + number + b"\0\0\x0e\0")
        else:
            self.frames[port].append(frame)

    def keep(self, path):
        """Everything that the UPF has sent, for Wireshark."""
        wrpcap(path, self.seen)
