"""A bare NVML error: whose it is, the host's or a container's, is decided from what the text shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deploy_kit.doctor.blocks import split_blocks
from deploy_kit.doctor.examine import examine

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
UNKNOWN = "Failed to initialize NVML: Unknown Error\n"
RIGHTS = "Failed to initialize NVML: Insufficient Permissions\n"
HOST_TABLE = "| NVIDIA-SMI 580.95.05      Driver Version: 580.95.05      CUDA Version: 13.0     |\n"
HOST = "driver.not-answering"
LOST = "container.nvml-lost-in-container"
DENIED = "container.gpu-permission"

# Name: the text, the ids that must be found, and those that must not (with !).
PLACES = {
    "named-host": (f"# nvidia-smi (host)\n{UNKNOWN}", f"{HOST} !{LOST}"),
    "on-the-host": (f"--- nvidia-smi on the host\n{RIGHTS}", f"{HOST} !{DENIED}"),
    "host-mismatch": (f"=== host: nvidia-smi ===\n{MISMATCH}", f"{HOST} !container.driver-library-mismatch"),
    "shell-with-dmesg": (
        f"root@box1:~# nvidia-smi\n{UNKNOWN}root@box1:~# dmesg | grep Xid\n",
        f"{HOST} !{LOST}",
    ),
    "shell-with-sudo": (
        f"ubuntu@box1:~$ nvidia-smi\n{RIGHTS}ubuntu@box1:~$ sudo nvidia-smi -L\nGPU 0: X (UUID: GPU-1)\n",
        f"{HOST} !{DENIED}",
    ),
    "docker-exec": (f"# docker exec kit-sglang-1 nvidia-smi\n{UNKNOWN}", f"{LOST} !{HOST}"),
    "docker-exec-rights": (f"$ docker run --rm --gpus all cuda nvidia-smi\n{RIGHTS}", f"{DENIED} !{HOST}"),
    "compose-exec": (f"$ docker compose exec kimi nvidia-smi\n{UNKNOWN}", f"{LOST} !{HOST}"),
    "kubectl-exec": (f"$ kubectl exec -it kimi-0 -- nvidia-smi\n{UNKNOWN}", f"{LOST} !{HOST}"),
    "container-prompt": (f"root@3f2a1b4c5d6e:/sgl-workspace# nvidia-smi\n{UNKNOWN}", f"{LOST} !{HOST}"),
    "in-words": (f"--- nvidia-smi inside the container\n{UNKNOWN}", f"{LOST} !{HOST}"),
    "compose-log": (f"kit-sglang-1  | {UNKNOWN}", f"{LOST} !{HOST}"),
    "host-shell-then-container": (
        f"root@box1:~# docker exec -it kimi bash\nroot@3f2a1b4c5d6e:/# nvidia-smi\n{UNKNOWN}",
        f"{LOST} !{HOST}",
    ),
    "container-old-libraries": (
        f"# docker exec kimi nvidia-smi\n{MISMATCH}# nvidia-smi\n{HOST_TABLE}",
        f"container.old-driver-libraries !{HOST}",
    ),
    "container-mismatch-alone": (
        f"# docker exec kimi nvidia-smi\n{MISMATCH}",
        f"container.driver-library-mismatch !{HOST}",
    ),
    "both-mismatch": (
        f"# docker exec kimi nvidia-smi\n{MISMATCH}# nvidia-smi\n{MISMATCH}",
        f"{HOST} !container.driver-library-mismatch !container.old-driver-libraries",
    ),
    "module-not-loaded-in-container": (
        "$ docker exec kimi nvidia-smi\nFailed to initialize NVML: Driver Not Loaded\n",
        f"container.nvidia-smi-no-driver !{HOST}",
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_place(name: str, judge: Callable[[str, str, str], None]) -> None:
    text, marks = PLACES[name]
    judge(text, "fail", marks)


@pytest.mark.parametrize(
    "text", [UNKNOWN, RIGHTS, MISMATCH, f"# nvidia-smi\n{UNKNOWN}", f"$ nvidia-smi\n{RIGHTS}"]
)
def test_in_doubt_both_remedies_are_told(text: str) -> None:
    report = examine(split_blocks(text)).as_dict()
    assert report["verdict"] == "fail"
    assert "container" in report["remedy"]
    assert "host" in report["remedy"] or "reboot" in report["remedy"]
    assert len(report["findings"]) == 1


@pytest.mark.parametrize("name", ["named-host", "on-the-host", "host-mismatch", "shell-with-dmesg"])
def test_on_the_host_no_container_is_to_be_recreated(name: str) -> None:
    remedy = examine(split_blocks(PLACES[name][0])).as_dict()["remedy"]
    assert "container" not in remedy
