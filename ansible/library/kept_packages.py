#!/usr/bin/python
"""Ansible module: note which packages are not there yet, before they are installed. Installs nothing."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule

from ansible.module_utils.deploy_kit_kept import FOLDER, Kept

DOCUMENTATION = r"""
module: kept_packages
short_description: Note which packages are not there yet, before they are installed
options:
  names: {type: list, elements: str, required: true, description: Packages, without versions.}
  folder: {type: path, default: /var/lib/deploy-kit/provision, description: Where originals are kept.}
author: [deploy-kit]
"""
EXAMPLES = r"""
- name: Note what is there
  kept_packages:
    names: [pciutils]
"""
RETURN = r"""
missing: {type: list, elements: str, returned: always, description: Packages that are not installed.}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "folder": {"type": "path", "default": FOLDER},
        },
        supports_check_mode=True,
    )
    query = module.get_bin_path("dpkg-query", required=True)
    missing = []
    for name in module.params["names"]:
        code, out, _ = module.run_command([query, "--show", "--showformat=${db:Status-Status}", name])
        if code or out.strip() != "installed":
            missing.append(name)
    if missing and not module.check_mode:
        kept = Kept(module.params["folder"])
        kept.manifest["packages"] = sorted({*kept.manifest["packages"], *missing})
        kept.save()
    module.exit_json(changed=bool(missing), missing=missing)


if __name__ == "__main__":
    main()
