from itertools import combinations

import pytest

from deploy_kit.configs.schema import Host
from deploy_kit.errors import DeployKitError
from deploy_kit.exit_codes import ExitCode
from deploy_kit.probe.candidates import (
    AXES,
    STORY,
    TUNED_VARIABLES,
    first_pass,
    grid,
    named_candidates,
    nccl_candidate,
    parse_point,
    useful_axes,
    why_not,
)
from deploy_kit.probe.worker_names import FAULT_KINDS


def test_every_name_of_up_to_two_values_is_read_back() -> None:
    singles = [(axis, value) for axis in AXES for value in AXES[axis] if value != "default"]
    for count in (1, 2):
        for pairs in combinations(singles, count):
            if len({axis for axis, _ in pairs}) < count:
                continue
            candidate = nccl_candidate(dict(pairs))
            assert parse_point(candidate.name) == candidate.point


@pytest.mark.parametrize("name", ["", "+", "LL+LL", "LL+LL128", "3ch", "ll", "LL+", "default"])
def test_what_is_no_point_is_refused(name: str) -> None:
    assert parse_point(name) is None


def test_a_default_search_starts_with_at_least_fourteen_that_can_run_on_gpus() -> None:
    names = [candidate.name for candidate in first_pass(list(AXES)) if candidate.path == "process-group"]
    assert len(names) == len(set(names)) >= 14
    assert names[0] == "nccl-default"
    assert STORY.environment == {"NCCL_MAX_NCHANNELS": "2", "NCCL_BUFFSIZE": "131072"}


def test_no_stand_in_is_part_of_a_default_search() -> None:
    assert not any(candidate.fault for candidate in first_pass(list(AXES)))


def test_algorithms_are_named_for_all_reduce_only() -> None:
    for environment in AXES["algorithm"].values():
        assert all(value.startswith("allreduce:") for value in environment.values())


def test_every_tuned_variable_may_stand_in_a_host_file() -> None:
    settings = dict.fromkeys(TUNED_VARIABLES, "1")
    assert Host(name="h", description="d", accelerator="cpu", gpus=0, tensor_parallel=1, nccl=settings)


def test_an_unknown_candidate_offers_the_nearest() -> None:
    with pytest.raises(DeployKitError) as caught:
        named_candidates(["symm-one-shoot"], 2)
    assert caught.value.exit_code == ExitCode.UNKNOWN_NAME
    assert "symm-one-shot" in (caught.value.allowed or "")


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_faults_hit_the_last_rank_and_are_never_deployable(kind: str) -> None:
    (candidate,) = named_candidates([f"fault-{kind}-at-check"], 4)
    assert candidate.fault == {"kind": kind, "rank": 3, "step": "check"}
    assert not candidate.deployable
    assert not candidate.is_nccl


def test_without_peer_access_paths_that_need_it_are_not_measured_and_say_why() -> None:
    base = {"NCCL_P2P_DISABLE": "1"}
    (symmetric,) = named_candidates(["symm-one-shot"], 2)
    assert "NCCL_P2P_DISABLE" in (why_not(symmetric, base, "nccl") or "")
    assert why_not(symmetric, {}, "nccl") is None
    assert why_not(symmetric, {}, "gloo") == "it needs CUDA GPUs"
    assert why_not(nccl_candidate({"protocol": "LL"}), base, "nccl") is None
    assert "p2p" not in useful_axes(base)
    assert "p2p" in useful_axes({})


def test_a_grid_is_the_whole_product() -> None:
    found = grid({"protocol": ["default", "LL"], "channels": ["default", "2", "4"]})
    assert len({candidate.name for candidate in found}) == 6
