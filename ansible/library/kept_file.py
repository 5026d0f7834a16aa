#!/usr/bin/python
"""Ansible module: a file with this content, its original kept on the host first."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible.module_utils.deploy_kit_kept import FOLDER, Kept, text_of, write_atomically

DOCUMENTATION = r"""
module: kept_file
short_description: A file with this content, its original kept on the host first
description:
  - Writes atomically. Before the first change the original (content, mode, owner, time) goes to O(folder),
    from where
    ansible/revert.yml restores it.
options:
  path: {type: path, required: true, description: The file; a link is followed.}
  content: {type: str, default: "", description: What it shall hold.}
  mode: {type: str, default: "", description: Its mode in octal digits; empty keeps a file's own, else 0644.}
  state:
    type: str
    default: present
    choices: [present, original]
    description: original puts back what was there before provisioning, or does nothing.
  validate:
    type: str
    default: ""
    description: A command that must accept the new content; %s is a file with it.
  folder: {type: path, default: /var/lib/deploy-kit/provision, description: Where originals are kept.}
author: [deploy-kit]
"""
EXAMPLES = r"""
- name: Write a setting
  kept_file:
    path: /etc/sysctl.d/60-deploy-kit.conf
    content: "kernel.numa_balancing = 0\n"
"""
RETURN = r"""
kept: {type: bool, returned: always, description: Whether the host holds an original of this file.}
"""


def validate(module: AnsibleModule, path: Path, data: bytes) -> None:
    """Stop when the command does not accept the content; the file itself is not touched."""
    with tempfile.NamedTemporaryFile(dir=module.tmpdir, suffix=path.name) as handle:
        handle.write(data)
        handle.flush()
        words = [word.replace("%s", handle.name) for word in module.params["validate"].split()]
        code, out, error = module.run_command(words)
    if code:
        module.fail_json(msg=f"{words[0]} refuses the new content of {path}: {(error or out).strip()}")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "content": {"type": "str", "default": ""},
            "mode": {"type": "str", "default": ""},
            "state": {"type": "str", "default": "present", "choices": ["present", "original"]},
            "validate": {"type": "str", "default": ""},
            "folder": {"type": "path", "default": FOLDER},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"]).resolve()
    kept = Kept(module.params["folder"])
    try:
        before = path.read_bytes()
        status = path.stat()
        mode_before, owner = stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid)
    except FileNotFoundError:
        before, mode_before, owner = None, None, (0, 0)
    except OSError as error:
        module.fail_json(msg=f"cannot read {path}: {error.strerror}")
    if module.params["state"] == "original":
        known = str(path) in kept.manifest["files"]
        after = kept.original(str(path)) if known else before
        changed = known
        if known and kept.changed_since(str(path)):
            module.fail_json(msg=f"{path} was changed after provisioning wrote it; it is left alone")
        if known and not module.check_mode:
            kept.restore_file(str(path))
    else:
        after = module.params["content"].encode()
        # A file that others may not read stays so.
        mode = int(module.params["mode"], 8) if module.params["mode"] else mode_before or 0o644
        changed = after != before or mode != mode_before
        if changed and module.params["validate"]:
            validate(module, path, after)
        if changed and not module.check_mode:
            try:
                kept.will_write(path, after)
                write_atomically(path, after, mode=mode, owner=owner)
            except OSError as error:
                module.fail_json(msg=f"cannot write {path}: {error.strerror}")
    module.exit_json(
        changed=changed,
        kept=str(path) in kept.manifest["files"],
        diff={
            "before": text_of(before),
            "after": text_of(after),
            "before_header": str(path),
            "after_header": str(path),
        },
    )


if __name__ == "__main__":
    main()
