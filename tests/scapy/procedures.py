"""Procedures of N4 from a session manager's point of view, with users' packets. Every request and packet is scapy's, and every
answer is read by scapy: it shares nothing with the UPF's own encoders.

  procedures.py SMF UPF CAPTURE MAC-OF-GNB MAC-OF-N3 MAC-OF-DN MAC-OF-N6

Prints `done NAME` after each procedure, beside the frames that it sends (`world.py`). What the UPF has sent is in CAPTURE.
"""

import sys
import time

import pfcp_messages as m
from scapy.contrib import gtp
from scapy.contrib import pfcp as p
from scapy.layers.inet import IP, UDP
from world import DN, GNB, World, cause, element, elements

OK, UNSUPPORTED, NOT_ASSOCIATED = "Request accepted", "Service not supported", "No established Sx Association"
FLOW = "permit out 17 from 192.0.2.0/24 4711 to assigned"


# Sessions.


def choice(ends):
    """A UE address of the UPF's choice (CHV4), which is younger than scapy's PFCP."""
    return p.IE_UE_IP_Address(spare=2, SD=ends)


def given(ue, ends):
    return p.IE_UE_IP_Address(V4=1, SD=ends, ipv4=ue)


def pdr(number, pdi, *more, removes=False):
    removal = [p.IE_OuterHeaderRemoval(header="GTP-U/UDP/IPv4")] if removes else []
    ids = [p.IE_PDR_Id(id=number), p.IE_Precedence(precedence=100 + number)]
    return p.IE_CreatePDR(IE_list=[*ids, p.IE_PDI(IE_list=pdi), *removal, p.IE_FAR_Id(id=number), *more])


def from_ue(address, *more):
    return [p.IE_SourceInterface(interface="Access"), m.f_teid(), p.IE_NetworkInstance(instance="access"), address, *more]


def to_ue(address, *more):
    return [p.IE_SourceInterface(interface="SGi-LAN/N6-LAN"), p.IE_NetworkInstance(instance="internet"), address, *more]


def buffering_far(far, teid, bar):
    parameters = p.IE_ForwardingParameters(IE_list=[p.IE_DestinationInterface(interface="Access"), m.tunnel(teid)])
    ids = [p.IE_FAR_Id(id=far), p.IE_ApplyAction(BUFF=1, NOCP=1)]
    return p.IE_CreateFAR(IE_list=[*ids, parameters, p.IE_BAR_Id(id=bar)])


def apply(far, **action):
    return p.IE_UpdateFAR(IE_list=[p.IE_FAR_Id(id=far), p.IE_ApplyAction(**action)])


def urr(number, triggers, *terms, compound=p.IE_CreateURR):
    method = [p.IE_MeasurementMethod(VOLUM=1)] if compound is p.IE_CreateURR else []
    return compound(IE_list=[p.IE_URR_Id(id=number), *method, p.IE_ReportingTriggers(**triggers), *terms])


class Session:
    """A session for `ue`, whose PDRs 1 (uplink) and 2 (downlink) have the FARs 1 and 2."""

    def __init__(self, world, ue, *rules, names=(), far=None):
        self.world, self.ue, self.cp_seid, self.teid = world, ue, 0x5000 + int(ue.split(".")[3]), 0x7000
        rules = [
            pdr(1, from_ue(given(ue, 0)), *names, removes=True),
            pdr(2, to_ue(given(ue, 1)), *names),
            m.uplink_far(1),
            far or m.downlink_far(2, self.teid),
            *rules,
        ]
        response = establish(world, self.cp_seid, rules)
        assert cause(response) == OK, response.show(dump=True)
        self.seid = element(response, p.IE_FSEID).seid
        self.up_teid = element(response, p.IE_FTEID).TEID
        world.seids[self.cp_seid] = self.seid

    def modify(self, *changes):
        response = self.world.ask(p.PFCPSessionModificationRequest(IE_list=list(changes)), self.seid)
        assert cause(response) == OK, response.show(dump=True)
        return response

    def end(self):
        response = self.world.ask(p.PFCPSessionDeletionRequest(), self.seid)
        assert cause(response) == OK
        return response

    def up(self, text):
        """A packet of the UE goes out of N6 as it was; its length."""
        packet = IP(src=self.ue, dst=DN) / UDP(sport=4000, dport=9) / text
        self.world.uplink(self.up_teid, packet)
        came = self.world.frame("n6")[IP]
        assert bytes(came) == bytes(packet), came.show(dump=True)
        return len(packet)

    def send_down(self, text, port=9):
        packet = IP(src=DN, dst=self.ue) / UDP(sport=port, dport=4000) / text
        self.world.to_n6(packet)
        return len(packet)

    def came_down(self, text):
        """The next packet out of N3 is this one, in the session's tunnel."""
        frame = self.world.frame("n3")
        inner = IP(bytes(frame[UDP].payload.payload.payload)) if frame[UDP].payload.E else frame[UDP].payload[IP]
        assert (frame[IP].dst, frame[UDP].payload.teid) == (GNB, self.teid), frame.show(dump=True)
        assert (inner.dst, bytes(inner[UDP].payload)) == (self.ue, text.encode()), frame.show(dump=True)


