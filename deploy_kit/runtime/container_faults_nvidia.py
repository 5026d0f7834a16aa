"""What the NVIDIA container tools say when they refuse, the special texts before the general ones."""

from __future__ import annotations

from deploy_kit.runtime.container_fault_rule import rule

_TOOLKIT_REMEDY = (
    "install nvidia-container-toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker` and"
    " `sudo systemctl restart docker`; check with `docker run --rm --gpus all IMAGE nvidia-smi`"
)
_DRIVER_REMEDY = (
    "on the host: `nvidia-smi`; when that fails too, install or load the driver's open kernel modules"
    " (`sudo modprobe nvidia`, `dmesg | grep NVRM`), then start the container again"
)

NVIDIA_RULES = (
    rule(
        "cdi-not-enabled",
        r'could not select device driver "cdi"|CDI (?:support )?is not enabled'
        r"|CDI is (?:disabled|not supported)"
        r'|gathering device information while adding custom device "nvidia\.com/gpu',
        "CDI is not switched on in this Docker engine (or it is older than 25), so it cannot resolve CDI"
        " devices",
        'set "features": {"cdi": true} in /etc/docker/daemon.json (Docker 25 to 27; on by default from'
        " 28), restart"
        " docker, then `nvidia-ctk cdi list`; or use the legacy `--gpus all`",
    ),
    rule(
        "cdi-unresolvable",
        r"unresolvable CDI devices? (?P<device>[^\s,:]+)|failed to inject CDI devices(?!: unresolvable)"
        r"|no CDI (?:devices|specs?) found",
        "the CDI specification is missing, stale, or does not list the device {device}",
        "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` (again after each driver update), then"
        " `nvidia-ctk cdi list` must show it; or use the legacy mode: `sudo nvidia-ctk config --in-place"
        " --set"
        " nvidia-container-runtime.mode=legacy`",
    ),
    rule(
        "gpu-driver-not-selectable-snap",
        r'/snap/(?:.|\n)*could not select device driver "(?:nvidia)?"'
        r'|could not select device driver "(?:nvidia)?"(?:.|\n)*/snap/',
        "Docker is the snap package, which does not see the NVIDIA Container Toolkit of the host",
        "remove the snap (`sudo snap remove docker`), install Docker from its own packages, then: "
        + _TOOLKIT_REMEDY,
    ),
    rule(
        "gpu-driver-not-selectable",
        r'could not select device driver "(?:nvidia)?" with capabilities',
        "the NVIDIA Container Toolkit is not installed, or Docker was not configured for it or not"
        " restarted since;"
        " services without a GPU may have started, this one has not",
        _TOOLKIT_REMEDY
        + ". The same text comes from Docker installed as a snap: then use Docker's own packages",
    ),
    rule(
        "nvidia-runtime-unknown",
        r"unknown or invalid runtime name:? \"?nvidia|unknown runtime specified \"?nvidia"
        r"|runtime \"?nvidia\"? (?:is )?not found",
        "Docker has no runtime named nvidia: the NVIDIA Container Toolkit is not installed or not"
        " registered in"
        " /etc/docker/daemon.json",
        _TOOLKIT_REMEDY,
    ),
    rule(
        "nvidia-hook-missing",
        r'exec: "?nvidia-container-runtime(?:-hook)?"?: executable file not found'
        r"|fork/exec \S*nvidia-container-runtime\S*: no such file",
        "Docker is configured for the NVIDIA runtime, but its program is not installed (removed, or not in"
        " dockerd's PATH)",
        _TOOLKIT_REMEDY,
    ),
    rule(
        "driver-library-mismatch",
        r"driver/library version mismatch|API mismatch: the client has the version"
        r"|kernel module version does not match",
        "the driver's libraries were updated while the old kernel module stayed loaded: versions differ",
        "reboot the host, or stop everything on the GPUs and reload the modules (`sudo rmmod nvidia_uvm"
        " nvidia_drm"
        " nvidia_modeset nvidia && sudo modprobe nvidia`); keep unattended upgrades off the driver",
    ),
    rule(
        "driver-too-old-for-image",
        r"unsatisfied condition: (?P<condition>cuda[^\s,]*)"
        r"|CUDA driver version is insufficient for CUDA runtime version",
        "the host's driver is too old for the CUDA version of the image {condition}",
        "update the host's driver (CUDA 13 needs 580 or newer), or use the stack with the older CUDA; "
        "`nvidia-smi` shows the highest CUDA version of the driver",
    ),
    rule(
        "driver-not-loaded",
        r"nvml error: driver not loaded|nvidia-container-cli.*driver not loaded",
        "the NVIDIA kernel module is not loaded on the host",
        _DRIVER_REMEDY,
    ),
    rule(
        "libnvidia-ml-missing",
        r"load library failed: (?P<library>libnvidia-ml\.so[.\d]*|libcuda\.so[.\d]*)"
        r"|couldn'?t find libnvidia-ml\.so",
        "the driver's user libraries ({library}) are not where the container tools look: the driver's"
        " libraries are"
        " not installed on the host, or dockerd (snap, rootless, in a container) cannot see them; inside a"
        " container: it was started without its GPUs",
        "`ldconfig -p | grep libnvidia-ml` on the host must find it: install the driver's compute"
        " libraries of the"
        " same version as the kernel module, run `sudo ldconfig`; with a snap Docker change to Docker's own"
        " packages; start the container with its GPU request",
    ),
    rule(
        "driver-rpc",
        r"driver rpc error: (?P<what>[^\n]*?timed out|[^\n:]+)|nvidia-container-cli[^\n]*timed out",
        "the driver did not answer while the container was set up ({what}): it initialises slowly without"
        " persistence mode, or a GPU hangs",
        "`sudo nvidia-smi -pm 1` (nvidia-persistenced), look for Xid lines in `dmesg`, then start again",
    ),
    rule(
        "driver-request-failed",
        r"nvidia-container-cli[^\n]*driver error: failed to process request"
        r"|nvidia-container-cli[^\n]*initialization error: cuda error",
        "the driver refused to initialise for the container: kernel module and user libraries do not"
        " work together",
        _DRIVER_REMEDY,
    ),
    rule(
        "gpu-device-unknown",
        r"(?:device error: )(?P<device>[^\s:]+): unknown device|unknown device id: (?P<device2>\S+)"
        r"|stat failed: (?P<device3>/(?:dev|proc/driver)/nvidia\S*): no such file"
        r"|gathering device information while adding custom device \"(?P<device4>/dev/nvidia[^\"]*)\"",
        "the container asks for a GPU or device file that is not there: {device}{device2}{device3}{device4}",
        "`nvidia-smi -L` lists the GPUs that are left; correct the device ids, or, when one has gone,"
        " look for Xid"
        " 79 in `dmesg` and reboot; `sudo nvidia-modprobe -u -c 0` makes /dev/nvidia-uvm",
    ),
    rule(
        "cgroup-device-filter",
        r"failed to add device rules|bpf_prog_query\(BPF_CGROUP_DEVICE\) failed"
        r"|cgroup subsystem devices not found|nvidia-container-cli[^\n]*cgroup",
        "the container toolkit cannot set device rules on this cgroup version (toolkit too old for"
        " cgroup v2, or"
        " Docker without the rights, as in rootless mode)",
        "update nvidia-container-toolkit; rootless: `sudo nvidia-ctk config --set"
        " nvidia-container-cli.no-cgroups"
        " --in-place`; or use CDI",
    ),
    rule(
        "driver-files-in-image",
        r"nvidia-container-cli[^\n]*mount error: file creation failed[^\n]*file exists",
        "the image itself holds driver files where the toolkit mounts the host's (it was saved from a"
        " running GPU"
        " container)",
        "build the image again without driver libraries (libnvidia-*, libcuda.so.*), or use the released one",
    ),
    rule(
        "gpu-permission",
        r"nvidia-container-cli[^\n]*(?:operation not permitted|permission denied|permission error)"
        r"|Failed to initialize NVML: Insufficient Permissions",
        "the container may not open the GPU's device files or the toolkit may not mount them",
        "check the rights on /dev/nvidia*, rootless mode and SELinux (`--security-opt label=disable` as"
        " a test)",
    ),
    rule(
        "nvml-lost-in-container",
        r"Failed to initialize NVML: Unknown Error",
        "the container has lost its cgroup access to the GPU devices (systemctl daemon-reload or an"
        " unattended"
        " upgrade rewrote the device rules); the host's GPUs are not touched by this",
        "recreate the container (`docker compose up -d --force-recreate SERVICE`); to keep it from"
        " coming back, list"
        " each /dev/nvidia* device in the service, or use CDI, or the cgroupfs driver in Docker",
    ),
    rule(
        "nvml-blocked",
        r"Failed to initialize NVML: GPU access blocked by the operating system",
        "the operating system blocks the GPU for this container (WSL, or started without a GPU request)",
        "start the container with its GPU request (`--gpus all`); on WSL update Windows' driver and WSL",
    ),
    rule(
        "nvidia-smi-no-driver",
        r"NVIDIA-SMI has failed because it couldn'?t communicate with the NVIDIA driver"
        r"|Failed to initialize NVML: Driver Not Loaded",
        "the NVIDIA kernel module is not running on the host (not built for this kernel, blocked by"
        " Secure Boot, or"
        " nouveau is loaded)",
        _DRIVER_REMEDY + "; `dkms status` and `mokutil --sb-state` show the two usual reasons",
    ),
    rule(
        "cuda-compat-in-image",
        r"unsupported display driver / cuda driver combination|cudaErrorSystemDriverMismatch|\bError 803\b"
        r"|forward compatibility was attempted on non supported HW|\bError 804\b",
        "the image brings a CUDA compatibility library (libcuda of another version) that hides the"
        " host's driver",
        "unset LD_LIBRARY_PATH entries with /usr/local/cuda/compat, remove cuda-compat from the image,"
        " or update the"
        " host's driver",
    ),
    rule(
        "fabric-manager",
        r"cudaErrorSystemNotReady|system not yet initialized|\bError 802\b",
        "the GPUs need nvidia-fabricmanager (NVSwitch systems) and it is not running, or its version"
        " differs from"
        " the driver's",
        "install nvidia-fabricmanager of exactly the driver's version and start it",
    ),
    rule(
        "gpu-not-in-container",
        r"The NVIDIA Driver was not detected|no CUDA-capable device is detected"
        r"|libcuda\.so\.1: cannot open shared object file|No CUDA GPUs are available|cudaErrorNoDevice",
        "the container was started without its GPUs (no GPU request, NVIDIA_VISIBLE_DEVICES empty or void, or"
        " NVIDIA_DRIVER_CAPABILITIES without compute)",
        "request the GPUs in the compose file (deploy.resources.reservations.devices, or CDI devices)"
        " and leave"
        " NVIDIA_DRIVER_CAPABILITIES at compute,utility",
    ),
    rule(
        "nvidia-cli",
        r"nvidia-container-cli(?:\.real)?: (?P<what>[^\n]{3,200})",
        "the NVIDIA container tools refused: {what}",
        "`nvidia-container-cli -k -d /dev/tty info` on the host shows the step that fails; update"
        " nvidia-container-toolkit and check `nvidia-smi`",
    ),
)
