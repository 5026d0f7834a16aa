"""Variations of what tells of processors, memory, limits, containers, packages and transfers; of foreign texts."""

# ruff: noqa: E501  (the lines of outputs are data)
from __future__ import annotations

from collections.abc import Callable

import pytest

Judge = Callable[[str, str, str], None]
Variations = dict[str, tuple[str, str, str]]

LSCPU_GERMAN = """\
Architektur:                           x86_64
CPU Operationsmodus:                   32-bit, 64-bit
CPU(s):                                256
Liste der Online-CPU(s):               0-254
Liste der Offline-CPU(s):              255
Anbieterkennung:                       AuthenticAMD
Modellname:                            AMD EPYC 9555 64-Core Processor
Thread(s) pro Kern:                    2
Kern(e) pro Sockel:                    64
Sockel:                                2
NUMA-Knoten:                           2
NUMA-Knoten0 CPU(s):                   0-63,128-191
NUMA-Knoten1 CPU(s):                   64-127,192-254
"""

PROCESSORS: Variations = {
    "lscpu-german": (LSCPU_GERMAN, "ok", "cpu.offline '~CPU 255 off line' '~2 sockets'"),
    "lscpu-german-virtual": (
        LSCPU_GERMAN + "Hypervisor-Anbieter:                   KVM\n",
        "warn",
        "cpu.virtual",
    ),
    "lscpu-indented": (
        (
            "Architecture:             x86_64\nCPU(s):                   64\n  On-line CPU(s) list:    0-63\n"
            "Vendor ID:                GenuineIntel\n  Model name:             Intel(R) Xeon(R) Platinum 8592+\n"
            "    Socket(s):            2\nNUMA:\n  NUMA node(s):           2\n"
        ),
        "ok",
        "cpu '~2 sockets'",
    ),
    "numactl-crlf": (
        (
            "available: 2 nodes (0-1)\r\nnode 0 cpus: 0 1\r\nnode 0 size: 100000 MB\r\nnode 0 free: 90000 MB\r\n"
            "node 1 cpus: 2 3\r\nnode 1 size: 100000 MB\r\nnode 1 free: 90000 MB\r\n"
        ),
        "ok",
        "numa",
    ),
    "numactl-cut": (
        "available: 4 nodes (0-3)\nnode 0 cpus: 0 1\nnode 0 size: 100000 MB\nnode 0 free: 90000 MB\nnode 1 cpus: 2 3\n",
        "unknown",
        "numa.truncated",
    ),
    "governor-counted": ("    256 powersave\n", "warn", "cpu.governor"),
    "governor-counted-well": ("    256 performance\n", "ok", "cpu.governor"),
    "governor-german": (
        'analysiere CPU 0:\n  Der Regler "schedutil" kann frei entscheiden, welche Taktfrequenz verwendet wird.\n',
        "warn",
        "cpu.governor",
    ),
    "governor-of-each": (
        (
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor:performance\n"
            "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor:powersave\n"
        ),
        "warn",
        "cpu.governor",
    ),
    "governors-available": (
        (
            "analyzing CPU 0:\n  available cpufreq governors: conservative ondemand userspace powersave performance schedutil\n"
            '  current policy: frequency should be within 1.50 GHz and 3.70 GHz.\n                  The governor "performance" may decide which speed to use\n'
        ),
        "ok",
        "cpu.governor",
    ),
    "sysctl-slashes": ("kernel/numa_balancing = 1\n", "warn", "kernel.numa-balancing"),
    "aspm-policy-performance": (
        "default [performance] powersave powersupersave\n",
        "ok",
        "link.aspm-policy",
    ),
    "aspm-policy-saving": ("default performance [powersave] powersupersave\n", "warn", "link.aspm-policy"),
}

