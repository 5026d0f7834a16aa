"""Building the kit's images on a machine that may reach no container registry.

`python -m deploy_kit.deploy.images build --target rehearsal --tag NAME` is what Ansible's roles call. Where
the base image's registry does not answer, a base is made from the machine's own Debian packages and takes the
base's place under its name, so the Dockerfile keeps its digest-pinned FROM. pip's and apt's configuration and
the CA bundle go into the build as secrets, and local wheels as a build context: all read from this machine,
none left in an image.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.files import read_text, write_atomically
from deploy_kit.output import print_error, print_json

LOCAL_BASE = "deploy-kit/base"
PULL_SECONDS = 60
# Of pip's configuration, what also means something inside a build. Folders and files of this machine do not.
_PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout")


@dataclass(frozen=True)
class BuildInputs:
    """What this machine contributes to a build."""

    pip_configuration: str
    apt_configuration: str
    ca_bundle: Path | None
    wheels: tuple[Path, ...]
    proxies: tuple[str, ...] = ()


def base_image(dockerfile: str) -> str:
    """Given a Dockerfile's text, return the one image it is based on, with its digest.

    >>> base_image("FROM debian:bookworm@sha256:" + "0" * 64 + " AS debian")[:14]
    'debian:bookwor'
    """
    found = re.findall(r"^FROM\s+(\S+@sha256:[0-9a-f]{64})(?:\s|$)", dockerfile, flags=re.MULTILINE)
    if len(set(found)) != 1:
        raise DeployKitError(
            "the Dockerfile must have exactly one base with a digest",
            key="FROM",
            found=found or "none",
            allowed="FROM NAME:TAG@sha256:…",
            exit_code=ExitCode.CONFIG,
        )
    return str(found[0])


def pip_configuration(settings: Mapping[str, str]) -> str:
    """Given pip's settings ("global.index-url" → value), return a pip.conf for use inside a build.

    Local paths and file: addresses are left out: a build cannot see them.
    """
    lines = ["[global]"]
    for key in _PIP_KEYS:
        words: list[str] = []
        for scope in ("global", ":env:", "install"):
            words += settings.get(f"{scope}.{key}", "").split()
        words = [word for word in dict.fromkeys(words) if not word.startswith(("file:", "/"))]
        if words:
            lines.append(f"{key} = {' '.join(words)}")
    return "\n".join(lines) + "\n"


def parse_pip_settings(text: str) -> dict[str, str]:
    """Given the output of `pip config list`, return its settings.

    >>> parse_pip_settings("global.timeout='15'")
    {'global.timeout': '15'}
    """
    settings = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and "." in name:
            settings[name.strip()] = value.strip().strip("'\"")
    return settings


def wheel_folders(settings: Mapping[str, str]) -> tuple[Path, ...]:
    """Given pip's settings, return the local folders among its find-links."""
    found: dict[Path, None] = {}
    for scope in ("global", ":env:", "install"):
        for word in settings.get(f"{scope}.find-links", "").split():
            folder = Path(word.removeprefix("file://"))
            if folder.is_absolute() and folder.is_dir():
                found[folder] = None
    return tuple(found)


def locked_names(locks: Iterable[str]) -> frozenset[str]:
    """Given lock files' texts, return the distributions they name, as wheels spell them.

    >>> sorted(locked_names(["Foo-Bar==1 --hash=sha256:0", "# x", "torch==2"]))
    ['foo_bar', 'torch']
    """
    names = (
        match for text in locks for match in re.findall(r"^([A-Za-z0-9._-]+)==", text, flags=re.MULTILINE)
    )
    return frozenset(re.sub(r"[-_.]+", "_", name).lower() for name in names)


def stage_wheels(folders: Sequence[Path], wanted: frozenset[str], into: Path) -> int:
    """Link (or copy) the wheels that the locks name into one folder, so that a build is sent no others."""
    into.mkdir()
    staged = 0
    for wheel in sorted(path for folder in folders for path in folder.glob("*.whl")):
        target = into / wheel.name
        if wheel.name.split("-")[0].lower() not in wanted or target.exists():
            continue
        try:
            os.link(wheel, target)
        except OSError:  # another file system
            shutil.copy2(wheel, target)
        staged += 1
    return staged


def apt_configuration(dump: str) -> str:
    """Given `apt-config dump`, return the settings about fetching that a build on this machine needs too.

    >>> apt_configuration('Acquire::Retries "3";\\nDir "/";')
    'Acquire::Retries "3";\\n'
    """
    wanted = re.compile(
        r"Acquire::(?:(?:http|https)::Proxy(?:::\S+)?|Check-(?:Valid-Until|Date)|Retries|ForceIPv[46]) "
    )
    return "".join(line + "\n" for line in dump.splitlines() if wanted.match(line))


