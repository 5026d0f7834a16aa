#!/usr/bin/python
"""Ansible module: read one weight file whole and compare its SHA-256; a file verified before is not read
again."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible.module_utils.deploy_kit_kept import write_atomically

DOCUMENTATION = r"""
module: shard_checksum
short_description: Read one weight file whole and compare its SHA-256
description:
  - What was verified is noted in O(state_file) with size and time of the file, so that an interrupted
    verification goes on
    where it stopped and a second one reads nothing.
options:
  path: {type: path, required: true, description: The file.}
  sha256: {type: str, required: true, description: What it must hash to.}
  state_file: {type: path, required: true, description: Where to note it.}
author: [deploy-kit]
"""
EXAMPLES = r"""
- name: Verify a shard
  shard_checksum:
    path: /srv/models/m/model-00001-of-00002.safetensors
    sha256: "…"
    state_file: /var/lib/deploy-kit/models/m.json
"""
RETURN = r"""
read: {type: bool, returned: always, description: Whether the file was read now.}
"""
_BLOCK = 16 * 1024**2


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "sha256": {"type": "str", "required": True},
            "state_file": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    path, wanted = Path(module.params["path"]), module.params["sha256"].lower()
    state_path = Path(module.params["state_file"])
    try:
        verified = json.loads(state_path.read_text())
    except (OSError, ValueError):
        verified = {}
    try:
        status = path.stat()
    except OSError as error:
        module.fail_json(msg=f"{path}: {error.strerror}")
    entry = {"sha256": wanted, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    if verified.get(path.name) == entry:
        module.exit_json(changed=False, read=False)
    if module.check_mode:
        module.exit_json(changed=True, read=False)
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as handle:
            while block := handle.read(_BLOCK):
                digest.update(block)
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # leave the page cache to others
    except OSError as error:
        module.fail_json(msg=f"{path} cannot be read: {error.strerror}")
    if digest.hexdigest() != wanted:
        module.fail_json(
            msg=f"{path} is damaged. Found SHA-256 {digest.hexdigest()}, wanted {wanted} "
            f"({status.st_size} bytes). Remedy: fetch this file again; those verified so far stay verified. "
            "(exit code 42)"
        )
    state_path.parent.mkdir(parents=True, exist_ok=True)
    verified[path.name] = entry
    write_atomically(state_path, json.dumps(verified, indent=1, sort_keys=True).encode(), mode=0o644)
    module.exit_json(changed=True, read=True)


if __name__ == "__main__":
    main()