LIMITS: Variations = {
    "df-german": (
        "Dateisystem    Größe Benutzt Verf. Verw% Eingehängt auf\nshm              64M       0   64M    0% /dev/shm\n",
        "fail",
        "limits.shm",
    ),
    "df-german-comma": (
        "Dateisystem    Größe Benutzt Verf. Verw% Eingehängt auf\ntmpfs           1,5G       0  1,5G    0% /dev/shm\n",
        "ok",
        "limits.shm",
    ),
    "df-with-type": (
        "Filesystem     Type   Size  Used Avail Use% Mounted on\nshm            tmpfs   64M     0   64M   0% /dev/shm\n",
        "fail",
        "limits.shm",
    ),
    "df-in-bytes": (
        "Filesystem     1B-blocks  Used Available Use% Mounted on\nshm             67108864     0  67108864   0% /dev/shm\n",
        "fail",
        "limits.shm",
    ),
    "df-in-megabytes": (
        "Filesystem     1M-blocks  Used Available Use% Mounted on\ntmpfs              32768     0     32768   0% /dev/shm\n",
        "ok",
        "limits.shm",
    ),
    "shm-full": (
        "Filesystem      Size  Used Avail Use% Mounted on\ntmpfs            32G   32G     0 100% /dev/shm\n",
        "fail",
        "limits.shm-full",
    ),
    "mount": (
        "shm on /dev/shm type tmpfs (rw,nosuid,nodev,noexec,relatime,size=65536k,inode64)\n",
        "fail",
        "limits.shm",
    ),
    "inspect-shm": ('            "ShmSize": 67108864,\n', "fail", "limits.shm"),
    "inspect-host-ipc": (
        '            "IpcMode": "host",\n            "ShmSize": 67108864,\n',
        "unknown",
        "!limits.shm",
    ),
    "ulimit-zsh": ("-l: locked-in-memory size (kbytes)  8192\n", "warn", "limits.memlock"),
    "ulimit-a": (
        "max locked memory           (kbytes, -l) 64\nmax memory size             (kbytes, -m) unlimited\n",
        "warn",
        "limits.memlock",
    ),
    "prlimit": (
        (
            "RESOURCE   DESCRIPTION                             SOFT      HARD UNITS\n"
            "MEMLOCK    max locked-in-memory address space   8388608   8388608 bytes\n"
        ),
        "warn",
        "limits.memlock",
    ),
    "prlimit-unlimited": (
        "MEMLOCK    max locked-in-memory address space unlimited unlimited bytes\n",
        "ok",
        "limits.memlock",
    ),
    "systemd": ("LimitMEMLOCK=8388608\n", "warn", "limits.memlock"),
    "systemd-infinity": ("LimitMEMLOCK=infinity\n", "ok", "limits.memlock"),
    "free": (
        (
            "               total        used        free      shared  buff/cache   available\n"
            "Mem:           1.5Ti        62Gi       1.3Ti       1.2Gi        89Gi       1.4Ti\nSwap:          8.0Gi          0B       8.0Gi\n"
        ),
        "ok",
        "memory",
    ),
    "free-german": (
        (
            "               gesamt       benutzt        frei     gemns.  Puffer/Cache verfügbar\n"
            "Speicher:      1,5Ti        62Gi       1,3Ti       1,2Gi        89Gi       1,4Ti\nSwap:          8,0Gi          0B       8,0Gi\n"
        ),
        "ok",
        "memory",
    ),
    "free-kib": (
        (
            "              total        used        free      shared  buff/cache   available\n"
            "Mem:      1584839424  1570000000     5000000      100000     9839424    10000000\n"
        ),
        "warn",
        "memory.low",
    ),
    "meminfo": (
        "MemTotal:       1584839424 kB\nMemFree:        1400000000 kB\nMemAvailable:   1500000000 kB\n",
        "ok",
        "memory",
    ),
    "dd-german": (
        "268435456 Bytes (268 MB, 256 MiB) kopiert, 2,5 s, 107 MB/s\n",
        "warn",
        "disk.read",
    ),
    "dd": ("268435456 bytes (268 MB, 256 MiB) copied, 0.0961 s, 2.8 GB/s\n", "ok", "disk.read"),
    "dd-german-fast": (
        "268435456 Bytes (268 MB, 256 MiB) kopiert, 0,0961 s, 2,8 GB/s\n",
        "ok",
        "disk.read",
    ),
    "disk-full-german": (
        "Dateisystem    Größe Benutzt Verf. Verw% Eingehängt auf\n/dev/nvme0n1p2  1,8T    1,8T  5,2G  100% /\n",
        "warn",
        "disk.full",
    ),
    "snap-loops-are-full": (
        (
            "Filesystem      Size  Used Avail Use% Mounted on\n/dev/nvme0n1p2  1.8T  900G  900G  50% /\n"
            "/dev/loop0       64M   64M     0 100% /snap/core20/2318\n"
        ),
        "ok",
        "disk !disk.full",
    ),
}

