#!/usr/bin/env bash
# Brings the checkers that are not wheels: promtool and amtool (unpacked into .cache/tools, so that no daemon is installed or
# started), nix and patch (installed, when root). Usage: scripts/test-tools.sh
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/.cache/tools
mkdir -p "$tools/bin"
missing=()
for program in promtool amtool; do
  [ -x "$tools/bin/$program" ] || missing+=("$program")
done
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" -ne 0 ] || apt-get update -qq
  (
    folder=$(mktemp -d)
    chmod 755 "$folder"
    cd "$folder"
    apt-get download -qq prometheus prometheus-alertmanager
    for package in *.deb; do dpkg -x "$package" "$folder/root"; done
    cp root/usr/bin/promtool root/usr/bin/amtool "$tools/bin/"
    rm -rf "$folder"
  )
fi
if [ "$(id -u)" -eq 0 ] && { ! command -v nix || ! command -v patch; } >/dev/null 2>&1; then
  apt-get install -qq -y --no-install-recommends nix-bin patch >/dev/null
fi
