"""Nothing secret is ever packed, whatever the text around it; receipts stay whole."""

from __future__ import annotations

import base64
import io
import json
import socket
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy_kit.errors import DeployKitError
from deploy_kit.firstlight.pack import archive, collect, pack
from deploy_kit.firstlight.secrets import Guard, make_guard
from deploy_kit.firstlight.settings import Settings, State, StepState
from deploy_kit.receipts import Host, new_receipt, read_receipt, write_receipt

SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=40)
KEY = "f00dfeedcafe4242"
HUB = "hf_AbCdEfGhIjKlMnOpQrSt"


@given(SECRETS, st.text(max_size=40), st.text(max_size=40))
def test_a_secret_is_removed_wherever_it_stands(secret: str, before: str, after: str) -> None:
    guard = Guard((secret,))
    for form in (secret, base64.b64encode(secret.encode()).decode(), json.dumps({"a": secret})):
        text = guard.clean(f"{before}{form}{after}")
        assert secret not in text.replace("[secret]", "")
        if secret not in "[secret]":
            assert not [leak for leak in guard.leaks(text.encode()) if leak.startswith("secret ")]


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Bearer {KEY}",
        f'{{"api_key": "{KEY}"}}',
        f"--api-key={KEY}",
        f"HF_TOKEN={HUB}",
        f"https://user:{KEY}@example.org/x",
        "-----BEGIN RSA PRIVATE KEY-----",
        f"using {HUB} for the hub",
    ],
)
def test_what_looks_like_a_secret_is_removed_without_knowing_it(line: str) -> None:
    text = Guard().clean(line)
    assert KEY not in text
    assert HUB not in text
    assert not Guard().leaks(text.encode())


def test_numbers_of_tokens_are_no_secrets() -> None:
    line = "max_total_num_tokens=8192, output_tokens: 256, tokens/s 82.1"
    assert Guard().clean(line) == line


def work_folder(tmp_path: Path, *, host: str = "made-up-box") -> Path:
    work = tmp_path / "work"
    receipt = new_receipt(
        kind="bench",
        host=Host(name=host),
        rehearsal=True,
        subject={
            "profile": "baseline",
            "arguments": ["bench", "--api-key", KEY],
            "where": f"on {socket.gethostname()}",
        },
        samples=[{"tokens_are": "reported", "text": "as it was"}],
        summary={"x": 1},
    )
    write_receipt(work / "receipts", receipt)
    (work / "engines").mkdir()
    (work / "engines/engine.log").write_text(f"ok\nBearer {KEY}\nmachine {socket.gethostname()} 10.1.2.3\n")
    (work / "engines/up.json").write_text(
        json.dumps({"report": {"api_key": KEY, "url": "http://127.0.0.1:1"}})
    )
    (work / "broken.json").write_text(f'{{"api_key": "{KEY}')
    (work / "weights.safetensors").write_bytes(b"x" * 1000)
    (work / "link.txt").symlink_to("/etc/passwd")
    return work


def unpacked(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {m.name: (tar.extractfile(m) or io.BytesIO()).read() for m in tar.getmembers()}


def test_the_archive_holds_what_helps_and_no_secret(tmp_path: Path) -> None:
    work = work_folder(tmp_path)
    state = State(settings=Settings(), steps={"doctor": StepState(outcome="done", seconds=3.2)})
    out = tmp_path / "f.tar.gz"
    answer = pack(work, out, state, Guard((KEY,)), rehearsal=True)
    files = unpacked(out)
    assert out.stat().st_mode & 0o777 == 0o600
    assert len(files) == len(answer["files"])  # type: ignore[arg-type]
    assert not [name for name, data in files.items() if KEY.encode() in data]
    assert not [name for name in files if "safetensors" in name or "link" in name]
    assert b"REHEARSAL" in files["firstlight/README.md"]
    assert b"| doctor | done | 3 s |" in files["firstlight/README.md"]
    assert json.loads(files["firstlight/engines/up.json"])["report"]["url"] == "http://127.0.0.1:1"
    name = next(name for name in files if "/receipts/" in name)
    (tmp_path / "again.json").write_bytes(files[name])
    receipt = read_receipt(tmp_path / "again.json")  # whole, with a hash of its own
    assert receipt.samples == [{"tokens_are": "reported", "text": "as it was"}]
    assert receipt.subject["arguments"] == ["bench", "--api-key", "[secret]"]


def test_a_clean_receipt_is_packed_as_it_is(tmp_path: Path) -> None:
    work = work_folder(tmp_path)
    original = next((work / "receipts").glob("*.json"))
    found = collect(work, Guard())
    assert found[f"receipts/{original.name}"] == original.read_bytes()


def test_redacting_removes_names_and_addresses_and_keeps_receipts_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "acme-gpu01.acme.example")
    monkeypatch.setattr(socket, "getfqdn", lambda: "acme-gpu01.acme.example")
    work = work_folder(tmp_path, host="acme-gpu01")
    guard = make_guard([], redact=True)
    out = tmp_path / "f.tar.gz"
    pack(work, out, State(settings=Settings()), guard, rehearsal=False)
    for name, data in unpacked(out).items():
        assert b"acme-gpu01" not in data, name
        assert b"10.1.2.3" not in data, name
        if "/receipts/" in name:
            (tmp_path / "again.json").write_bytes(data)
            assert read_receipt(tmp_path / "again.json").host.name == "[removed]"
    assert b"127.0.0.1" in unpacked(out)["firstlight/engines/up.json"]


def test_what_cannot_be_cleaned_is_not_packed_at_all(tmp_path: Path) -> None:
    class Leaky(Guard):
        """Cleans nothing: as if a form of the secret had been forgotten."""

        def clean(self, text: str) -> str:
            return text

    out = tmp_path / "f.tar.gz"
    with pytest.raises(DeployKitError, match="a secret is left") as caught:
        pack(work_folder(tmp_path), out, State(settings=Settings()), Leaky((KEY,)), rehearsal=True)
    assert KEY not in str(caught.value)
    assert not out.exists()


def test_the_guard_knows_key_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "api_key"
    key.write_text(f"{KEY}\n")
    monkeypatch.setenv("MY_HUB_TOKEN", "another-secret-value")
    monkeypatch.setenv("SOME_TOKEN_FILE", "/run/secrets/token")
    guard = make_guard([key, tmp_path / "absent"], redact=False)
    assert {KEY, "another-secret-value"} <= set(guard.secrets)
    assert "/run/secrets/token" not in guard.secrets


def test_long_logs_keep_both_ends(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.log").write_bytes(b"first\n" + b"x" * 5_000_000 + b"\nlast\n")
    data = collect(work, Guard())["a.log"]
    assert data.startswith(b"first")
    assert data.endswith(b"last\n")
    assert b"bytes left out" in data
    assert len(data) < 4_100_000


def test_the_archive_names_no_owner() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive({"a.txt": b"1"}))) as tar:
        member = tar.getmembers()[0]
    assert (member.uid, member.uname, member.name) == (0, "", "firstlight/a.txt")
