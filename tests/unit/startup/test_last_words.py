"""A log that ends in an exception's own line, without its traceback: the end it tells, and what is no end."""

# ruff: noqa: E501  (the lines of logs are data, and long)
from __future__ import annotations

import random

import pytest
from startup_corpus import BENIGN_BLOCKS, FAULTS, NOISE, SERVING_NOISE, STEPS, generate
from startup_fault import Fault

from deploy_kit.startup.explain import explain_bytes
from deploy_kit.startup.watcher import StartupWatcher

ARGUMENTS = "[2026-03-02 10:15:00] server_args=ServerArgs(model_path='/models/kimi', tp_size=8, mem_fraction_static=0.9, watchdog_timeout=300, disable_custom_all_reduce=False)\n"
LOADING = (
    ARGUMENTS
    + "[2026-03-02 10:15:09 TP0] Init torch distributed begin.\n[2026-03-02 10:15:20 TP0] Load weight begin. avail mem=94.25 GB\n"
)
LAST = (
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no-kv-room", None),
    ("[rank3]: RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no-kv-room", 3),
    ("[TP3] RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no-kv-room", 3),
    ("TP5: RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no-kv-room", 5),
    ("[2026-03-02 10:15:31 TP2] RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no-kv-room", 2),
    ("kimi-eagle-1  | RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "no-kv-room", None),
    ("2026-03-02T10:15:01.123456789Z stderr F ValueError: Unrecognized configuration class <class 'x.KimiK25Config'> for this kind of AutoModel: AutoModel.", None, None),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 252.00 MiB. GPU 3 has a total capacity of 94.97 GiB of which 98.00 MiB is free.", "oom-load", None),
    ("RuntimeError: CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\nCUDA kernel errors might be asynchronously reported at some other API call.", "cuda-driver", None),
    ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device", "kernel-arch", None),
    ("RuntimeError: No CUDA GPUs are available", "cuda-driver", None),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'", "shm-too-small", None),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/models/kimi/model-00012-of-000064.safetensors'", "weights-incomplete", None),
    ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", "weights-incomplete", None),
    ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and outgoing traffic has been disabled.", "hub-offline", None),
    ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "cuda-driver", None),
    ("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.", "nccl-system", None),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n[rank0]:[W302 10:15:40.112 ProcessGroupNCCL.cpp:1427] Warning: WARNING: destroy_process_group() was not called before program exit\n/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown\n  warnings.warn('resource_tracker')", "no-kv-room", None),
    ("setting cpunodebind: Operation not permitted", "numa-refused", None),
    ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /moonshotai/Kimi-K2.5/resolve/main/config.json", "hub-offline", None),
    ("numactl: setting membind: Invalid argument", "numa-refused", None),
    ("huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/acme/target: offline mode is enabled.", "hub-offline", None),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 114688, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.", "kernel-resources", None),
)  # fmt: skip


def _words(text: str) -> str:
    return text.splitlines()[0][:60]


@pytest.mark.parametrize("before", ["", ARGUMENTS, LOADING], ids=["alone", "arguments", "loading"])
@pytest.mark.parametrize(("text", "cause", "rank"), LAST, ids=[_words(last[0]) for last in LAST])
def test_the_last_line_tells_the_end(before: str, text: str, cause: str | None, rank: int | None) -> None:
    answer = explain_bytes((before + text).encode())
    if before == LOADING and cause == "numa-refused":  # numactl comes before the load: it has not ended this
        assert answer.verdict == "loading"
        return
    if cause is None:  # words that name no cause: nothing is claimed
        assert answer.verdict != "crashed" or answer.cause_id not in (None, "unknown")
        return
    assert (answer.verdict, answer.cause_id) == ("crashed", cause)
    assert answer.phase == "exited"
    assert answer.exit_code >= 30
    assert answer.facts.get("rank") == rank
    assert len(set(answer.evidence)) == len(answer.evidence)


def test_what_is_refused_to_numactl_is_named() -> None:
    answer = explain_bytes(b"setting cpunodebind: Operation not permitted\n")
    assert "SYS_NICE" in answer.cause
    assert "SYS_NICE" in (answer.remedy or "")


