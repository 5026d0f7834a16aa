from deploy_kit.probe.classify import Outcome, RankView, classify_failure, classify_hang

STUCK_OUTSIDE = ('  File "/x/faults.py", line 41 in before', '  File "/x/session.py", line 180 in _reduce')
STUCK_INSIDE = (
    '  File "/x/torch/distributed/distributed_c10d.py", line 3 in all_reduce',
    '  File "/x/paths.py", line 9',
)


def failed(rank: int, message: str, kind: str = "crash", **more: object) -> RankView:
    return RankView(rank, False, failure={"kind": kind, "type": "RuntimeError", "message": message}, **more)  # type: ignore[arg-type]


def test_a_hang_names_the_rank_that_is_behind_and_where() -> None:
    views = [
        RankView(0, False, "4 tokens, eager repeat 1 of 3", 5, stderr=STUCK_INSIDE),
        RankView(1, False, "1 tokens, eager repeat 3 of 3", 3, stderr=STUCK_OUTSIDE),
    ]
    outcome = classify_hang("check", 20, views)
    assert (outcome.status, outcome.step, outcome.ranks) == ("hang", "check", (1,))
    assert "1 tokens, eager repeat 3 of 3" in outcome.cause
    assert "rank 0 waited" in outcome.cause
    assert any("faults.py" in line for line in outcome.evidence)


def test_at_the_same_place_the_stack_tells_who_never_entered_the_collective() -> None:
    views = [
        RankView(0, False, "4 tokens", 5, stderr=STUCK_INSIDE),
        RankView(1, False, "4 tokens", 5, stderr=STUCK_OUTSIDE),
        RankView(2, False, "4 tokens", 5, stderr=STUCK_INSIDE),
    ]
    assert classify_hang("check", 20, views).ranks == (1,)


def test_when_all_wait_in_the_collective_no_rank_is_blamed_but_the_transport() -> None:
    views = [
        RankView(rank, False, "64 tokens, graph replay 1 of 3", 2, stderr=STUCK_INSIDE) for rank in range(4)
    ]
    outcome = classify_hang("replay", 20, views)
    assert outcome.ranks == (0, 1, 2, 3)
    assert "transport" in outcome.cause


def test_a_rank_that_finished_is_never_behind() -> None:
    views = [RankView(0, True, "", 9), RankView(1, False, "the first all-reduce", 1)]
    assert classify_hang("join", 20, views).ranks == (1,)


def test_the_rank_that_was_killed_is_the_cause_not_the_peer_that_noticed() -> None:
    views = [failed(0, "Connection closed by peer [127.0.0.1]:1234"), RankView(1, False, exit_code=-11)]
    outcome = classify_failure("capture", views)
    assert (outcome.status, outcome.ranks) == ("crash", (1,))
    assert "SIGSEGV" in outcome.cause


def test_a_first_hand_error_goes_before_a_second_hand_one() -> None:
    views = [failed(0, "Connection reset by peer"), failed(1, "CUDA error: an illegal memory access")]
    assert classify_failure("replay", views).ranks == (1,)


def test_when_all_only_lost_each_other_the_first_is_named() -> None:
    outcome = classify_failure("join", [failed(0, "Connection reset by peer"), failed(1, "Broken pipe")])
    assert outcome.status == "crash"
    assert outcome.ranks == (0, 1)


def test_wrong_and_unsupported_keep_their_words() -> None:
    wrong = classify_failure("check", [failed(0, "3 of 7168 elements differ", "wrong"), RankView(1, True)])
    assert (wrong.status, wrong.ranks, wrong.cause) == ("wrong", (0,), "3 of 7168 elements differ")
    absent = classify_failure(
        "join", [failed(0, "flashinfer is not installed", "unsupported"), RankView(1, False)]
    )
    assert (absent.status, absent.cause) == ("unsupported", "flashinfer is not installed")


def test_nccl_s_own_warning_is_quoted() -> None:
    text = "ncclInternalError: failed.\nLast error:\nno algorithm/protocol available for function AllGather"
    view = failed(0, text, stderr=("host:1:2 [0] enqueue.cc:1 NCCL WARN no algorithm/protocol available",))
    cause = classify_failure("check", [view]).cause
    assert "no algorithm/protocol available for function AllGather" in cause


def test_memory_kills_say_so() -> None:
    assert "memory" in classify_failure("start", [RankView(0, False, exit_code=-9), RankView(1, True)]).cause


def test_a_silent_end_is_still_a_cause() -> None:
    assert "code 3" in classify_failure("start", [RankView(0, False, exit_code=3)]).cause


def test_folders_of_the_machine_are_left_out() -> None:
    outcome = Outcome(
        "crash", cause="error at /home/someone/build/x.cuh:19: bf16/fp16", evidence=('File "/a/b/c.py"',)
    )
    assert outcome.cause == "error at x.cuh:19: bf16/fp16"
    assert outcome.evidence == ('File "c.py"',)


def test_text_is_one_line_with_all_of_it() -> None:
    assert Outcome("ok").text() == "ok"
    assert Outcome("hang", "check", (1, 2), "why").text() == "hang in step check, rank 1, 2: why"
