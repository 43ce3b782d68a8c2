#!/bin/bash
# Docker's engine and client, Compose 2.20 or newer, debootstrap: what the pod's tests run for real.
# Installs what is missing on Debian, as root; elsewhere it names what is missing.
set -euo pipefail

compose() {
    local version
    version=$(docker-compose version --short 2>/dev/null || docker compose version --short 2>/dev/null)
    # 2.20 knows `required: false` in depends_on.
    [ "$(printf '%s\n' 2.20 "${version#v}" | sort --version-sort | head -1)" = 2.20 ]
}

missing=()
for program in /usr/bin/docker dockerd debootstrap ss; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || missing+=("$program")
done
compose || missing+=("docker-compose")
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "The pod's tests need Docker, Compose 2.20, debootstrap and ss; missing: ${missing[*]}" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends docker.io debootstrap iptables iproute2 >/dev/null
compose && exit 0

# Debian 12 has Compose 1. The package of Debian 13 is one static program: take that alone, from a
# list of packages that this machine's own apt never sees.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
mkdir -p "$folder/lists/partial"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# The archive that this machine takes Debian itself from; the updates for security are in another.
# shellcheck disable=SC2016  # apt's own placeholder
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)
[ -n "$archive" ] || { echo "apt has no archive of Debian to take docker-compose from" >&2; exit 1; }
echo "deb [signed-by=$keyring] $archive trixie main" >"$folder/sources.list"
trixie=(-o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$folder/lists" -o APT::Sandbox::User=root)
apt-get "${trixie[@]}" update -qq
(cd "$folder" && apt-get "${trixie[@]}" download -qq docker-compose)
apt-get install -y -qq --no-install-recommends "$folder"/docker-compose_*.deb >/dev/null
compose || { echo "Debian's docker-compose does not answer" >&2; exit 1; }
