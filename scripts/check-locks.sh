#!/usr/bin/env bash
# Lock files hold hashes and no addresses; no file names a registry. Usage: scripts/check-locks.sh
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
while read -r lock; do
  if grep -nE '://' "$lock"; then
    echo "$lock: a lock file must not hold an address" >&2
    bad=1
  fi
  # Every requirement line (name==version) is followed by at least one hash.
  awk -v file="$lock" '
    /^[A-Za-z0-9]/ { if (name && !hashes) { print file ": no hash for " name; bad = 1 } name = $1; hashes = 0 }
    /--hash=sha256:[0-9a-f]+/ { hashes++ }
    END { if (name && !hashes) { print file ": no hash for " name; bad = 1 } exit bad }
  ' "$lock" >&2 || bad=1
done < <(git ls-files -- 'requirements/*.txt' 'docker/requirements/*.txt')
exit $bad
