#!/usr/bin/python
"""Ansible module: a systemd unit enabled and started, what it was kept on the host first."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule

from ansible.module_utils.deploy_kit_kept import FOLDER, Kept

DOCUMENTATION = r"""
module: kept_unit
short_description: A systemd unit enabled and started, what it was kept on the host first
options:
  name: {type: str, required: true, description: The unit.}
  restart: {type: bool, default: false, description: Restart it, for example since its file changed.}
  start: {type: bool, default: true, description: Whether it runs now; false only enables it for the next
    boot.}
  folder: {type: path, default: /var/lib/deploy-kit/provision, description: Where originals are kept.}
author: [deploy-kit]
"""
EXAMPLES = r"""
- name: Enable a unit
  kept_unit:
    name: deploy-kit-acs.service
"""
RETURN = r"""
was: {type: dict, returned: always, description: What the unit was, as systemctl says it.}
"""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "restart": {"type": "bool", "default": False},
            "start": {"type": "bool", "default": True},
            "folder": {"type": "path", "default": FOLDER},
        },
        supports_check_mode=True,
    )
    name = module.params["name"]
    systemctl = module.get_bin_path("systemctl", required=True)

    def ask(word: str) -> str:
        _, out, _ = module.run_command([systemctl, word, name])
        return out.strip().splitlines()[0] if out.strip() else "not-found"

    was = {"enabled": ask("is-enabled"), "active": ask("is-active")}
    enable = was["enabled"] != "enabled"
    start = module.params["start"] and (was["active"] != "active" or module.params["restart"])
    if (enable or start) and not module.check_mode:
        kept = Kept(module.params["folder"])
        kept.manifest["units"].setdefault(name, was)
        kept.save()
        commands = [[systemctl, "daemon-reload"]]
        if enable:
            commands.append([systemctl, "enable", name])
        if start:
            commands.append([systemctl, "restart" if module.params["restart"] else "start", name])
        for command in commands:
            code, out, error = module.run_command(command)
            if code:
                module.fail_json(
                    msg=f"{' '.join(command)} ended with code {code}: {(error or out).strip()}", was=was
                )
    module.exit_json(changed=enable or start, was=was)


if __name__ == "__main__":
    main()
