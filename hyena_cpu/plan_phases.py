"""The phases of one call, and what each of them holds: see `planner`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import pooling
from .online import ahead_for, goes_by_steps
from .spectra import SCRATCH_KEPT, tile_bytes

BLOCK_TOKENS = 132  # of a block that a thread is working on (csrc/tokenwise.cpp, csrc/linear.cpp)
THREAD_BYTES = 1 << 20  # beside such a block: copied rows, sums, a stack
HEAD_ROWS = 256  # rows of logits made at a time where not all of them are wanted
LOGPROB_BYTES = 4 + 3 * 8  # a logit, and what its float64 softmax holds of it

if TYPE_CHECKING:
    from .mixers import Mixer
    from .network import Network
    from .online_taps import OnlineTaps

Rows = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Call:
    """One call: `batch` sequences that stand at `before`, take in `new` tokens each, and make room
    for `room` further ones. ahead: for so many at most, their history dropped; dropped: long ago.
    peek: all of them continue one state, which stays as it is. copies: forks of each state, later.
    depth: it ends after so many blocks.
    """

    before: int
    new: int
    room: int
    batch: int
    state: bool
    ahead: int | None
    peek: bool
    dropped: bool = False
    copies: int = 0
    depth: int | None = None

    @property
    def states(self) -> int:
        """States in memory."""
        return 0 if not self.state else 1 if self.peek else self.batch

    @property
    def base(self) -> int:
        """Where steps begin."""
        return self.before if self.steps else self.after

    @property
    def prepares(self) -> bool:
        """Whether it leaves states that are prepared for steps."""
        return self.state and (self.room > 0 or self.steps or self.ahead is not None)

    @property
    def wanted(self) -> int | None:
        """Steps to prepare for; None: unknown."""
        return self.ahead if self.ahead is not None else self.room or None

    @property
    def after(self) -> int:
        """Tokens of a sequence when the call is done."""
        return self.before + self.new

    @property
    def tokens(self) -> int:
        """Tokens taken in, of all sequences."""
        return self.new * self.batch

    @property
    def steps(self) -> bool:
        """Whether its tokens are taken in one by one."""
        by_steps = self.dropped or goes_by_steps(self.before, self.new)
        return self.state and not self.peek and by_steps


def layers(model: Network, call: Call) -> Iterator[Rows]:
    """What is held while each layer mixes, the residual stream apart."""
    if model.config.positions is not None:
        yield (("embedded positions", 4 * model.config.d_model * call.tokens),)
    done, todo = 0, sum(_state_before(mixer, call) for mixer in _mixers(model, call))
    for mixer in _mixers(model, call):
        own = _state_before(mixer, call)
        todo -= own
        alone, kept = call.batch == 1, call.state and not call.peek
        buffers = mixer.buffers(call.tokens, alone=alone, kept=kept)
        if call.steps:
            own = max(own, _state_after(mixer, call))
            yield (*buffers, ("state", done + todo + own))
        else:
            own = own if call.peek else _prompt(mixer, call) * call.states
            state = ("state", done + todo + own)
            yield (*buffers, *_convolving(model, mixer, call), state)
        done += _state_between(mixer, call)


def _convolving(model: Network, mixer: Mixer, call: Call) -> Rows:
    """What convolutions through transforms take beside their inputs and outputs."""
    calls, taps = [(call.new, call.after)], mixer.taps
    if call.before:  # sequences go on without a convolution where they do so by a recurrence
        taps = _stepped(mixer)
    if call.peek:  # by themselves, and what the history adds to them
        ahead = ahead_for(call.new)
        calls = [(call.new, call.new), (ahead, call.before + ahead)]
    sizes = [one.bank.bytes_for(*c, model.threads)[1] for one in taps for c in calls]
    making = max(sizes, default=0)
    if not mixer.taps:  # kernels keep what they worked in for other layers
        idle = [one.bank.idle_bytes(call.new, call.after, model.threads) for one in taps_of(model)]
        making = max(idle, default=0)
    if not call.before:
        return (("filter in the making", making),)
    # A chunk is joined with what came before it.
    new = ahead_for(call.new) if call.peek else call.new
    rows = max((one.history_bytes(call.before) for one in taps), default=0)
    chunk = max((tile_bytes(one.bank.groups, new) for one in taps), default=0)
    joined = (2 * chunk + rows) if call.peek else chunk
    return (("filter in the making", max(making, 2 * rows)), ("history and chunk", joined))


def head(model: Network, call: Call, logits_rows: int, hidden_rows: int, scored: bool) -> Rows:
    """What is held while rows become logits or are handed out, the residual stream apart."""
    width, rows = model.config.d_model, min(call.tokens, HEAD_ROWS)
    blocks = min(call.tokens, pooling.BLOCK_ROWS)
    normed = max(min(logits_rows, call.tokens), 2 * rows if scored else 0, 4 * blocks)
    return (
        ("normalised rows", 4 * width * normed),
        ("hidden states", 4 * width * hidden_rows),
        ("logits", 4 * model.config.logits_width * logits_rows),
        ("log-probabilities", LOGPROB_BYTES * model.config.logits_width * rows if scored else 0),
        ("state", _states_after(model, call)),
    )


def preparations(model: Network, call: Call) -> Iterator[Rows]:
    """What is held while steps are prepared for, one layer at a time."""
    if not call.prepares or call.dropped:
        return
    states = _states_after(model, call)
    if call.ahead is None:
        yield ("what the history adds", _starting(model, taps_of(model), call)), ("state", states)
        return
    residual = ("residual stream", 4 * model.config.d_model * call.tokens)
    for mixer in _mixers(model, call):  # as soon as the layer is done
        buffers = mixer.buffers(call.tokens, alone=True, kept=True)
        adds = ("what the history adds", _starting(model, mixer.taps, call))
        yield residual, *buffers, adds, ("state", states + _prompt(mixer, call))


def loaded(model: Network, call: Call) -> Rows:
    """What is held when states that such a call leaves have come from a file."""
    return (("state", _states_after(model, call)),)


def copied(model: Network, call: Call) -> Rows:
    """What is held when the call is done and its states have been forked."""
    if call.copies == 0:
        return ()
    mixers, taps = _mixers(model, call), taps_of(model)
    idle = max(
        (one.bank.idle_bytes(call.new, call.after, model.threads) for one in taps), default=0
    )
    if call.prepares:
        at = call.base, call.wanted, model.threads
        idle += max((one.filling_bytes(*at) for one in taps if one.stepped), default=0)
    return (
        ("kept by kernels", min(SCRATCH_KEPT, idle)),
        ("state", _states_after(model, call)),
        ("copies of it", call.copies * call.states * sum(_own(mixer, call) for mixer in mixers)),
    )


def _own(mixer: Mixer, call: Call) -> int:
    """Bytes of a layer's state that a fork of it has for itself: it shares a prompt's rows, and
    what they add to what follows, with the other.
    """
    one, stepped = _state_after(mixer, call) // call.states, _stepped(mixer)
    shared = sum(taps.future_bytes(call.base, call.wanted) for taps in stepped)
    if stepped and call.ahead is None:
        shared += _prompt(mixer, call, call.after) - _prompt(mixer, call, 0)
    return one - min(shared, one)


def _starting(model: Network, taps: list[OnlineTaps], call: Call) -> int:
    """Bytes that pass by when steps begin."""
    passing = [
        one.starting_bytes(call.base, call.wanted, model.threads) for one in taps if one.stepped
    ]
    return max(passing, default=0)


def _prompt(mixer: Mixer, call: Call, length: int | None = None) -> int:
    """Bytes of a state that has taken in a prompt and has not begun to step."""
    length = call.after if length is None else length
    own = getattr(mixer, "prompt_bytes", None)
    if own is not None and not call.before:
        return int(own(length))
    steps = sum(one.state_bytes(length) - one.history_bytes(length) for one in _stepped(mixer))
    return mixer.state_bytes(length) - steps


def _state_before(mixer: Mixer, call: Call) -> int:
    if call.dropped:
        return mixer.state_bytes(call.before, call.ahead) * call.states
    return _prompt(mixer, call, call.before) * call.states if call.before else 0


def _state_between(mixer: Mixer, call: Call) -> int:
    """Bytes of the layer's states while later layers work: room is made when all are done."""
    if call.steps or call.peek or call.ahead is not None:
        return _state_after(mixer, call)
    return _prompt(mixer, call) * call.states


