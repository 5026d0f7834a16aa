"""The assertions of the image's build, each with the input that must fail it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy_kit.configs.catalog import Catalog
from deploy_kit.configs.schema import Patch, Stack
from deploy_kit.errors import DeployKitError
from deploy_kit.stacks import engine, loading
from deploy_kit.stacks import installed as read
from deploy_kit.stacks.engine import examine_slice
from deploy_kit.stacks.locks import Pin
from deploy_kit.stacks.verify import Check

ROOT = Path(__file__).parents[3]
CURRENT = Catalog(ROOT / "configs").load(Stack, "current")


def pin(name: str, version: str) -> Pin:
    return Pin(name, version, ("0" * 64,), 1)


def failed(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.detail for check in checks if not check.ok}


def distribution(site: Path, name: str, version: str, entry_points: str = "") -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry_points:
        (folder / "entry_points.txt").write_text(entry_points)


LOCK = {"a": pin("a", "1"), "b-c": pin("b-c", "2")}


def test_everything_as_pinned(tmp_path: Path) -> None:
    distribution(tmp_path, "a", "1")
    distribution(tmp_path, "B_c", "2+cu130")
    distribution(tmp_path, "pip", "23")
    assert failed(list(read.check_pins(LOCK, read.read_installed(tmp_path)))) == {}


@pytest.mark.parametrize(
    ("installed", "name", "words"),
    [
        ({"a": "1"}, "versions", ["b-c", "found none", "allowed 2"]),
        ({"a": "1.1", "b-c": "2"}, "versions", ["a: found 1.1", "allowed 1"]),
        ({"a": "10", "b-c": "2"}, "versions", ["a: found 10", "allowed 1"]),
        ({"a": "1", "b-c": "2", "x": "3"}, "nothing unpinned", ["found x 3", "allowed only"]),
    ],
)
def test_another_set_than_the_lock_s(installed: dict[str, str], name: str, words: list[str]) -> None:
    found = failed(list(read.check_pins(LOCK, installed)))
    assert list(found) == [name]
    assert all(word in found[name] for word in words), found


def test_the_versions_the_stack_names() -> None:
    good = {
        "sglang": "0.5.23", "torch": "2.14.1", "nvidia-nccl-cu13": "2.30.7", "sglang-kernel": "0.4.10",
        "flashinfer-python": "0.7.2", "cuda-toolkit": "13.0.3.0",
    }  # fmt: skip
    assert failed(list(read.check_stack_versions(CURRENT, good, python="3.11"))) == {}
    bad = failed(list(read.check_stack_versions(CURRENT, {**good, "torch": "2.14.0"}, python="3.12")))
    assert set(bad) == {"python", "torch"}
    assert "found 2.14.0, allowed 2.14.1" in bad["torch"]
    assert "sglang" in failed(list(read.check_stack_versions(CURRENT, {}, python="3.11")))


def test_a_second_nccl_is_found_wherever_it_lies_and_a_link_is_none(tmp_path: Path) -> None:
    wheel, system = tmp_path / "opt/nvidia/nccl/lib", tmp_path / "usr/lib/x86_64-linux-gnu"
    for folder in (wheel, system):
        folder.mkdir(parents=True)
    assert not read.check_one_nccl(read.find_nccl([tmp_path])).ok
    (wheel / "libnccl.so.2").touch()
    (wheel / "libnccl_static.a").touch()
    (wheel / "libnccl-net.so").touch()
    (system / "libnccl.so").symlink_to(wheel / "libnccl.so.2")
    assert read.check_one_nccl(read.find_nccl([tmp_path / "opt", tmp_path / "usr"])).ok
    (system / "libnccl.so.2.28.9").touch()
    check = read.check_one_nccl(read.find_nccl([tmp_path / "opt", tmp_path / "usr"]))
    assert not check.ok
    assert "found 2" in check.detail
    assert "allowed exactly 1" in check.detail
    assert "libnccl.so.2.28.9" in check.detail


def test_a_variable_that_nccl_does_not_read(tmp_path: Path) -> None:
    """As in the library: each name ends with a zero byte, so NCCL_PROTO is not found in NCCL_PROTOCOL."""
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"x\0NCCL_ALGO\0NCCL_BUFFSIZE\0NCCL_PROTOCOL\0")
    assert read.check_nccl_variables(["NCCL_ALGO", "NCCL_BUFFSIZE"], library).ok
    check = read.check_nccl_variables(["NCCL_ALGO", "NCCL_PROTO"], library)
    assert not check.ok
    assert "found NCCL_PROTO unknown to it, allowed those that libnccl.so.2 reads" in check.detail
    assert not read.check_nccl_variables(["NCCL_ALGO"], None).ok


def test_the_nccl_variables_of_levers_and_hosts() -> None:
    assert {"NCCL_ALGO", "NCCL_PROTO", "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE"} <= engine.nccl_variables(ROOT)


@pytest.mark.parametrize(
    ("said", "ok"), [("2.30.7", True), ("2.30.70", False), ("2.28.9", False), ("unknown: no torch", False)]
)
def test_the_nccl_that_torch_loads(said: str, ok: bool) -> None:
    check = read.check_nccl_version(CURRENT, said)
    assert check.ok is ok
    assert said in check.detail
    assert "allowed 2.30.7" in check.detail


def test_a_python_without_torch_is_unknown_not_right() -> None:
    said = read.read_torch_nccl(Path(shutil.which("false") or "/bin/false"))
    assert said.startswith("unknown")


@pytest.fixture
def patched(tmp_path: Path) -> tuple[Stack, Path, Path]:
    site = tmp_path / "site"
    distribution(site, "sglang", "0.5.23")
    (site / "m.py").write_text("one = 1\ntwo = 2\nthree = 3\n")
    text = "--- a/m.py\n+++ b/m.py\n@@ -1,3 +1,4 @@\n one = 1\n+gate = True\n two = 2\n three = 3\n"
    (tmp_path / "p.patch").write_text(text)
    entry = Patch(file="p.patch", sha256="0" * 64, lever="sm120-fusion", why="a test")
    return CURRENT.model_copy(update={"patches": [entry]}), tmp_path, site


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
def test_a_patch_that_is_not_applied_and_one_whose_effect_went(patched: tuple[Stack, Path, Path]) -> None:
    stack, root, site = patched
    assert set(failed(list(read.check_patches_applied(stack, root, site)))) == {
        "p.patch",
        "effect of sm120-fusion",
    }
    (site / "m.py").write_text("one = 1\ngate = True\ntwo = 2\nthree = 3\n")
    assert failed(list(read.check_patches_applied(stack, root, site))) == {}
    (site / "m.py").write_text("one = 1\ngate = False\ntwo = 2\nthree = 3\n")
    assert (
        "gate = True" in failed(list(read.check_patches_applied(stack, root, site)))["effect of sm120-fusion"]
    )
    (site / "m.py").write_text("one = 1\ngate = True\ntwo = 2\nthree = (\n")
    assert "compiles" in failed(list(read.check_patches_applied(stack, root, site)))["effect of sm120-fusion"]
    (site / "m.py").unlink()
    assert "m.py" in failed(list(read.check_patches_applied(stack, root, site)))["effect of sm120-fusion"]


def test_the_plug_in_is_in_the_group_and_loads(tmp_path: Path) -> None:
    distribution(
        tmp_path, "other", "1", f"[{read.PLUGIN_GROUP}]\nsomething = a.b:c\n[console_scripts]\nx = y:z\n"
    )
    check = read.check_plugin(read.read_plugins(tmp_path), "ok")
    assert not check.ok
    assert "found something" in check.detail
    assert f"allowed {read.PLUGIN}" in check.detail
    distribution(tmp_path, "deploy-kit", "1", f"[{read.PLUGIN_GROUP}]\n{read.PLUGIN} = deploy_kit:x\n")
    names = read.read_plugins(tmp_path)
    assert read.check_plugin(names, "ok").ok
    broken = read.check_plugin(names, "unknown: ImportError: no x")
    assert not broken.ok
    assert "ImportError" in broken.detail


@pytest.mark.parametrize(
    ("architectures", "needed", "words"),
    [
        (set(), ["libcudart.so.13"], ["found none", "allowed sm_120f"]),
        ({"sm_120a"}, ["libcudart.so.13"], ["found sm_120a", "allowed sm_120f"]),
        ({"sm_90a", "sm_120f"}, ["libcudart.so.13"], ["found sm_120f, sm_90a"]),
        ({"sm_120f"}, ["libc.so.6"], ["found libc.so.6", "allowed libcudart.so"]),
    ],
)
def test_a_module_for_another_architecture_or_badly_linked(
    architectures: set[str], needed: list[str], words: list[str]
) -> None:
    check = read.check_module("trtllm_comm", "sm120f", architectures, needed)
    assert not check.ok
    assert all(word in check.detail for word in words), check.detail


def test_a_module_as_it_should_be() -> None:
    assert read.check_module("m", "sm90a", {"sm_90a"}, ["libcuda.so.1", "libcudart.so.13"]).ok


def test_compiled_modules_that_are_missing_or_of_another_version(tmp_path: Path) -> None:
    assert failed(list(read.check_compiled(CURRENT, tmp_path, Path("/nowhere"))))
    built = {"flashinfer": "0.7.1", "architectures": {"sm120f": {"pcie_ipc_comm": {}}}}
    (tmp_path / "built.json").write_text(json.dumps(built))
    found = failed(list(read.check_compiled(CURRENT, tmp_path, Path("/nowhere"))))
    assert "found 0.7.1, allowed 0.7.2" in found["compiled modules"]
    assert "found none, allowed sm_120f" in found["pcie_ipc_comm for sm120f"]


def test_a_module_that_the_manifest_forgot(tmp_path: Path) -> None:
    built = {"flashinfer": "0.7.2", "architectures": {"sm90a": {"pcie_ipc_comm": {}}, "sm120": {}}}
    (tmp_path / "built.json").write_text(json.dumps(built))
    found = failed(list(read.check_compiled(CURRENT, tmp_path, Path("/nowhere"))))
    assert "found none, allowed pcie_ipc_ag_rs, pcie_ipc_comm, trtllm_comm" in found["modules for SM120"]
    assert "found pcie_ipc_comm, allowed pcie_ipc_ag_rs, pcie_ipc_comm, trtllm" in found["modules for SM90"]


def test_what_the_dockerfile_compiles_is_what_the_assertion_allows() -> None:
    """For each of the stack's architectures, and each module can be asked for loading."""
    steps = re.findall(
        r"kernels\.py \S+ (\d+\.\d)[af]? ([a-z_ ]+?); rm", (ROOT / "docker/Dockerfile").read_text()
    )
    compiled: dict[str, list[str]] = {}
    for architecture, names in steps:
        compiled.setdefault(architecture, []).extend(names.split())
    assert {one: tuple(sorted(names)) for one, names in compiled.items()} == read.MODULES
    assert set(read.MODULES) == set(CURRENT.architectures)
    assert {name for names in read.MODULES.values() for name in names} == set(loading.GETTERS)


