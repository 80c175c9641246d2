"""Hostile and unusual weight files: one clear error each, or exactly the stored numbers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from hyena_cpu.errors import ModelError
from hyena_cpu.weights import safetensors
from hyena_cpu.weights.shards import read_folder

CASES = Path(__file__).parent / "cases"

# Every row of the verdict table of the case log; None: must be read.
VERDICTS = {
    "C013/no_pos_emb": None,
    "C015/tied_no_head": None,
    "C037/nan_inf_weights": None,
    "C053/empty": "truncated: 0 bytes",
    "C053/hdrlen_beyond_file": "truncated: the header ends at byte",
    "C053/hdrlen_max": "the limit is 16777216",
    "C053/hdrlen_wraps_add8": "the limit is 16777216",
    "C053/hdrlen_zero": "header must begin with",
    "C053/seven_bytes": "truncated: 7 bytes",
    "C054/bytes_wrap": "overflow",
    "C054/shape_product_wraps_to_four": "overflow",
    "C054/shape_product_wraps_to_zero": "overflow",
    "C055/offsets_float": "data_offsets must be a list of whole numbers",
    "C055/offsets_hole": "invalid offset for tensor `b`",
    "C055/offsets_inverted": r"data_offsets must be \[start, end\]",
    "C055/offsets_negative": "data_offsets must be a list of whole numbers",
    "C055/offsets_overlap": "invalid offset for tensor `b`",
    "C055/offsets_past_end": r"truncated: \d+ bytes expected, \d+ found",
    "C055/size_mismatch": "invalid shape, data type, or offset",
    "C057/dup_inner_key": "key 'shape' appears twice",
    "C057/dup_keys": "key 'a' appears twice",
    "C059/empty_metadata": None,
    "C059/no_tensors": None,
    "C059/scalar_tensor": None,
    "C059/zero_size_tensor": None,
    "C061/trailing_bytes": r"\d+ bytes after the last tensor: \d+ bytes expected, \d+ found",
    "C062/truncated_half": r"truncated: \d+ bytes expected, \d+ found",
    "C062/truncated_in_header": r"truncated: the header ends at byte \d+, the file at \d+",
    "C063/outside": None,
    "C066/bf16_f16_special": None,
    "C066/f64_i64_f8": "tensor [diq]: ",
    "C067/one_key_extra": None,
    "C067/one_key_missing": None,
    "C067/prefix_model": None,
    "C068/declares_4TiB": r"truncated: \d+ bytes expected, \d+ found",
    "C068/deep_json": "nested too deep",
    "C068/many_dims": "has 4000 dimensions, the limit is 8",
}


def read(path: Path) -> dict[str, np.ndarray]:
    return safetensors.read(path, lambda _: False)


def build(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(shape: object = (2,), offsets: object = (0, 8), dtype: object = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_the_table_covers_every_case_file() -> None:
    files = {f"{p.parent.name}/{p.stem}" for p in CASES.glob("*/*.safetensors")}
    assert {name for name in files if name[:4] in {n[:4] for n in VERDICTS}} == set(VERDICTS)


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(name: str) -> None:
    path = CASES / f"{name}.safetensors"
    reason = VERDICTS[name]
    if reason is None:
        assert all(a.dtype == np.float32 for a in read(path).values())
        return
    with pytest.raises(ModelError, match=reason) as error:
        read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("length", [640, 35615, 66176])
def test_a_length_may_begin_as_another_format_does(length: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(build(json.dumps({"a": tensor()}).encode().ljust(length), bytes(8)))
    np.testing.assert_array_equal(read(path)["a"], np.zeros(2, np.float32))


LIES = {
    "zip": (b"PK\x03\x04" + bytes(40), "zip archive"),
    "gzip": (b"\x1f\x8b" + bytes(40), "gzip"),
    "pickle": (b"\x80\x02}q\x00." + bytes(40), "pickle"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "LFS pointer"),
    "length one": (build(b"{", length=1), "not valid JSON"),
    "length file size": (build({"a": tensor()}, bytes(8), length=80), "truncated"),
    "length 2^31": (build(b"{}", length=1 << 31), "limit"),
    "length 2^32": (build(b"{}", length=1 << 32), "limit"),
    "length 2^53+1": (build(b"{}", length=(1 << 53) + 1), "limit"),
    "length 2^63": (build(b"{}", length=1 << 63), "limit"),
    "length cap + 1": (build(b"{}", length=safetensors.MAX_HEADER + 1), "limit"),
    "not utf-8": (build(b'{"\xff": 1}'), "not UTF-8"),
    "nul": (build(b'{"a\x00": 1}'), "not valid JSON"),
    "list": (build([1, 2]), "must begin with"),
    "very deep": (build(b'{"a":' * 100_000), "nested too deep"),
    "NaN": (build(b'{"a": NaN}'), "NaN"),
    "trailing comma": (build(b'{"a": 1,}'), "not valid JSON"),
    "trailing garbage": (build(b"{} x"), "not valid JSON"),
    "leading space": (build(b" {}"), "header"),
    "mark": (build(b"\xef\xbb\xbf{}"), "header"),
    "huge integer": (build(b'{"a": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    "metadata tensor": (build({"__metadata__": tensor()}), "header"),
    "metadata value": (build({"__metadata__": {"a": 1}}), "header"),
    "no dtype": (build({"a": {"shape": [], "data_offsets": [0, 4]}}, bytes(4)), "exactly dtype"),
    "extra field": (build({"a": {**tensor(), "x": 1}}, bytes(8)), "exactly dtype"),
    "entry is list": (build({"a": []}), "exactly dtype"),
    "unknown dtype": (build({"a": tensor(dtype="F99")}, bytes(8)), "F99"),
    "lower case dtype": (build({"a": tensor(dtype="f32")}, bytes(8)), "f32"),
    "dtype number": (build({"a": tensor(dtype=32)}, bytes(8)), "dtype must be a string"),
    "integers": (build({"a": tensor(dtype="I32")}, bytes(8)), "dtype I32 is not supported"),
    "fp8": (build({"a": tensor((8,), dtype="F8_E5M2")}, bytes(8)), "F8_E5M2 is not supported"),
    "shape null": (build({"a": tensor(None)}, bytes(8)), "shape must be a list"),
    "shape negative": (build({"a": tensor((-2,))}, bytes(8)), "shape must be a list"),
    "shape float": (build({"a": tensor((2.0,))}, bytes(8)), "shape must be a list"),
    "shape text": (build({"a": tensor(("2",))}, bytes(8)), "shape must be a list"),
    "shape true": (build({"a": tensor((True, 2))}, bytes(8)), "shape must be a list"),
    "65 dims": (build({"a": tensor((1,) * 64 + (2,))}, bytes(8)), "65 dimensions"),
    "product 2^64": (build({"a": tensor((1 << 32, 1 << 32), (0, 0))}), "overflow"),
    "one offset": (build({"a": tensor(offsets=(0,))}, bytes(8)), r"\[start, end\]"),
    "three offsets": (build({"a": tensor(offsets=(0, 4, 8))}, bytes(8)), r"\[start, end\]"),
    "reversed": (build({"a": tensor(offsets=(8, 0))}, bytes(8)), r"\[start, end\]"),
    "end 2^64-1": (build({"a": tensor(offsets=(0, (1 << 64) - 1))}, bytes(8)), "truncated"),
    "hole in front": (build({"a": tensor(offsets=(8, 16))}, bytes(16)), "offset"),
    "one byte less": (build({"a": tensor(offsets=(0, 7))}, bytes(7)), "shape"),
    "second file appended": (build({"a": tensor()}, bytes(8)) + build({}), "after the last"),
}


@pytest.mark.parametrize("name", LIES)
def test_lie(name: str, tmp_path: Path) -> None:
    content, reason = LIES[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=reason):
        read(path)


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "loop", tmp_path / "absent"):
        with pytest.raises(ModelError, match=path.name):
            read(path)


def test_a_long_name_does_not_flood_the_message(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(build({"n" * 1_000_000: tensor(dtype="I32")}, bytes(8)))
    with pytest.raises(ModelError) as error:
        read(path)
    assert len(str(error.value)) < 1000


def test_unusual_but_valid_files() -> None:
    assert read(CASES / "C059/scalar_tensor.safetensors")["s"] == np.float32(3.5)
    assert read(CASES / "C059/scalar_tensor.safetensors")["s"].shape == ()
    assert read(CASES / "C059/zero_size_tensor.safetensors")["e"].shape == (0, 4)
    assert read(CASES / "C059/no_tensors.safetensors") == {}


def test_16_bit_formats_are_widened_exactly() -> None:
    expected = json.loads((CASES / "C066/expected.json").read_text())
    found = read(CASES / "C066/bf16_f16_special.safetensors")
    for name in ("bf", "hf"):
        bits = [f"{b:08x}" for b in found[name].view(np.uint32)]
        assert bits == expected[f"{name}_as_f32_hex"]


def test_float64_is_rounded_once_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    values = np.array([1 / 3, 1e-50, -np.inf, np.nan])
    path.write_bytes(build({"d": tensor((4,), (0, 32), "F64")}, values.tobytes()))
    np.testing.assert_array_equal(read(path)["d"], values.astype(np.float32))
    path.write_bytes(build({"d": tensor((1,), (0, 8), "F64")}, np.array([-1e300]).tobytes()))
    with pytest.raises(ModelError, match=r"d: 1e\+300 does not fit float32"):
        read(path)


def test_skipped_tensors_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(build({"a": tensor(), "n": tensor((1,), (8, 16), "I64")}, bytes(16)))
    assert list(safetensors.read(path, lambda name: name == "n")) == ["a"]


def shard(folder: Path, name: str, *tensors: str) -> None:
    header = {t: tensor(offsets=(8 * i, 8 * i + 8)) for i, t in enumerate(tensors)}
    (folder / name).write_bytes(build(header, np.arange(2 * len(tensors), dtype="f4").tobytes()))


def index(folder: Path, weight_map: object) -> None:
    text = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def test_shards_are_joined_also_through_symlinks(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "x"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    shard(blobs, "0123", "a", "b")
    shard(blobs, "4567", "c")
    (snapshot / "one.safetensors").symlink_to("../../blobs/0123")
    (snapshot / "two.safetensors").symlink_to("../../blobs/4567")
    index(snapshot, {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"})
    tensors, _ = read_folder(snapshot)
    assert sorted(tensors) == ["a", "b", "c"]
    np.testing.assert_array_equal(tensors["b"], [2, 3])


@pytest.mark.parametrize("name", ["model_dotdot", "model_abs", "model_backslash"])
def test_shard_names_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(ModelError, match="plain name of a file"):
        read_folder(CASES / "C063" / name)


@pytest.mark.parametrize("name", ["", ".", "..", "sub/x", "/x", "a\\b", "c:x", "x\0", 5, None])
def test_odd_shard_names(name: object, tmp_path: Path) -> None:
    index(tmp_path, {"a": name})
    with pytest.raises(ModelError, match="plain name of a file"):
        read_folder(tmp_path)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    shard(tmp_path, "one.safetensors", "a", "b")
    for weight_map, reason in (
        ({"a": "one.safetensors"}, "also holds tensor b"),
        (
            {"a": "one.safetensors", "b": "one.safetensors", "c": "one.safetensors"},
            "lacks tensor c",
        ),
        ({"a": "one.safetensors", "b": "absent.safetensors"}, "also holds tensor b|No such file"),
        ([], "weight_map must be"),
        ({}, "weight_map must be"),
    ):
        index(tmp_path, weight_map)
        with pytest.raises(ModelError, match=reason):
            read_folder(tmp_path)


def test_a_folder_with_pickles_only_points_to_convert(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelError, match="hyena-cpu convert"):
        read_folder(tmp_path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    size = 1 << 20
    path.write_bytes(build({"a": tensor((size // 4,), (0, size))}, bytes(size)))

    def shrink(_: str) -> bool:
        os.truncate(path, size // 2)
        return False

    with pytest.raises(ModelError, match="tensor a: the file became shorter"):
        safetensors.read(path, shrink)
