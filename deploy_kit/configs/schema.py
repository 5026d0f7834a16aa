"""What each kind of configuration file may hold. Words as in docs/architecture.md."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from deploy_kit.configs.refusal import ABSOLUTE_PATH, ContradictionError

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
# Inside the engine container; a relative one would depend on where the engine starts.
AbsolutePath = Annotated[str, StringConstraints(pattern=ABSOLUTE_PATH, max_length=4096)]
# SM version as NVIDIA writes compute capability: "12.0" is SM120.
Capability = Annotated[str, StringConstraints(pattern=r"^\d+\.\d$")]
# The most that Linux can be built for (NR_CPUS).
MOST_CPUS = 8192


def _rising_ranges(cpus: str) -> str:
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        if not int(first) <= int(last or first) < MOST_CPUS:
            raise ContradictionError(
                "",
                f"{part} is no range of CPUs",
                found=cpus,
                allowed=f"ranges that rise, of CPUs 0 to {MOST_CPUS - 1}",
            )
    return cpus


# A set of CPUs as cpuset(7) writes it: "0-63,128-191".
CpuSet = Annotated[
    str,
    StringConstraints(pattern=r"^\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*$"),
    AfterValidator(_rising_ranges),
]
# A pinned version: numbers first, so that versions can be compared.
Version = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+[0-9A-Za-z.+-]*$", max_length=64)]
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
FlagName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*$")]
# SGLang flags without their dashes: true for a switch, a list for a flag of several values, else the value.
Flags = dict[FlagName, bool | int | float | str | list[int | str]]
Environment = dict[EnvironmentName, str]

BYTES_PER_GIB = 1024**3
BYTES_PER_GB = 10**9


class Strict(BaseModel):
    """A table that refuses unknown keys, silent conversions, numbers that are none, and later changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Versions(Strict):
    """The versions a stack pins."""

    python: Version
    sglang: Version
    torch: Version
    cuda: Version | None = None
    nccl: Version | None = None
    sglang_kernel: Version | None = None
    flashinfer: Version | None = None


class BaseImage(Strict):
    """The image everything is built on; the digest decides, the tag is for people."""

    image: str
    digest: Digest


class Patch(Strict):
    """One source patch, applied with zero fuzz in the order of the list."""

    file: str
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    lever: Name
    why: str


class Stack(Strict):
    """One set of pinned versions: one image tag."""

    name: Name
    description: str
    rehearsal: bool = False
    image: str
    base: BaseImage
    versions: Versions
    architectures: list[Capability] = []
    requirements: str
    patches: list[Patch] = []
    # Packages of the lock that only a lever needs: a lever that needs another is refused on this stack.
    lever_packages: list[str] = []


class Drafter(Strict):
    """A draft model of one target."""

    path: AbsolutePath
    architecture: str
    attention_backend: str | None = None
    quantization: str | None = None
    remark: str | None = None
    # Rehearsal only: the accept length this drafter has by construction, with 3 steps and top-k 1.
    known_accept_length: float | None = None


class Model(Strict):
    """Facts of one checkpoint."""

    name: Name
    served_name: str
    description: str
    rehearsal: bool = False
    architecture: str
    path: AbsolutePath
    layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    attention_heads: int = Field(ge=1)
    routed_experts: int = Field(ge=0)
    vocabulary_size: int = Field(ge=1)
    element_bytes: int = Field(ge=1, le=4)
    allreduces_per_forward: int = Field(ge=0)
    quantization: str | None = None
    shards: int = Field(ge=1)
    weights_bytes: int | None = Field(default=None, ge=1)
    weights_gb: float | None = Field(default=None, gt=0)
    flags: Flags = {}
    environment: Environment = {}
    drafters: dict[Name, Drafter] = {}

    @model_validator(mode="after")
    def _one_unit(self) -> Model:
        _exactly_one(self, "weights_bytes", "weights_gb")
        return self

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards together."""
        return (
            self.weights_bytes
            if self.weights_bytes is not None
            else int((self.weights_gb or 0) * BYTES_PER_GB)
        )


class Pcie(Strict):
    """The link each GPU has under load."""

    generation: int = Field(ge=1, le=7)
    width: Literal[1, 2, 4, 8, 16]


class NumaNode(Strict):
    """Which CPUs and which GPUs belong to one NUMA node."""

    node: int = Field(ge=0)
    gpus: list[int]
    cpus: CpuSet


class Host(Strict):
    """Facts of one machine, and its tuned settings."""

    name: Name
    description: str
    rehearsal: bool = False
    accelerator: Literal["cuda", "cpu"]
    gpus: int = Field(ge=0)
    gpu_name: str | None = None
    capability: Capability | None = None
    gpu_memory_bytes: int | None = Field(default=None, ge=1)
    gpu_memory_gib: float | None = Field(default=None, gt=0)
    nvlink: bool = False
    pcie: Pcie | None = None
    numa: list[NumaNode] = []
    models_directory: AbsolutePath | None = None
    tensor_parallel: int = Field(ge=1)
    flags: Flags = {}
    environment: Environment = {}
    nccl: Environment = {}

    @model_validator(mode="after")
    def _consistent(self) -> Host:
        if self.accelerator == "cuda":
            if self.gpus < 1:
                raise ContradictionError(
                    "gpus", "a cuda host has at least 1 GPU", found=self.gpus, allowed="at least 1"
                )
            if self.capability is None:
                raise ContradictionError(
                    "capability",
                    "a cuda host names its compute capability",
                    found="nothing",
                    allowed='text such as "12.0"',
                )
            _exactly_one(self, "gpu_memory_bytes", "gpu_memory_gib")
        elif self.gpus:
            raise ContradictionError("gpus", "a cpu host has 0 GPUs", found=self.gpus, allowed="0")
        placed = [gpu for node in self.numa for gpu in node.gpus]
        if self.numa and sorted(placed) != list(range(self.gpus)):
            raise ContradictionError(
                "numa",
                "the nodes' gpus are not the host's",
                found=f"gpus {placed}",
                allowed=f"each of the GPUs 0 to {self.gpus - 1} once (gpus = {self.gpus})",
            )
        foreign = sorted(key for key in self.nccl if not key.startswith("NCCL_"))
        if foreign:
            raise ContradictionError(
                "nccl",
                "only NCCL's variables belong here",
                found=", ".join(foreign),
                allowed="names that begin with NCCL_ (others: [environment])",
            )
        return self

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one GPU in bytes; None on a host without GPUs."""
        if self.gpu_memory_bytes is not None:
            return self.gpu_memory_bytes
        return None if self.gpu_memory_gib is None else int(self.gpu_memory_gib * BYTES_PER_GIB)


