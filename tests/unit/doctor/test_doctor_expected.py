"""A machine against its host file."""

from __future__ import annotations

from pathlib import Path

from deploy_kit.configs.catalog import load_file
from deploy_kit.configs.schema import Host
from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.examine import examine
from deploy_kit.doctor.facts.sysfs import acs_control, nodes_as_numactl, pci_as_lspci

HOST = load_file(Host, Path(__file__).parents[3] / "configs" / "hosts" / "rtx-pro-6000-x8.toml")
HEADER = (
    "index, name, pci.bus_id, compute_cap, memory.total [MiB], pcie.link.gen.max, pcie.link.width.current"
)


def _rows(count: int, *, cap: str = "12.0", memory: int = 97887, gen: int = 5, width: int = 16) -> str:
    rows = [
        f"{i}, NVIDIA RTX PRO 6000 Blackwell Server Edition, 00000000:{i + 1:02X}:00.0, {cap}, {memory},"
        f" {gen}, {width}"
        for i in range(count)
    ]
    return "\n".join([HEADER, *rows])


def _ids(text: str) -> dict[str, str]:
    return {finding.id: finding.verdict.value for finding in examine(split_blocks(text), host=HOST).findings}


def test_as_expected() -> None:
    assert _ids(_rows(8))["expected.gpus"] == "ok"
    assert all(verdict == "ok" for name, verdict in _ids(_rows(8)).items() if name.startswith("expected"))


def test_missing_gpu_other_chip_less_memory_slower_link() -> None:
    assert _ids(_rows(7))["expected.gpus"] == "fail"
    assert _ids(_rows(8, cap="9.0"))["expected.capability"] == "fail"
    assert _ids(_rows(8, memory=48000))["expected.memory"] == "warn"
    assert _ids(_rows(8, gen=4))["expected.pcie-generation"] == "warn"
    assert _ids(_rows(8, width=8))["expected.pcie-width"] == "warn"


def test_offline_cpu_in_the_host_file() -> None:
    text = "CPU(s): 256\nOn-line CPU(s) list: 0-230,232-255\nOff-line CPU(s) list: 231\nSocket(s): 2\n"
    assert _ids(text)["expected.offline-cpus"] == "warn"


def test_acs_is_read_from_configuration_space() -> None:
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")  # AER, then the next
    config[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[0x14E:0x150] = (0x001D).to_bytes(2, "little")
    assert acs_control(bytes(config)) == 0x1D
    assert acs_control(bytes(64)) is None
    endless = bytearray(4096)
    endless[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    assert acs_control(bytes(endless)) is None


def test_sysfs_reads_like_lspci(tmp_path: Path) -> None:
    config = bytearray(4096)
    config[0x18:0x1B] = bytes((0, 1, 1))
    config[0x100:0x104] = (0x000D | 1 << 16).to_bytes(4, "little")
    config[0x106:0x108] = (0x001D).to_bytes(2, "little")
    devices: dict[str, dict[str, str | bytes]] = {
        "0000:00:01.1": {"vendor": "0x1022", "class": "0x060400", "config": bytes(config)},
        "0000:01:00.0": {
            "vendor": "0x10de",
            "class": "0x030200",
            "device": "0x2bb5",
            "max_link_speed": "32.0 GT/s PCIe",
            "max_link_width": "16",
            "current_link_speed": "32.0 GT/s PCIe",
            "current_link_width": "8",
            "config": bytes(64),
        },
    }
    for slot, files in devices.items():
        folder = tmp_path / slot
        folder.mkdir()
        for name, content in files.items():
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            else:
                (folder / name).write_text(content + "\n")
    ids = {f.id: f.verdict.value for f in examine(split_blocks(pci_as_lspci(tmp_path))).findings}
    assert ids["acs.redirect"] == "fail"
    assert ids["link.width"] == "warn"


def test_sysfs_reads_like_numactl(tmp_path: Path) -> None:
    for node, cpus, total in ((0, "0-3", 1024), (1, "", 1024), (2, "4-5", 0)):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "cpulist").write_text(cpus + "\n")
        (folder / "distance").write_text("10 20 20\n")
        (folder / "meminfo").write_text(
            f"Node {node} MemTotal: {total * 1024} kB\nNode {node} MemFree: {total * 512} kB\n"
        )
    report = examine(split_blocks(nodes_as_numactl(tmp_path)))
    assert report.verdict == "warn"
    assert report.facts["memoryless_nodes"] == [2]
    assert report.facts["cpuless_nodes"] == [1]
