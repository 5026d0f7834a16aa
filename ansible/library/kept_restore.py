#!/usr/bin/python
"""Ansible module: everything back as it was before provisioning."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible.module_utils.deploy_kit_kept import FOLDER, Kept, text_of

DOCUMENTATION = r"""
module: kept_restore
short_description: Everything back as it was before provisioning
description:
  - Stops units that were not there or not running, restores files byte for byte, puts back the kernel's
    running values,
    and restores whether units were enabled. A file that somebody changed after provisioning wrote it stops
    everything
    before the first change, unless O(overwrite) is set. Packages stay; they are named.
options:
  overwrite: {type: bool, default: false, description: Restore also files that were changed since.}
  folder: {type: path, default: /var/lib/deploy-kit/provision, description: Where originals are kept.}
author: [deploy-kit]
"""
EXAMPLES = r"""
- name: Restore
  kept_restore:
"""
RETURN = r"""
files: {type: list, elements: str, returned: always, description: Restored files.}
units: {type: list, elements: str, returned: always, description: Restored units.}
values: {type: list, elements: str, returned: always, description: Restored values of the running kernel.}
packages: {type: list, elements: str, returned: always, description: Packages that provisioning added; they
  stay.}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "overwrite": {"type": "bool", "default": False},
            "folder": {"type": "path", "default": FOLDER},
        },
        supports_check_mode=True,
    )
    try:
        kept = Kept(module.params["folder"])
        files, values, units = (dict(kept.manifest[key]) for key in ("files", "values", "units"))
        originals = {name: kept.original(name) for name in files}
    except (OSError, ValueError, KeyError) as error:
        module.fail_json(msg=f"the kept originals cannot be read, nothing was changed: {error}")
    foreign = [name for name in files if kept.changed_since(name)]
    if foreign and not module.params["overwrite"]:
        module.fail_json(
            msg=f"changed by somebody else after provisioning wrote them: {', '.join(foreign)}. "
            "Nothing was restored. Remedy: look at them, then -e revert_overwrite=true"
        )
    answer = {
        "changed": bool(files or values or units or kept.manifest["packages"]),
        "files": sorted(files),
        "units": sorted(units),
        "values": sorted(values),
        "packages": list(kept.manifest["packages"]),
        "diff": [
            {
                "before": text_of(Path(name).read_bytes() if Path(name).exists() else None),
                "after": text_of(originals[name]),
                "before_header": name,
                "after_header": name if originals[name] is not None else f"{name} (not there)",
            }
            for name in sorted(files)
        ],
    }
    if module.check_mode or not answer["changed"]:
        module.exit_json(**answer)
    systemctl = module.get_bin_path("systemctl")

    def run(*words: str) -> None:
        if systemctl:
            module.run_command([systemctl, *words])

    for name, was in units.items():
        if was["active"] != "active":
            run("stop", name)
        if was["enabled"] not in ("enabled", "static", "alias", "indirect", "generated"):
            run("disable", name)
    for name in files:
        kept.restore_file(name)
    run("daemon-reload")
    refused = []
    for name, value in values.items():
        try:
            Path(name).write_text(value)
        except OSError as error:
            refused.append(f"{name}: {error.strerror}")
    kept.manifest["values"], kept.manifest["units"], kept.manifest["packages"] = {}, {}, []
    kept.save()
    if refused:
        module.warn(f"the kernel refused to take back: {', '.join(refused)}; a reboot does it")
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