def _state_after(mixer: Mixer, call: Call) -> int:
    """Bytes of the layer's states when the call is done with them."""
    if call.peek:
        rows = ahead_for(call.new)
        sums = sum(tile_bytes(one.bank.groups, rows) for one in _stepped(mixer))
        return _state_before(mixer, call) + sums
    length = call.after + call.room
    if call.ahead is not None:
        return mixer.state_bytes(length, call.ahead) * call.states
    plans = [one.plan(call.base, call.wanted) for one in _stepped(mixer)]
    if plans and all(plan.kind == "closed" for plan in plans):
        length = call.after  # what steps take in is held by them
    held = _prompt(mixer, call, length)
    if call.prepares:
        if not plans:  # made room in, a window lets go of what is out of sight
            held = min(held, mixer.state_bytes(length))
        held += sum(_steps(one, call) for one in _stepped(mixer))
    return held * call.states


def _states_after(model: Network, call: Call) -> int:
    """The same of all layers."""
    return sum(_state_after(mixer, call) for mixer in _mixers(model, call))


def _steps(taps: OnlineTaps, call: Call) -> int:
    """Bytes of a convolution's steps."""
    return taps.steps_bytes(call.base, call.wanted, _taken(call))


def _taken(call: Call) -> int:
    """Steps of the call and those that it makes room for; at least the first one is prepared."""
    return max(1, call.after + call.room - call.base)