def establish(world, cp_seid, rules):
    head = [m.node_id(), p.IE_FSEID(v4=1, seid=cp_seid, ipv4=world.smf)]
    return world.ask(p.PFCPSessionEstablishmentRequest(IE_list=[*head, *rules, p.IE_PDNType(pdn_type=1)]), 0)


def octets_of(report):
    measured = element(report, p.IE_VolumeMeasurement)
    assert measured.total == measured.uplink + measured.downlink
    return measured.uplink, measured.downlink


def rejected(response, expected, rule=None):
    assert cause(response) == expected, response.show(dump=True)
    if rule is not None:
        failed = element(response, p.IE_FailedRuleId)
        assert [failed.fields.get(name) for name in ("pdr_id", "far_id", "qer_id", "urr_id", "bar_id")
                if failed.fields.get(name) is not None] == [rule], failed.show(dump=True)


# Procedures between nodes.


def heartbeats_and_an_association(world):
    stamps = [element(world.ask(m.heartbeat()), p.IE_RecoveryTimeStamp).timestamp for _ in range(2)]
    rules = [pdr(1, from_ue(given("10.64.0.1", 0)), removes=True), m.uplink_far(1)]
    rejected(establish(world, 1, rules), NOT_ASSOCIATED)
    response = world.ask(m.setup())
    assert cause(response) == OK and element(response, p.IE_NodeId).ipv4 == world.upf[0]
    assert {element(response, p.IE_RecoveryTimeStamp).timestamp, *stamps} == {stamps[0]}
    features = element(response, p.IE_UPFunctionFeatures)
    offered = [name for name in ("FTUP", "EMPU", "DDND", "UDBC", "FRRT", "PDIU", "PFDM") if getattr(features, name)]
    assert len(offered) == 7, features.show(dump=True)
    assert not (features.HEEU or features.TREU or features.BUCP or features.DLBD)


def an_association_is_updated(world):
    update = p.PFCPAssociationUpdateRequest(IE_list=[m.node_id(), p.IE_CPFunctionFeatures(LOAD=1)])
    assert cause(world.ask(update)) == OK
    foreign = p.PFCPAssociationUpdateRequest(IE_list=[m.node_id("nobody"), p.IE_CPFunctionFeatures(LOAD=1)])
    assert cause(world.ask(foreign)) == NOT_ASSOCIATED


def sets_of_sessions_are_nobodys(world):
    response = world.ask(p.PFCPSessionSetDeletionRequest(IE_list=[m.node_id()]))
    assert cause(response) in (UNSUPPORTED, OK)


def a_release_takes_the_sessions_along(world):
    session = Session(world, "10.64.0.200")
    assert cause(world.ask(p.PFCPAssociationReleaseRequest(IE_list=[m.node_id()]))) == OK
    response = world.ask(p.PFCPSessionDeletionRequest(), session.seid)
    assert cause(response) == "Session context not found"
    assert cause(world.ask(m.setup())) == OK


def a_path_that_fails_is_told(world):
    """A peer is asked when the first tunnel leads to it."""
    world.answers_echoes = False
    session = Session(world, "10.64.0.9")
    request = world.request(p.PFCPNodeReportRequest)
    world.answer(request, p.PFCPNodeReportResponse(IE_list=[m.node_id(), p.IE_Cause(cause=1)]))
    report = request.payload
    assert element(report, p.IE_NodeReportType).UPFR == 1
    failure = element(report, p.IE_UserPlanePathFailureReport)
    assert element(failure, p.IE_RemoteGTP_U_Peer).ipv4 == GNB
    session.end()
    world.answers_echoes = True


