"""Docker's error texts: each gets the one answer that helps; wrappers never hide the text inside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.runtime.container_faults import explain_container_fault

OCI = (
    "Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime"
    " create failed: runc create failed: unable to start container process: "
)
HOOK = OCI + (
    "error during container init: error running prestart hook #0: exit status 1, stdout: , stderr:"
    " Auto-detected"
    " mode as 'legacy'\n"
)
SITUATIONS = [
    ('could not select device driver "" with capabilities: [[gpu]]', "gpu-driver-not-selectable", "Toolkit"),
    ('could not select device driver "cdi" with capabilities: []', "cdi-not-enabled", "CDI"),
    (
        (
            'ls /var/snap/docker\nError response from daemon: could not select device driver "nvidia" with'
            " capabilities: [[gpu]]"
        ),
        "gpu-driver-not-selectable-snap",
        "snap",
    ),
    (
        OCI + "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=3",
        "cdi-unresolvable",
        "gpu=3",
    ),
    ("unknown or invalid runtime name: nvidia", "nvidia-runtime-unknown", "registered"),
    (
        OCI + 'exec: "nvidia-container-runtime-hook": executable file not found in $PATH: unknown',
        "nvidia-hook-missing",
        "not installed",
    ),
    (
        HOOK + "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
        "driver-not-loaded",
        "not loaded",
    ),
    (
        HOOK
        + "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open"
        " shared object file: no such file or directory: unknown",
        "libnvidia-ml-missing",
        "libnvidia-ml.so.1",
    ),
    (
        HOOK + "nvidia-container-cli: initialization error: driver rpc error: timed out: unknown",
        "driver-rpc",
        "persistence",
    ),
    (
        HOOK
        + "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
        "driver-library-mismatch",
        "kernel module",
    ),
    (
        HOOK
        + "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your"
        " driver to a newer version, or use an earlier cuda container: unknown",
        "driver-too-old-for-image",
        "cuda>=13.0",
    ),
    (HOOK + "nvidia-container-cli: device error: 4: unknown device: unknown", "gpu-device-unknown", "4"),
    (
        HOOK
        + "nvidia-container-cli: mount error: failed to add device rules: unable to find any existing device"
        " filters attached to the cgroup: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted",
        "cgroup-device-filter",
        "cgroup",
    ),
    (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95",
        "driver-library-mismatch",
        "versions differ",
    ),
    (
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that"
            " the latest"
            " NVIDIA driver is installed and running."
        ),
        "nvidia-smi-no-driver",
        "kernel module",
    ),
    (
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was"
            " attempted"
            " on non supported HW"
        ),
        "cuda-compat-in-image",
        "compatibility",
    ),
    (
        (
            "Error response from daemon: driver failed programming external connectivity on endpoint"
            " kit-sglang-1"
            " (0a1b): Bind for 0.0.0.0:30000 failed: port is already allocated"
        ),
        "port-taken",
        "30000",
    ),
    (
        (
            "Error response from daemon: failed to set up container networking: driver failed programming"
            " external"
            " connectivity on endpoint x (9f): failed to bind host port for"
            " 0.0.0.0:9090:172.18.0.3:9090/tcp: address"
            " already in use"
        ),
        "port-taken",
        "9090",
    ),
    (
        "Error starting userland proxy: listen tcp4 127.0.0.1:3000: bind: address already in use",
        "port-taken",
        "3000",
    ),
    (
        (
            "Error response from daemon: pull access denied for deploy-kit/engine, repository does not exist"
            " or may"
            " require 'docker login': denied: requested access to the resource is denied"
        ),
        "image-access-denied",
        "deploy-kit/engine",
    ),
    (
        "toomanyrequests: You have reached your unauthenticated pull rate limit.",
        "rate-limit",
        "rate limit",
    ),
    (
        "no matching manifest for linux/arm64/v8 in the manifest list entries",
        "image-not-for-platform",
        "linux/arm64/v8",
    ),
    ("exec /usr/local/bin/deploy-kit: exec format error", "image-not-for-platform", "architecture"),
    (
        "failed to register layer: write /usr/lib/libcublasLt.so.13: no space left on device",
        "disk-full",
        "disk is full",
    ),
    (
        (
            "permission denied while trying to connect to the Docker daemon socket at"
            " unix:///var/run/docker.sock: Get"
            ' "http://%2Fvar%2Frun%2Fdocker.sock/v1.45/info": dial unix /var/run/docker.sock: connect:'
            " permission denied"
        ),
        "docker-permission",
        "may not",
    ),
    (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "docker-not-running",
        "not running",
    ),
    ("docker: 'compose' is not a docker command.", "compose-missing", "compose"),
    (
        (
            'Error response from daemon: Conflict. The container name "/kit-sglang-1" is already in use by'
            " container"
            ' "0af3". You have to remove (or rename) that container to be able to reuse that name.'
        ),
        "name-conflict",
        "kit-sglang-1",
    ),
    (
        "dependency failed to start: container kit-engine-1 is unhealthy",
        "dependency-unhealthy",
        "kit-engine-1",
    ),
    (
        OCI
        + "error during container init: error setting rlimits for ready process: error setting rlimit type 8:"
        " operation not permitted",
        "rlimit-memlock",
        "memlock",
    ),
    (
        (
            "OCI runtime create failed: runc create failed: expected cgroupsPath to be of format"
            ' "slice:prefix:name"'
            ' for systemd cgroups, got "/docker/0af" instead: unknown'
        ),
        "cgroup-driver",
        "cgroup driver",
    ),
    (
        (
            "failed to create network kit_default: Error response from daemon: Pool overlaps with other one"
            " on this"
            " address space"
        ),
        "network-pool",
        "address range",
    ),
    (
        "Error response from daemon: Requested CPUs are not available - requested 0-63, available: 0-1",
        "cpus-not-available",
        "CPUs",
    ),
    (
        (
            'Error response from daemon: invalid mount config for type "bind": bind source path does not'
            " exist:"
            " /srv/models"
        ),
        "mount-source-missing",
        "/srv/models",
    ),
    (
        OCI + 'exec: "deploy-kit": executable file not found in $PATH: unknown',
        "entrypoint-missing",
        "deploy-kit",
    ),
    (
        (
            'Error response from daemon: Get "https://registry-1.docker.io/v2/": dial tcp: lookup'
            " registry-1.docker.io"
            " on 127.0.0.53:53: no such host"
        ),
        "registry-unreachable",
        "registry-1.docker.io",
    ),
    (
        "error while removing container: unlinkat /var/lib/docker/overlay2/a/merged: device or resource busy",
        "mount-busy",
        "holds",
    ),
]


@pytest.mark.parametrize(("text", "fault_id", "word"), SITUATIONS, ids=[row[1] for row in SITUATIONS])
def test_text_gets_its_own_answer(text: str, fault_id: str, word: str) -> None:
    fault = explain_container_fault(text)
    assert fault is not None
    assert fault.id == fault_id
    assert word in fault.cause + fault.remedy
    assert fault.remedy
    assert fault.evidence
    assert "{" not in fault.cause.replace("{{", "")


def test_unnamed_refusal_is_still_a_fault() -> None:
    fault = explain_container_fault("Error response from daemon: something nobody has seen yet")
    assert fault is not None
    assert "something nobody has seen yet" in fault.cause


@pytest.mark.parametrize("text", ["", " ✔ Container kit-prometheus-1 Started 5.3s\n", "hello"])
def test_success_is_no_fault(text: str) -> None:
    assert explain_container_fault(text) is None


def test_escapes_do_not_hide_the_text() -> None:
    fault = explain_container_fault("\x1b[31mError\x1b[0m manifest for a/b:c not \x1b[1mfound\x1b[0m")
    assert fault is not None
    assert fault.id == "image-tag-gone"


@given(st.text(max_size=300), st.sampled_from([row[0] for row in SITUATIONS]), st.text(max_size=300))
def test_any_surrounding_text_is_survived(before: str, text: str, after: str) -> None:
    assert explain_container_fault(f"{before}\n{text}\n{after}") is not None