# Stands in for FlashInfer: one module that is there, one that FlashInfer would compile.
STAND_IN_FLASHINFER = {
    "flashinfer/__init__.py": "print('a library talks')\n",
    "flashinfer/tllm_utils.py": "def get_trtllm_utils_module():\n    return object()\n",
    "flashinfer/comm/__init__.py": "import subprocess\nsubprocess.run(['nvcc', '--version'])\n",
    "flashinfer/comm/trtllm_ar.py": (
        "import subprocess\n\n\ndef get_trtllm_comm_module():\n"
        "    subprocess.run(['ninja', '-C', 'x'], check=True)\n"
    ),
}


@pytest.fixture
def stand_in_python(tmp_path: Path) -> Path:
    """A Python that finds the stand-in for FlashInfer."""
    for name, text in STAND_IN_FLASHINFER.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "site"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_a_module_that_loads_without_a_compiler(stand_in_python: Path, tmp_path: Path) -> None:
    found = loading.read_loading(stand_in_python, "sm120f", ["trtllm_utils"], tmp_path)
    assert found == loading.Loading({"trtllm_utils": "loaded"}, ())
    assert failed(list(loading.check_loading("sm120f", found))) == {}


def test_a_module_that_would_be_compiled_fails_with_the_compiler_s_call(
    stand_in_python: Path, tmp_path: Path
) -> None:
    found = loading.read_loading(stand_in_python, "sm120f", ["trtllm_comm", "trtllm_utils"], tmp_path)
    assert found.compiler_calls == ("nvcc --version", "ninja -C x")
    bad = failed(list(loading.check_loading("sm120f", found)))
    assert "found 1 calls of a compiler (ninja -C x), allowed none" in bad["nothing compiles for sm120f"]
    assert "trtllm_comm: CalledProcessError" in bad["FlashInfer loads for sm120f"]


