"""What Docker and Compose say when they refuse, the special texts before the general ones: "OCI runtime
create failed" wraps nearly everything."""

from __future__ import annotations

from deploy_kit.runtime.container_fault_rule import rule

ENGINE_RULES = (
    rule(
        "docker-permission",
        r"permission denied while trying to connect to the Docker (?:daemon socket|API)"
        r"|dial unix \S*docker\.sock: connect: permission denied",
        "this user may not use Docker's socket",
        "`sudo usermod -aG docker $USER` and log in again (membership of docker is as good as root), or"
        " use sudo",
    ),
    rule(
        "docker-not-running",
        r"Cannot connect to the Docker daemon|Is the docker daemon running"
        r"|failed to connect to the docker API|error during connect"
        r"|dial unix \S*docker\.sock: connect: (?:no such file|connection refused)",
        "the Docker engine is not running (or DOCKER_HOST or the docker context points elsewhere)",
        "`sudo systemctl start docker`, and when it does not stay up `journalctl -u docker -n 50`; check"
        " `docker"
        " context ls` and $DOCKER_HOST",
    ),
    rule(
        "docker-missing",
        r"docker: (?:command )?not found|command not found: docker|No such file or directory: 'docker'"
        r"|\"docker\": executable file not found",
        "Docker is not installed",
        "install Docker Engine and its compose plug-in, or let `deploy-kit deploy` provision the host",
    ),
    rule(
        "compose-missing",
        r"'compose' is not a docker command|unknown command: docker compose|unknown shorthand flag: 'f' in -f"
        r"|unknown flag: --profile|docker-compose: (?:command )?not found",
        "Docker has no `compose` plug-in (version 2)",
        "install docker-compose-plugin (Debian 13: docker-compose) so that `docker compose version` says 2.x",
    ),
    rule(
        "docker-api-version",
        r"client version (?P<version>[\d.]+) is too (?P<side>new|old)",
        "Docker's client and engine are too far apart in version (client API {version} is too {side})",
        "update the older of the two; DOCKER_API_VERSION bridges a too new client",
    ),
    rule(
        "rate-limit",
        r"toomanyrequests|You have reached your (?:unauthenticated )?pull rate limit",
        "the registry's pull rate limit is reached; the image itself is fine",
        "`docker login` (a higher limit) or wait, or pull through a mirror of your own, or `docker load`"
        " the image",
    ),
    rule(
        "image-not-for-platform",
        r"no matching manifest for (?P<platform>\S+)"
        r"|does not match the (?:specified|detected host) platform"
        r"|exec format error",
        "the image (or a program in it) is built for another CPU architecture than this host {platform}",
        "use an image for this host's architecture (`docker image inspect --format '{{.Architecture}}'"
        " IMAGE` and"
        " `uname -m`); a script without its #! line gives the same text",
    ),
    rule(
        "image-tag-gone",
        r"manifest for (?P<image>\S+) not found|(?<!\S)(?P<image2>\S+): (?:not found: )?manifest unknown"
        r"|manifest unknown"
        r"|failed to resolve reference \"(?P<image3>[^\"]+)\": \S+: not found",
        "the image's tag no longer exists in its registry: {image}{image2}{image3}",
        "pin a release by digest (IMAGE@sha256:…) instead of a nightly tag, and keep a copy (`docker"
        " save`, or a"
        " registry of your own)",
    ),
    rule(
        "image-access-denied",
        r"pull access denied for (?P<image>[^\s,]+)|requested access to the resource is denied"
        r"|unauthorized: authentication required|no basic auth credentials|denied: denied"
        r"|unauthorized: incorrect username or password",
        "the registry does not give the image {image} to this user: not logged in, no right, or the name"
        " is wrong"
        " (an image that is only built locally gives the same text)",
        "`docker login`, check the name, or build it first (`docker compose build`)",
    ),
    rule(
        "registry-credentials-helper",
        r"error getting credentials|docker-credential-\S+: executable file not found",
        "Docker's credential helper is configured but does not work here",
        "correct or remove credsStore in ~/.docker/config.json, then `docker login`",
    ),
    rule(
        "registry-certificate",
        r"x509: (?:certificate|cannot)[^\n]*|server gave HTTP response to HTTPS client"
        r"|tls: failed to verify certificate",
        "the registry's certificate is not trusted by this host, or the registry speaks plain HTTP",
        "put the CA's certificate at /etc/docker/certs.d/HOST:PORT/ca.crt, or list the registry in"
        " insecure-registries of daemon.json; check the host's clock",
    ),
    rule(
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
    rule(
        "pull-broken",
        r"filesystem layer verification failed|failed size validation|httpReadSeeker|unexpected EOF"
        r"|error pulling image configuration",
        "the download of the image broke off or came damaged",
        "pull again; when it repeats, look at the proxy or mirror in between and at the disk",
    ),
    rule(
        "image-missing",
        r"No such image: (?P<image>\S+)",
        "the image {image} is not on this host",
        "`docker compose pull` or `docker compose build`",
    ),
    rule(
        "image-name-invalid",
        r"invalid reference format|repository name \(?\S*\)? ?must be lowercase|must be lowercase",
        "the image's name is not a valid reference (often an unset variable in it, or upper case)",
        "`docker compose config --images` shows the name as it is resolved; set the variable it uses",
    ),
    rule(
        "inotify-limit",
        r"inotify[^\n]*(?:no space left on device|too many open files)"
        r"|User limit of inotify watches reached|too many open files",
        "the kernel's limit of watches or open files is reached; the disk is not full",
        "raise fs.inotify.max_user_watches and max_user_instances, or the engine's nofile limit",
    ),
    rule(
        "shared-memory-full",
        r"/dev/shm[^\n]*no space left on device|error while creating shared memory segment[^\n]*",  # noqa: S108
        "the container's /dev/shm is full (Docker's default is 64 MB)",
        "give the service `ipc: host` or `shm_size: 32g`",
    ),
    rule(
        "disk-full",
        r"no space left on device|disk quota exceeded|not enough free space",
        "the disk is full: no room for the image's layers or the container's files (often /var/lib/docker)",
        "`df -h` and `docker system df`; `docker image prune` and `docker builder prune` free unused"
        " layers; or move"
        " Docker's data-root to a larger disk. Engine image and layers need tens of GB",
    ),
    rule(
        "file-system-read-only",
        r"read-only file system",
        "the container or the host's file system is mounted read-only where something has to be written",
        "mount a writable folder or tmpfs there; when it is the host's disk, look at `dmesg` for I/O errors",
    ),
    rule(
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
    rule(
        "port-privileged",
        r"cannot expose privileged port (?P<port>\d+)"
        r"|listen tcp\d? \S*:(?P<port2>\d+): bind: permission denied",
        "the port {port}{port2} is below 1024 and rootless Docker may not open it",
        "publish a port above 1023, or lower net.ipv4.ip_unprivileged_port_start",
    ),
    rule(
        "address-not-here",
        r"bind: cannot assign requested address",
        "the port is published on an address that this host does not have",
        "correct the address in `ports:`; `ip -br addr` lists those there are",
    ),
    rule(
        "firewall-chains-gone",
        r"iptables[^\n]*(?:No chain/target/match by that name|Chain '?DOCKER)",
        "Docker's firewall chains are gone (a firewall was restarted after Docker)",
        "`sudo systemctl restart docker`; order the firewall before Docker at boot",
    ),
    rule(
        "network-pool",
        r"Pool overlaps with other one on this address space"
        r"|could not find an available, non-overlapping IPv4 address pool"
        r"|all predefined address pools have been fully subnetted|invalid pool request",
        "Docker has no free address range for the network: it overlaps with another network, or all"
        " pools are used",
        "`docker network prune`, choose another subnet for the network, or set default-address-pools in"
        " daemon.json",
    ),
    rule(
        "network-foreign",
        r"network (?P<network>\S+) was found but has incorrect label"
        r"|network (?P<network2>\S+) declared as external, but could not be found"
        r"|network (?P<network3>\S+) not found",
        "the network {network}{network2}{network3} is not there, or was not made by this compose project",
        "`docker network ls`; remove the foreign one (`docker network rm`) or create the external one,"
        " then up again",
    ),
    rule(
        "name-conflict",
        r"Conflict\. The container name \"?/?(?P<container>[^\"\s]+)\"? is already in use",
        "a container named {container} exists already",
        "`docker rm -f {container}` when it is a leftover, or give this one another name or project (-p)",
    ),
    rule(
        "rlimit-memlock",
        r"error setting rlimit type 8: operation not permitted",
        "the container asks for more locked memory (memlock, rlimit type 8) than this host's engine may"
        " grant",
        "raise it for the engine (LimitMEMLOCK=infinity in docker.service, restart), or lower `ulimits:"
        " memlock` of"
        " the service",
    ),
    rule(
        "rlimit",
        r"error setting rlimits?(?: type (?P<type>\d+)| for ready process)",
        "the container asks for a limit (`ulimits`) above what this host's engine may grant; type 7 is"
        " nofile, 8 is"
        " memlock",
        "raise LimitNOFILE / LimitMEMLOCK of docker.service and restart it, or lower the service's `ulimits`",
    ),
    rule(
        "cgroup-driver",
        r'cgroupsPath to be of format "slice:prefix:name"|cgroup mountpoint does not exist'
        r"|cgroup driver[^\n]*(?:mismatch|different from)|unable to apply cgroup configuration",
        "the cgroup driver of Docker (systemd or cgroupfs) does not fit this host or its runtime",
        '`docker info | grep -i cgroup`; set "exec-opts": ["native.cgroupdriver=systemd"] (host with'
        " systemd) or"
        " cgroupfs in daemon.json and restart docker",
    ),
    rule(
        "cpus-not-available",
        r"Requested CPUs are not available[^\n]*|Requested memory nodes are not available[^\n]*"
        r"|(?:write|fail|error|invalid)[^\n]*cpuset\.(?:cpus|mems)[^\n]*|range of CPUs is from[^\n]*",
        "the service asks for CPUs or memory nodes that this host does not have (or that are off line)",
        "correct the host file's `cpus` (`lscpu` shows the on-line list) or the service's cpuset",
    ),
    rule(
        "dependency-unhealthy",
        r"dependency failed to start: container (?P<container>\S+) (?P<what>[^\n]+)"
        r"|container (?P<container2>\S+) is unhealthy"
        r"|service \"(?P<container3>[^\"]+)\" didn'?t complete successfully",
        "a service that this one waits for did not become ready: {container}{container2}{container3} {what}",
        "`docker logs {container}{container2}{container3}` (deploy-kit logs, deploy-kit startup explain)"
        " tells why;"
        " the waiting service itself is not at fault",
    ),
    rule(
        "no-healthcheck",
        r"container (?P<container>\S+) has no healthcheck configured",
        "something waits for {container} to be healthy, but it has no health check",
        "give that service a healthcheck, or wait for service_started",
    ),
    rule(
        "compose-dependency",
        r"depends on undefined service|no such service: (?P<service>\S+)|depends on \S+ which is undefined",
        "the compose file names a service that is not there (or is in a profile that is not active)"
        " {service}",
        "`docker compose config --services` lists them; add the profile with --profile",
    ),
    rule(
        "compose-file",
        r"no configuration file provided: not found|Additional property \S+ is not allowed"
        r"|yaml: (?:line \d+|unmarshal)[^\n]*|required variable (?P<variable>\S+) is missing a value"
        r"|env file \S+ not found|unsupported Compose file version|invalid interpolation format"
        r"|undefined volume|validating [^\n]*compose[^\n]*",
        "the compose file, or a variable it needs, is wrong or not there {variable}",
        "`docker compose config` shows the place; update Compose when it does not know a key",
    ),
    rule(
        "mount-source-missing",
        r"bind source path does not exist: (?P<path>\S+)|error mounting \"(?P<path2>[^\"]+)\""
        r"|Are you trying to mount a directory onto a file|error while creating mount source path",
        "a file or folder to be mounted is not on this host (or is a folder where a file is meant)"
        " {path}{path2}",
        "create it, or correct the path; a folder that Docker made in place of a missing file must be"
        " removed first",
    ),
    rule(
        "entrypoint-missing",
        r"exec: \"(?P<program>[^\"]+)\": (?:executable file not found in \$PATH"
        r"|stat \S+: no such file or directory|permission denied)"
        r"|exec (?P<program2>/\S+): no such file or directory",
        "the program to start is not in the image, or not executable: {program}{program2}",
        "check `entrypoint`/`command` of the service and the image's version; #! lines with Windows line"
        " ends give"
        " the same text",
    ),
    rule(
        "memory-or-processes-exhausted",
        r"cannot allocate memory|resource temporarily unavailable|OOMKilled"
        r"|exit(?:ed)?(?: with)?(?: code)? \(?137\)?",
        "the host or the service's limit ran out of memory or processes (exit code 137 is a kill)",
        "`free -g`, `docker inspect --format '{{.State.OOMKilled}}' CONTAINER`, `dmesg | grep -i oom`;"
        " raise the"
        " limit or free memory",
    ),
    rule(
        "mount-busy",
        r"device or resource busy",
        "something still holds the container's files, device or mount",
        "`sudo lsof +f -- PATH` or `grep CONTAINER /proc/*/mountinfo` shows who; stop it, then remove again",
    ),
    rule(
        "security-profile",
        r"AppArmor enabled on system but the docker-default profile could not be loaded"
        r"|seccomp[^\n]*(?:fail|error|not supported)[^\n]*"
        r"|sysctl [^\n]* is not in a separate kernel namespace",
        "a security profile or kernel setting of the container cannot be applied on this host",
        "install apparmor (apparmor_parser) or correct `security_opt` and `sysctls` of the service",
    ),
    rule(
        "runtime-refused",
        r"OCI runtime (?:create|exec) failed: (?P<what>[^\n]{3,300})"
        r"|failed to create shim task: (?P<what2>[^\n]{3,300})",
        "the container runtime refused to start the container: {what}{what2}",
        "the end of that line names the step; `journalctl -u docker -n 50` has the rest",
    ),
    rule(
        "engine-refused",
        r"Error response from daemon: (?P<what>[^\n]{3,300})",
        "the Docker engine refused: {what}",
        "`journalctl -u docker -n 50` on the host has the engine's own account",
    ),
)
