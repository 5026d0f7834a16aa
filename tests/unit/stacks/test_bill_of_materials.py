"""The bill of materials' own parts, with CycloneDX's validator, and the flags of the CUDA home."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def script(name: str) -> ModuleType:
    """A script of docker/gpu as a module: they run in builds, where deploy_kit is not installed yet."""
    spec = importlib.util.spec_from_file_location(f"docker_gpu_{name}", ROOT / f"docker/gpu/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SBOM, KERNELS, CUDA, CUT = script("sbom"), script("kernels"), script("cuda_home"), script("cut")


def test_no_address_stays_in_a_bill_of_materials() -> None:
    reference = [{"type": "distribution", "url": "https://packages.example/a"}]
    tool = {"name": "t", "externalReferences": reference}
    bom = {"metadata": {"tools": {"components": [tool]}}, "components": [{"name": "a", **tool}]}
    assert SBOM.without_addresses(bom) == {
        "metadata": {"tools": {"components": [{"name": "t"}]}},
        "components": [{"name": "t"}],
    }
    kept = (ROOT / "docs/receipts/gpu-image-sbom.cdx.json").read_text()
    assert "externalReferences" not in kept
    assert '"purl"' in kept


def test_debian_packages_become_valid_components(tmp_path: Path) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json", reason="needs cyclonedx-bom (make dev)")
    from cyclonedx.schema import SchemaVersion

    (tmp_path / "libnuma1").mkdir()
    (tmp_path / "libnuma1/copyright").write_text("Files: *\nLicense: LGPL-2.1\n")
    listing = "libnuma1\t2.0.16-1+b1\tamd64\ng++\t4:12.2.0-3\tamd64\n"
    components = SBOM.debian_components(listing, tmp_path)
    file = tmp_path / "x.so"
    file.write_bytes(b"x")
    components.append(SBOM.file_component(file, "sm120f/x.so", "compiled module", architecture="sm120f"))
    bom: dict[str, Any] = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components,
    }  # fmt: skip
    assert validation.JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom)) is None
    assert components[0]["purl"] == "pkg:deb/debian/libnuma1@2.0.16-1%2Bb1?arch=amd64"
    assert components[1]["purl"] == "pkg:deb/debian/g%2B%2B@4%3A12.2.0-3?arch=amd64"
    table = SBOM.licence_table(components)
    assert "| libnuma1 | 2.0.16-1+b1 | LGPL-2.1 |" in table
    assert "| g++ | 4:12.2.0-3 | unknown |" in table
    assert "x.so" not in table


@pytest.mark.parametrize(
    ("licences", "words"),
    [
        ([], "unknown"),
        ([{"expression": "MIT AND Apache-2.0"}], "MIT AND Apache-2.0"),
        ([{"license": {"name": "License :: OSI Approved :: MIT License"}}], "MIT License"),
        ([{"license": {"name": "a\nlong text"}}, {"license": {"id": "MIT"}}], "a; MIT"),
        ([{"license": {"name": " "}}], "unknown"),
    ],
)
def test_licences_in_one_line(licences: list[dict[str, Any]], words: str) -> None:
    assert SBOM.licence_of({"licenses": licences}) == words


@pytest.mark.parametrize(("given", "name"), [("12.0f", "sm120f"), ("9.0a", "sm90a"), ("10.0", "sm100")])
def test_architectures_as_flashinfer_spells_them(given: str, name: str) -> None:
    assert KERNELS.provider_name(given) == name


@pytest.mark.parametrize("given", ["", "sm120", "12", "12.0x"])
def test_no_architecture(given: str) -> None:
    with pytest.raises(SystemExit, match="allowed: for example"):
        KERNELS.provider_name(given)


def test_a_module_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="found nothing_such"):
        KERNELS.main(tmp_path, "12.0f", ["nothing_such"])


def test_the_provider_s_package_answers_what_flashinfer_asks(tmp_path: Path) -> None:
    folder = tmp_path / "made_up_provider"
    folder.mkdir()
    (folder / "__init__.py").write_text(KERNELS.PACKAGE)
    built = {"flashinfer": "0.7.2", "architectures": {"sm120f": {"trtllm_comm": {}}, "sm90a": {}}}
    (folder / "built.json").write_text(json.dumps(built))
    spec = importlib.util.spec_from_file_location("made_up_provider", folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    first, second = package.get_jit_cache_providers()
    assert package.__version__ == first.version == "0.7.2"
    assert (first.cuda_architectures, first.modules) == (("sm120f",), ("trtllm_comm",))
    assert (second.provider_id, second.modules) == ("deploy-kit-sm90a", ())
    assert first.jit_cache_dir == str(folder / "sm120f")


def test_a_site_without_a_compiler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nvcc is not there"):
        CUDA.make(tmp_path, tmp_path / "cuda")
    assert not (tmp_path / "cuda").exists()


def test_a_package_is_cut_with_its_hashes() -> None:
    lock = (ROOT / "docker/requirements/current.txt").read_text()
    part = CUT.cut(lock, ["sglang", "flashinfer-python"], "lock")
    assert part.count("==") == 2
    assert "sglang-kernel" not in part
    assert "--hash=sha256:" in part