def test_a_python_that_cannot_load_is_unknown_not_right(tmp_path: Path) -> None:
    found = loading.read_loading(
        Path(shutil.which("false") or "/bin/false"), "sm90a", ["trtllm_utils"], tmp_path
    )
    assert found.outcomes["trtllm_utils"].startswith("unknown")
    assert set(failed(list(loading.check_loading("sm90a", found)))) == {"FlashInfer loads for sm90a"}
    assert set(failed(list(loading.check_loading("sm90a", loading.Loading({}, ()))))) == {
        "FlashInfer loads for sm90a"
    }


def test_what_pip_and_compilers_leave(tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    temporary.mkdir()
    assert read.check_no_caches([home], temporary).ok
    (home / ".cache/pip").mkdir(parents=True)
    (temporary / "x.o").touch()
    check = read.check_no_caches([home], temporary)
    assert not check.ok
    assert "pip's cache" in check.detail
    assert "x.o" in check.detail


def test_a_slice_names_what_the_lock_does_not_pin(tmp_path: Path) -> None:
    with pytest.raises(DeployKitError) as caught:
        examine_slice(CURRENT, ROOT, tmp_path, ["sglang", "flashinferr"])
    assert caught.value.found == "flashinferr"
    assert str(caught.value.file).endswith("current.txt")


def test_a_typo_in_a_stack_s_key_and_two_stacks_of_one_name(tmp_path: Path) -> None:
    configs = tmp_path / "configs"
    shutil.copytree(ROOT / "configs", configs)
    text = (configs / "stacks/current.toml").read_text()
    (configs / "stacks/current.toml").write_text(text.replace('flashinfer = "', 'flashinfr = "'))
    with pytest.raises(DeployKitError) as typo:
        Catalog(configs).load(Stack, "current")
    assert str(typo.value.file).endswith("current.toml")
    assert (typo.value.key, typo.value.found) == ("versions.flashinfr", "flashinfr")
    assert "flashinfer" in str(typo.value.allowed)
    # A required key with a typo is missing and unknown: the unknown one is named.
    (configs / "stacks/current.toml").write_text(text.replace("\nrequirements = ", "\nrequirement = "))
    with pytest.raises(DeployKitError) as required:
        Catalog(configs).load(Stack, "current")
    assert (required.value.key, required.value.found) == ("requirement", "requirement")
    assert "requirements" in str(required.value.allowed)
    (configs / "stacks/current.toml").write_text(text)
    (configs / "stacks/second.toml").write_text(text)
    with pytest.raises(DeployKitError) as twice:
        Catalog(configs).load(Stack, "second")
    assert str(twice.value.file).endswith("second.toml")
    assert (twice.value.key, twice.value.found, twice.value.allowed) == ("name", "current", "second")


def test_a_stack_whose_base_has_no_digest(tmp_path: Path) -> None:
    configs = tmp_path / "configs"
    shutil.copytree(ROOT / "configs", configs)
    path = configs / "stacks/current.toml"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("digest")))
    with pytest.raises(DeployKitError) as missing:
        Catalog(configs).load(Stack, "current")
    assert (missing.value.key, missing.value.found) == ("base.digest", "nothing")
    path.write_text("".join('digest = "latest"\n' if line.startswith("digest") else line for line in lines))
    with pytest.raises(DeployKitError) as bad:
        Catalog(configs).load(Stack, "current")
    assert (bad.value.key, bad.value.found) == ("base.digest", "latest")
    assert "sha256" in str(bad.value.allowed)


@pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("readelf") is None, reason="needs cc and readelf"
)
def test_needed_libraries_of_a_real_file(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("double cos(double); double x(double y) { return cos(y); }\n")
    subprocess.run(["cc", "-shared", "-o", "x.so", "x.c", "-lm"], cwd=tmp_path, check=True)
    said = subprocess.run(["readelf", "-d", "x.so"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "libm.so.6" in read.parse_needed(said.stdout)


@pytest.mark.parametrize(("user", "looked"), [(0, True), (10001, False)])
def test_caches_are_looked_for_by_root_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, looked: bool
) -> None:
    """The image's user may not look into /root: asking there must not end in a traceback."""
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr(engine, "LIBRARY_ROOTS", (str(tmp_path),))
    names = [check.name for check in engine.examine(CURRENT, ROOT, tmp_path)]
    assert ("no caches" in names) is looked
    assert "one NCCL" in names