# Applications.


def pfds(name, *contents):
    context = [p.IE_PFDContext(IE_list=list(contents))] if contents else []
    described = p.IE_ApplicationID_PFDs(IE_list=[p.IE_ApplicationId(id=name), *context])
    return p.PFCPPFDManagementRequest(IE_list=[described])


def applications_are_detected_as_described(world):
    assert cause(world.ask(pfds("dns", p.IE_PFDContents(FD=1, flow=FLOW)))) == OK
    assert cause(world.ask(pfds("web", p.IE_PFDContents(URL=1, url="http://example.org")))) == UNSUPPORTED
    session = Session(world, "10.64.0.1")
    detection = to_ue(given("10.64.0.1", 1), p.IE_ApplicationId(id="dns"))
    by_name = p.IE_CreatePDR(IE_list=[p.IE_PDR_Id(id=3), p.IE_Precedence(precedence=1), p.IE_PDI(IE_list=detection),
                                      p.IE_FAR_Id(id=3)])
    session.modify(by_name, p.IE_CreateFAR(IE_list=[p.IE_FAR_Id(id=3), p.IE_ApplyAction(DROP=1)]))
    session.send_down("dropped", port=4711)
    session.send_down("passes")
    session.came_down("passes")
    assert cause(world.ask(pfds("dns"))) == OK
    session.send_down("not detected", port=4711)
    session.came_down("not detected")
    session.end()


# Addresses, endpoints, rates.


def addresses_are_chosen(world):
    rules = [pdr(1, from_ue(choice(0)), removes=True), pdr(2, to_ue(choice(1))), m.uplink_far(1), m.downlink_far(2, 1)]
    response = establish(world, 0x5100, rules)
    assert cause(response) == OK, response.show(dump=True)
    created = elements(response, p.IE_CreatedPDR)
    assert [element(one, p.IE_PDR_Id).id for one in created] == [1, 2]
    told = [element(one, p.IE_UE_IP_Address) for one in created]
    assert {one.ipv4 for one in told} == {"10.64.1.10"} and all(one.V4 for one in told)
    seid = element(response, p.IE_FSEID).seid
    assert cause(world.ask(p.PFCPSessionDeletionRequest(), seid)) == OK


def endpoints_stand_for_what_rules_share(world):
    endpoint = lambda number: p.IE_TrafficEndpointId(id=number)
    ue = "10.64.0.2"
    create = [
        p.IE_CreateTrafficEndpoint(IE_list=[endpoint(1), m.f_teid(), p.IE_NetworkInstance(instance="access"), given(ue, 0)]),
        p.IE_CreateTrafficEndpoint(IE_list=[endpoint(2), p.IE_NetworkInstance(instance="internet"), given(ue, 1)]),
    ]
    rules = [
        pdr(1, [p.IE_SourceInterface(interface="Access"), endpoint(1)], removes=True),
        pdr(2, [p.IE_SourceInterface(interface="SGi-LAN/N6-LAN"), endpoint(2)]),
        m.uplink_far(1), m.downlink_far(2, 0x7000), *create,
    ]
    response = establish(world, 0x5002, rules)
    assert cause(response) == OK, response.show(dump=True)
    created = element(response, p.IE_CreatedTrafficEndpoint)
    assert element(created, p.IE_TrafficEndpointId).id == 1
    session = Session.__new__(Session)
    session.world, session.ue, session.teid = world, ue, 0x7000
    session.seid, session.up_teid = element(response, p.IE_FSEID).seid, element(created, p.IE_FTEID).TEID
    session.up("by an endpoint")
    session.send_down("and back")
    session.came_down("and back")
    session.modify(p.IE_RemoveTrafficEndpoint(IE_list=[endpoint(1)]))
    unknown = p.PFCPSessionModificationRequest(IE_list=[p.IE_RemoveTrafficEndpoint(IE_list=[endpoint(7)])])
    rejected(world.ask(unknown, session.seid), "Rule creation/modification Failure")
    session.end()