def test_frames_without_their_header_place_it() -> None:
    text = (
        '  File "/x/sglang/srt/model_executor/cuda_graph_runner.py", line 9, in capture\n    self.capture_one()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert explain_bytes((ARGUMENTS + text).encode()).cause_id == "oom-capture"


BENIGN = (
    # Warnings and notes of libraries that hold the words.
    "/usr/lib/python3/x.py:53: UserWarning: RuntimeError: CUDA out of memory was seen in an earlier run",
    "UserWarning: CUDA error: no kernel image is available for execution on the device",
    "FutureWarning: RuntimeError: Not enough memory will become an error",
    "  RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "Warning: Exception: no kernel image is available, out of memory, crashed",
    "Note: RuntimeError: Not enough memory is raised when the KV pool does not fit",
    # Caught, and gone on with.
    "ImportError: libcuda.so.1: cannot open shared object file; falling back to CPU",
    "RuntimeError: CUDART error: peer access is not supported between these two devices. To silence this warning, specify --disable-custom-all-reduce",
    "ModuleNotFoundError: No module named 'flash_attn', using the fallback instead",
    "OSError: [Errno 28] No space left on device (ignored)",
    "ConnectionError: HTTPSConnectionPool(host='huggingface.co'): Max retries exceeded; retrying in 5 s",
    "torch.cuda.OutOfMemoryError: CUDA out of memory while autotuning this tactic: skipped",
    "RuntimeError: NCCL error: unhandled system error (non-fatal)",
    "ModuleNotFoundError: No module named 'flash_attn' - flash attention will not be available",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory (no NVML, skip)",
    "FileNotFoundError: [Errno 2] No such file or directory: '/root/.cache/moe/E=384,N=256.json' (using default)",
    "[2026-03-02 10:15:31 TP0] ImportError: cannot import name 'x' from 'y', using torch native",
    # A word, not a line.
    "Ignore import error when loading sglang.srt.models.foo: cannot import name 'Exception'",
    "an Exception of type RuntimeError: Not enough memory. would look like this",
    "Exception",
    "Exception:",
    "RuntimeError",
    "Error: see above",
    "KeyError: 'x'",
    "AssertionError",
    "ValueError: I/O operation on closed file.",
    "AttributeError: 'Pool' object has no attribute '_change_notifier'",
    "debug: RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "{'error': 'RuntimeError: Not enough memory'}",
    "ServerArgs(model_path='/models/x', error='RuntimeError: Not enough memory', nccl_port=None)",
    "server_args=ServerArgs(model_path='RuntimeError: Not enough memory. Please', crash_dump_folder='CUDA out of memory')",
    "[2026-03-02 10:15:31 TP2] Setup Custom allreduce failed with CUDART error: peer access is not supported.",
    "[2026-03-02 10:15:31] FlashInfer autotune: RuntimeError: no kernel image is available",
    # A symptom of something elsewhere names no cause by itself.
    "EOFError: ",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
    # numactl's and libnuma's notes.
    "libnuma: Warning: node argument 1 is out of range",
    "setting up memory pools: Operation not permitted was not seen",
)
AFTERWARDS = (
    "[2026-03-02 10:16:00 TP0] Load weight begin. avail mem=94.25 GB",
    "Loading safetensors checkpoint shards:   3% Completed | 2/64 [00:19<09:55,  9.6s/it]",
    "INFO:     Started server process [1]",
    "box:211:409 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
    "[2026-03-02 10:16:00] max_total_num_tokens=120000, chunked_prefill_size=8192",
)


@pytest.mark.parametrize("before", [ARGUMENTS, LOADING], ids=["arguments", "loading"])
@pytest.mark.parametrize("text", BENIGN, ids=[_words(text) for text in BENIGN])
def test_a_benign_last_line_is_no_end(before: str, text: str) -> None:
    for ending in ("", "\n"):
        answer = explain_bytes((before + text + ending).encode())
        assert answer.verdict in ("starting", "loading"), answer


@pytest.mark.parametrize("after", AFTERWARDS, ids=[_words(text) for text in AFTERWARDS])
@pytest.mark.parametrize("text", [last[0] for last in LAST[:6]], ids=[_words(last[0]) for last in LAST[:6]])
def test_progress_afterwards_says_that_it_was_handled(text: str, after: str) -> None:
    answer = explain_bytes(f"{ARGUMENTS}{text}\n{after}\n".encode())
    assert answer.verdict != "crashed", answer


def test_many_lines_afterwards_say_so_too() -> None:
    more = "a library's line\n" * 20
    assert explain_bytes(f"{ARGUMENTS}{LAST[0][0]}\n{more}".encode()).verdict == "starting"


def test_a_living_engine_is_never_judged_by_it() -> None:
    for text, _cause, _rank in LAST:
        watcher = StartupWatcher()
        watcher.feed((ARGUMENTS + text + "\n").encode())
        assert watcher.phase == "starting"
        assert watcher.explain().verdict == "starting"


@pytest.mark.parametrize("noise", [("",), *SERVING_NOISE], ids=lambda noise: noise[0][:30])
def test_a_request_that_fails_is_no_end(noise: tuple[str, ...]) -> None:
    ready = ARGUMENTS + "[2026-03-02 10:30:00] The server is fired up and ready to roll!\n"
    lines = "\n".join(noise).replace("{DATE}", "2026-03-02 10:31:00")
    for text, _cause, _rank in LAST:
        assert explain_bytes(f"{ready}{lines}\n{text}\n".encode()).verdict in ("ready", "degraded")


def test_access_lines_without_the_ready_line_say_that_it_serves() -> None:
    access = '[2026-03-02 10:31:00] INFO:     127.0.0.1:40052 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n'
    assert explain_bytes((access + LAST[0][0]).encode()).verdict != "crashed"


@pytest.mark.parametrize("noise", [*NOISE, *("\n".join(block) for block in BENIGN_BLOCKS)], ids=_words)
def test_noise_of_the_corpus_at_the_end_is_no_end(noise: str) -> None:
    text = noise.replace("{DATE}", "2026-03-02 10:15:31").replace("{RANK}", " TP1")
    for before in ("", ARGUMENTS, LOADING):
        assert explain_bytes((before + text).encode()).verdict != "crashed"


@pytest.mark.parametrize("seed", range(12))
def test_no_prefix_of_a_healthy_log_ends(seed: int) -> None:
    log = generate(seed, stop_at=STEPS[2 + seed % (len(STEPS) - 2)])
    places = random.Random(seed).sample(range(len(log.lines)), min(20, len(log.lines)))
    for place in places:
        assert explain_bytes(b"".join(log.lines[: place + 1])).verdict != "crashed", log.lines[place]


def test_a_handled_traceback_whose_header_was_cut_off_ends_nothing_that_goes_on() -> None:
    cut = b"".join(line.encode() + b"\n" for line in BENIGN_BLOCKS[0][1:])
    begun = b"[2026-03-02 10:15:09 TP0] Init torch distributed begin.\n"
    assert explain_bytes(cut + begun).verdict == "crashed"  # who knows: nothing says that it was handled
    later = b"[2026-03-02 10:15:20 TP0] Load weight begin. avail mem=94.25 GB\n"
    assert explain_bytes(cut + begun + later).verdict == "loading"


RAISED = [fault for fault in FAULTS if any("Traceback" in line for line in fault.lines)]


@pytest.mark.parametrize("fault", RAISED, ids=lambda fault: fault.name)
def test_the_last_line_alone_never_names_another_cause(fault: Fault) -> None:
    # What a person pastes of this fault: the exception's own lines, without header, frames and what followed.
    text = [line for line in fault.lines if "Traceback" not in line and not line.startswith((" ", "[{DATE}"))]
    answer = explain_bytes((ARGUMENTS + "\n".join(text).replace("{DATE}", "2026-03-02 10:16:00")).encode())
    if answer.verdict == "crashed" and answer.cause_id != "unknown":
        place_decides = {"oom-load", "oom-kv", "oom-capture", "oom-serving", "drafter-mismatch", "drafter-missing",
                         "quantization", "weights-mismatch", "weights-missing", "nccl-p2p", "permission",
                         "weights-unreadable"}  # fmt: skip
        assert answer.cause_id in fault.causes or (answer.cause_id in place_decides), answer
