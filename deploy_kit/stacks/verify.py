"""Whether a stack's file, its lock, its patches and the Dockerfile say the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy_kit.configs.schema import Stack
from deploy_kit.files import read_text
from deploy_kit.stacks.locks import PACKAGES, Pin, read_lock


@dataclass(frozen=True)
class Check:
    """One comparison: what was compared, whether it agrees, and how not."""

    name: str
    ok: bool
    detail: str


def verify(stack: Stack, root: Path) -> list[Check]:
    """Given a stack and the repository's root, return every comparison made, in order."""
    lock = read_lock(root / stack.requirements)
    dockerfile = read_text(root / "docker/Dockerfile", what="Dockerfile")
    return [
        *check_versions(stack, lock),
        *check_base(stack, dockerfile),
        *(check_literals if stack.rehearsal else check_arguments)(stack, dockerfile),
        *check_flake(stack, root / "flake.nix"),
        *check_patches(stack, root),
        *check_lever_packages(stack, lock),
        Check(
            "image tag",
            stack.versions.sglang in stack.image,
            f"found {stack.image}, allowed a tag with SGLang's version {stack.versions.sglang}",
        ),
    ]


def check_versions(stack: Stack, lock: dict[str, Pin]) -> Iterator[Check]:
    """Given a stack and its lock, compare each version the stack names with the pinned one."""
    for key, package in PACKAGES.items():
        wanted = getattr(stack.versions, key)
        if wanted is None:
            continue
        pin = lock.get(package)
        if pin is None:
            # CUDA's own package is missing where torch brings the libraries one by one.
            if key == "cuda":
                continue
            yield Check(key, False, f"{stack.requirements}: found no {package}, allowed {wanted}")
            continue
        same = pin.version == wanted or pin.version.startswith((f"{wanted}.", f"{wanted}+"))
        found = f"found {package}=={pin.version}, allowed {wanted}"
        yield Check(key, same, f"{stack.requirements}, line {pin.line}: {found}")


def check_base(stack: Stack, dockerfile: str) -> Iterator[Check]:
    """Given a stack and the Dockerfile's text, compare every image it starts from with the stack's base."""
    wanted = f"{stack.base.image}@{stack.base.digest}"
    stages = re.findall(r"^FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", dockerfile, flags=re.MULTILINE)
    own = {"scratch", *(name for _, name in stages if name)}
    bases = sorted({image for image, _ in stages} - own)
    yield Check(
        "base",
        bases == [wanted],
        f"docker/Dockerfile, FROM: found {', '.join(bases) or 'none'}, allowed {wanted}",
    )


# Which stack a plain `docker build` of the GPU target gives: the defaults of the Dockerfile's arguments.
DEFAULT_STACK = "current"
LABEL = "io.deploy-kit."


def make_arguments(stack: Stack) -> dict[str, str]:
    """Given a GPU stack, return the build arguments of the Dockerfile's GPU target: its name and versions."""
    versions = stack.versions.model_dump(exclude={"python"})
    return {"STACK": stack.name, **{key.upper(): version for key, version in versions.items() if version}}


def make_labels(stack: Stack) -> dict[str, str]:
    """Given a GPU stack, return the labels its image must carry."""
    arguments = make_arguments(stack)
    return {LABEL + key.lower().replace("_", "-"): value for key, value in arguments.items()}


def check_arguments(stack: Stack, dockerfile: str) -> Iterator[Check]:
    """Given a GPU stack and the Dockerfile's text, compare each argument's defaults with the stack (for the
    stack that is built by default), and see that a label carries each."""
    for name, value in make_arguments(stack).items():
        defaults = set(re.findall(rf"^ARG {name}=(\S*)$", dockerfile, flags=re.MULTILINE))
        label = LABEL + name.lower().replace("_", "-")
        labelled = f'{label}="${{{name}}}"' in dockerfile
        agrees = defaults == {value} if stack.name == DEFAULT_STACK else len(defaults) == 1
        allowed = value if stack.name == DEFAULT_STACK else f"one default; `stack build` sets {value}"
        yield Check(
            f"argument {name}",
            agrees and labelled,
            f"docker/Dockerfile, ARG {name}: found {', '.join(sorted(defaults)) or 'none'}, allowed {allowed}"
            + ("" if labelled else f", and no label {label} carries it"),
        )