def rates_are_shared(world):
    qer = lambda number, kbps: p.IE_CreateQER(IE_list=[
        p.IE_QER_Id(id=number), p.IE_QERCorrelationId(id=77), p.IE_GateStatus(ul="OPEN", dl="OPEN"), p.IE_MBR(ul=kbps, dl=kbps)])
    session = Session(world, "10.64.0.3", qer(1, 1000), names=[p.IE_QER_Id(id=1)])
    session.up("within the rate")
    other = p.PFCPSessionModificationRequest(IE_list=[qer(2, 2000)])
    rejected(world.ask(other, session.seid), "Rule creation/modification Failure", 2)
    session.end()


# Usage.


def usage_is_reported(world):
    threshold = p.IE_VolumeThreshold(TOVOL=1, total=150)
    session = Session(world, "10.64.0.4", urr(7, {"volume_threshold": 1}, threshold), names=[p.IE_URR_Id(id=7)])
    up = session.up("k" * 150)
    report = world.report()
    assert report.seid == session.cp_seid and element(report.payload, p.IE_ReportType).USAR == 1
    usage = element(report.payload, p.IE_UsageReport_SRR)
    assert (element(usage, p.IE_URR_Id).id, element(usage, p.IE_UR_SEQN).number) == (7, 0)
    assert element(usage, p.IE_UsageReportTrigger).VOLTH == 1 and octets_of(usage) == (up, 0)

    session.send_down("asked for")
    session.came_down("asked for")
    response = session.modify(p.IE_QueryURR(IE_list=[p.IE_URR_Id(id=7)]))
    usage = element(response, p.IE_UsageReport_SMR)
    assert element(usage, p.IE_UR_SEQN).number == 1 and element(usage, p.IE_UsageReportTrigger).IMMER == 1
    assert octets_of(usage) == (0, 28 + len("asked for"))
    assert not elements(session.modify(p.IE_PFCPSMReqFlags(spare=0)), p.IE_UsageReport_SMR)

    more = urr(7, {"start_of_traffic": 1}, compound=p.IE_UpdateURR)
    session.modify(more)
    up = session.up("goes with the rule")
    assert element(element(world.report().payload, p.IE_UsageReport_SRR), p.IE_UsageReportTrigger).START == 1
    naked = [p.IE_UpdatePDR(IE_list=[p.IE_PDR_Id(id=number), p.IE_URR_Id(id=8)]) for number in (1, 2)]
    response = session.modify(p.IE_RemoveURR(IE_list=[p.IE_URR_Id(id=7)]), urr(8, {}), *naked)
    usage = element(response, p.IE_UsageReport_SMR)
    assert element(usage, p.IE_UsageReportTrigger).TERMR == 1 and octets_of(usage) in ((up, 0), (0, 0))

    up = session.up("the end")
    usage = element(session.end(), p.IE_UsageReport_SDR)
    assert element(usage, p.IE_UsageReportTrigger).TERMR == 1 and octets_of(usage) == (up, 0)


def usage_is_reported_periodically(world):
    period = p.IE_MeasurementPeriod(period=1)
    session = Session(world, "10.64.0.5", urr(1, {"periodic_reporting": 1}, period), names=[p.IE_URR_Id(id=1)])
    up = session.up("within a second")
    reports = [element(world.report().payload, p.IE_UsageReport_SRR) for _ in range(2)]
    assert [element(usage, p.IE_UR_SEQN).number for usage in reports] == [0, 1]
    assert all(element(usage, p.IE_UsageReportTrigger).PERIO for usage in reports)
    assert sum(octets_of(usage)[0] for usage in reports) == up
    session.end()


def nothing_passes_beyond_a_quota(world):
    quota = p.IE_VolumeQuota(TOVOL=1, total=100)
    session = Session(world, "10.64.0.6", urr(2, {"volume_quota": 1}, quota), names=[p.IE_URR_Id(id=2)])
    session.up("passes")
    session.send_down("q" * 100)
    usage = element(world.report().payload, p.IE_UsageReport_SRR)
    assert element(usage, p.IE_UsageReportTrigger).VOLQU == 1 and world.is_quiet("n3")
    session.modify(urr(2, {"volume_quota": 1}, p.IE_VolumeQuota(TOVOL=1, total=1000), compound=p.IE_UpdateURR))
    session.send_down("again")
    session.came_down("again")
    session.end()


def a_period_has_a_length(world):
    rules = [pdr(1, from_ue(given("10.64.0.6", 0)), removes=True), m.uplink_far(1), urr(1, {"periodic_reporting": 1})]
    response = establish(world, 0x5006, rules)
    rejected(response, "Conditional IE missing")
    assert element(response, p.IE_OffendingIE).type == p.IE_MeasurementPeriod.ie_type


