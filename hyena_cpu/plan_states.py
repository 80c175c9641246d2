"""Bytes of what a layer remembers of a call's sequences, as the call goes on: see `planner`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import online_bytes
from .online import ahead_for
from .plan_call import Call
from .spectra import tile_bytes

if TYPE_CHECKING:
    from .mixers import Mixer
    from .network import Network
    from .online_taps import OnlineTaps


def prompt(mixer: Mixer, call: Call, length: int | None = None) -> int:
    """Of one sequence that has taken in a prompt and has not begun to step."""
    length = call.after if length is None else length
    alone = getattr(mixer, "prompt_bytes", None)
    if alone is not None and not call.before:
        return int(alone(length))
    with_steps = sum(online_bytes.state(one, length) for one in stepped(mixer))
    without = sum(online_bytes.history(one, length) for one in stepped(mixer))
    return mixer.state_bytes(length) - with_steps + without


def before(mixer: Mixer, call: Call) -> int:
    """Of all, when the call begins."""
    if call.dropped:
        return mixer.state_bytes(call.before, call.ahead) * call.states
    return prompt(mixer, call, call.before) * call.states if call.before else 0


def between(mixer: Mixer, call: Call) -> int:
    """Of all, while later layers work: room is made when all are done."""
    if call.steps or call.peek or call.ahead is not None:
        return after(mixer, call)
    return prompt(mixer, call) * call.states


def after(mixer: Mixer, call: Call) -> int:
    """Of all, when the call is done with them."""
    if call.peek:
        rows = ahead_for(call.new)
        sums = sum(tile_bytes(one.bank.groups, rows) for one in stepped(mixer))
        return before(mixer, call) + sums
    if call.ahead is not None:
        return mixer.state_bytes(call.after + call.room, call.ahead) * call.states
    held = _rows(mixer, call)
    if call.prepares:
        at = call.base, call.wanted, call.taken
        held += sum(online_bytes.steps(one, *at) for one in stepped(mixer))
    return held * call.states


def _rows(mixer: Mixer, call: Call) -> int:
    """Of one sequence, what it has taken in and will be, when the call is done with it."""
    length, convolutions = call.after + call.room, stepped(mixer)
    if not convolutions:
        held = prompt(mixer, call, length)
        # Made room in, a window lets go of what is out of sight.
        return min(held, mixer.state_bytes(length)) if call.prepares else held
    if all(one.plan(call.base, call.wanted).kind == "closed" for one in convolutions):
        return prompt(mixer, call, call.after)  # what steps take in is held by them
    held = prompt(mixer, call, length)
    # Convolutions may share the rows of a prompt, but not those that come one by one.
    grown = sum(online_bytes.history(one, length) for one in convolutions)
    grown -= sum(online_bytes.history(one, call.base) for one in convolutions)
    return held + max(0, grown - (held - prompt(mixer, call, call.base)))


def all_after(model: Network, call: Call) -> int:
    """The same, of every layer."""
    return sum(after(mixer, call) for mixer in mixers_of(model, call))


def own(mixer: Mixer, call: Call) -> int:
    """Of one sequence, what a fork has for itself: a prompt's rows, and what they add to what
    follows, it shares with the other.
    """
    one, taps = after(mixer, call) // call.states, stepped(mixer)
    shared = sum(online_bytes.future(each, call.base, call.wanted) for each in taps)
    if taps and call.ahead is None:
        shared += prompt(mixer, call, call.after) - prompt(mixer, call, 0)
    return one - min(shared, one)


def shared(mixer: Mixer, call: Call) -> int:
    """Of one sequence, rows that the convolutions of a layer share when all have taken them in."""
    rows = sum(online_bytes.history(one, call.after) for one in stepped(mixer))
    return max(0, rows - prompt(mixer, call))


def stepped(mixer: Mixer) -> list[OnlineTaps]:
    """The convolutions by which its sequences go on."""
    return [one for one in mixer.taps if one.stepped]


def mixers_of(model: Network, call: Call) -> list[Mixer]:
    """Those that the call goes through."""
    return [block.mixer for block in model.blocks[: call.depth]]


def taps_of(model: Network, depth: int | None = None) -> list[OnlineTaps]:
    """Every long convolution, of the first `depth` blocks (None: of all)."""
    return [one for block in model.blocks[:depth] for one in block.mixer.taps]