def make_build_flags(
    inputs: BuildInputs, *, base: str, local_base: str | None, folder: Path
) -> tuple[str, ...]:
    """Given what the machine contributes, return the flags of `docker buildx build` that pass it on.

    `folder` holds pip.conf, apt.conf and, when there are any, wheels/."""
    flags = ["--secret", f"id=pip.conf,src={folder / 'pip.conf'}"]
    flags += ["--secret", f"id=apt.conf,src={folder / 'apt.conf'}"]
    if inputs.ca_bundle is not None:
        flags += ["--secret", f"id=ca.crt,src={inputs.ca_bundle}"]
    if inputs.wheels:
        flags += ["--build-context", f"wheels={folder / 'wheels'}"]
    if local_base is not None:
        flags += ["--build-context", f"{base}=docker-image://{local_base}"]
    for name in inputs.proxies:  # their values come from our environment; Docker keeps them out of the image
        flags += ["--build-arg", name]
    return tuple(flags)


def read_inputs() -> BuildInputs:
    """Read this machine's pip and apt configuration, CA bundle, wheel folders and proxies."""
    settings = parse_pip_settings(_output([sys.executable, "-m", "pip", "config", "list"]))
    bundle = os.environ.get("SSL_CERT_FILE") or settings.get(":env:.cert") or settings.get("global.cert")
    path = None if not bundle else Path(bundle)
    names = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    return BuildInputs(
        pip_configuration=pip_configuration(settings),
        apt_configuration=apt_configuration(_output(["apt-config", "dump"])),
        ca_bundle=path if path is not None and path.is_file() else None,
        wheels=wheel_folders(settings),
        proxies=tuple(n for name in names for n in (name, name.lower()) if os.environ.get(n)),
    )


def _output(command: Sequence[str]) -> str:
    """Return what a reading command prints; nothing when it is not there or fails."""
    try:
        return subprocess.run(list(command), capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def image_id(name: str) -> str | None:
    """Return the id of a local image, or None when there is none of this name."""
    done = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{.Id}}", name],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else None


