"""The exit codes of every `deploy-kit` command; documented for users in docs/exit-codes.md.

Compose, systemd and Ansible act on these, so a number never changes its meaning. The ranges:
0-9 general, 10-19 the machine, 20-29 verdicts of read-only checks, 30-59 why an engine ended.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a `deploy-kit` process ended with."""

    OK = 0
    FAILURE = 1  # something failed that has no code of its own
    USAGE = 2  # the command line itself is wrong
    CONFIG = 3  # a configuration file or value is wrong
    UNKNOWN_NAME = 4  # no such profile, model, stack, host, lever
    INPUT = 5  # an input file cannot be read or understood
    INTERRUPTED = 130

    NO_DOCKER = 10  # no container engine, or no right to use it
    NO_GPU = 11  # a GPU plan on a machine without GPUs
    PORT_TAKEN = 12
    DISK_FULL = 13
    DEPLOY_FAILED = 14  # the playbook or compose failed
    NOT_READY = 15  # not ready (health), or not ready in time (up, deploy)
    PERMISSION = 16

    VERDICT_WARN = 20  # a check ran and found something to look at
    VERDICT_FAIL = 21  # a check ran and says no (reject, fail, crashed, hung)
    VERDICT_UNKNOWN = 22  # a check could not find out

    # 30-59: `deploy-kit serve`, one code per class of cause. A restart can help only with 30-39.
    ENGINE_DIED = 30  # ended without a known cause, or killed by a signal from outside
    ENGINE_HUNG = 31  # stalled and stopped by the supervisor
    ENGINE_RANK_LOST = 32  # one rank died; the others waited
    ENGINE_NCCL = 33  # a collective failed or timed out
    ENGINE_GPU_LOST = 34  # Xid, fell off the bus
    ENGINE_PORT_TAKEN = 35
    ENGINE_KILLED = 36  # killed by the kernel for memory (host or cgroup)
    ENGINE_OOM = 40  # GPU memory: the same plan will fail again
    ENGINE_FLAG = 41  # unknown, removed or contradictory flag
    ENGINE_WEIGHTS = 42  # weights missing, incomplete, corrupt, or not readable
    ENGINE_DRAFTER = 43  # drafter missing or not fitting the target
    ENGINE_KERNEL = 44  # no kernel for this GPU architecture, unsupported backend
    ENGINE_HUB = 45  # token or hub problem
    ENGINE_LIMITS = 46  # shared memory, memlock, NUMA binding refused
    ENGINE_CAPTURE = 47  # graph capture failed, not for memory
    ENGINE_TELEMETRY = 48  # the telemetry plug-in did not apply
    ENGINE_NCCL_SETTING = 49  # an NCCL setting that can never work (forced algorithm, GPUs given twice)
    ENGINE_DRIVER = 50  # driver or libraries do not fit: the same image will fail here again
