"""The format of saved states: what is damaged, foreign or torn is refused, never misread."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import resource
import signal
import struct
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_state import same_bits, steps, taken_in
from toy import CAUSAL, model, tokens

from hyena_cpu import HyenaError, InputError
from hyena_cpu.model import Model
from hyena_cpu.state import State
from hyena_cpu.state_file import DIGEST, PREFIX, VERSION, reading

SMALL = "order1"  # the smallest file
GOLDEN = Path(__file__).parent / "golden" / "state"


def saved(m: Model, path: Path, calls: list[int]) -> bytes:
    taken_in(m, calls).save(path)
    return path.read_bytes()


def header_of(data: bytes) -> dict[str, Any]:
    length = PREFIX.unpack_from(data)[2]
    return json.loads(data[PREFIX.size : PREFIX.size + length])


def forged(data: bytes, head: dict[str, Any]) -> bytes:
    """The file with another header and a checksum that fits."""
    magic, version, length, _ = PREFIX.unpack_from(data)
    arrays = data[PREFIX.size + length : -DIGEST]
    text = json.dumps(head).encode()
    total = PREFIX.size + len(text) + len(arrays) + DIGEST
    body = PREFIX.pack(magic, version, len(text), total) + text + arrays
    return body + blake2b(body, digest_size=DIGEST).digest()


def test_the_format_is_what_the_module_says(tmp_path: Path) -> None:
    """Read by hand, with nothing of the module but its name."""
    m = model(CAUSAL["finite_hybrid"])
    data = saved(m, tmp_path / "s", [40, 1])
    magic, version, length, total = struct.unpack_from("<8sIIQ", data)
    assert (magic, version, total) == (b"HYCSTATE", 2, len(data))
    assert (24 + length) % 64 == 0
    assert data[-32:] == blake2b(data[:-32], digest_size=32).digest()
    head = json.loads(data[24 : 24 + length])
    assert (head["fingerprint"], head["state"]["position"]) == ("toy-0", 41)
    cache = head["state"]["layers"][1]
    entry = head["arrays"][cache["values"]["array"]]
    assert entry["shape"] == [2, 41, 10]
    assert entry["offset"] % 64 == 0
    found = np.frombuffer(data, "<f4", 2 * 41 * 10, 24 + length + entry["offset"])
    layer = m.load_state(tmp_path / "s").layers[1]
    assert np.array_equal(found.reshape(2, 41, 10), layer.values[:, :41])


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s"
    m = model(CAUSAL[SMALL])
    data = bytearray(saved(m, path, [3]))
    rng = random.Random(1)
    for at in range(len(data)):
        bits = range(8) if at < PREFIX.size else [rng.randrange(8)]
        for bit in bits:
            data[at] ^= 1 << bit
            path.write_bytes(data)
            with pytest.raises(InputError, match=r"/s: "):
                m.load_state(path)
            data[at] ^= 1 << bit
    path.write_bytes(data)
    assert m.load_state(path).position == 3


def test_every_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s"
    m = model(CAUSAL[SMALL])
    data = saved(m, path, [3])
    for n in range(len(data) - 1, -1, -1):
        os.truncate(path, n)
        with pytest.raises(InputError, match="cut short" if n >= 8 else "not a state"):
            m.load_state(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(InputError, match="longer than it should be"):
        m.load_state(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a state saved by hyena-cpu"),
        (b"PK\x03\x04" * 20, "not a state saved by hyena-cpu"),
        (PREFIX.pack(b"HYCSTATE", 3, 8, 64) + bytes(40), "of format version 3, and this program"),
        (PREFIX.pack(b"HYCSTATE", 0, 8, 64) + bytes(40), "of format version 0"),
        (PREFIX.pack(b"HYCSTATE", 1, 8, 1 << 60) + bytes(40), "cut short"),
        (PREFIX.pack(b"HYCSTATE", 1, (1 << 32) - 1, 64) + bytes(40), "damaged: a header of"),
        (PREFIX.pack(b"HYCSTATE", 1, 9, 64) + bytes(40), "damaged: a header of 9 bytes"),
        (PREFIX.pack(b"HYCSTATE", 1, 8, 64) + bytes(40), "its checksum does not fit"),
    ],
)
def test_foreign_files_are_refused_by_name(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"s: .*{message}"):
        model(CAUSAL[SMALL]).load_state(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    m = model(CAUSAL[SMALL])
    with pytest.raises(InputError, match="absent: cannot be read: No such file"):
        m.load_state(tmp_path / "absent")
    with pytest.raises(InputError, match="not a regular file"):
        m.load_state(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        m.load_state(tmp_path / "pipe")
    for bad in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match="not a regular file"):
            m.new_state().save(bad)
    with pytest.raises(HyenaError, match=r"cannot write .*: No such file"):
        m.new_state().save(tmp_path / "absent" / "s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "its header is no JSON"),
        (b"[" * 100_000, "its header is no JSON"),
        (b"[]", "header is a list of 0, must be an object"),
        (b"{}", "must name fingerprint and isa"),
        (b'{"fingerprint": "", "isa": ""}', "has no list of arrays"),
        (b'{"fingerprint": "", "isa": "", "arrays": [{}]}', "describes an array that is none"),
        (b'{"fingerprint": "", "isa": "", "arrays": []}', "lacks state"),
        (
            b'{"fingerprint": "", "isa": "", "arrays": [], "state": null}',
            "header.state is None, must be an object",
        ),
        (b'{"fingerprint": "", "isa": "", "arrays": [], "state": {}}', "lacks position"),
    ],
)
def test_headers_without_sense(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    total = PREFIX.size + len(text) + DIGEST
    body = PREFIX.pack(b"HYCSTATE", VERSION, len(text), total) + text
    path.write_bytes(body + blake2b(body, digest_size=DIGEST).digest())
    with pytest.raises(InputError, match=message):
        model(CAUSAL[SMALL]).load_state(path)


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values of a JSON tree, inner ones included."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = []
    for key, value in items:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += leaves(value, (*path, key))
    return found


NUMBERS = [-1, 0, 1, 2, 17, 63, 64, 127, 128, 2047, 4096, 1 << 17, 1 << 31, 1 << 47, 1 << 63]
OTHERS = [None, 0.5, True, "7", [], {}, [0], [1 << 40, 0], {"array": 0}, {"array": 10**9}]
STRANGE = st.sampled_from([*NUMBERS, *OTHERS])


@pytest.mark.parametrize("name", ["order2", "finite_hybrid", "long_conv"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_header_crashes_or_takes_memory(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file with a right checksum and wrong values: a clear refusal, or a state that runs."""
    path = tmp_path_factory.mktemp("forged") / "s"
    m = model(CAUSAL[name])
    whole = saved(m, path, [30, *[1] * 20])
    head = header_of(whole)
    for _ in range(data.draw(st.integers(1, 2))):
        where = data.draw(st.sampled_from(leaves(head)))
        inner = head
        for key in where[:-1]:
            inner = inner[key]
        inner[where[-1]] = copy.deepcopy(data.draw(STRANGE))
    path.write_bytes(forged(whole, head))
    with contextlib.suppress(HyenaError):
        state = m.load_state(path)
        m.extend(state, tokens(40))
        m.extend(state, tokens(90))
        state.rewind(max(state.oldest, state.position - 128))
        m.step(state, 1)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    m = model(CAUSAL["finite_hybrid"])
    saved(m, path, [20])
    state = taken_in(m, [300])
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(HyenaError, match=r"cannot write .*s: File too large"):
            state.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert m.load_state(path).position == 20
    assert os.listdir(tmp_path) == ["s"]