def ensure_base(base: str) -> str | None:
    """Make sure a build can start from `base`: return None when it is there or can be pulled, else the name
    of a local image, made from Debian packages, that takes its place."""
    if image_id(base) is not None:
        return None
    codename = "trixie" if "trixie" in base else "bookworm"
    local = f"{LOCAL_BASE}:{codename}"
    if image_id(local) is not None:
        return local
    try:
        pulled = subprocess.run(
            ["docker", "pull", "--quiet", base],
            capture_output=True,
            text=True,
            check=False,
            timeout=PULL_SECONDS,
        )
        if pulled.returncode == 0:
            return None
        reason = (pulled.stderr.strip().splitlines() or ["no reason given"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"no answer in {PULL_SECONDS} s"
    _say(f"the base image cannot be pulled ({reason}); making one from this machine's Debian packages")
    make_local_base(codename, local)
    return local


# What the upstream image leaves out too (its name ends in -slim).
_SLIM = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/share/doc/*")
_BASE_TOOLS = ("mmdebstrap", "debian-archive-keyring")


def make_local_base(codename: str, name: str) -> None:
    """Make a minimal Debian image with mmdebstrap from the machine's own apt sources."""
    if shutil.which("mmdebstrap") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise DeployKitError(
                "no registry answers and mmdebstrap is not installed",
                found="neither a base image nor a tool to make one",
                remedy=f"apt-get install {' '.join(_BASE_TOOLS)}, or make the registry reachable",
                exit_code=ExitCode.DEPLOY_FAILED,
            )
        _run(
            ["apt-get", "install", "--yes", "--no-install-recommends", *_BASE_TOOLS],
            doing="installing mmdebstrap",
            environment={"DEBIAN_FRONTEND": "noninteractive"},
        )
    with tempfile.TemporaryDirectory(prefix="deploy-kit-base-") as folder:
        archive = Path(folder) / "base.tar"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates"]
        settings = apt_configuration(_output(["apt-config", "dump"]))
        command += [f"--aptopt={line.removesuffix(';')}" for line in settings.splitlines()]
        command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _SLIM]
        command += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
        sources = debian_sources(codename)
        # Without sources of its own for this release (Ubuntu), mmdebstrap's default archive is used.
        command += [codename, str(archive), *(["-"] if sources else [])]
        _run(command, doing="making a base image", text_input=sources)
        # The archive's name becomes the image's only when it is whole.
        _run(
            ["docker", "import", "--change", 'CMD ["bash"]', str(archive), name],
            doing="importing the base image",
        )


def debian_sources(codename: str) -> str:
    """Return apt source lines for a Debian release, from the archives this machine itself uses; "" when it
    uses none of that release."""
    listing = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT) $(ORIGIN)"]
    return sources_from_targets(_output([*listing, "Created-By: Packages"]), codename)


def sources_from_targets(targets: str, codename: str) -> str:
    """Given lines "URI CODENAME COMPONENT ORIGIN", return one-line apt sources of Debian `codename`, its
    updates and its security archive; "" when the release itself is not among them.

    >>> sources_from_targets("http://a/ bookworm main Debian\\nhttp://b/ noble main Ubuntu", "bookworm")
    'deb http://a bookworm main\\n'
    """
    suites = (codename, f"{codename}-updates", f"{codename}-security")
    lines = []
    for line in targets.splitlines():
        words = line.split()
        if len(words) >= 4 and words[3] == "Debian" and words[2] == "main" and words[1] in suites:
            lines.append(f"deb {words[0].rstrip('/')} {words[1]} main")
    if not any(line.split()[2] == codename for line in lines):
        return ""
    return "\n".join(dict.fromkeys(lines)) + "\n"


def build(
    root: Path,
    target: str,
    tag: str,
    *,
    revision: str | None = None,
    arguments: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> dict[str, object]:
    """Build one target of docker/Dockerfile; return the tag, the image's id and whether it changed.

    `arguments` are build arguments, `flags` further flags of `docker buildx build`."""
    dockerfile = root / "docker/Dockerfile"
    text = read_text(dockerfile, what="Dockerfile")
    targets = re.findall(r"^FROM\s+\S+\s+AS\s+(\S+)", text, flags=re.MULTILINE)
    if target not in targets:
        raise DeployKitError(
            f"the Dockerfile has no target {target}",
            file=dockerfile,
            key="--target",
            found=target,
            allowed=targets,
            exit_code=ExitCode.CONFIG,
        )
    base = base_image(text)
    before = image_id(tag)
    inputs = read_inputs()
    local_base = ensure_base(base)
    with tempfile.TemporaryDirectory(prefix="deploy-kit-build-") as name:
        folder = Path(name)
        write_atomically(folder / "pip.conf", inputs.pip_configuration, mode=0o600)
        write_atomically(folder / "apt.conf", inputs.apt_configuration, mode=0o600)
        if inputs.wheels:
            locks = (path.read_text() for path in (root / "docker/requirements").glob("*.txt"))
            stage_wheels(inputs.wheels, locked_names(locks), folder / "wheels")
        command = [
            "docker", "buildx", "build", *(() if "--output" in flags else ("--load",)), "--progress", "plain",
            "--file", str(dockerfile), "--target", target, "--tag", tag,
            *make_build_flags(inputs, base=base, local_base=local_base, folder=folder),
        ]  # fmt: skip
        for name, value in {**({"REVISION": revision} if revision else {}), **(arguments or {})}.items():
            command += ["--build-arg", f"{name}={value}"]
        command += flags
        log = root / "var" / f"build-{target}.log"
        log.parent.mkdir(exist_ok=True)
        _run([*command, str(root)], doing=f"building {tag}", log=log)
    after = image_id(tag)
    return {"tag": tag, "id": after, "changed": before != after, "base": local_base or base}


def stack_arguments(root: Path, name: str) -> dict[str, str]:
    """Return the build arguments of a stack; none for the rehearsal stack, whose target has none."""
    from deploy_kit.configs.catalog import Catalog
    from deploy_kit.configs.schema import Stack
    from deploy_kit.stacks.verify import make_arguments

    stack = Catalog(root / "configs").load(Stack, name)
    return {} if stack.rehearsal else make_arguments(stack)


def _run(
    command: Sequence[str],
    *,
    doing: str,
    text_input: str | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> None:
    with log.open("w+") if log is not None else tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            list(command),
            input=text_input,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={**os.environ, **(environment or {})},
        )
        if done.returncode == 0:
            return
        output.seek(0)
        text = output.read()
    sys.stderr.write("\n".join(text.splitlines()[-40:]) + "\n")
    full = "no space left on device" in text.lower()
    raise DeployKitError(
        f"{doing} failed" + (": the disk is full" if full else ""),
        key=command[0],
        file=log,
        found=f"exit code {done.returncode}; its last lines are above",
        remedy="free space (docker system prune), then run it again" if full else "see the lines above",
        exit_code=ExitCode.DISK_FULL if full else ExitCode.DEPLOY_FAILED,
    )


def _say(text: str) -> None:
    sys.stderr.write(f"deploy-kit: {text}\n")


def main() -> None:
    """Command line for Ansible's roles."""
    parser = argparse.ArgumentParser(prog="deploy_kit.deploy.images")
    parser.add_argument("action", choices=["build"])
    parser.add_argument("--target", required=True)
    parser.add_argument("--tag", required=True)
    parser.add_argument("--root", type=Path, default=Path.cwd())
    parser.add_argument("--revision")
    parser.add_argument("--stack", help="the GPU stack to build; without it the Dockerfile's defaults")
    arguments = parser.parse_args()
    try:
        pins = stack_arguments(arguments.root, arguments.stack) if arguments.stack else None
        print_json(
            build(
                arguments.root, arguments.target, arguments.tag, revision=arguments.revision, arguments=pins
            )
        )
    except DeployKitError as error:
        print_error(error)
        sys.exit(int(error.exit_code))


if __name__ == "__main__":
    main()
