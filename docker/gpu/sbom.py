"""Writes the bill of materials (CycloneDX) and the list of licences of an engine image.

    sbom.py PYTHON_JSON KIT ENGINE OUT

PYTHON_JSON is what cyclonedx-py says of the image's Python environment. Added here: the Debian packages, the
source patches, and the modules compiled in the build. OUT gets sbom.cdx.json, checked against CycloneDX's own
schema, and licences.md. A package that names no licence is listed as `unknown`.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import quote


def debian_components(listing: str, copyrights: Path) -> list[dict[str, Any]]:
    """Given lines "name TAB version TAB architecture" of dpkg-query and the folder /usr/share/doc, return a
    component for each package, with the licences its copyright file names."""
    components = []
    for line in listing.splitlines():
        name, version, architecture = line.split("\t")
        path = copyrights / name / "copyright"
        licences = copyright_licences(path.read_text(errors="replace")) if path.is_file() else []
        component: dict[str, Any] = {
            "type": "library",
            "bom-ref": f"deb-{name}-{architecture}",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}",
        }
        if licences:
            component["licenses"] = [{"license": {"name": licence}} for licence in licences]
        components.append(component)
    return components


def copyright_licences(text: str) -> list[str]:
    """Given a Debian copyright file, return the licences it names in the machine-readable format, else those
    of Debian's common licences it refers to.

    >>> copyright_licences("Files: *\\nLicense: GPL-3+\\n text\\nLicense: MIT\\n")
    ['GPL-3+', 'MIT']
    >>> copyright_licences("see /usr/share/common-licenses/GPL-3.")
    ['GPL-3']
    """
    named = re.findall(r"^License:[ \t]*(\S.*?)\s*$", text, flags=re.MULTILINE)
    referred = re.findall(r"/usr/share/common-licenses/([A-Za-z]+(?:-[\d.]*\d)?)", text)
    return sorted(set(named or referred))


def file_component(path: Path, name: str, kind: str, **properties: str) -> dict[str, Any]:
    """Return a component for one file, with its hash."""
    return {
        "type": "file",
        "bom-ref": f"{kind}-{name}",
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        "properties": [
            {"name": f"deploy-kit:{key}", "value": value}
            for key, value in {"kind": kind, **properties}.items()
        ],
    }


def without_addresses(value: Any) -> Any:
    """Return a bill of materials without its external references: a package's purl says what it is, and the
    addresses in its metadata are neither what was installed nor where it came from."""
    if isinstance(value, dict):
        return {key: without_addresses(inner) for key, inner in value.items() if key != "externalReferences"}
    return [without_addresses(inner) for inner in value] if isinstance(value, list) else value


def licence_of(component: dict[str, Any]) -> str:
    """Return a component's licences in one line, or unknown."""
    words = []
    for entry in component.get("licenses", []):
        licence = entry.get("license", {})
        words.append(entry.get("expression") or licence.get("id") or licence.get("name") or "")
    plain = (word.rpartition(" :: ")[2] for word in words if word.strip())
    named = [word.splitlines()[0].strip()[:80] for word in plain]
    return "; ".join(dict.fromkeys(named)) or "unknown"


def licence_table(components: list[dict[str, Any]]) -> str:
    """Return every package with its licence, as Markdown."""
    rows = [
        f"| {c['name']} | {c.get('version', '')} | {licence_of(c).replace('|', '/')} |"
        for c in sorted(components, key=lambda c: str(c["name"]).lower())
        if c["type"] == "library"
    ]
    return "\n".join(["| package | version | licence |", "| --- | --- | --- |", *rows]) + "\n"


def main(python_json: Path, kit: Path, engine: Path, out: Path) -> None:
    """Merge, check against the schema, write."""
    bom = without_addresses(json.loads(python_json.read_text()))
    query = ["dpkg-query", "--show", "--showformat", "${Package}\t${Version}\t${Architecture}\n"]
    listing = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    components = bom["components"]
    components += debian_components(listing, Path("/usr/share/doc"))
    (requirements,) = (kit / "docker/requirements").glob("*.txt")
    stack = tomllib.loads((kit / f"configs/stacks/{requirements.stem}.toml").read_text())
    for patch in stack.get("patches", []):
        components.append(file_component(kit / patch["file"].removeprefix("/"), patch["file"], "patch"))
    for provider in engine.glob("lib/python3*/site-packages/flashinfer_jit_cache"):
        for library in sorted(provider.glob("*/*/*.so")):
            architecture = library.relative_to(provider).parts[0]
            name = f"{architecture}/{library.name}"
            components.append(file_component(library, name, "compiled module", architecture=architecture))
    bom["metadata"]["component"] = {
        "type": "container",
        "bom-ref": "image",
        "name": stack["image"].partition(":")[0],
        "version": stack["image"].partition(":")[2],
    }
    text = json.dumps(bom, indent=1, sort_keys=True) + "\n"

    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    version = SchemaVersion.from_version(bom["specVersion"])
    problem = JsonStrictValidator(version).validate_str(text)
    if problem is not None:
        found = str(problem)[:400]
        sys.exit(f"sbom: not CycloneDX {bom['specVersion']}: found {found} (allowed: what the schema says)")
    (out / "sbom.cdx.json").write_text(text)
    (out / "licences.md").write_text(licence_table(components))
    unknown = sum(licence_of(c) == "unknown" for c in components if c["type"] == "library")
    print(
        f"sbom: {len(components)} components, CycloneDX {bom['specVersion']}, licence unknown for {unknown}"
    )


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: sbom.py PYTHON_JSON KIT ENGINE OUT")
    main(*map(Path, sys.argv[1:]))
