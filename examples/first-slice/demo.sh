#!/bin/bash
# The first slice, at work: brings it up, sends real traffic from the UE, shows what each hop counted and how that
# compares with a plain veth pair, and takes everything down again. KEEP=1 leaves it up.
set -euo pipefail
cd "$(dirname "$0")/../.."

kaista=target/release/kaista
work=$(mktemp -d "${TMPDIR:-/tmp}/kaista-demo.XXXXXX")
server=10.6.0.2
megabytes=200
reference=(kaista-ref-a kaista-ref-b)

bold='' plain=''
if [[ -t 1 && -z ${NO_COLOR:-} ]]; then bold=$'\e[1m' plain=$'\e[0m'; fi
step() { printf '%s\n%s%s\n' '' "$bold$*" "$plain"; }
fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }
ue() { "$kaista" exec ran -- "$@"; }

[[ $(id -u) == 0 ]] || fail "run as root: containers with network namespaces of their own are made"

finish() {
    local status=$?
    trap - EXIT INT TERM
    # shellcheck disable=SC2046
    kill $(jobs -p) 2>/dev/null || true
    for namespace in "${reference[@]}"; do
        # A daemon in it is no job of this shell.
        { ip netns pids "$namespace" | xargs -r kill; } 2>/dev/null || true
        ip netns delete "$namespace" 2>/dev/null || true
    done
    if ((status)); then
        for function in ran upf dn; do
            echo "--- last lines of $function" >&2
            "$kaista" logs "$function" --tail 15 >&2 || true
        done
    fi
    if [[ ${KEEP:-0} == 1 ]]; then
        echo "The slice is left up. Try: $kaista top; $kaista exec ran -- ping $server; and at last: $kaista down first-slice"
    else
        step "Taking it down"
        "$kaista" down first-slice || status=1
    fi
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- what is measured ------------------------------------------------------------------------------------------------

# ping_us COMMAND...: average round trip of 200 pings, in microseconds.
ping_us() { "$@" | awk -F/ '/^rtt|^round-trip/ { printf "%.0f", $5 * 1000 }'; }
# iperf_mbps COMMAND...: received Mb/s, from iperf3's JSON.
iperf_mbps() {
    "$@" --json >"$work/iperf.json" || fail "iperf3: $(jq -r '.error // "failed"' "$work/iperf.json")"
    jq -r '(.end.sum_received // .end.sum).bits_per_second / 1e6 | round' "$work/iperf.json"
}
# Share of the last UDP run that was lost, in percent.
iperf_loss() { jq -r '.end.sum.lost_percent | . * 100 | round / 100' "$work/iperf.json"; }


# --- the slice -------------------------------------------------------------------------------------------------------

step "kaista up examples/first-slice/slice.yaml"
"$kaista" up examples/first-slice/slice.yaml
"$kaista" ps

step "The UE reaches the data network"
for ((try = 0; ; try++)); do
    if ue ping -c 1 -W 1 -I ue0 "$server" >/dev/null 2>&1; then break; fi
    ((try < 15)) || fail "no answer from $server within 15 s"
done
for port in n3 n4 n6; do
    "$kaista" pcap upf/"$port" >"$work/$port.pcapng" 2>/dev/null &
done
sleep 0.3
ue ping -c 5 -i 0.2 -I ue0 "$server"
for ((try = 0; ; try++)); do
    if digest=$(ue curl -sSf --interface ue0 "http://$server/file.sha256" 2>/dev/null); then break; fi
    ((try < 60)) || fail "the web server does not serve its file"
    sleep 0.25
done
sleep 1.2 # a heartbeat passes on N4
kill -INT $(jobs -p) && wait || true

step "What passed the UPF's ports, as tshark sees it"
for port in n3 n4 n6; do
    broken=$(tshark -r "$work/$port.pcapng" -Y _ws.malformed 2>/dev/null | wc -l)
    printf '%s: %d packets, %d malformed; ' "$port" "$(tshark -r "$work/$port.pcapng" 2>/dev/null | wc -l)" "$broken"
    tshark -r "$work/$port.pcapng" -T fields -e frame.protocols 2>/dev/null | sed 's/^eth:ethertype://' | sort | uniq -c | sort -rn |
        awk 'NR <= 2 { printf "%s%s x %d", separator, $2, $1; separator = ", " } END { print "" }'
    ((broken == 0)) || fail "a malformed packet on $port"
done

step "$megabytes MB down and up by HTTP, digests compared"
# transfer NAME RECEIVER PATH CURL-ARGUMENT...: moves the file, compares its digest at the receiving end, notes the rate.
transfer() {
    local name=$1 receiver=$2 path=$3 started arrived mbps
    shift 3
    started=$EPOCHREALTIME
    ue curl -sSf --interface ue0 "$@"
    mbps=$(awk -v from="$started" -v to="$EPOCHREALTIME" -v mb="$megabytes" 'BEGIN { printf "%.0f", mb * 8 / (to - from) }')
    arrived=$("$kaista" exec "$receiver" -- sha256sum "$path")
    [[ ${arrived%% *} == "${digest%% *}" ]] || fail "$name: arrived as ${arrived%% *}, sent as ${digest%% *}"
    printf '%-5s %s Mb/s, sha256 %s intact\n' "$name" "$mbps" "${digest%% *}"
    declare -g "http_$name=$mbps"
}
transfer down ran /data/file -o /data/file "http://$server/file"
transfer up dn /data/upload/file -o /dev/null -T /data/file "http://$server/upload/file"

step "iperf3 and ping between UE and data network"
slice_tcp_up=$(iperf_mbps ue iperf3 -c "$server" -t 3 -O 1)
slice_tcp_down=$(iperf_mbps ue iperf3 -c "$server" -t 3 -O 1 -R)
slice_udp_up=$(iperf_mbps ue iperf3 -c "$server" -t 2 -u -b 200M -l 1300)
slice_udp_up_loss=$(iperf_loss)
slice_udp_down=$(iperf_mbps ue iperf3 -c "$server" -t 2 -u -b 200M -l 1300 -R)
slice_udp_down_loss=$(iperf_loss)
slice_rtt=$(ping_us ue ping -q -c 200 -i 0.005 -I ue0 "$server")

step "What each hop counted"
"$kaista" top --once

# --- the same between two network namespaces joined by a plain veth pair ----------------------------------------------

in_a() { ip netns exec "${reference[0]}" "$@"; }
in_b() { ip netns exec "${reference[1]}" "$@"; }
for namespace in "${reference[@]}"; do ip netns delete "$namespace" 2>/dev/null || true; ip netns add "$namespace"; done
ip link add ref0 netns "${reference[0]}" type veth peer name ref1 netns "${reference[1]}"
in_a ip address add 198.51.100.1/24 dev ref0 && in_a ip link set ref0 up && in_a ip link set lo up
in_b ip address add 198.51.100.2/24 dev ref1 && in_b ip link set ref1 up && in_b ip link set lo up
in_b iperf3 -s -D -I "$work/iperf3.pid" >/dev/null
sleep 0.3
veth_tcp_up=$(iperf_mbps in_a iperf3 -c 198.51.100.2 -t 2)
veth_tcp_down=$(iperf_mbps in_a iperf3 -c 198.51.100.2 -t 2 -R)
veth_udp_up=$(iperf_mbps in_a iperf3 -c 198.51.100.2 -t 2 -u -b 200M -l 1300)
veth_udp_down=$(iperf_mbps in_a iperf3 -c 198.51.100.2 -t 2 -u -b 200M -l 1300 -R)
veth_rtt=$(ping_us in_a ping -q -c 200 -i 0.005 198.51.100.2)
kill "$(tr -d '\0' <"$work/iperf3.pid")" 2>/dev/null || true

step "First slice: UE - gNB - GTP-U - UPF - data network, beside two namespaces on a plain veth pair"
row() { printf '%-32s %18s %14s\n' "$@"; }
row "" "first slice" "plain veth"
row "HTTP download, Mb/s" "$http_down" "-"
row "HTTP upload, Mb/s" "$http_up" "-"
row "iperf3 TCP uplink, Mb/s" "$slice_tcp_up" "$veth_tcp_up"
row "iperf3 TCP downlink, Mb/s" "$slice_tcp_down" "$veth_tcp_down"
row "iperf3 UDP uplink, Mb/s" "$slice_udp_up ($slice_udp_up_loss % lost)" "$veth_udp_up"
row "iperf3 UDP downlink, Mb/s" "$slice_udp_down ($slice_udp_down_loss % lost)" "$veth_udp_down"
row "ping round trip, mean, us" "$slice_rtt" "$veth_rtt"
echo "Conditions: $(nproc) cores shared by everything above, UDP offered at 200 Mb/s in 1,300 B payloads; the veth pair moves"
echo "64 KiB segments without copying or checksums, the slice carries every packet by itself through two TAPs and four ports."
