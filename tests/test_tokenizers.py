"""Bytes, DNA letters and byte-level BPE: known ids, round trips, damaged files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyena_cpu.config import TokenizerConfig
from hyena_cpu.errors import InputError, ModelError
from hyena_cpu.tokenizers import Tokenizer, from_config, hf
from hyena_cpu.tokenizers.bytes import ByteTokenizer
from hyena_cpu.tokenizers.dna import DnaTokenizer, add_special
from hyena_cpu.tokenizers.hf import BpeTokenizer, byte_alphabet

CASES = Path(__file__).parent / "cases"
STYLES = ["<|tale|>", "<|end|>"]


@pytest.fixture(scope="session")
def bpe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 256 bytes, a few merges and two special tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=STYLES,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat and the hat and the été of the 日本"] * 9, trainer)
    tokenizer.enable_truncation(5)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session", params=["bytes", "hf"])
def lossless(request: pytest.FixtureRequest, bpe_file: Path) -> Tokenizer:
    return from_config(TokenizerConfig(request.param), bpe_file.parent)


def streamed(tokenizer: Tokenizer, ids: Any) -> str:
    stream = tokenizer.stream()
    pieces = [stream.push(int(token)) for token in ids]
    return "".join(pieces) + stream.finish()


@given(text=st.text(max_size=40))
def test_text_survives(lossless: Tokenizer, text: str) -> None:
    ids = lossless.encode(text)
    assert ids.dtype == np.int32
    assert lossless.decode(ids) == text
    assert streamed(lossless, ids) == text


@given(data=st.binary(max_size=40))
def test_any_bytes_survive(lossless: Tokenizer, data: bytes) -> None:
    ids = lossless.encode(data)
    assert lossless.decode_bytes(ids) == data
    assert streamed(lossless, ids) == lossless.decode(ids) == data.decode("utf-8", "replace")


@given(st.lists(st.integers(0, 257), max_size=20))
def test_any_ids_stream_as_they_decode(lossless: Tokenizer, ids: list[int]) -> None:
    known = [token % lossless.vocab_size for token in ids]
    assert streamed(lossless, known) == lossless.decode(known)


def test_prompt_file_streams_without_broken_characters(lossless: Tokenizer) -> None:
    data = (CASES / "C049/prompt_utf8.txt").read_bytes()
    stream = lossless.stream()
    pieces = [stream.push(int(token)) for token in lossless.encode(data)]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == data.decode()


def test_tags_and_spaces_of_a_prompt_are_kept(lossless: Tokenizer) -> None:
    data = (CASES / "C024/tag_prompt.txt").read_bytes()
    assert lossless.decode_bytes(lossless.encode(data)) == data


def test_lone_surrogates_are_refused(lossless: Tokenizer) -> None:
    with pytest.raises(InputError, match="surrogate at character 1"):
        lossless.encode("a\ud800")


@pytest.mark.parametrize("bad", [-1, 100_000])
@pytest.mark.parametrize("kind", ["bytes", "dna", "hf"])
def test_ids_without_text_are_refused(kind: Any, bad: int, bpe_file: Path) -> None:
    tokenizer = from_config(TokenizerConfig(kind), bpe_file.parent)
    with pytest.raises(InputError, match="no text for id"):
        tokenizer.decode([1, bad])


@pytest.mark.parametrize("wrong", [7, [[7]], [7.0], [True]])
@pytest.mark.parametrize("kind", ["bytes", "dna", "hf"])
def test_what_is_no_list_of_ids_is_refused(kind: Any, wrong: Any, bpe_file: Path) -> None:
    tokenizer = from_config(TokenizerConfig(kind), bpe_file.parent)
    assert tokenizer.decode([]) == ""
    with pytest.raises(InputError, match="decodes a list of ids, not "):
        tokenizer.decode(wrong)


def test_bytes_are_their_values() -> None:
    assert ByteTokenizer().encode("é\n").tolist() == [0xC3, 0xA9, 10]


def test_dna_ids_are_those_of_hyenadna() -> None:
    tokenizer = DnaTokenizer()
    # C012: exactly the letters, nothing added.
    ids = tokenizer.encode("AGCTACATTGGCC")
    assert ids.tolist() == [7, 9, 8, 10, 7, 8, 7, 10, 10, 9, 9, 8, 8]
    assert tokenizer.encode(b"ACGTN").tolist() == [7, 8, 9, 10, 11]
    assert tokenizer.encode("acgtn R?日\n").tolist() == [6] * 10
    names = "[CLS][SEP][BOS][MASK][PAD][RESERVED][UNK]"
    assert tokenizer.encode(f"A{names}A").tolist() == [7, 0, 1, 2, 3, 4, 5, 6, 7]
    assert tokenizer.encode("[CLS").tolist() == [6, 8, 6, 6]
    assert tokenizer.decode(range(12)) == names + "ACGTN"
    assert streamed(tokenizer, range(12)) == names + "ACGTN"
    assert tokenizer.encode("").tolist() == []


def test_dna_special_tokens_of_other_programs() -> None:
    ids = DnaTokenizer().encode("ACGTN")
    assert add_special(ids, "cls-sep").tolist() == [0, 7, 8, 9, 10, 11, 1]
    four = add_special(DnaTokenizer().encode("ACTG" * 4), "hf")
    assert (len(four), four.dtype, int(four[-1])) == (17, np.int32, 1)


def test_bpe_agrees_with_its_library(bpe_file: Path) -> None:
    from tokenizers import Tokenizer as Library

    library = Library.from_file(str(bpe_file))
    library.no_truncation()
    text = "the cat, the hat\n\n and 日本 of l'été"
    ours = BpeTokenizer(bpe_file)
    assert ours.encode(text).tolist() == library.encode(text, add_special_tokens=False).ids
    assert ours.vocab_size == library.get_vocab_size()
    assert len(ours.encode("the " * 50)) > 5  # the file's truncation must not cut a prompt


@given(st.text(st.sampled_from("ab'sé0.\n \t\r\u00a0\u3000<>|"), max_size=60))
def test_long_texts_are_cut_without_a_trace(bpe_file: Path, text: str) -> None:
    tokenizer = BpeTokenizer(bpe_file)
    whole = tokenizer.encode(text).tolist()
    with pytest.MonkeyPatch.context() as patch:
        for size in (1, 5):
            patch.setattr(hf, "PIECE", size)
            assert tokenizer.encode(text).tolist() == whole


def test_a_long_text_is_cut_where_that_changes_nothing(bpe_file: Path, tmp_path: Path) -> None:
    text, data = "one two\nthree " * 40_000, json.loads(bpe_file.read_text())
    assert len(list(BpeTokenizer(bpe_file)._pieces(text))) == 3
    other = tmp_path / "tokenizer.json"
    for name, value in (
        ("normalizer", {"type": "NFC"}),
        ("pre_tokenizer", data["pre_tokenizer"] | {"add_prefix_space": True}),
        ("pre_tokenizer", None),
    ):
        other.write_text(json.dumps(data | {name: value}))
        assert list(BpeTokenizer(other)._pieces(text)) == [text]


def test_bpe_special_tokens_are_their_names(bpe_file: Path) -> None:
    tokenizer = BpeTokenizer(bpe_file)
    ids = tokenizer.encode("<|tale|>the")
    assert (int(ids[0]), tokenizer.decode(ids)) == (0, "<|tale|>the")


def test_byte_alphabet_is_that_of_gpt2() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["a"], alphabet["Ġ"], alphabet["Ċ"], alphabet["ł"]) == (97, 32, 10, 160)


def vocabulary(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], str]:
    def damage(path: Path) -> str:
        data = json.loads(path.read_text())
        change(data)
        return json.dumps(data)

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], str | bytes], str]] = {
    "empty": (lambda _: "", "not valid JSON"),
    "cut": (lambda path: path.read_text()[:500], "not valid JSON"),
    "deep": (lambda _: "[" * 200_000, "not valid JSON"),
    "binary": (lambda _: b"\xff\xfe\x00", "UTF-8"),
    "list": (lambda _: "[]", "no `model`"),
    "no model": (vocabulary(lambda d: d.pop("model")), "no `model`"),
    "word pieces": (vocabulary(lambda d: d["model"].update(type="WordPiece")), "byte-level BPE"),
    "no decoder": (vocabulary(lambda d: d.update(decoder=None)), "byte-level BPE"),
    "bad merge": (vocabulary(lambda d: d["model"]["merges"].append(["zz", "q"])), "damaged"),
    "wide id": (vocabulary(lambda d: d["model"]["vocab"].update(zz=1 << 33)), "damaged"),
    "high id": (vocabulary(lambda d: d["model"]["vocab"].update(zz=1 << 31)), "above"),
    "id twice": (vocabulary(lambda d: d["model"]["vocab"].update(zz=40)), "two tokens"),
    "negative id": (vocabulary(lambda d: d["model"]["vocab"].update(zz=-1)), "damaged"),
    "no byte": (vocabulary(lambda d: d["model"]["vocab"].update({"日": 300})), "byte alphabet"),
    "no words": (
        vocabulary(lambda d: d.update(added_tokens=[], model={**EMPTY, "type": "BPE"})),
        "empty",
    ),
}
EMPTY: dict[str, Any] = {"vocab": {}, "merges": []}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_refused(name: str, bpe_file: Path, tmp_path: Path) -> None:
    damage, message = DAMAGE[name]
    content = damage(bpe_file)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelError, match=message) as caught:
        BpeTokenizer(path)
    assert str(path) in str(caught.value)


def test_a_file_that_finds_no_memory_is_not_called_damaged(
    bpe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        @staticmethod
        def from_str(_: str) -> None:
            raise MemoryError

    monkeypatch.setattr("tokenizers.Tokenizer", Full)
    with pytest.raises(MemoryError):
        BpeTokenizer(bpe_file)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="missing"):
        from_config(TokenizerConfig("hf"), tmp_path)


@pytest.mark.parametrize("name", ["../tokenizer.json", "/etc/passwd", "a\\b.json", "."])
def test_files_outside_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="file name in that folder"):
        from_config(TokenizerConfig("hf", name), tmp_path)


def test_more_ids_than_the_model_has_is_a_load_error(tmp_path: Path) -> None:
    assert from_config(TokenizerConfig("dna"), tmp_path, 12).vocab_size == 12
    with pytest.raises(ModelError, match="do not belong together"):
        from_config(TokenizerConfig("dna"), tmp_path, 11)
