"""Lines of the kernel and of numactl: Xid, kills for memory, refused binding."""

from __future__ import annotations

import re

from deploy_kit.startup.journal import Journal
from deploy_kit.startup.lines import Line
from deploy_kit.startup.rule import Finding

_XID = re.compile(r"NVRM: Xid \(PCI:(?P<pci>[\w:.]+)\): (?P<xid>\d+)(?:, (?P<rest>.*))?")
_OFF_THE_BUS = re.compile(r"NVRM: (?:GPU (?P<pci>[\w:.]+): (?:GPU has )?)?fallen off the bus")
_KERNEL_KILL = re.compile(
    r"(?P<memcg>Memory cgroup )?[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)"
)
_NUMA = re.compile(
    r"setting (?:membind|cpunodebind|cpubind|physcpubind|interleave|preferred|cpu (?:affinity|mask))"
    r"\b[^:]{0,40}: "
    r"|set_mempolicy\w*: |mbind: |numactl: |libnuma: |<[\d,-]+> is invalid|.*numactl: not found"
    r"|sched_setaffinity: |.*numactl could not apply"
)
# By these numactl itself ends: the program that it should have started never ran.
_REFUSED = re.compile(
    r"(?:numactl: )?(?:setting [a-z ]{3,40}|set_mempolicy\w*|mbind|sched_setaffinity|migrate_pages): "
    r"(?P<error>Operation not permitted|Invalid argument|Function not implemented|Permission denied)$"
)


def read_numa(journal: Journal, line: Line) -> bool:
    """numactl or libnuma refused; return whether the line says so."""
    if not _NUMA.match(line.text):
        return False
    journal.hint("numa", _numa_finding(line.text), line.text)
    return True


def read_refused_binding(journal: Journal, line: Line) -> bool:
    """numactl's last words, at the end of a log; return whether the line is that."""
    if journal.run.stage > (0, 0) or _REFUSED.match(line.text) is None:
        return False
    journal.failure_of_line(line, "numactl", line.text[:300], _numa_finding(line.text))
    return True


def _numa_finding(text: str) -> Finding:
    if "not found" in text:
        return Finding("numa-refused", "numactl is not installed in this image, and the ranks start by it")
    said = text[:120]
    if "Operation not permitted" in text:
        return Finding(
            "numa-refused",
            f"numactl was refused ({said}): the container may not bind memory or CPUs (EPERM): it lacks"
            " CAP_SYS_NICE, so its seccomp profile blocks --membind / set_mempolicy",
        )
    return Finding(
        "numa-refused",
        f"numactl was refused ({said}): --membind / set_mempolicy is blocked by the"
        " container's seccomp profile (EPERM or EINVAL), or the node is outside its cpuset",
    )


def read_xid(journal: Journal, line: Line, head: str) -> bool:
    """A GPU error of the driver's log; return whether the line is one."""
    match = _XID.search(head)
    if match is None:
        return _read_off_the_bus(journal, line, head)
    xid = int(match["xid"])
    rest = (match["rest"] or "")[:160]
    facts: dict[str, int | float | str | bool] = {"xid": xid, "pci": match["pci"]}
    if xid in (79, 119, 120, 62, 61, 74, 109, 110, 140, 154):
        finding = Finding("gpu-lost", f"Xid {xid} on PCI {match['pci']}: {rest or 'the GPU is lost'}", facts)
    elif xid in (48, 63, 64, 92, 94, 95):
        finding = Finding("gpu-ecc", f"Xid {xid} on PCI {match['pci']}: GPU memory error ({rest})", facts)
    elif xid in (13, 31, 43, 45):
        finding = Finding(
            "cuda-fault", f"Xid {xid} on PCI {match['pci']}: a GPU kernel faulted ({rest})", facts
        )
    else:
        finding = Finding("gpu-lost", f"Xid {xid} on PCI {match['pci']}: {rest}", facts)
    if journal.run.hints.get("xid", (0, finding, ""))[1].id != "gpu-lost" and finding.id == "gpu-lost":
        journal.run.hints.pop("xid", None)
    journal.hint("xid", finding, line.text)
    journal.run.facts.update(facts)
    if xid == 79 or "fallen off the bus" in rest:
        journal.death("xid", line)
    return True


def _read_off_the_bus(journal: Journal, line: Line, head: str) -> bool:
    """Some drivers say it without an Xid."""
    match = _OFF_THE_BUS.search(head)
    if match is None:
        return False
    pci = match["pci"]
    facts: dict[str, int | float | str | bool] = {} if pci is None else {"pci": pci}
    where = "" if pci is None else f" on PCI {pci}"
    journal.hint(
        "xid", Finding("gpu-lost", f"a GPU{where} has fallen off the bus (kernel log)", facts), line.text
    )
    journal.run.facts.update(facts)
    journal.death("xid", line)
    return True


def read_kernel_kill(journal: Journal, line: Line, head: str) -> bool:
    """The kernel's log: a process was killed for memory; return whether the line says so."""
    kill = _KERNEL_KILL.search(head)
    if kill is None:
        return False
    if re.search(r"sglang|python|deploy|numactl|scheduler|pt_main", kill["name"]):
        journal.run.oom_killed = True
        where = "the container's memory limit" if kill["memcg"] else "the host's memory"
        journal.hint(
            "kernel-kill",
            Finding(
                "killed-by-kernel",
                f"the kernel killed {kill['name']} (pid {kill['pid']}): {where} ran out",
                {"pid": int(kill["pid"])},
            ),
            head,
        )
        journal.death("kernel-kill", line, exit_code=-9)
    return True