# Packets that wait.


def bar(number, delay, count, compound=p.IE_Create_BAR):
    terms = [p.IE_DownlinkDataNotificationDelay(delay=delay), p.IE_SuggestedBufferingPacketsCount(count=count)]
    return compound(IE_list=[p.IE_BAR_Id(id=number), *terms])


def told_of(world, session, *more):
    report = world.report(*more)
    assert report.seid == session.cp_seid and element(report.payload, p.IE_ReportType).DLDR == 1
    return element(element(report.payload, p.IE_DownlinkDataReport), p.IE_PDR_Id).id


def packets_wait_for_their_ue(world):
    session = Session(world, "10.64.0.7", bar(3, 0, 4), far=buffering_far(2, 0x7000, 3))
    for text in ("one", "two", "three", "four", "too many"):
        session.send_down(text)
    assert told_of(world, session) == 2 and world.is_quiet("n3")
    session.modify(apply(2, FORW=1))
    session.send_down("newer")
    for text in ("one", "two", "three", "four", "newer"):
        session.came_down(text)
    # Told after half a second; and discarded by the answer.
    session.modify(bar(3, 10, 9, p.IE_Update_BAR_SMR), apply(2, BUFF=1, NOCP=1))
    began = time.monotonic()
    session.send_down("discarded")
    assert told_of(world, session, p.IE_PFCPSRRspFlags(DROBU=1)) == 2
    assert time.monotonic() - began >= 0.45
    # A heartbeat later the answer has been dealt with.
    world.ask(m.heartbeat())
    session.modify(apply(2, FORW=1))
    assert world.is_quiet("n3")
    gone = p.PFCPSessionModificationRequest(IE_list=[p.IE_Remove_BAR(IE_list=[p.IE_BAR_Id(id=8)])])
    rejected(world.ask(gone, session.seid), "Rule creation/modification Failure", 8)
    session.end()


def a_tunnel_is_left_with_an_end_marker(world):
    session = Session(world, "10.64.0.8")
    session.send_down("before")
    session.came_down("before")
    flags = p.IE_PFCPSMReqFlags(SNDEM=1)
    parameters = p.IE_UpdateForwardingParameters(IE_list=[m.tunnel(0x7001), flags])
    session.modify(p.IE_UpdateFAR(IE_list=[p.IE_FAR_Id(id=2), parameters]))
    marker = world.frame("n3")[UDP].payload
    assert (marker.gtp_type, marker.teid) == (254, 0x7000), marker.show(dump=True)
    session.teid = 0x7001
    session.send_down("after")
    session.came_down("after")
    # The gNB does not know that tunnel.
    told = [gtp.IE_TEIDI(TEIDI=0x7001), gtp.IE_GSNAddress(length=4, ipv4_address=GNB)]
    world.to_n3(gtp.GTP_U_Header(teid=0, S=1, seq=0, gtp_type=26) / gtp.GTPErrorIndication(IE_list=told))
    report = world.report()
    assert element(report.payload, p.IE_ReportType).ERIR == 1
    tunnel = element(element(report.payload, p.IE_ErrorIndicationReport), p.IE_FTEID)
    assert (tunnel.TEID, tunnel.ipv4) == (0x7001, GNB)
    session.end()


PROCEDURES = [
    heartbeats_and_an_association,
    a_path_that_fails_is_told,
    an_association_is_updated,
    sets_of_sessions_are_nobodys,
    a_release_takes_the_sessions_along,
    applications_are_detected_as_described,
    addresses_are_chosen,
    endpoints_stand_for_what_rules_share,
    rates_are_shared,
    usage_is_reported,
    usage_is_reported_periodically,
    nothing_passes_beyond_a_quota,
    a_period_has_a_length,
    packets_wait_for_their_ue,
    a_tunnel_is_left_with_an_end_marker,
]

if __name__ == "__main__":
    smf, upf, capture, *macs = sys.argv[1:]
    world = World(smf, upf, dict(zip(["gnb", "n3", "dn", "n6"], macs)))
    for procedure in PROCEDURES:
        procedure(world)
        assert not world.requests and not any(world.frames.values()), (procedure.__name__, world.requests, world.frames)
        print("done", procedure.__name__, flush=True)
    world.keep(capture)