CONTAINERS: Variations = {
    "cdi-found": (
        "INFO[0000] Found 9 CDI devices\nnvidia.com/gpu=0\nnvidia.com/gpu=all\n",
        "ok",
        "container.cdi-devices",
    ),
    "cdi-none": ("INFO[0000] Found 0 CDI devices\n", "fail", "container.no-cdi-devices"),
    "cdi-logfmt": (
        'time="2026-11-02T10:15:01Z" level=info msg="Found 2 CDI devices"\nnvidia.com/gpu=0\n',
        "ok",
        "container.cdi-devices",
    ),
    "docker-cdi": (
        (
            "Server:\n Server Version: 28.1.0\n Cgroup Driver: systemd\n Cgroup Version: 2\n CDI spec directories:\n  /etc/cdi\n  /var/run/cdi\n"
            " Discovered Devices:\n  cdi: nvidia.com/gpu=0\n Runtimes: io.containerd.runc.v2 runc\n Default Runtime: runc\n Docker Root Dir: /var/lib/docker\n"
        ),
        "ok",
        "container.gpu",
    ),
    "docker-runc-only": (
        "Server:\n Server Version: 28.1.0\n Runtimes: io.containerd.runc.v2 runc\n Default Runtime: runc\n",
        "fail",
        "container.no-nvidia-runtime",
    ),
    "docker-down": (
        (
            "Client: Docker Engine - Community\n Version:    28.1.0\n\nServer:\n"
            "ERROR: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\nerrors pretty printing info\n"
        ),
        "fail",
        "container.docker-not-running",
    ),
    "env-inspect": (
        '            "Env": [\n                "NCCL_P2P_DISABLE=1",\n                "PATH=/usr/bin"\n            ],\n',
        "warn",
        "environment.NCCL_P2P_DISABLE",
    ),
    "env-before-a-command": (
        "NCCL_DEBUG=INFO NCCL_P2P_DISABLE=1 torchrun --nproc-per-node 8 bench.py\n",
        "warn",
        "environment.NCCL_P2P_DISABLE",
    ),
    "env-in-a-prompt": (
        "ubuntu@box1:~$ NCCL_DEBUG=INFO NCCL_ALGO=Tree python bench.py\n",
        "fail",
        "environment.NCCL_ALGO",
    ),
    "env-no-gpus": ("CUDA_VISIBLE_DEVICES=\nNCCL_DEBUG=WARN\n", "fail", "environment.CUDA_VISIBLE_DEVICES"),
    "env-no-gpus-minus": ("CUDA_VISIBLE_DEVICES=-1\n", "fail", "environment.CUDA_VISIBLE_DEVICES"),
    "env-gpus": (
        "CUDA_VISIBLE_DEVICES=0,1,2,3\n",
        "ok",
        "environment !environment.CUDA_VISIBLE_DEVICES",
    ),
    "env-graphics-only": (
        "NVIDIA_DRIVER_CAPABILITIES=graphics,video\n",
        "fail",
        "environment.NVIDIA_DRIVER_CAPABILITIES",
    ),
    "env-capabilities": ("NVIDIA_DRIVER_CAPABILITIES=compute,utility\n", "ok", "environment"),
    "env-simulated": ("SGLANG_SIMULATE_ACC_LEN=3\n", "warn", "environment.SGLANG_SIMULATE_ACC_LEN"),
    "env-quoted": (
        'declare -x NCCL_P2P_LEVEL="SYS"\ndeclare -x NCCL_P2P_DISABLE="0"\n',
        "ok",
        "environment",
    ),
    "env-with-blanks": (
        "NVIDIA_REQUIRE_CUDA=cuda>=13.0 brand=unknown,driver>=535 brand=grid,driver>=535\nNVIDIA_VISIBLE_DEVICES=all\n",
        "ok",
        "environment",
    ),
    "pip-two": (
        (
            "Package            Version\n------------------ ---------\ndocker             7.1.0\nnvidia-nccl-cu12   2.27.3\n"
            "pip                24.0\nnvidia-nccl-cu13   2.28.9\ntorch              2.11.0\n"
        ),
        "warn",
        "nccl.two-builds",
    ),
    "pip-one": ("nvidia-nccl-cu13==2.28.9\ntorch==2.11.0\n", "ok", "nccl.builds"),
    "dpkg-and-pip": (
        "ii  libnccl2   2.28.9-1+cuda13.0  amd64  NVIDIA Collective Communication Library\nnvidia-nccl-cu13   2.28.9\n",
        "warn",
        "nccl.two-builds",
    ),
    "dpkg-with-headers": (
        "ii  libnccl-dev    2.28.9-1+cuda13.0  amd64  NCCL development\nii  libnccl2:amd64 2.28.9-1+cuda13.0  amd64  NCCL runtime\n",
        "ok",
        "nccl.builds",
    ),
    "rpm": (
        "libnccl-2.28.9-1+cuda13.0.x86_64\nlibnccl-devel-2.28.9-1+cuda13.0.x86_64\n",
        "ok",
        "nccl.builds",
    ),
    "merged-usr": (
        "/lib/x86_64-linux-gnu/libnccl.so.2\n/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9\n",
        "ok",
        "nccl.builds",
    ),
    "ldconfig-one": (
        "\tlibnccl.so.2 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnccl.so.2\n\tlibnccl.so (libc6,x86-64) => /lib/x86_64-linux-gnu/libnccl.so\n",
        "ok",
        "nccl.builds",
    ),
    "ldconfig-two": (
        "\tlibnccl.so.2 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnccl.so.2\n\tlibnccl.so.2 (libc6,x86-64) => /usr/local/cuda/lib64/libnccl.so.2\n",
        "warn",
        "nccl.two-builds",
    ),
    "find-in-images": (
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9\n/var/lib/docker/overlay2/0a1b/diff/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.3\n",
        "ok",
        "nccl.builds",
    ),
}