class Profile(Strict):
    """A way to serve: without speculation, or with one kind of it."""

    name: Name
    description: str
    speculative_algorithm: Literal["EAGLE", "EAGLE3", "NGRAM", "STANDALONE"] | None = None
    drafter: Name | None = None
    steps: int | None = Field(default=None, ge=1)
    topk: int | None = Field(default=None, ge=1)
    draft_tokens: int | None = Field(default=None, ge=2)
    adaptive: bool = False
    flags: Flags = {}

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        algorithm = self.speculative_algorithm
        needs_drafter = algorithm in ("EAGLE", "EAGLE3", "STANDALONE")
        if needs_drafter and self.drafter is None:
            # SGLang would load the target as its own draft and say nothing (sglang#36528).
            raise ContradictionError(
                "drafter",
                f"{algorithm} needs one; without it SGLang loads the target as its own draft",
                found="nothing",
                allowed="the name of one of the model's drafters",
            )
        if not needs_drafter and self.drafter is not None:
            raise ContradictionError(
                "drafter",
                f"{algorithm or 'a profile without speculation'} takes none",
                found=self.drafter,
                allowed="no drafter, or speculative_algorithm EAGLE, EAGLE3 or STANDALONE",
            )
        if algorithm is None and (self.steps or self.topk or self.draft_tokens or self.adaptive):
            raise ContradictionError(
                "speculative_algorithm",
                "missing, but steps, topk, draft_tokens or adaptive is set",
                found="nothing",
                allowed="EAGLE, EAGLE3, NGRAM or STANDALONE; or none of those keys",
            )
        if algorithm is not None and self.draft_tokens is None:
            raise ContradictionError(
                "draft_tokens", f"{algorithm} needs it", found="nothing", allowed="a whole number, at least 2"
            )
        if needs_drafter and (self.steps is None or self.topk is None):
            missing = [key for key in ("steps", "topk") if getattr(self, key) is None]
            raise ContradictionError(
                "steps, topk",
                f"{algorithm} needs both",
                found=f"no {' and no '.join(missing)}",
                allowed="a whole number, at least 1, for each",
            )
        if (
            needs_drafter
            and self.topk == 1
            and self.steps is not None
            and self.draft_tokens != self.steps + 1
        ):
            # SGLang silently corrects this; a plan must say what runs.
            raise ContradictionError(
                "draft_tokens",
                f"with topk 1 it is steps + 1 = {self.steps + 1}",
                found=self.draft_tokens,
                allowed=str(self.steps + 1),
            )
        if self.adaptive and not (algorithm in ("EAGLE", "EAGLE3") and self.topk == 1):
            raise ContradictionError(
                "adaptive",
                "works with EAGLE or EAGLE3 and topk 1 only",
                found=f"adaptive with {algorithm}, topk {self.topk}",
                allowed="false; or EAGLE or EAGLE3 with topk = 1",
            )
        return self


class LeverNeeds(Strict):
    """When a lever may be used; empty means always."""

    sglang_at_least: str | None = None
    capabilities: list[Capability] = []
    tensor_parallel: list[int] = []
    patch: bool = False
    accelerator: Literal["cuda", "cpu"] | None = "cuda"
    nvlink: bool | None = None
    package: str | None = None


class Lever(Strict):
    """One isolated change, with what it needs, what it sets, and how it is accepted."""

    name: Name
    description: str
    needs: LeverNeeds = LeverNeeds()
    flags: Flags = {}
    environment: Environment = {}
    excludes: list[Name] = []
    off_when_logged: list[Annotated[str, Field(min_length=8)]] = []  # texts of SGLang's log: it leaves it off
    expected_effect: str
    acceptance: str
    status_on_sm120: Literal["works", "gated upstream", "needs package", "unproven", "not for SM120"]
    source: str


def version_tuple(version: str) -> tuple[int, ...]:
    """Given a version such as "0.5.23" or "0.6.15.post1", return its numbers for comparison: (0, 5, 23)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+", maxsplit=1)[0]))


def _exactly_one(table: BaseModel, first: str, second: str) -> None:
    given = [key for key in (first, second) if getattr(table, key) is not None]
    if len(given) != 1:
        problem = "both are given, in two units" if given else "neither is given"
        raise ContradictionError(
            f"{first} or {second}",
            problem,
            found=" and ".join(given) or "nothing",
            allowed="exactly one of them",
        )
