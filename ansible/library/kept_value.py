#!/usr/bin/python
"""Ansible module: a value under /proc/sys or /sys, what was there kept on the host first."""

from __future__ import annotations

import glob
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible.module_utils.deploy_kit_kept import FOLDER, Kept, active_word

DOCUMENTATION = r"""
module: kept_value
short_description: A value under /proc/sys or /sys, what was there kept on the host first
description:
  - Writes the running kernel's value; what makes it last over a reboot is a file, see M(kept_file). A path
    that does
    not exist on this machine is not an error.
options:
  path: {type: str, required: true, description: A file, or a pattern of files.}
  value: {type: str, required: true, description: The value.}
  folder: {type: path, default: /var/lib/deploy-kit/provision, description: Where originals are kept.}
author: [deploy-kit]
"""
EXAMPLES = r"""
- name: Switch NUMA balancing off now
  kept_value:
    path: /proc/sys/kernel/numa_balancing
    value: "0"
"""
RETURN = r"""
paths: {type: list, elements: str, returned: always, description: Which files had another value.}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "str", "required": True},
            "value": {"type": "str", "required": True},
            "folder": {"type": "path", "default": FOLDER},
        },
        supports_check_mode=True,
    )
    wanted = " ".join(module.params["value"].split())
    kept = Kept(module.params["folder"])
    found: dict[str, str] = {}
    for name in sorted(glob.glob(module.params["path"])):  # noqa: PTH207 (an absolute pattern)
        if not name.startswith(("/proc/sys/", "/sys/")):
            module.fail_json(msg=f"{name} is not under /proc/sys or /sys")
        try:
            found[name] = active_word(Path(name).read_text())
        except OSError as error:
            module.fail_json(msg=f"cannot read {name}: {error.strerror}")
    differing = {name: value for name, value in found.items() if value != wanted}
    if differing and not module.check_mode:
        for name, value in differing.items():
            kept.manifest["values"].setdefault(name, value)
        kept.save()
        for name in differing:
            try:
                Path(name).write_text(wanted)
            except OSError as error:
                module.fail_json(msg=f"the kernel refuses {wanted!r} for {name}: {error.strerror}")
    module.exit_json(
        changed=bool(differing),
        paths=sorted(differing),
        diff={
            "before": "".join(f"{name} = {value}\n" for name, value in found.items()),
            "after": "".join(f"{name} = {wanted}\n" for name in found),
        },
    )


if __name__ == "__main__":
    main()