def test_an_interrupt_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    m = model(CAUSAL[SMALL])
    saved(m, path, [20])
    for call in ("fsync", "replace"):
        with monkeypatch.context() as patched:

            def interrupted(*_: object) -> None:
                raise KeyboardInterrupt

            patched.setattr(os, call, interrupted)
            with pytest.raises(KeyboardInterrupt):
                taken_in(m, [9]).save(path)
        assert m.load_state(path).position == 20
        assert os.listdir(tmp_path) == ["s"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    m = model(CAUSAL[SMALL])
    saved(m, tmp_path / "s", [5])
    (tmp_path / "link").symlink_to("s")
    taken_in(m, [6]).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert m.load_state(tmp_path / "s").position == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_killed_save_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    """SIGKILL at 100 random instants of an endless run of saves."""
    path = tmp_path / "s"
    m = model(CAUSAL["finite_hybrid"])
    states = [taken_in(m, [200]), taken_in(m, [90, 1], seed=2)]
    wanted = {state.position: state.logits for state in states}
    states[0].save(path)
    begin = time.perf_counter()
    for state in states:
        state.save(path)
    one_save = (time.perf_counter() - begin) / 2
    rng = random.Random(3)
    seen: list[int] = []
    unfinished = 0
    for _ in range(100):
        _kill_while_saving(states, path, rng.randint(1, 4), rng.uniform(0, one_save))
        with reading(path) as file:
            assert file.head.position in wanted
        found = m.load_state(path)
        same_bits(found.logits, wanted[found.position])
        seen.append(found.position)
        unfinished += len(os.listdir(tmp_path)) > 1
        for left in tmp_path.glob(".s.*.tmp"):
            left.unlink()
    assert set(seen) == set(wanted)  # both the old and the new one came to be
    assert unfinished > 0  # and saves were under way


def _kill_while_saving(states: list[State], path: Path, saves: int, seconds: float) -> None:
    """Kills a child so long after it began its save of this number."""
    reading_end, writing_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for i in range(1_000_000):
                os.write(writing_end, b".")
                states[i % 2].save(path)
        finally:
            os._exit(1)
    os.close(writing_end)
    for _ in range(saves):
        assert os.read(reading_end, 1) == b"."
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reading_end)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_a_state_of_version_1_is_still_read() -> None:
    """Made by golden/state/make.py: 40 tokens and 3 steps, and the next 20 steps."""
    m = model(CAUSAL["finite_hybrid"])
    with np.load(GOLDEN / "v1.npz") as want:
        state = m.load_state(GOLDEN / "v1.state")
        assert state.position == 43
        got = steps(m, state, 20)
        assert np.abs(got - want["logits"]).max() <= 1e-4 * np.abs(want["logits"]).max()