PERF = """\
# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  11326 on box1 device  0 [0000:01:00] NVIDIA RTX PRO 6000
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
       16384          4096     float     sum      -1    {time}    0.53    0.93      {wrong}    31.0    0.53    0.92      0
# Out of bounds values : {wrong} {word}
# Avg bus bandwidth    : 22.4
"""
NCCL = "box1:91:202 [0] NCCL INFO "

TRANSFERS: Variations = {
    "perf-fine": (PERF.format(time="30.7", wrong=0, word="OK"), "ok", "allreduce"),
    "perf-wrong": (PERF.format(time="30.7", wrong=8, word="FAILED"), "fail", "allreduce.wrong"),
    "perf-slow": (PERF.format(time="310.7", wrong=0, word="OK"), "warn", "allreduce.slow"),
    "perf-last-line-only": ("# Out of bounds values : 8 FAILED\n", "fail", "transfer.failed"),
    "perf-proves-p2p": (
        "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n$ ./all_reduce_perf -g 2\n"
        + PERF.format(time="30.7", wrong=0, word="OK"),
        "ok",
        "p2p.granted '~a transfer with it succeeded'",
    ),
    "nccl-time-before": (
        "[2026-11-02 10:15:01] "
        + NCCL
        + "Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct\n"
        + "[2026-11-02 10:15:01] "
        + NCCL
        + "P2P is disabled between connected GPUs 0 and 1.\n",
        "fail",
        "nccl.shm-fallback",
    ),
    "nccl-compose": (
        f"kimi-1  | {NCCL}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nkimi-1  | {NCCL}Connected all rings\n",
        "ok",
        "nccl",
    ),
    "nccl-read": (f"{NCCL}Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n", "ok", "nccl"),
    "nccl-peer-access": (
        "box1:91:202 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'\n",
        "fail",
        "nccl.peer-access",
    ),
}

