"""The generation loop on a model with a script: C011, C037, C047, C087, C103, S02-S04."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel

from hyena_cpu.errors import InputError, LimitError, ModelError, NumericError
from hyena_cpu.generate import Piece, TextStream, generate, samples, stream
from hyena_cpu.prompts import Options, prepare

EOS = 250


def says(text: str, prompt: str = "hi", **settings: Any) -> FakeModel:
    """A model that continues `prompt` with `text` and then its end token."""
    return FakeModel(script=text, prompt_length=len(prompt), eos=EOS, **settings)


def test_text_tokens_and_counts() -> None:
    result = generate(says("hello"), "hi", max_new_tokens=10)
    assert result.text == "hello"
    assert result.tokens == list(b"hello")
    assert (result.finish_reason, result.stop_text) == ("stop", None)
    assert (result.prompt_tokens, result.completion_tokens) == (2, 5)
    assert result.timings["prompt_n"] == 2
    assert result.timings["predicted_n"] == 5
    assert result.timings["predicted_per_second"] > 0


def test_length_ends_a_run() -> None:
    model = says("hello")
    result = generate(model, "hi", max_new_tokens=3)
    assert (result.text, result.finish_reason) == ("hel", "length")
    assert model.calls == ["prefill", "step", "step"]  # the last token is not fed


def test_pieces_join_to_the_text() -> None:
    pieces = list(stream(says("日本é"), "hi"))
    assert "".join(piece.text for piece in pieces) == "日本é"
    assert [piece.text for piece in pieces] == ["", "", "日", "", "", "本", "", "é"]
    assert [piece.token for piece in pieces] == list("日本é".encode())


def test_half_a_character_at_the_end_is_marked() -> None:
    result = generate(says("日"), "hi", max_new_tokens=2)
    assert result.text == "\ufffd"


def test_end_token_stops_at_once_and_is_not_printed() -> None:
    result = generate(says(""), "hi", max_new_tokens=5)
    assert (result.text, result.tokens, result.finish_reason) == ("", [], "stop")
    assert result.logprob_mean is None


def test_end_token_can_be_ignored() -> None:
    result = generate(says("a"), "hi", max_new_tokens=3, ignore_eos=True)
    assert result.tokens == [97, EOS, EOS]
    assert result.finish_reason == "length"


def test_stop_string_across_tokens_is_not_printed() -> None:
    model = says("one END two")
    pieces = list(stream(model, "hi", stop=["END"]))
    assert "".join(piece.text for piece in pieces) == "one "
    result = generate(model, "hi", stop=["two", "END"])
    assert (result.text, result.finish_reason, result.stop_text) == ("one ", "stop", "END")
    assert result.tokens == list(b"one END")


def test_near_miss_is_released_at_the_end_token() -> None:
    pieces = list(stream(says("one EN"), "hi", stop=["END"]))
    assert pieces[-1] == Piece(None, "EN", None)
    assert "".join(piece.text for piece in pieces) == "one EN"


def test_near_miss_is_released_at_the_length() -> None:
    result = generate(says("one END"), "hi", stop=["END"], max_new_tokens=6)
    assert (result.text, result.finish_reason) == ("one EN", "length")


def test_logprobs_are_those_of_the_emitted_tokens_under_the_bare_model() -> None:
    model = FakeModel()
    prompt = list(b"hi")
    run = stream(model, "hi", max_new_tokens=20, temperature=0.5, top_k=3, seed=4)
    pieces = list(run)
    whole = model.token_logprobs(np.array(prompt + run.tokens))
    np.testing.assert_allclose([p.logprob for p in pieces], whole[1:], rtol=1e-12)
    assert run.result().logprob_mean == pytest.approx(whole[1:].mean(), rel=1e-12)


def test_no_new_tokens_need_no_computing() -> None:
    model = says("hello")
    result = generate(model, "hi", max_new_tokens=0)
    assert (result.text, result.finish_reason, model.calls) == ("", "length", [])


def test_same_seed_same_text_and_the_seed_is_reported() -> None:
    model = FakeModel()
    first = generate(model, "hi", max_new_tokens=30, temperature=1.0)
    again = generate(model, "hi", max_new_tokens=30, temperature=1.0, seed=first.seed)
    other = generate(model, "hi", max_new_tokens=30, temperature=1.0, seed=first.seed ^ 1)
    assert first.tokens == again.tokens != other.tokens


def test_samples_share_the_prompt_and_do_not_depend_on_their_number() -> None:
    model = FakeModel()
    options = Options(max_new_tokens=20, temperature=1.0, seed=9)
    prompt = prepare(model, "hi", options)
    three = [list(run) and run.tokens for run in samples(model, prompt, options, 3)]
    assert model.calls.count("prefill") == 1
    assert len({tuple(tokens) for tokens in three}) == 3
    alone = generate(model, "hi", max_new_tokens=20, temperature=1.0, seed=9)
    assert alone.tokens == three[0]
    # Interleaved, every sample still has its own state.
    runs = list(samples(model, prompt, options, 3))
    for _ in range(20):
        for run in runs:
            next(run)
    assert [run.tokens for run in runs] == three


def test_the_models_defaults_apply_until_overridden() -> None:
    model = FakeModel(generation={"temperature": 1.5, "top_k": 7})
    run = stream(model, "hi", max_new_tokens=1)
    assert (run.params.temperature, run.params.top_k) == (1.5, 7)
    assert stream(model, "hi", greedy=True).params.greedy


def test_penalty_sees_the_prompt_and_what_was_written() -> None:
    model = FakeModel()
    row = np.linspace(5, 1, 264, dtype=np.float32)
    model._logits = lambda *_: row  # type: ignore[method-assign]
    assert generate(model, [0], max_new_tokens=3).tokens == [0, 0, 0]
    assert generate(model, [0], max_new_tokens=3, repetition_penalty=9).tokens == [1, 2, 3]
    windowed = generate(model, [0], max_new_tokens=4, repetition_penalty=9, repetition_last_n=2)
    assert windowed.tokens == [1, 2, 0, 1]


def test_tokens_without_text_are_never_drawn() -> None:
    model = FakeModel(vocab_size=300, logits_width=304)  # the byte tokenizer has 256
    result = generate(model, "hi", max_new_tokens=300, temperature=5.0, seed=1)
    assert max(result.tokens) < 256


def test_logits_that_are_not_finite_end_the_run() -> None:
    run = stream(FakeModel(poison=3), "hi", max_new_tokens=9)
    with pytest.raises(NumericError, match="position 4"):
        list(run)
    assert len(run.tokens) == 2


@pytest.mark.parametrize(
    ("length", "asked", "written"), [(9, 5, 1), (10, 5, 0), (5, 10, 5), (5, 3, 3)]
)
def test_the_context_ends_a_run(length: int, asked: int, written: int) -> None:
    result = generate(FakeModel(max_length=10), "x" * length, max_new_tokens=asked)
    assert (result.completion_tokens, result.finish_reason) == (written, "length")


def test_a_prompt_beyond_the_context_is_refused_before_computing() -> None:
    model = FakeModel(max_length=10)
    with pytest.raises(LimitError, match=r"11 tokens .* holds 10"):
        generate(model, "x" * 11)
    with pytest.raises(LimitError, match="holds 4"):
        generate(model, "x" * 5, ctx_size=4)
    with pytest.raises(LimitError, match="at most 10"):
        generate(model, "x", ctx_size=11)
    assert model.calls == []


def test_truncation_on_request_keeps_room_for_the_new_tokens() -> None:
    model = FakeModel(max_length=10, bos=1)
    left = prepare(model, "abcdefghijkl", Options(max_new_tokens=4, truncate="left"))
    assert (left.ids.tolist(), left.dropped, left.new_tokens) == (list(b"ghijkl"), 6, 4)
    right = prepare(model, "abcdefghijkl", Options(4, truncate="right", bos=True))
    assert (right.ids.tolist(), right.dropped) == ([1, *b"abcde"], 7)
    much = prepare(model, "abcdefghijkl", Options(max_new_tokens=128, truncate="left"))
    assert (much.ids.tolist(), much.new_tokens) == (list(b"l"), 9)


def test_an_empty_prompt_needs_a_begin_token() -> None:
    assert prepare(FakeModel(bos=3), "", Options()).ids.tolist() == [3]
    assert prepare(FakeModel(bos=3), "a", Options()).ids.tolist() == [97]
    for model, options in ((FakeModel(), Options()), (FakeModel(bos=3), Options(bos=False))):
        with pytest.raises(InputError, match="prompt is empty"):
            prepare(model, "", options)


def test_begin_and_style_tokens_stand_in_front() -> None:
    model = FakeModel(bos=3, styles={"tale": 5})
    assert prepare(model, "a", Options(bos=True, style="tale")).ids.tolist() == [3, 5, 97]
    assert prepare(model, "", Options(style="tale")).ids.tolist() == [5]
    with pytest.raises(InputError, match="no style 'ode'; it has: tale"):
        prepare(model, "a", Options(style="ode"))
    with pytest.raises(ModelError, match="no begin token"):
        prepare(FakeModel(), "a", Options(bos=True))


def test_prompts_may_be_bytes_or_token_ids() -> None:
    model = says("ok")
    ids = np.array([[104, 0], [105, 0]])[:, 0]  # a strided column
    texts = {generate(model, prompt).text for prompt in ("hi", b"hi", [104, 105], ids)}
    assert texts == {"ok"}
    for bad in ([1.5], [-1], [10_000]):
        with pytest.raises(InputError):
            generate(model, bad)


def test_a_model_without_tokenizer_takes_and_gives_ids() -> None:
    model = FakeModel(None)
    result = generate(model, [1, 2], max_new_tokens=4)
    assert (result.text, result.completion_tokens) == ("", 4)


@pytest.mark.parametrize(
    "options",
    [{"max_new_tokens": -1}, {"stop": "END"}, {"stop": [""]}, {"truncate": "up"}, {"ctx_size": 0}],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        generate(FakeModel(), "hi", **options)


def test_closing_early_counts_as_cancelled_and_loses_no_text() -> None:
    run = stream(says("one EN.."), "hi", stop=["END"])
    with run:
        for _ in range(6):
            next(run)
    assert run.text == "one EN"
    result = run.result()
    assert (result.finish_reason, result.completion_tokens) == ("cancelled", 6)
    with pytest.raises(StopIteration):
        next(run)


def test_an_interrupt_leaves_the_run_usable() -> None:
    model = says("hello")
    run: TextStream = stream(model, "hi")
    next(run)

    def interrupted(*_: object) -> np.ndarray:
        raise KeyboardInterrupt

    model.step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        next(run)
    result = run.result()
    assert (result.text, result.finish_reason) == ("h", "cancelled")


def test_numbers_of_numpy_do_not_wrap_around() -> None:
    options = {"max_new_tokens": np.uint8(200), "ctx_size": np.uint8(250)}
    got = generate(says("x" * 300), "hi", **options)
    assert (got.completion_tokens, got.finish_reason) == (200, "length")
    prompt = prepare(FakeModel(), "a" * 300, Options(**options, truncate="left"))  # type: ignore[arg-type]
    assert (len(prompt.ids), prompt.new_tokens) == (50, 200)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": [b"a"]}, "stop must be a list of strings"),
        ({"stop": b"a"}, "stop must be a list of strings"),
        ({"max_new_tokens": "3"}, "max_new_tokens is '3', must be a whole number"),
        ({"ctx_size": 1.5}, "ctx_size is 1.5, must be a whole number"),
    ],
)
def test_options_of_a_wrong_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Options(**options)
