"""The phases of one call, and what each of them holds: see `planner`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import online_bytes, plan_states, pooling
from .online import ahead_for
from .online_taps import ROW
from .plan_call import Call
from .plan_states import mixers_of, stepped, taps_of
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


def layers(model: Network, call: Call) -> Iterator[Rows]:
    """What is held while each layer mixes, the residual stream apart."""
    steps = _steps_so_far(model, call)
    if model.config.positions is not None:
        yield *steps, ("embedded positions", 4 * model.config.d_model * call.tokens)
    mixers = mixers_of(model, call)
    befores = [plan_states.before(mixer, call) for mixer in mixers]
    done, todo = 0, sum(befores)
    for mixer, own in zip(mixers, befores, strict=True):
        todo -= own
        alone, kept = call.batch == 1, call.state and not call.peek
        buffers = mixer.buffers(call.tokens, alone=alone, kept=kept)
        between = plan_states.between(mixer, call)
        if call.steps:
            yield (*buffers, *steps, ("state", done + todo + max(own, between)))
        else:
            held = own if call.peek else plan_states.prompt(mixer, call) * call.states
            state = ("state", done + todo + held)
            yield (*buffers, *_convolving(model, mixer, call), *steps, state)
        done += between


def _convolving(model: Network, mixer: Mixer, call: Call) -> Rows:
    """What convolutions through transforms take beside their inputs and outputs."""
    calls, taps = [(call.new, call.after)], mixer.taps
    if call.before:  # sequences go on without a convolution where they do so by a recurrence
        taps = stepped(mixer)
    if call.peek:  # by themselves, and what the history adds to them
        ahead = ahead_for(call.new)
        calls = [(call.new, call.new), (ahead, call.before + ahead)]
    sizes = [one.bank.bytes_for(*c, model.threads)[1] for one in taps for c in calls]
    making = max(sizes, default=0)
    if not mixer.taps:  # kernels keep what they worked in for other layers
        making = _idle(model, call.new, call.after)
    if not call.before:
        return (("filter in the making", making),)
    # A chunk is joined with what came before it.
    new = ahead_for(call.new) if call.peek else call.new
    rows = max((online_bytes.history(one, call.before) for one in taps), default=0)
    chunk = max((tile_bytes(one.bank.groups, new) for one in taps), default=0)
    joined = (2 * chunk + rows) if call.peek else chunk + plan_states.shared(mixer, call)
    return (("filter in the making", max(making, 2 * rows)), ("history and chunk", joined))


def head(
    model: Network, call: Call, states: int, logits_rows: int, hidden_rows: int, scored: bool
) -> Rows:
    """What is held while rows become logits or are handed out, the residual stream apart.

    states, here and below: `plan_states.all_after`.
    """
    width, rows = model.config.d_model, min(call.tokens, HEAD_ROWS)
    blocks = min(call.tokens, pooling.BLOCK_ROWS)
    normed = max(min(logits_rows, call.tokens), 2 * rows if scored else 0, 4 * blocks)
    return (
        ("normalised rows", 4 * width * normed),
        ("hidden states", 4 * width * hidden_rows),
        ("logits", 4 * model.config.logits_width * logits_rows),
        ("log-probabilities", LOGPROB_BYTES * model.config.logits_width * rows if scored else 0),
        *_steps_so_far(model, call),
        ("state", states),
    )


def preparations(model: Network, call: Call, states: int) -> Iterator[Rows]:
    """What is held while steps are prepared for, one layer at a time."""
    if not call.prepares or call.dropped:
        return
    filters = step_filters(model, call, 1)
    if call.ahead is None:
        adds = ("what the history adds", _starting(model, taps_of(model), call))
        yield _kept(model, call), adds, filters, ("state", states)
        return
    residual = ("residual stream", 4 * model.config.d_model * call.tokens)
    for mixer in mixers_of(model, call):  # as soon as the layer is done
        buffers = mixer.buffers(call.tokens, alone=True, kept=True)
        adds = ("what the history adds", _starting(model, mixer.taps, call))
        yield residual, *buffers, adds, filters, ("state", states + plan_states.prompt(mixer, call))


def stepped_on(model: Network, call: Call, states: int) -> Rows:
    """What is held when all the steps that a call has prepared for have been taken, by the states
    and by forks of them.
    """
    at = call.base, call.wanted, model.threads
    each = [one for one in taps_of(model) if one.stepped and call.prepares]
    filling = max((online_bytes.filling(one, *at) for one in each), default=0)
    rows = _kept(model, call, filling), *loaded(model, call, states)
    if call.copies == 0:
        return rows
    own = sum(plan_states.own(mixer, call) for mixer in mixers_of(model, call))
    return *rows, ("copies of it", call.copies * call.states * own)


def loaded(model: Network, call: Call, states: int) -> Rows:
    """The same, of states that have come from a file."""
    return step_filters(model, call, call.taken), ("state", states)


def _kept(model: Network, call: Call, more: int = 0) -> tuple[str, int]:
    """What kernels keep of what they worked in, `more` of it at another place of the call."""
    idle = _before(model, call) if call.steps else _idle(model, call.new, call.after)
    return "kept by kernels", min(SCRATCH_KEPT, idle + more)


def _before(model: Network, call: Call) -> int:
    """Bytes that a prompt, if there was one, has left with kernels."""
    length = min(call.before, SCRATCH_KEPT // ROW)  # a longer one does not leave more
    return _idle(model, length, length) if length else 0


def _idle(model: Network, new: int, end: int) -> int:
    """Bytes that a chunk of so many tokens leaves with kernels."""
    each = (one.bank.idle_bytes(new, end, model.threads) for one in taps_of(model))
    return max(each, default=0)


def _starting(model: Network, taps: list[OnlineTaps], call: Call) -> int:
    """Bytes that pass by when steps begin."""
    at = call.base, call.wanted, model.threads
    return max((online_bytes.starting(one, *at) for one in taps if one.stepped), default=0)


def networks(model: Network, call: Call, *, read: bool) -> int:
    """Bytes of the small networks of implicit filters, which are kept; read: states that are made
    from a file need what steps know of them.
    """
    made: dict[int, int] = {}
    for one in taps_of(model, call.depth):
        length = call.after
        if read:
            length = online_bytes.known(one, call.base, call.wanted, call.taken)
        made[id(one.bank.source)] = one.bank.network_bytes(length)[0]
    return sum(made.values())


def step_filters(model: Network, call: Call, taken: int) -> tuple[str, int]:
    """Filters as steps need them, which all sequences share, after so many of them."""
    each = [one for one in taps_of(model, call.depth) if one.stepped]
    # Of steps before this call, if there were any.
    sizes = [one.nbytes if call.before and not call.peek else 0 for one in each]
    if call.prepares:
        at = call.base, call.wanted, taken
        sizes = [
            max(size, online_bytes.filters(one, *at)) for size, one in zip(sizes, each, strict=True)
        ]
    return "filters for steps", sum(sizes)


def _steps_so_far(model: Network, call: Call) -> Rows:
    """What there is for steps while tokens are taken in."""
    name, size = step_filters(model, call, call.taken if call.before else 1)
    filters = name, size if call.before or call.ahead is not None else 0
    if call.steps or not call.held:
        return (filters,)
    # A layer lets go of its steps when a chunk gets there, but large arrays do not fit in there.
    return filters, ("steps before", call.held), ("kept by kernels", _before(model, call))


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
