"""What Docker, Compose and the NVIDIA container tools say when they refuse, and what it means.

A table of texts with their causes; pure, so `deploy-kit up` and `deploy-kit doctor` give one answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from deploy_kit.pasted import ESCAPES
from deploy_kit.patterns import Sieved, sieved

_BRAILLE_OR_MARK = re.compile(r"^[\s✔✘⠀-⣿!*]+")
_LONGEST_EVIDENCE = 400
_LONGEST_INPUT = 2_000_000


@dataclass(frozen=True)
class ContainerFault:
    """One refusal of the container engine: a stable id, what it means, what to do, the line that says so."""

    id: str
    cause: str
    remedy: str
    evidence: str

    def as_dict(self) -> dict[str, str]:
        """Return the fault for `--json`."""
        return {"id": self.id, "cause": self.cause, "remedy": self.remedy, "evidence": self.evidence}


@dataclass(frozen=True)
class _Rule:
    id: str
    sieved: Sieved
    cause: str
    remedy: str


def _rule(id: str, pattern: str, cause: str, remedy: str) -> _Rule:  # noqa: A002  (the field's own name)
    return _Rule(id, sieved(pattern, re.IGNORECASE), cause, remedy)


# The first rule that fits wins, so the special texts stand before the general ones that wrap them ("OCI
# runtime
# create failed" wraps nearly everything). {name} in cause and remedy is filled from the pattern's named
# groups.
_TOOLKIT_REMEDY = (
    "install nvidia-container-toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker` and"
    " `sudo systemctl restart docker`; check with `docker run --rm --gpus all IMAGE nvidia-smi`"
)
_DRIVER_REMEDY = (
    "on the host: `nvidia-smi`; when that fails too, install or load the driver's open kernel modules"
    " (`sudo modprobe nvidia`, `dmesg | grep NVRM`), then start the container again"
)

_NVIDIA_RULES = (
    _rule(
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
    _rule(
        "cdi-unresolvable",
        r"unresolvable CDI devices? (?P<device>[^\s,:]+)|failed to inject CDI devices(?!: unresolvable)"
        r"|no CDI (?:devices|specs?) found",
        "the CDI specification is missing, stale, or does not list the device {device}",
        "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` (again after each driver update), then"
        " `nvidia-ctk cdi list` must show it; or use the legacy mode: `sudo nvidia-ctk config --in-place"
        " --set"
        " nvidia-container-runtime.mode=legacy`",
    ),
    _rule(
        "gpu-driver-not-selectable-snap",
        r'/snap/(?:.|\n)*could not select device driver "(?:nvidia)?"'
        r'|could not select device driver "(?:nvidia)?"(?:.|\n)*/snap/',
        "Docker is the snap package, which does not see the NVIDIA Container Toolkit of the host",
        "remove the snap (`sudo snap remove docker`), install Docker from its own packages, then: "
        + _TOOLKIT_REMEDY,
    ),
    _rule(
        "gpu-driver-not-selectable",
        r'could not select device driver "(?:nvidia)?" with capabilities',
        "the NVIDIA Container Toolkit is not installed, or Docker was not configured for it or not"
        " restarted since;"
        " services without a GPU may have started, this one has not",
        _TOOLKIT_REMEDY
        + ". The same text comes from Docker installed as a snap: then use Docker's own packages",
    ),
    _rule(
        "nvidia-runtime-unknown",
        r"unknown or invalid runtime name:? \"?nvidia|unknown runtime specified \"?nvidia"
        r"|runtime \"?nvidia\"? (?:is )?not found",
        "Docker has no runtime named nvidia: the NVIDIA Container Toolkit is not installed or not"
        " registered in"
        " /etc/docker/daemon.json",
        _TOOLKIT_REMEDY,
    ),
    _rule(
        "nvidia-hook-missing",
        r'exec: "?nvidia-container-runtime(?:-hook)?"?: executable file not found'
        r"|fork/exec \S*nvidia-container-runtime\S*: no such file",
        "Docker is configured for the NVIDIA runtime, but its program is not installed (removed, or not in"
        " dockerd's PATH)",
        _TOOLKIT_REMEDY,
    ),
    _rule(
        "driver-library-mismatch",
        r"driver/library version mismatch|API mismatch: the client has the version"
        r"|kernel module version does not match",
        "the driver's libraries were updated while the old kernel module stayed loaded: versions differ",
        "reboot the host, or stop everything on the GPUs and reload the modules (`sudo rmmod nvidia_uvm"
        " nvidia_drm"
        " nvidia_modeset nvidia && sudo modprobe nvidia`); keep unattended upgrades off the driver",
    ),
    _rule(
        "driver-too-old-for-image",
        r"unsatisfied condition: (?P<condition>cuda[^\s,]*)"
        r"|CUDA driver version is insufficient for CUDA runtime version",
        "the host's driver is too old for the CUDA version of the image {condition}",
        "update the host's driver (CUDA 13 needs 580 or newer), or use the stack with the older CUDA; "
        "`nvidia-smi` shows the highest CUDA version of the driver",
    ),
    _rule(
        "driver-not-loaded",
        r"nvml error: driver not loaded|nvidia-container-cli.*driver not loaded",
        "the NVIDIA kernel module is not loaded on the host",
        _DRIVER_REMEDY,
    ),
    _rule(
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
    _rule(
        "driver-rpc",
        r"driver rpc error: (?P<what>[^\n]*?timed out|[^\n:]+)|nvidia-container-cli[^\n]*timed out",
        "the driver did not answer while the container was set up ({what}): it initialises slowly without"
        " persistence mode, or a GPU hangs",
        "`sudo nvidia-smi -pm 1` (nvidia-persistenced), look for Xid lines in `dmesg`, then start again",
    ),
    _rule(
        "driver-request-failed",
        r"nvidia-container-cli[^\n]*driver error: failed to process request"
        r"|nvidia-container-cli[^\n]*initialization error: cuda error",
        "the driver refused to initialise for the container: kernel module and user libraries do not"
        " work together",
        _DRIVER_REMEDY,
    ),
    _rule(
        "gpu-device-unknown",
        r"(?:device error: )(?P<device>[^\s:]+): unknown device|unknown device id: (?P<device2>\S+)"
        r"|stat failed: (?P<device3>/(?:dev|proc/driver)/nvidia\S*): no such file"
        r"|gathering device information while adding custom device \"(?P<device4>/dev/nvidia[^\"]*)\"",
        "the container asks for a GPU or device file that is not there: {device}{device2}{device3}{device4}",
        "`nvidia-smi -L` lists the GPUs that are left; correct the device ids, or, when one has gone,"
        " look for Xid"
        " 79 in `dmesg` and reboot; `sudo nvidia-modprobe -u -c 0` makes /dev/nvidia-uvm",
    ),
    _rule(
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
    _rule(
        "driver-files-in-image",
        r"nvidia-container-cli[^\n]*mount error: file creation failed[^\n]*file exists",
        "the image itself holds driver files where the toolkit mounts the host's (it was saved from a"
        " running GPU"
        " container)",
        "build the image again without driver libraries (libnvidia-*, libcuda.so.*), or use the released one",
    ),
    _rule(
        "gpu-permission",
        r"nvidia-container-cli[^\n]*(?:operation not permitted|permission denied|permission error)"
        r"|Failed to initialize NVML: Insufficient Permissions",
        "the container may not open the GPU's device files or the toolkit may not mount them",
        "check the rights on /dev/nvidia*, rootless mode and SELinux (`--security-opt label=disable` as"
        " a test)",
    ),
    _rule(
        "nvml-lost-in-container",
        r"Failed to initialize NVML: Unknown Error",
        "the container has lost its cgroup access to the GPU devices (systemctl daemon-reload or an"
        " unattended"
        " upgrade rewrote the device rules); the host's GPUs are not touched by this",
        "recreate the container (`docker compose up -d --force-recreate SERVICE`); to keep it from"
        " coming back, list"
        " each /dev/nvidia* device in the service, or use CDI, or the cgroupfs driver in Docker",
    ),
    _rule(
        "nvml-blocked",
        r"Failed to initialize NVML: GPU access blocked by the operating system",
        "the operating system blocks the GPU for this container (WSL, or started without a GPU request)",
        "start the container with its GPU request (`--gpus all`); on WSL update Windows' driver and WSL",
    ),
    _rule(
        "nvidia-smi-no-driver",
        r"NVIDIA-SMI has failed because it couldn'?t communicate with the NVIDIA driver"
        r"|Failed to initialize NVML: Driver Not Loaded",
        "the NVIDIA kernel module is not running on the host (not built for this kernel, blocked by"
        " Secure Boot, or"
        " nouveau is loaded)",
        _DRIVER_REMEDY + "; `dkms status` and `mokutil --sb-state` show the two usual reasons",
    ),
    _rule(
        "cuda-compat-in-image",
        r"unsupported display driver / cuda driver combination|cudaErrorSystemDriverMismatch|\bError 803\b"
        r"|forward compatibility was attempted on non supported HW|\bError 804\b",
        "the image brings a CUDA compatibility library (libcuda of another version) that hides the"
        " host's driver",
        "unset LD_LIBRARY_PATH entries with /usr/local/cuda/compat, remove cuda-compat from the image,"
        " or update the"
        " host's driver",
    ),
    _rule(
        "fabric-manager",
        r"cudaErrorSystemNotReady|system not yet initialized|\bError 802\b",
        "the GPUs need nvidia-fabricmanager (NVSwitch systems) and it is not running, or its version"
        " differs from"
        " the driver's",
        "install nvidia-fabricmanager of exactly the driver's version and start it",
    ),
    _rule(
        "gpu-not-in-container",
        r"The NVIDIA Driver was not detected|no CUDA-capable device is detected"
        r"|libcuda\.so\.1: cannot open shared object file|No CUDA GPUs are available|cudaErrorNoDevice",
        "the container was started without its GPUs (no GPU request, NVIDIA_VISIBLE_DEVICES empty or void, or"
        " NVIDIA_DRIVER_CAPABILITIES without compute)",
        "request the GPUs in the compose file (deploy.resources.reservations.devices, or CDI devices)"
        " and leave"
        " NVIDIA_DRIVER_CAPABILITIES at compute,utility",
    ),
    _rule(
        "nvidia-cli",
        r"nvidia-container-cli(?:\.real)?: (?P<what>[^\n]{3,200})",
        "the NVIDIA container tools refused: {what}",
        "`nvidia-container-cli -k -d /dev/tty info` on the host shows the step that fails; update"
        " nvidia-container-toolkit and check `nvidia-smi`",
    ),
)

_ENGINE_RULES = (
    _rule(
        "docker-permission",
        r"permission denied while trying to connect to the Docker (?:daemon socket|API)"
        r"|dial unix \S*docker\.sock: connect: permission denied",
        "this user may not use Docker's socket",
        "`sudo usermod -aG docker $USER` and log in again (membership of docker is as good as root), or"
        " use sudo",
    ),
    _rule(
        "docker-not-running",
        r"Cannot connect to the Docker daemon|Is the docker daemon running"
        r"|failed to connect to the docker API|error during connect"
        r"|dial unix \S*docker\.sock: connect: (?:no such file|connection refused)",
        "the Docker engine is not running (or DOCKER_HOST or the docker context points elsewhere)",
        "`sudo systemctl start docker`, and when it does not stay up `journalctl -u docker -n 50`; check"
        " `docker"
        " context ls` and $DOCKER_HOST",
    ),
    _rule(
        "docker-missing",
        r"docker: (?:command )?not found|command not found: docker|No such file or directory: 'docker'"
        r"|\"docker\": executable file not found",
        "Docker is not installed",
        "install Docker Engine and its compose plug-in, or let `deploy-kit deploy` provision the host",
    ),
    _rule(
        "compose-missing",
        r"'compose' is not a docker command|unknown command: docker compose|unknown shorthand flag: 'f' in -f"
        r"|unknown flag: --profile|docker-compose: (?:command )?not found",
        "Docker has no `compose` plug-in (version 2)",
        "install docker-compose-plugin (Debian 13: docker-compose) so that `docker compose version` says 2.x",
    ),
    _rule(
        "docker-api-version",
        r"client version (?P<version>[\d.]+) is too (?P<side>new|old)",
        "Docker's client and engine are too far apart in version (client API {version} is too {side})",
        "update the older of the two; DOCKER_API_VERSION bridges a too new client",
    ),
    _rule(
        "rate-limit",
        r"toomanyrequests|You have reached your (?:unauthenticated )?pull rate limit",
        "the registry's pull rate limit is reached; the image itself is fine",
        "`docker login` (a higher limit) or wait, or pull through a mirror of your own, or `docker load`"
        " the image",
    ),
    _rule(
        "image-not-for-platform",
        r"no matching manifest for (?P<platform>\S+)"
        r"|does not match the (?:specified|detected host) platform"
        r"|exec format error",
        "the image (or a program in it) is built for another CPU architecture than this host {platform}",
        "use an image for this host's architecture (`docker image inspect --format '{{.Architecture}}'"
        " IMAGE` and"
        " `uname -m`); a script without its #! line gives the same text",
    ),
    _rule(
        "image-tag-gone",
        r"manifest for (?P<image>\S+) not found|(?<!\S)(?P<image2>\S+): (?:not found: )?manifest unknown"
        r"|manifest unknown"
        r"|failed to resolve reference \"(?P<image3>[^\"]+)\": \S+: not found",
        "the image's tag no longer exists in its registry: {image}{image2}{image3}",
        "pin a release by digest (IMAGE@sha256:…) instead of a nightly tag, and keep a copy (`docker"
        " save`, or a"
        " registry of your own)",
    ),
    _rule(
        "image-access-denied",
        r"pull access denied for (?P<image>[^\s,]+)|requested access to the resource is denied"
        r"|unauthorized: authentication required|no basic auth credentials|denied: denied"
        r"|unauthorized: incorrect username or password",
        "the registry does not give the image {image} to this user: not logged in, no right, or the name"
        " is wrong"
        " (an image that is only built locally gives the same text)",
        "`docker login`, check the name, or build it first (`docker compose build`)",
    ),
    _rule(
        "registry-credentials-helper",
        r"error getting credentials|docker-credential-\S+: executable file not found",
        "Docker's credential helper is configured but does not work here",
        "correct or remove credsStore in ~/.docker/config.json, then `docker login`",
    ),
    _rule(
        "registry-certificate",
        r"x509: (?:certificate|cannot)[^\n]*|server gave HTTP response to HTTPS client"
        r"|tls: failed to verify certificate",
        "the registry's certificate is not trusted by this host, or the registry speaks plain HTTP",
        "put the CA's certificate at /etc/docker/certs.d/HOST:PORT/ca.crt, or list the registry in"
        " insecure-registries of daemon.json; check the host's clock",
    ),
    _rule(
        "registry-unreachable",
        r"dial tcp: lookup (?P<host>\S+?)(?: on \S+)?: |TLS handshake timeout|i/o timeout"
        r"|Client\.Timeout exceeded while awaiting headers|Temporary failure in name resolution"
        r"|failed to do request: Head|dial tcp \S+: connect: (?:connection refused|network is unreachable"
        r"|no route to host)",
        "the registry cannot be reached from this host (name resolution, proxy or network) {host}",
        "check DNS and the engine's proxy (`systemctl show docker --property Environment`), or `docker"
        " load` an image"
        " that was saved elsewhere",
    ),
    _rule(
        "pull-broken",
        r"filesystem layer verification failed|failed size validation|httpReadSeeker|unexpected EOF"
        r"|error pulling image configuration",
        "the download of the image broke off or came damaged",
        "pull again; when it repeats, look at the proxy or mirror in between and at the disk",
    ),
    _rule(
        "image-missing",
        r"No such image: (?P<image>\S+)",
        "the image {image} is not on this host",
        "`docker compose pull` or `docker compose build`",
    ),
    _rule(
        "image-name-invalid",
        r"invalid reference format|repository name \(?\S*\)? ?must be lowercase|must be lowercase",
        "the image's name is not a valid reference (often an unset variable in it, or upper case)",
        "`docker compose config --images` shows the name as it is resolved; set the variable it uses",
    ),
    _rule(
        "inotify-limit",
        r"inotify[^\n]*(?:no space left on device|too many open files)"
        r"|User limit of inotify watches reached|too many open files",
        "the kernel's limit of watches or open files is reached; the disk is not full",
        "raise fs.inotify.max_user_watches and max_user_instances, or the engine's nofile limit",
    ),
    _rule(
        "shared-memory-full",
        r"/dev/shm[^\n]*no space left on device|error while creating shared memory segment[^\n]*",  # noqa: S108
        "the container's /dev/shm is full (Docker's default is 64 MB)",
        "give the service `ipc: host` or `shm_size: 32g`",
    ),
    _rule(
        "disk-full",
        r"no space left on device|disk quota exceeded|not enough free space",
        "the disk is full: no room for the image's layers or the container's files (often /var/lib/docker)",
        "`df -h` and `docker system df`; `docker image prune` and `docker builder prune` free unused"
        " layers; or move"
        " Docker's data-root to a larger disk. Engine image and layers need tens of GB",
    ),
    _rule(
        "file-system-read-only",
        r"read-only file system",
        "the container or the host's file system is mounted read-only where something has to be written",
        "mount a writable folder or tmpfs there; when it is the host's disk, look at `dmesg` for I/O errors",
    ),
    _rule(
        "port-taken",
        r"Bind for \S*?:(?P<port>\d+) failed: port is already allocated"
        r"|failed to bind (?:host )?port (?:for )?\S*?:(?P<port2>\d+)[:/][^\n]*address already in use"
        r"|listen tcp\d? \S*:(?P<port3>\d+): bind: address already in use"
        r"|exposing port TCP \S*?:(?P<port4>\d+)|port is already allocated|bind: address already in use",
        "the port {port}{port2}{port3}{port4} on this host is taken: another container or program"
        " listens there",
        "`docker ps --format '{{.Names}} {{.Ports}}'` and `sudo ss -ltnp` show who; stop it or publish"
        " another port",
    ),
    _rule(
        "port-privileged",
        r"cannot expose privileged port (?P<port>\d+)"
        r"|listen tcp\d? \S*:(?P<port2>\d+): bind: permission denied",
        "the port {port}{port2} is below 1024 and rootless Docker may not open it",
        "publish a port above 1023, or lower net.ipv4.ip_unprivileged_port_start",
    ),
    _rule(
        "address-not-here",
        r"bind: cannot assign requested address",
        "the port is published on an address that this host does not have",
        "correct the address in `ports:`; `ip -br addr` lists those there are",
    ),
    _rule(
        "firewall-chains-gone",
        r"iptables[^\n]*(?:No chain/target/match by that name|Chain '?DOCKER)",
        "Docker's firewall chains are gone (a firewall was restarted after Docker)",
        "`sudo systemctl restart docker`; order the firewall before Docker at boot",
    ),
    _rule(
        "network-pool",
        r"Pool overlaps with other one on this address space"
        r"|could not find an available, non-overlapping IPv4 address pool"
        r"|all predefined address pools have been fully subnetted|invalid pool request",
        "Docker has no free address range for the network: it overlaps with another network, or all"
        " pools are used",
        "`docker network prune`, choose another subnet for the network, or set default-address-pools in"
        " daemon.json",
    ),
    _rule(
        "network-foreign",
        r"network (?P<network>\S+) was found but has incorrect label"
        r"|network (?P<network2>\S+) declared as external, but could not be found"
        r"|network (?P<network3>\S+) not found",
        "the network {network}{network2}{network3} is not there, or was not made by this compose project",
        "`docker network ls`; remove the foreign one (`docker network rm`) or create the external one,"
        " then up again",
    ),
    _rule(
        "name-conflict",
        r"Conflict\. The container name \"?/?(?P<container>[^\"\s]+)\"? is already in use",
        "a container named {container} exists already",
        "`docker rm -f {container}` when it is a leftover, or give this one another name or project (-p)",
    ),
    _rule(
        "rlimit-memlock",
        r"error setting rlimit type 8: operation not permitted",
        "the container asks for more locked memory (memlock, rlimit type 8) than this host's engine may"
        " grant",
        "raise it for the engine (LimitMEMLOCK=infinity in docker.service, restart), or lower `ulimits:"
        " memlock` of"
        " the service",
    ),
    _rule(
        "rlimit",
        r"error setting rlimits?(?: type (?P<type>\d+)| for ready process)",
        "the container asks for a limit (`ulimits`) above what this host's engine may grant; type 7 is"
        " nofile, 8 is"
        " memlock",
        "raise LimitNOFILE / LimitMEMLOCK of docker.service and restart it, or lower the service's `ulimits`",
    ),
    _rule(
        "cgroup-driver",
        r'cgroupsPath to be of format "slice:prefix:name"|cgroup mountpoint does not exist'
        r"|cgroup driver[^\n]*(?:mismatch|different from)|unable to apply cgroup configuration",
        "the cgroup driver of Docker (systemd or cgroupfs) does not fit this host or its runtime",
        '`docker info | grep -i cgroup`; set "exec-opts": ["native.cgroupdriver=systemd"] (host with'
        " systemd) or"
        " cgroupfs in daemon.json and restart docker",
    ),
    _rule(
        "cpus-not-available",
        r"Requested CPUs are not available[^\n]*|Requested memory nodes are not available[^\n]*"
        r"|(?:write|fail|error|invalid)[^\n]*cpuset\.(?:cpus|mems)[^\n]*|range of CPUs is from[^\n]*",
        "the service asks for CPUs or memory nodes that this host does not have (or that are off line)",
        "correct the host file's `cpus` (`lscpu` shows the on-line list) or the service's cpuset",
    ),
    _rule(
        "dependency-unhealthy",
        r"dependency failed to start: container (?P<container>\S+) (?P<what>[^\n]+)"
        r"|container (?P<container2>\S+) is unhealthy"
        r"|service \"(?P<container3>[^\"]+)\" didn'?t complete successfully",
        "a service that this one waits for did not become ready: {container}{container2}{container3} {what}",
        "`docker logs {container}{container2}{container3}` (deploy-kit logs, deploy-kit startup explain)"
        " tells why;"
        " the waiting service itself is not at fault",
    ),
    _rule(
        "no-healthcheck",
        r"container (?P<container>\S+) has no healthcheck configured",
        "something waits for {container} to be healthy, but it has no health check",
        "give that service a healthcheck, or wait for service_started",
    ),
    _rule(
        "compose-dependency",
        r"depends on undefined service|no such service: (?P<service>\S+)|depends on \S+ which is undefined",
        "the compose file names a service that is not there (or is in a profile that is not active)"
        " {service}",
        "`docker compose config --services` lists them; add the profile with --profile",
    ),
    _rule(
        "compose-file",
        r"no configuration file provided: not found|Additional property \S+ is not allowed"
        r"|yaml: (?:line \d+|unmarshal)[^\n]*|required variable (?P<variable>\S+) is missing a value"
        r"|env file \S+ not found|unsupported Compose file version|invalid interpolation format"
        r"|undefined volume|validating [^\n]*compose[^\n]*",
        "the compose file, or a variable it needs, is wrong or not there {variable}",
        "`docker compose config` shows the place; update Compose when it does not know a key",
    ),
    _rule(
        "mount-source-missing",
        r"bind source path does not exist: (?P<path>\S+)|error mounting \"(?P<path2>[^\"]+)\""
        r"|Are you trying to mount a directory onto a file|error while creating mount source path",
        "a file or folder to be mounted is not on this host (or is a folder where a file is meant)"
        " {path}{path2}",
        "create it, or correct the path; a folder that Docker made in place of a missing file must be"
        " removed first",
    ),
    _rule(
        "entrypoint-missing",
        r"exec: \"(?P<program>[^\"]+)\": (?:executable file not found in \$PATH"
        r"|stat \S+: no such file or directory|permission denied)"
        r"|exec (?P<program2>/\S+): no such file or directory",
        "the program to start is not in the image, or not executable: {program}{program2}",
        "check `entrypoint`/`command` of the service and the image's version; #! lines with Windows line"
        " ends give"
        " the same text",
    ),
    _rule(
        "memory-or-processes-exhausted",
        r"cannot allocate memory|resource temporarily unavailable|OOMKilled"
        r"|exit(?:ed)?(?: with)?(?: code)? \(?137\)?",
        "the host or the service's limit ran out of memory or processes (exit code 137 is a kill)",
        "`free -g`, `docker inspect --format '{{.State.OOMKilled}}' CONTAINER`, `dmesg | grep -i oom`;"
        " raise the"
        " limit or free memory",
    ),
    _rule(
        "mount-busy",
        r"device or resource busy",
        "something still holds the container's files, device or mount",
        "`sudo lsof +f -- PATH` or `grep CONTAINER /proc/*/mountinfo` shows who; stop it, then remove again",
    ),
    _rule(
        "security-profile",
        r"AppArmor enabled on system but the docker-default profile could not be loaded"
        r"|seccomp[^\n]*(?:fail|error|not supported)[^\n]*"
        r"|sysctl [^\n]* is not in a separate kernel namespace",
        "a security profile or kernel setting of the container cannot be applied on this host",
        "install apparmor (apparmor_parser) or correct `security_opt` and `sysctls` of the service",
    ),
    _rule(
        "runtime-refused",
        r"OCI runtime (?:create|exec) failed: (?P<what>[^\n]{3,300})"
        r"|failed to create shim task: (?P<what2>[^\n]{3,300})",
        "the container runtime refused to start the container: {what}{what2}",
        "the end of that line names the step; `journalctl -u docker -n 50` has the rest",
    ),
    _rule(
        "engine-refused",
        r"Error response from daemon: (?P<what>[^\n]{3,300})",
        "the Docker engine refused: {what}",
        "`journalctl -u docker -n 50` on the host has the engine's own account",
    ),
)
_RULES = _NVIDIA_RULES + _ENGINE_RULES


def explain_container_fault(text: str) -> ContainerFault | None:
    """Given what docker, compose or the NVIDIA container tools printed, return the fault it names.

    None when no refusal is recognised: that is not a statement that all went well. A text in which other
    services started is still a fault.
    """
    return next(explain_container_faults(text), None)


def explain_container_faults(text: str) -> Iterator[ContainerFault]:
    """Yield each fault recognised in the text, the most specific first."""
    plain = plain_text(text)
    small = plain.lower()
    general_seen = False
    for rule in _RULES:
        match = rule.sieved.pattern.search(plain) if rule.sieved.may_fit(small) else None
        if match is None:
            continue
        if rule.id in _GENERAL and general_seen:
            continue  # the wrapper of a text that is explained already
        general_seen = True
        values = _Values({key: value for key, value in match.groupdict().items() if value})
        yield ContainerFault(
            id=rule.id,
            cause=_fill(rule.cause, values),
            remedy=_fill(rule.remedy, values),
            evidence=_line_around(plain, match.start(), match.end()),
        )


def plain_text(text: str) -> str:
    """Return the text without terminal escapes, with one kind of line end; bounded in length."""
    text = text[-_LONGEST_INPUT:]
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n")


_GENERAL = {
    "nvidia-cli",
    "runtime-refused",
    "engine-refused",
    "memory-or-processes-exhausted",
    "security-profile",
}


class _Values(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return ""


_PLACEHOLDER = re.compile(r"(?<!\{)\{([a-z]+\d?)\}(?!\})")


def _fill(template: str, values: _Values) -> str:
    filled = _PLACEHOLDER.sub(lambda match: values[match.group(1)].strip(" .\"'"), template)
    # A value that the text did not carry leaves no gap and no empty brackets behind.
    filled = re.sub(r" ?\(\s*\)", "", filled)
    return re.sub(r"[ \t]{2,}", " ", filled).strip().rstrip(":").strip()


def _line_around(text: str, start: int, end: int) -> str:
    first = text.rfind("\n", 0, end - 1 if end > start else end) + 1
    first = min(first, text.rfind("\n", 0, start) + 1) if end - start < _LONGEST_EVIDENCE else first
    last = text.find("\n", end)
    line = text[first : last if last >= 0 else len(text)]
    line = re.sub(r"[ \t]{2,}", " ", _BRAILLE_OR_MARK.sub("", line)).strip()
    return line if len(line) <= _LONGEST_EVIDENCE else line[: _LONGEST_EVIDENCE - 1] + "…"
