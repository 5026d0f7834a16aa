"""A root file system of Ubuntu 24.04 with systemd, from packages that Ubuntu's own key signed.

The archive is looked for beside the Debian archive that this machine's apt uses; where there is none, or no
package of Ubuntu's key, there is no root file system, and the tests that want one are skipped.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx

from deploy_kit.deploy.images import apt_configuration, debian_sources

RELEASE = "noble"
KEYRING = "usr/share/keyrings/ubuntu-archive-keyring.gpg"


def run(*words: str, cwd: Path | None = None, text: str | None = None) -> str:
    """Run a command, return what it prints; its words are in the error when it fails."""
    done = subprocess.run(words, cwd=cwd, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words[0]}: {done.stderr[-2000:]}"
    return done.stdout


def ubuntu_sources() -> str:
    """Return apt's source lines, or "" when no archive of the release answers."""
    for line in debian_sources("bookworm").splitlines():
        debian = line.split()[1]
        if debian.endswith("/debian"):
            archive = debian.removesuffix("debian") + "ubuntu"
            try:
                found = httpx.head(f"{archive}/dists/{RELEASE}/InRelease", timeout=20, follow_redirects=True)
            except httpx.HTTPError:
                continue
            if found.status_code == httpx.codes.OK:
                suites = (RELEASE, f"{RELEASE}-updates")
                return "".join(f"deb {archive} {suite} main universe\n" for suite in suites)
    return ""


def keyring(folder: Path) -> Path | None:
    """Unpack Ubuntu's key from Debian's package of it, not installed; return its file, or None."""
    listed = run("apt-cache", "madison", "ubuntu-keyring").split("|")
    if len(listed) < 3:
        return None
    run("apt-get", "download", "--quiet", f"ubuntu-keyring={listed[1].strip()}", cwd=folder)
    (package,) = folder.glob("ubuntu-keyring_*.deb")
    run("dpkg", "--extract", str(package), str(folder))
    return folder / KEYRING


def make_root(tag: str, packages: Sequence[str], *options: str) -> str | None:
    """Import a root file system with `packages` as the image `tag`; return it, or None without an archive.

    `options` are mmdebstrap's own."""
    sources = ubuntu_sources()
    with tempfile.TemporaryDirectory(prefix="deploy-kit-ubuntu-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt downloads as a user of its own
        key = keyring(folder) if sources else None
        if key is None:
            return None
        settings = apt_configuration(run("apt-config", "dump"))
        root = folder / "root.tar"
        run(
            "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}",
            *(f"--aptopt={line.removesuffix(';')}" for line in settings.splitlines()),
            f"--keyring={key}", *options, RELEASE, str(root), "-", text=sources,
        )  # fmt: skip
        run("docker", "import", str(root), tag)
    return tag