def networks(model: Network, call: Call) -> int:
    """Bytes of the small networks of implicit filters, which are kept."""
    banks = {id(one.bank.source): one.bank for one in taps_of(model, call.depth)}.values()
    return sum(bank.network_bytes(call.after)[0] for bank in banks)


def step_filters(model: Network, call: Call) -> int:
    """Bytes of the filters as steps need them, which all sequences share."""
    if not call.prepares:
        return 0
    steps = _taken(call)
    stepped = (one for one in taps_of(model, call.depth) if one.stepped)
    return sum(one.filter_bytes(call.base, call.wanted, steps) for one in stepped)


def kept_spectra(model: Network, call: Call) -> int:
    """Bytes of transforms of filters, those of earlier calls included."""
    cache = model.convolutions.cache
    if call.steps:
        return cache.nbytes
    taps = taps_of(model, call.depth)
    new = sum(one.bank.bytes_for(call.new, call.after, model.threads)[0] for one in taps)
    return min(cache.nbytes + new, cache.budget)


def work(model: Network) -> int:
    """Bytes of the blocks of tokens that a thread is working on."""
    config = model.config
    mlps = [(one.mlp.width, one.mlp.kind) for one in config.layers if one.mlp is not None]
    wide = max((width * (3 if kind == "swiglu" else 2) for width, kind in mlps), default=0)
    return THREAD_BYTES + 4 * BLOCK_TOKENS * (config.d_model + max(wide, 4 * config.d_model))


def _stepped(mixer: Mixer) -> list[OnlineTaps]:
    """The convolutions by which its sequences go on."""
    return [one for one in mixer.taps if one.stepped]


def _mixers(model: Network, call: Call) -> list[Mixer]:
    """Those that the call goes through."""
    return [block.mixer for block in model.blocks[: call.depth]]


def taps_of(model: Network, depth: int | None = None) -> list[OnlineTaps]:
    """Every long convolution, of the first `depth` blocks (None: of all)."""
    return [one for block in model.blocks[:depth] for one in block.mixer.taps]