FOREIGN: Variations = {
    "rocm": (
        "============ ROCm System Management Interface ============\nGPU[0]  : Card Series: Instinct MI300X\nGPU[1]  : Card Series: Instinct MI300X\n",
        "unknown",
        "",
    ),
    "rocm-topology": (
        "======= Link Type between two GPUs =======\n       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n",
        "unknown",
        "!topology",
    ),
    "prose": (
        "The tower is 324 metres tall and was built in 1889. It hangs over the river.\n",
        "unknown",
        "",
    ),
    "python": (
        'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: 3 GPUs\n',
        "unknown",
        "",
    ),
    "json": ('{"a": [1, 2, 3], "GPU 0": "x"}\n', "unknown", ""),
    "long-log-of-another-program": (
        "".join(f"2026-11-02T10:15:{n % 60:02d}.123Z INFO request {n} served\n" for n in range(300)),
        "unknown",
        "!log",
    ),
    "journal-of-a-service": (
        "$ journalctl -u kimi -n 300\n"
        + "".join(
            f"Nov 02 10:15:{n % 60:02d} box1 kimi[1234]: Decode batch, #running-req: {n}\n"
            for n in range(300)
        ),
        "unknown",
        "!log",
    ),
    "command-not-found": ("bash: nvidia-smi: command not found\n", "unknown", ""),
    "prompt-only": ("root@box1:~#\nroot@box1:~#\n", "unknown", ""),
    "commands-without-outputs": ("root@box1:~# nvidia-smi topo -m\nroot@box1:~# lscpu\n", "unknown", ""),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_processors(name: str, judge: Judge) -> None:
    judge(*PROCESSORS[name])


@pytest.mark.parametrize("name", LIMITS)
def test_limits_memory_and_disks(name: str, judge: Judge) -> None:
    judge(*LIMITS[name])


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_and_packages(name: str, judge: Judge) -> None:
    judge(*CONTAINERS[name])


@pytest.mark.parametrize("name", TRANSFERS)
def test_transfers(name: str, judge: Judge) -> None:
    judge(*TRANSFERS[name])


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_text_is_never_ok(name: str, judge: Judge) -> None:
    judge(*FOREIGN[name])


HMM_ON = "$ cat /sys/module/nvidia_uvm/parameters/uvm_disable_hmm\nN\n"
TOGETHER: Variations = {
    # "Off" and 0 from a later output were lost beside what an earlier one of the same kind said.
    "hmm-after-numa-balancing": (
        f"$ sysctl kernel.numa_balancing\nkernel.numa_balancing = 0\n{HMM_ON}",
        "warn",
        "driver.hmm kernel.numa-balancing",
    ),
    "numa-balancing-after-hmm": (
        f"{HMM_ON}$ sysctl kernel.numa_balancing\nkernel.numa_balancing = 0\n",
        "warn",
        "driver.hmm kernel.numa-balancing",
    ),
    "closed-module-after-lsmod": (
        "$ lsmod\nnvidia             113606656  2 nvidia_uvm,nvidia_modeset\n$ modinfo nvidia\nlicense:        NVIDIA\n",
        "fail",
        "driver.closed-module",
    ),
    "persistence-after-csv": (
        (
            "$ nvidia-smi --query-gpu=index,name --format=csv\nindex, name\n0, NVIDIA RTX PRO 6000\n"
            "$ nvidia-smi --query-gpu=index,persistence_mode --format=csv\nindex, persistence_mode\n0, Disabled\n"
        ),
        "warn",
        "gpu.persistence",
    ),
    "a-whole-session": (
        (
            "root@box1:~# nvidia-smi topo -m\n\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-31\t0\nGPU1\tSYS\t X \t32-63\t1\n\n"
            "root@box1:~# cat /proc/cmdline\nBOOT_IMAGE=/vmlinuz root=UUID=1 ro iommu=pt\n"
            f"root@box1:~# ulimit -l\n65536\nroot@box1:~# sysctl kernel.numa_balancing\nkernel.numa_balancing = 0\n{HMM_ON}root@box1:~# \n"
        ),
        "warn",
        "topology iommu driver.hmm limits.memlock",
    ),
}
PROMPTS = (
    "root@box1:~# ", "user@box1 ~ % ", "user@box1 ~> ", "[root@box1 ~]# ", "(venv) user@box1:~$ ", "$ ", "# ", "└─# ",
    "bash-5.1# ", "+ ", "", "### ", "--- ",
)  # fmt: skip


@pytest.mark.parametrize("name", TOGETHER)
def test_several_outputs(name: str, judge: Judge) -> None:
    judge(*TOGETHER[name])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_bare_value_under_any_prompt(prompt: str, judge: Judge) -> None:
    text = f"{prompt}cat /proc/sys/kernel/numa_balancing\n1\n{prompt}ulimit -l\nunlimited\n"
    judge(text, "warn", "kernel.numa-balancing limits.memlock")
