#!/bin/bash
# Builds the root filesystems of the first slice's functions under target/images: upf, ran and dn.
#
# Our own programs come from target/release and are static. The others come from Debian packages: apt resolves and fetches
# them with everything they depend on, as if nothing were installed; of that, an image gets the wanted programs and the
# libraries that they are linked with, and nothing else. No package script runs. Run it as often as you like: packages are
# fetched once, and an image that would be the same is left alone.
set -euo pipefail
umask 022
self=$(realpath "$0")
cd "$(dirname "$self")/../.."

images=$PWD/target/images
cache=$images/.cache
say() { printf 'images: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
[[ $(id -u) == 0 ]] || die "must run as root: files of an image belong to root"

# An image is made of: our programs, packages, and programs out of those packages.
declare -A ours=([upf]="kaista-upf" [ran]="kaista-ran kaista-traffic" [dn]="kaista-traffic")
declare -A packages=([upf]="busybox-static" [ran]="busybox-static dash iputils-ping curl iperf3" [dn]="busybox-static dash curl iperf3 nginx")
declare -A programs=([upf]="" [ran]="dash ping curl iperf3" [dn]="dash curl iperf3 nginx")
# The commands of busybox that an image gets; * stands for all that no other program provides.
declare -A commands=([upf]="cat" [ran]="*" [dn]="*")

# Unpacks packages and all that they depend on into a directory, once.
stage() {
    local name=$1 archives=$cache/archives lists=/var/lib/apt/lists
    local key stage uris uri file
    key=$(printf '%s\n' "${packages[$name]}" "$(. /etc/os-release && echo "$VERSION_ID")" "$(dpkg --print-architecture)" | sha256sum | cut -c1-16)
    stage=$cache/stage-$key
    if [[ ! -d $stage ]]; then
        say "fetching ${packages[$name]} and what they depend on"
        mkdir -p "$archives/partial"
        : >"$cache/nothing-installed"
        compgen -G "$lists/*_Packages*" >/dev/null || apt-get -qq update
        # shellcheck disable=SC2086 # a list of words
        apt-get -qq -y --no-install-recommends --download-only \
            -o Dir::State::status="$cache/nothing-installed" -o Dir::Cache::archives="$archives" \
            -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 \
            install ${packages[$name]} >/dev/null
        # shellcheck disable=SC2086
        uris=$(apt-get -qq -y --no-install-recommends --print-uris \
            -o Dir::State::status="$cache/nothing-installed" -o Dir::Cache::archives="$cache" -o Debug::NoLocking=1 \
            install ${packages[$name]} | awk '{ print $2 }')
        rm -rf "$stage.new"
        mkdir -p "$stage.new"/usr/{bin,sbin,lib,lib64}
        for dir in bin sbin lib lib64; do ln -s "usr/$dir" "$stage.new/$dir"; done
        for file in $uris; do
            dpkg-deb --fsys-tarfile "$archives/$file" | tar -x -C "$stage.new" --keep-directory-symlink --no-same-owner
        done
        mv "$stage.new" "$stage"
    fi
    echo "$stage"
}

# A program's path in a stage.
locate() {
    local stage=$1 program=$2 dir
    for dir in usr/sbin usr/bin; do
        [[ -f $stage/$dir/$program ]] && { echo "$dir/$program"; return; }
    done
    die "no package brings the program $program"
}

# Libraries that a program is linked with, as the stage's own loader finds them, and the loader.
libraries() {
    local stage=$1 program=$2 loader
    # In lib64 on some architectures, in lib on others.
    loader=$(find "$stage/lib64/" "$stage/lib/" -maxdepth 1 -name 'ld-linux*.so.*' -print -quit)
    loader=/${loader#"$stage/"}
    echo "$loader"
    chroot "$stage" "$loader" --list "/$program" | sed -nE 's/.* => (\/[^ ]+) .*/\1/p'
}

# Copies files out of a stage, each as the plain file that its links lead to, under the name by which it was asked for.
take() {
    local stage=$1 root=$2 file
    while read -r file; do
        [[ -e $root/$file ]] || install -D "$stage/$(chroot "$stage" /bin/busybox readlink -f "/$file")" "$root/$file"
    done
}

lay_out() {
    local name=$1 root=$2 stage program file
    stage=$(stage "$name")
    mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root"/{etc,var/lib,var/log,dev,proc,sys,run,data}
    mkdir -m 1777 "$root/tmp"
    for dir in bin sbin lib lib64; do ln -s "usr/$dir" "$root/$dir"; done
    echo 'root:x:0:0:root:/root:/bin/sh
kaista:x:1000:1000::/tmp:/bin/sh
nobody:x:65534:65534::/:/bin/false' >"$root/etc/passwd"
    echo 'root:x:0:
kaista:x:1000:
nogroup:x:65534:' >"$root/etc/group"
    echo 'passwd: files
group: files
hosts: files' >"$root/etc/nsswitch.conf"

    for program in ${ours[$name]}; do
        install target/release/"$program" "$root/usr/bin/$program"
    done
    for program in ${programs[$name]}; do
        file=$(locate "$stage" "$program")
        { echo "$file"; libraries "$stage" "$file"; } | take "$stage" "$root"
    done
    if [[ -n ${programs[$name]} ]]; then
        # Not busybox, whose shell prefers its own commands: its ping wants to be root.
        ln -s dash "$root/usr/bin/sh"
        # Loaded by name when a thread is cancelled.
        (cd "$stage" && ls lib/*/libgcc_s.so.1) | take "$stage" "$root"
    fi
    if [[ ${commands[$name]} == '*' ]]; then
        install "$stage/bin/busybox" "$root/usr/bin/busybox"
        for program in $("$stage/bin/busybox" --list); do
            [[ -e $root/usr/bin/$program || -e $root/usr/sbin/$program ]] || ln -s busybox "$root/usr/bin/$program"
        done
    else
        for program in ${commands[$name]}; do install "$stage/bin/busybox" "$root/usr/bin/$program"; done
    fi
    find "$root" -exec touch -h -d @0 {} +
}

# What an image is made from, in one line.
recipe() {
    local name=$1 program
    { cat "$self"; for program in ${ours[$name]}; do cat "target/release/$program"; done; } | sha256sum
}

build() {
    local name=$1 new=$images/.new-$1 program
    for program in ${ours[$name]}; do
        [[ -x target/release/$program ]] || die "target/release/$program is missing: run 'make build' first"
    done
    recipe "$name" >"$cache/$name.recipe.new"
    if [[ -d $images/$name ]] && cmp -s "$cache/$name.recipe" "$cache/$name.recipe.new"; then
        return
    fi
    rm -rf "$new" "$images/.old-$name"
    mkdir "$new"
    lay_out "$name" "$new"
    # Renamed into place: nobody ever sees half an image.
    rm -f "$cache/$name.recipe"
    [[ ! -d $images/$name ]] || mv "$images/$name" "$images/.old-$name"
    mv "$new" "$images/$name"
    mv "$cache/$name.recipe.new" "$cache/$name.recipe"
    rm -rf "$images/.old-$name"
    say "$name: $(du -sh "$images/$name" | cut -f1) in target/images/$name"
}

mkdir -p "$cache"
names=("$@")
((${#names[@]})) || names=(upf ran dn)
for name in "${names[@]}"; do build "$name"; done
