"""decode: through tiles or by plain sums over everything before; the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_process import run_cli
from test_cli import assert_one_line
from test_contracts import close
from test_state import same_bits
from toy import CAUSAL, model, tokens

from hyena_cpu import InputError

CONVOLVING = ["order2", "order3", "order4_no_mlp", "finite_hybrid", "long_conv", "ssm_filters"]


@pytest.mark.parametrize("name", CONVOLVING)
def test_direct_sums_have_the_same_logits(name: str, tmp_path: Path) -> None:
    exact, direct = (model(CAUSAL[name], decode=decode) for decode in ("exact", "direct"))
    ids = tokens(200)
    whole = exact.logits(ids)
    states = [m.prefill(ids[:50]) for m in (exact, direct)]
    for t in range(50, 200):
        rows = [m.step(s, int(ids[t])) for m, s in zip((exact, direct), states, strict=True)]
        close(rows[0], whole[t])
        close(rows[1], whole[t])
    assert not np.array_equal(rows[0], rows[1])
    twin = states[1].fork()
    twin.rewind(150)
    same_bits(np.stack([direct.step(twin, int(t)) for t in ids[150:]])[-1], rows[1])
    for saved, other in zip(states, (direct, exact), strict=True):  # each by the other way
        saved.save(tmp_path / "s")
        close(other.step(other.load_state(tmp_path / "s"), 3), exact.step(states[0].fork(), 3))


def test_ways_of_decoding_that_cannot_act() -> None:
    with pytest.raises(InputError, match="decode 'quick' is not known; known: auto, exact, direct"):
        model(CAUSAL["order2"], decode="quick")
    for name in ("retnet", "blocked_attention", "h3", "order1"):
        for decode in ("exact", "direct"):
            with pytest.raises(InputError, match=f"decode '{decode}' cannot act: toy has no long"):
                model(CAUSAL[name], decode=decode)
    direct = model(CAUSAL["order2"], decode="direct")
    with pytest.raises(InputError, match="history='drop' cannot act"):
        direct.prefill(tokens(9), max_new_tokens=5, history="drop")


def test_direct_states_need_their_history(tmp_path: Path) -> None:
    m = model(CAUSAL["order2"])
    state = m.prefill(tokens(100), max_new_tokens=64, history="drop")
    state.save(tmp_path / "s")
    with pytest.raises(InputError, match="lacks the inputs before it, which decode 'direct' needs"):
        model(CAUSAL["order2"], decode="direct").load_state(tmp_path / "s")


def test_the_option_acts_or_is_refused() -> None:
    args = ("generate", "Once upon", "-n", "40", "--greedy", "-q")
    texts = [run_cli(*args, "--decode", decode).stdout for decode in ("auto", "exact", "direct")]
    assert texts[0] == texts[1] == texts[2] == run_cli(*args).stdout != b""
    refused = run_cli("generate", "-m", "tiny-recall/attention", "a", "--decode", "direct")
    assert_one_line(refused, 2, "--decode 'direct' cannot act: ")