def check_literals(stack: Stack, dockerfile: str) -> Iterator[Check]:
    """Given the rehearsal stack and the Dockerfile's text, see that its literal labels agree."""
    for name, wanted in make_labels(stack).items():
        found = re.findall(rf'{re.escape(name)}="([^"$]*)"', dockerfile)
        yield Check(
            f"label {name}",
            wanted in found,
            f"docker/Dockerfile: found {', '.join(found) or 'none'}, allowed {wanted}",
        )


def check_labels(stack: Stack, image: str, labels: Mapping[str, str]) -> Iterator[Check]:
    """Given a GPU stack and a built image's labels, compare each."""
    for name, wanted in make_labels(stack).items():
        found = labels.get(name)
        yield Check(f"label {name}", found == wanted, f"{image}: found {found or 'none'}, allowed {wanted}")


def check_flake(stack: Stack, flake: Path) -> Iterator[Check]:
    """Given a stack and flake.nix, see that the flake reads the stack's own file and repeats no version."""
    text = read_text(flake, what="flake")
    versions = stack.versions.model_dump(exclude={"python"}).values()
    repeated = sorted({v for v in versions if v and re.search(rf"(?<![\w.]){re.escape(v)}(?![\w.])", text)})
    read = f'"{stack.name}"' in text and "configs/stacks" in text
    yield Check(
        "flake",
        read and not repeated,
        f"flake.nix: found the versions {', '.join(repeated)}, allowed only what it reads from configs/stacks"
        if repeated
        else f"flake.nix {'reads' if read else 'does not read'} configs/stacks/{stack.name}.toml",
    )


def check_patches(stack: Stack, root: Path) -> Iterator[Check]:
    """Given a stack, compare each patch file with the hash the stack holds."""
    for patch in stack.patches:
        path = root / patch.file
        if not path.is_file():
            yield Check(patch.file, False, f"found no such file, allowed sha256 {patch.sha256}")
            continue
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        yield Check(
            patch.file,
            found == patch.sha256,
            f"found sha256 {found}, allowed {patch.sha256} (configs/stacks/{stack.name}.toml)",
        )


def check_lever_packages(stack: Stack, lock: Mapping[str, Pin]) -> Iterator[Check]:
    """Given a stack and its lock, see that every package that levers may ask for is pinned."""
    for package in stack.lever_packages:
        pin = lock.get(package)
        found = f"{package}=={pin.version}" if pin else "none"
        yield Check(
            f"package {package}", pin is not None, f"{stack.requirements}: found {found}, allowed a pin"
        )


def difference(one: Stack, other: Stack, one_lock: dict[str, Pin], other_lock: dict[str, Pin]) -> list[str]:
    """Given two stacks and their locks, return in words what differs, the named versions first."""
    lines = []
    for key in type(one.versions).model_fields:
        left, right = getattr(one.versions, key), getattr(other.versions, key)
        if left != right:
            lines.append(f"{key}: {left or 'none'} in {one.name}, {right or 'none'} in {other.name}")
    if one.base != other.base:
        lines.append(f"base: {one.base.image} in {one.name}, {other.base.image} in {other.name}")
    if one.architectures != other.architectures:
        lines.append(
            f"architectures: {one.architectures} in {one.name}, {other.architectures} in {other.name}"
        )
    ours, theirs = ({patch.lever for patch in stack.patches} for stack in (one, other))
    lines += [f"patch for {lever}: only in {one.name}" for lever in sorted(ours - theirs)]
    lines += [f"patch for {lever}: only in {other.name}" for lever in sorted(theirs - ours)]
    common = sorted(one_lock.keys() & other_lock.keys())
    changed = [name for name in common if one_lock[name].version != other_lock[name].version]
    lines += [f"package {name}: {one_lock[name].version} → {other_lock[name].version}" for name in changed]
    lines += [f"package {name}: only in {one.name}" for name in sorted(one_lock.keys() - other_lock.keys())]
    lines += [f"package {name}: only in {other.name}" for name in sorted(other_lock.keys() - one_lock.keys())]
    return lines
