"""What can be measured: NCCL settings as points on axes, and the other all-reduce implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from deploy_kit.errors import DeployKitError, nearest_names
from deploy_kit.exit_codes import ExitCode
from deploy_kit.probe.worker_names import FAULT_KINDS

# axis → value → environment. `None`-like "default" leaves the choice to NCCL.
DEFAULT = "default"
AXES: dict[str, dict[str, dict[str, str]]] = {
    "protocol": {
        DEFAULT: {},
        "LL": {"NCCL_PROTO": "LL"},
        "LL128": {"NCCL_PROTO": "LL128"},
        "Simple": {"NCCL_PROTO": "Simple"},
    },
    # For all-reduce only: named alone, an algorithm holds for every collective and leaves some with none.
    "algorithm": {
        DEFAULT: {},
        "ring": {"NCCL_ALGO": "allreduce:ring"},
        "tree": {"NCCL_ALGO": "allreduce:tree"},
    },
    "channels": {
        DEFAULT: {},
        **{
            str(count): {"NCCL_MIN_NCHANNELS": str(count), "NCCL_MAX_NCHANNELS": str(count)}
            for count in (1, 2, 4, 8, 16, 32)
        },
    },
    "buffer": {
        DEFAULT: {},
        "128k": {"NCCL_BUFFSIZE": str(128 * 1024)},
        "1m": {"NCCL_BUFFSIZE": str(1024 * 1024)},
        "16m": {"NCCL_BUFFSIZE": str(16 * 1024 * 1024)},
    },
    "p2p": {
        DEFAULT: {},
        "SYS": {"NCCL_P2P_LEVEL": "SYS"},
        "PHB": {"NCCL_P2P_LEVEL": "PHB"},
        "LOC": {"NCCL_P2P_LEVEL": "LOC"},
    },
}
# Every variable that an axis sets: the probe owns these in a host file's [nccl] table.
TUNED_VARIABLES = frozenset(
    name for values in AXES.values() for environment in values.values() for name in environment
)

Point = tuple[tuple[str, str], ...]  # (axis, value) pairs that are not "default", in the order of AXES


@dataclass(frozen=True)
class Candidate:
    """One way to do the all-reduce. `use` says what puts it to work; `deployable` is False for references
    that no engine setting reaches."""

    name: str
    path: str = "process-group"
    environment: Mapping[str, str] = field(default_factory=dict)
    point: Point | None = ()
    use: str = "the host file's [nccl] table"
    deployable: bool = True
    needs_p2p: bool = False
    prepares: bool = False  # imports much or compiles before it can join; needs no GPU for that
    tunes: bool = False  # measures tactics of its own when it is set up
    fault: Mapping[str, object] | None = None

    @property
    def is_nccl(self) -> bool:
        """Whether it is a setting of NCCL, and so can be written into a host file."""
        return self.path == "process-group" and self.fault is None


def nccl_candidate(values: Mapping[str, str]) -> Candidate:
    """Given axis values, return the candidate: {"protocol": "LL", "channels": "8"} → "LL+8ch"."""
    point = point_of(values)
    environment: dict[str, str] = {}
    for axis, value in point:
        environment |= AXES[axis][value]
    return Candidate(point_name(point), environment=environment, point=point)


def point_of(values: Mapping[str, str]) -> Point:
    """Given axis values, return them in the order of AXES without the defaults."""
    return tuple((axis, values[axis]) for axis in AXES if values.get(axis, DEFAULT) != DEFAULT)


def point_name(point: Point) -> str:
    """Given a point, return its name, such as "LL+8ch"; the empty point is "nccl-default"."""
    labels = {"channels": "{}ch", "buffer": "{}B", "p2p": "p2p={}"}
    return "+".join(labels.get(axis, "{}").format(value) for axis, value in point) or "nccl-default"


def parse_point(name: str) -> Point | None:
    """Given a name such as "LL+8ch", return its point; None when it is not one."""
    if name == "nccl-default":
        return ()
    names = {
        point_name(((axis, value),)): (axis, value)
        for axis in AXES
        for value in AXES[axis]
        if value != DEFAULT
    }
    values: dict[str, str] = {}
    for part in name.split("+"):
        if part not in names or names[part][0] in values:
            return None
        values[names[part][0]] = names[part][1]
    return point_of(values)


# The story's setting as its teller used it, and the algorithm named alone, which is known to crash.
STORY = Candidate(
    "story-2ch-128k",
    environment={"NCCL_MAX_NCHANNELS": "2", "NCCL_BUFFSIZE": str(128 * 1024)},
    point=None,
    use="lever nccl-two-channels",
)
TREE_ALONE = Candidate(
    "tree-for-all",
    environment={"NCCL_ALGO": "Tree"},
    point=None,
    use="none: it names no function",
    deployable=False,
)
OTHERS: tuple[Candidate, ...] = (
    Candidate(
        "symm-one-shot", "symm-one-shot", point=None, needs_p2p=True,
        use="lever torch-symm-mem (SGLang: SM90 and SM100 with multicast only)",
    ),
    Candidate(
        "symm-two-shot", "symm-two-shot", point=None, needs_p2p=True,
        use="lever torch-symm-mem (SGLang: SM90 and SM100 with multicast only)",
    ),
    Candidate(
        "symm-one-shot-bare", "symm-bare", point=None, needs_p2p=True, deployable=False,
        use="none: a reference without the copy into symmetric memory",
    ),
    Candidate(
        "flashinfer-pcie-ipc", "flashinfer-pcie-ipc", point=None, needs_p2p=True, prepares=True,
        tunes=True, use="lever pcie-ipc",
    ),
    Candidate(
        "flashinfer-fused", "flashinfer-fused", point=None, needs_p2p=True, prepares=True,
        use="lever fusion or sm120-fusion; its time includes residual add and norm",
    ),
    Candidate(
        "sglang-custom", "sglang-custom", point=None, needs_p2p=True, prepares=True,
        use="lever custom-allreduce",
    ),
    Candidate("mscclpp", "mscclpp", point=None, needs_p2p=True, prepares=True, use="lever mscclpp"),
)  # fmt: skip


def fault_candidate(name: str, world_size: int) -> Candidate | None:
    """Given "fault-KIND" or "fault-KIND-at-STEP", return the stand-in; None when the name is not one."""
    if not name.startswith("fault-"):
        return None
    kind, _, step = name.removeprefix("fault-").partition("-at-")
    if kind not in FAULT_KINDS:
        return None
    fault = {"kind": kind, "rank": world_size - 1, "step": step or "any"}
    return Candidate(
        name,
        point=None,
        use="none: a stand-in for a broken all-reduce",
        deployable=False,
        prepares=step == "prepare",
        fault=fault,
    )


def named_candidates(names: Sequence[str], world_size: int) -> list[Candidate]:
    """Given the names of `--candidates`, return the candidates; an unknown name is a `DeployKitError`."""
    fixed = {candidate.name: candidate for candidate in (STORY, TREE_ALONE, *OTHERS)}
    found: list[Candidate] = []
    for name in names:
        point = parse_point(name)
        candidate = fixed.get(name) or fault_candidate(name, world_size)
        if candidate is None and point is not None:
            candidate = nccl_candidate(dict(point))
        if candidate is None:
            known = [
                *fixed,
                *(point_name(((a, v),)) for a in AXES for v in AXES[a] if v != DEFAULT),
                "nccl-default",
            ]
            raise DeployKitError(
                f"no such all-reduce candidate: {name}",
                key="--candidates",
                found=name,
                allowed=nearest_names(name, known) or known,
                remedy="NCCL settings combine with +, for example LL+8ch+1mB",
                exit_code=ExitCode.UNKNOWN_NAME,
            )
        if candidate not in found:
            found.append(candidate)
    return found


def first_pass(axes: Sequence[str], *, host_environment: Mapping[str, str] | None = None) -> list[Candidate]:
    """Return the candidates of a default search's first pass, the most telling first.

    NCCL's default, the host file's own setting when it has one, the story's setting, every other value of
    each axis by itself, and the implementations beside NCCL.
    """
    singles = [nccl_candidate({axis: value}) for axis in axes for value in AXES[axis] if value != DEFAULT]
    host = []
    if host_environment:
        host = [Candidate("host-file", environment=dict(host_environment), point=None)]
    return [nccl_candidate({}), *host, STORY, *OTHERS, *singles, TREE_ALONE]


def grid(axes: Mapping[str, Sequence[str]]) -> list[Candidate]:
    """Given values for some axes, return every combination: what the search is held against."""
    names = list(axes)
    return [nccl_candidate(dict(zip(names, values, strict=True))) for values in product(*axes.values())]


def useful_axes(base_environment: Mapping[str, str]) -> list[str]:
    """Return the axes that can matter: without peer access its level decides nothing."""
    return [axis for axis in AXES if not (axis == "p2p" and base_environment.get("NCCL_P2P_DISABLE") == "1")]


def why_not(candidate: Candidate, base_environment: Mapping[str, str], backend: str) -> str | None:
    """Return why this candidate is not started at all, or None when it is. In a rehearsal NCCL's settings do
    run, over gloo, which ignores them: that rehearses the search, not the settings."""
    if backend != "nccl" and candidate.path not in ("process-group", "unfused"):
        return "it needs CUDA GPUs"
    if candidate.needs_p2p and base_environment.get("NCCL_P2P_DISABLE") == "1":
        return "it needs peer access, and NCCL_P2P_DISABLE=1 says to measure without"
    return None
