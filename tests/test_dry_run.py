"""A dry run makes the calls of a run, plans them, and computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from toy import BIDIRECTIONAL, causal, model, tokens

from hyena_cpu import planner
from hyena_cpu.blocks import Block
from hyena_cpu.dry_run import DryRun
from hyena_cpu.errors import InputError, LimitError, ModelError
from hyena_cpu.linear import Linear
from hyena_cpu.model import Model
from hyena_cpu.network import Network

LONG = 3000
MODELS = causal(LONG)
# They use a transform several times in one call, so it may be kept a call earlier.
SEVERAL_USES = ("long_conv", "h3_conv", "h3_heads")


def each(m: Model) -> None:
    """Sequences together, of several transform sizes."""
    for _ in range(2):
        m.token_logprobs_each([tokens(n) for n in (300, 200, 1, LONG, 1500, 1500, 300)])


def one_by_one(m: Model) -> None:
    for n in (700, LONG, 700, 2100, LONG, 30):
        m.token_logprobs(tokens(n))
        for _, rows in m.logprob_blocks(tokens(n)):
            assert rows.shape == (min(n, len(rows)), m.logits_width)


def branching(m: Model) -> None:
    """And a larger call, which tells what they have left."""
    trunk = tokens(2000)
    for prefix in (64, 900, 900, 1300):
        rest = 2000 - prefix
        ends = [tokens(n, n) for n in (rest, rest, rest // 2, 1)]
        found = m.token_logprobs_branching(trunk, ends, prefix)
        assert [len(one) for one in found] == [1999, *map(len, ends)]
    m.token_logprobs_each([tokens(LONG)] * 4)


def one_branch(m: Model) -> None:
    """As long as the trunk, nearly: its transforms are used for both."""
    m.token_logprobs_branching(tokens(2000), [tokens(1999)], 1)
    m.token_logprobs_each([tokens(LONG)] * 4)


def vectors(m: Model) -> None:
    m.embed([tokens(n) for n in (LONG, 900, 900)], layer=0)
    m.embed([tokens(n) for n in (LONG, 900)], layer=-1, pool=None)
    m.embed([tokens(LONG)])


JOBS: list[Callable[[Model], None]] = [each, one_by_one, branching, one_branch, vectors]


@contextmanager
def checked() -> Iterator[list[planner.Plan]]:
    """Plans of all calls that models compute, as they check them, dry runs apart."""
    plans: list[planner.Plan] = []
    last: list[planner.Plan] = []
    check, rows = Network.check_length, Network._rows

    def noted(self: Network, length: int, batch: int = 1, **what: Any) -> None:
        last[:] = [planner.plan(self, length, batch, **({"state": False} | what))]
        check(self, length, batch, **what)

    def computed(self: Network, *args: Any, **what: Any) -> Any:
        plans.extend(last)
        return rows(self, *args, **what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "check_length", noted)
        patch.setattr(Network, "_rows", computed)
        yield plans


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("name", MODELS)
def test_its_plan_is_the_largest_that_the_run_checks(
    name: str, job: Callable[[Model], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transforms that earlier calls have left are counted, whether or not they are small."""
    monkeypatch.setattr("hyena_cpu.spectra_cache.SMALL_SHARE", 1 << 14)
    with checked() as plans:
        job(model(MODELS[name]))
    with DryRun(model(MODELS[name])) as dry:
        job(dry)
    want = max(plans, key=lambda plan: plan.total)
    if name in SEVERAL_USES:
        assert dry.largest.needed in [plan.needed for plan in plans]
        assert dry.largest.total <= want.total <= dry.largest.total + (2 << 20)
    else:
        assert dry.largest == want


def test_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model(MODELS["order2"])

    def computed(*_: object, **__: object) -> None:
        raise AssertionError("a dry run has computed")

    monkeypatch.setattr(Block, "extend", computed)
    monkeypatch.setattr(Linear, "__call__", computed)
    with DryRun(m) as dry:
        for job in JOBS:
            job(dry)
    assert dry.largest.total > 0


def test_the_model_is_as_before() -> None:
    """Places that were held for transforms are never taken for transforms."""
    m, fresh = model(MODELS["order2"]), model(MODELS["order2"])
    with DryRun(m) as dry:
        for _ in range(3):
            assert not dry.token_logprobs(tokens(LONG)).any()
        assert m.convolutions.cache.nbytes > 0
    assert m.convolutions.cache.nbytes == 0
    want = fresh.token_logprobs(tokens(LONG))
    for _ in range(3):
        assert np.array_equal(m.token_logprobs(tokens(LONG)), want)
    assert dry.largest.needed == planner.plan(fresh, LONG, state=False).needed


def test_what_the_run_refuses_is_refused() -> None:
    config = MODELS["order2"]
    needed = planner.plan(model(config), LONG, state=False).needed
    with DryRun(model(config, max_memory=needed)) as dry:
        dry.token_logprobs(tokens(LONG))
        assert dry.largest.total == needed
        with pytest.raises(LimitError, match=f"takes at most {LONG}"):
            dry.token_logprobs(tokens(LONG + 1))
        with pytest.raises(InputError, match="do not fit a trunk"):
            dry.token_logprobs_branching(tokens(9), [tokens(9)], 3)
    with DryRun(model(config, max_memory=needed - 1)) as dry:
        with pytest.raises(LimitError, match=r"needs about .* but max-memory is"):
            dry.token_logprobs(tokens(LONG))
        assert dry.largest.rows == ()  # a call that is not made takes nothing
        dry.token_logprobs_each([tokens(100)] * 3)
        assert 0 < dry.largest.total < needed


def test_layers_that_read_the_whole_sequence() -> None:
    m = model(BIDIRECTIONAL)
    with DryRun(m) as dry:
        dry.hidden(tokens(300))
        with pytest.raises(ModelError, match="reads the whole sequence at once"):
            dry.token_logprobs_branching(tokens(9), [tokens(2)], 3)
    assert dry.largest.needed == planner.plan(m, 300, state=False, hidden_rows=300).needed
