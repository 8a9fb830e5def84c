#!/bin/bash
# Brings a Debian 12 machine to where Kaista can be built, run and tested. Run as root; run it as often as you like.
#
#   scripts/setup.sh build    compiler and libraries to build with
#   scripts/setup.sh run      and what a node needs to run slices (runc, hugepages)
#   scripts/setup.sh test     and the foreign programs that demo, tests and benchmarks drive
set -euo pipefail

level=${1:-test}
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# libdpdk-dev: what the programs whose ports are DPDK's are linked with.
build_packages=(gcc libc6-dev make pkg-config git ca-certificates libdpdk-dev)
run_packages=(runc iproute2 procps kmod)
# iputils-ping, curl, iperf3, nginx: real traffic. dpdk: testpmd to compare with. tshark, scapy: independent judges of our
# bytes. umoci, skopeo: images made by others. valgrind: instruction counts. g++: libFuzzer. libzstd-dev: cargo-deny.
test_packages=(g++ libzstd-dev iputils-ping curl iperf3 busybox-static dpdk-dev tshark python3-scapy python3-prometheus-client umoci skopeo valgrind jq ethtool man-db)

packages=("${build_packages[@]}")
case $level in
    build) ;;
    run) packages+=("${run_packages[@]}") ;;
    test) packages+=("${run_packages[@]}" "${test_packages[@]}") ;;
    *) die "unknown level '$level': build, run or test" ;;
esac

install_packages() {
    local missing=() package
    for package in "${packages[@]}"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    [[ $(id -u) == 0 ]] || die "these packages are missing and only root can install them: ${missing[*]}"
    say "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq -y install --no-install-recommends "${missing[@]}" >/dev/null
}

check_toolchain() {
    local wanted have
    if ! command -v cargo >/dev/null; then
        die "no Rust toolchain. Install one with:  curl --proto '=https' -sSf https://sh.rustup.rs | sh -s -- -y  and start a new shell"
    fi
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(rustc --version | cut -d' ' -f2)
    if [[ $(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -1) != "$wanted" ]]; then
        die "Rust $have is older than $wanted. Update it with:  rustup update stable"
    fi
}

# Record areas of ports and DPDK's memory live in 2 MiB pages where there are any; without, everything works on ordinary
# pages and is said to.
reserve_hugepages() {
    local wanted=${KAISTA_HUGEPAGES:-512} file=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
    if [[ ! -w $file ]]; then
        say "hugepages: none to be had on this kernel or as this user; falling back to ordinary pages"
        return
    fi
    (($(<"$file") >= wanted)) || echo "$wanted" >"$file" || true
    if (($(<"$file") < wanted)); then
        say "hugepages: $(<"$file") of $wanted reserved, memory is too fragmented for more; falling back to ordinary pages where they run out"
    fi
}

cd "$(dirname "$0")/.."
install_packages
check_toolchain
if [[ $level != build && $(id -u) == 0 ]]; then
    reserve_hugepages
fi
