"""State spaces: worked numbers, filters and recurrences against each other, kernels, states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import over_threads, rel_l2
from toy import CAUSAL, layer, model, tokens, weights

from hyena_cpu import InputError, planner, state_file
from hyena_cpu import kernels as the_kernels
from hyena_cpu.config import FilterConfig
from hyena_cpu.config_ssm import H3Config, S4DConfig
from hyena_cpu.filters import ModalFilter, build_filter
from hyena_cpu.modal_state import ModalState
from hyena_cpu.reference import filters as reference_filters
from hyena_cpu.reference import model as reference_model
from hyena_cpu.reference import ssm as reference
from hyena_cpu.scan_state import MARK_STEP as MARK
from hyena_cpu.ssm import diagonal_modes, shift_taps

PAIR = {  # one mode of one channel
    "B": np.array([[[1.0, 0.0]]]),
    "C": np.array([[[1.0, 0.5]]]),
    "log_decay": np.log([[0.5]]),
    "frequency": np.array([[np.pi]]),
    "log_dt": np.log([0.1]),
}
PAIR_TAPS = [0.17603665, 0.12318270, 0.06365134, 0.00366603, -0.05108580]
SHIFT = {"B": np.array([[1, 0.5, 0]]), "C": np.array([[0.3, -0.2, 0.4]])}


def diagonal(channels: int, modes: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Parameters as training begins with: S4D-Lin, steps from 0.001 to 0.1."""
    found = {
        "B": rng.standard_normal((channels, modes, 2)) * 0.1 + [1.0, 0.0],
        "C": rng.standard_normal((channels, modes, 2)),
        "log_decay": np.log(0.5) + 0.05 * rng.standard_normal((channels, modes)),
        "frequency": np.pi * np.arange(modes) + 0.05 * rng.standard_normal((channels, modes)),
        "log_dt": rng.uniform(np.log(1e-3), np.log(1e-1), channels),
    }
    return {name: value.astype(np.float32) for name, value in found.items()}


# ---- worked numbers


def test_diagonal_worked_example() -> None:
    taps = reference.diagonal_taps(PAIR, "bilinear", 5)
    np.testing.assert_allclose(taps[0], PAIR_TAPS, atol=1e-8)
    config = FilterConfig("ssm_diag", 5, modes=1)
    single = {name: value.astype(np.float32) for name, value in PAIR.items()}
    got = build_filter(config, single, 1).block(0, 1, 0, 6)
    np.testing.assert_allclose(got[0], [*PAIR_TAPS, 0], atol=1e-7)


def test_shift_worked_example() -> None:
    np.testing.assert_allclose(reference.shift_taps(SHIFT), [[0.2, 0, 0.4]], atol=1e-15)
    single = {name: value.astype(np.float32) for name, value in SHIFT.items()}
    got = build_filter(FilterConfig("shift", 3), single, 1).block(0, 1, 0, 5)
    np.testing.assert_allclose(got, [[0.2, 0, 0.4, 0, 0]], atol=1e-7)


def test_discretizations_of_one_mode() -> None:
    """x' = -x + u from 0, u = 1: zero-order hold is exact, 1 - e^-t; bilinear is so to dt^3."""
    one = np.ones((1, 1))
    plain = {"B": np.array([[[1.0, 0.0]]]), "C": np.array([[[0.5, 0.0]]]), "log_decay": 0 * one}
    plain |= {"frequency": 0 * one, "log_dt": np.log([0.1])}
    held = reference.diagonal_taps(plain, "zoh", 8)[0].cumsum()
    np.testing.assert_allclose(held, 1 - np.exp(-0.1 * np.arange(1, 9)), atol=1e-12)
    poles, residues = diagonal_modes(plain, "zoh")
    np.testing.assert_allclose(poles, [[np.exp(-0.1)]], atol=1e-15)
    np.testing.assert_allclose(residues, [[1 - np.exp(-0.1)]], atol=1e-15)
    poles, residues = diagonal_modes(plain, "bilinear")
    np.testing.assert_allclose(poles, [[0.95 / 1.05]], atol=1e-15)
    np.testing.assert_allclose(residues, [[0.1 / 1.05]], atol=1e-15)


# ---- filters and recurrences


@pytest.mark.parametrize("discretization", ["bilinear", "zoh"])
def test_taps_and_recurrence_are_the_same_convolution(
    discretization: str, rng: np.random.Generator
) -> None:
    t, u = diagonal(3, 5, rng), rng.standard_normal((200, 3))
    taps = reference.diagonal_taps(t, discretization, 200)
    got = reference.diagonal_recurrence(t, discretization, u)
    np.testing.assert_allclose(got, reference_model.causal_conv(taps, u), atol=1e-12)


def test_shift_taps_and_recurrence_are_the_same_convolution(rng: np.random.Generator) -> None:
    t = {name: rng.standard_normal((3, 7)) for name in "BC"}
    u = rng.standard_normal((30, 3))
    taps = reference.shift_taps(t)
    got = reference.shift_recurrence(t, u)
    np.testing.assert_allclose(got, reference_model.causal_conv(taps, u), atol=1e-13)
    np.testing.assert_allclose(shift_taps(t), taps, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["h3", "h3_heads"])
def test_both_forms_of_a_layer_agree(name: str, rng: np.random.Generator) -> None:
    config, tensors = CAUSAL[name], weights(CAUSAL[name]).tensors
    mixer = config.layers[0].mixer
    assert isinstance(mixer, H3Config)
    wide = {n: a.astype(np.float64) for n, a in tensors.items()}
    t = reference_model.under(wide, "layers.0.mixer.")
    x = rng.standard_normal((60, config.d_model))
    q, k, v = (reference_model.linear(t, f"{part}_proj", x) for part in "qkv")
    stepped = reference_model.linear(t, "out_proj", reference.h3(mixer, t, q, k, v))
    np.testing.assert_allclose(stepped, reference_model.h3(mixer, t, x), atol=1e-11)


def test_both_forms_of_s4d_agree(rng: np.random.Generator) -> None:
    mixer = S4DConfig(6)
    t: dict[str, Any] = {f"filter.{n}": a for n, a in diagonal(4, 3, rng).items()}
    t |= {"skip": rng.standard_normal(4), "out_proj.weight": rng.standard_normal((4, 4))}
    x = rng.standard_normal((80, 4))
    y = reference.diagonal_recurrence(reference_model.under(t, "filter."), "zoh", x) + t["skip"] * x
    stepped = reference_model.linear(t, "out_proj", reference_model.gelu_erf(y))
    np.testing.assert_allclose(stepped, reference_model.s4d(mixer, t, x), atol=1e-12)


def test_taps_far_away(rng: np.random.Generator) -> None:
    """Powers of an order of a million are as good as the poles."""
    t = diagonal(2, 3, rng)
    t["log_decay"] -= 8
    config = FilterConfig("ssm_diag", 1 << 20, modes=3)
    poles, residues = diagonal_modes(t, "bilinear")
    for first in (0, 4000, 70_000, (1 << 20) - 70):
        got = build_filter(config, t, 2).block(0, 2, first, first + 70)
        times = np.arange(first, first + 70)
        exact = (residues[..., None] * np.exp(np.log(poles)[..., None] * times)).real.sum(axis=1)
        assert rel_l2(got, exact) < 1e-7


# ---- kernels


@over_threads
@pytest.mark.parametrize(("channels", "modes"), [(1, 1), (16, 4), (21, 7)])
def test_modal_taps(
    kernels: ModuleType, threads: int, channels: int, modes: int, rng: np.random.Generator
) -> None:
    poles = rng.uniform(0.2, 1, (channels, modes)) * np.exp(
        3j * rng.uniform(-1, 1, (channels, modes))
    )
    residues = rng.standard_normal((channels, modes)) + 1j * rng.standard_normal((channels, modes))
    pairs = [np.stack([a.real, a.imag], axis=-1) for a in (poles, residues)]
    want = reference_filters.modal(*pairs, 200)
    whole = kernels.modal_taps(poles, residues, 0, 200, threads=threads)
    assert rel_l2(whole, want) < 1e-7
    for first, last in ((0, 0), (0, 1), (63, 65), (64, 128), (5, 199)):
        part = kernels.modal_taps(poles, residues, first, last, threads=threads)
        np.testing.assert_array_equal(part, whole[:, first:last])


def packed(values: np.ndarray) -> np.ndarray:
    """complex [H, S] -> [G, S, 2, 16]."""
    channels, modes = values.shape
    padded = np.zeros((-(-channels // 16) * 16, modes), complex)
    padded[:channels] = values
    parts = np.stack([padded.real, padded.imag], axis=-1).reshape(-1, 16, modes, 2)
    return np.ascontiguousarray(parts.transpose(0, 2, 3, 1))


class Scan:
    """A job of `modal_scan` with random numbers: H channels in P parts, T rows."""

    def __init__(self, rng: np.random.Generator, parts: int, channels: int, T: int) -> None:
        self.parts, self.channels, self.modes = parts, channels, 3
        shape = (channels, self.modes)
        self.poles = rng.uniform(0.5, 0.99, shape) * np.exp(1j * rng.uniform(-3, 3, shape))
        self.residues = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        groups = -(-channels // 16)
        self.z, self.pre, self.post = (
            rng.standard_normal((parts * groups, T, 16)).astype(np.float32) for _ in range(3)
        )
        self.skip = rng.standard_normal((groups, 16)).astype(np.float32)

    def zeros(self) -> np.ndarray:
        return np.zeros((self.parts**2, len(self.skip), self.modes, 2, 16))

    def run(
        self,
        kernels: ModuleType,
        states: list[np.ndarray],
        spans: list[tuple[int, int]],
        **how: Any,
    ) -> np.ndarray:
        how = {"pre": self.pre, "post": self.post} | how
        modes = (packed(self.poles), packed(self.residues))
        found: np.ndarray = kernels.modal_scan(
            states, spans, *modes, self.skip, self.z, parts=self.parts, **how
        )
        return found

    def want(self, T: int) -> np.ndarray:
        """Rows 0..T in float64, [P H, T]."""
        z, pre, post = (
            a.astype(float).reshape(self.parts, -1, a.shape[1], 16).transpose(0, 1, 3, 2)
            for a in (self.z, self.pre, self.post)
        )
        z, pre, post = (a.reshape(self.parts, -1, a.shape[3]) for a in (z, pre, post))
        taps = (self.residues[..., None] * self.poles[..., None] ** np.arange(T)).real.sum(axis=1)
        out = np.zeros((self.parts, self.channels, T))
        skip = self.skip.ravel()[: self.channels, None]
        for j in range(self.parts):
            for i in range(self.parts):
                w = (z[i] * pre[j])[: self.channels, :T]
                y = reference_model.causal_conv(taps, w.T).T + skip * w
                out[j] += post[i][: self.channels, :T] * y
        return out


@over_threads
@pytest.mark.parametrize(("parts", "channels"), [(1, 16), (1, 21), (2, 5), (3, 33)])
def test_modal_scan(
    kernels: ModuleType, threads: int, parts: int, channels: int, rng: np.random.Generator
) -> None:
    job, T = Scan(rng, parts, channels, 50), 50
    out = job.run(kernels, [job.zeros()], [(0, T)], threads=threads)
    got = out.reshape(parts, -1, T, 16).transpose(0, 1, 3, 2).reshape(parts, -1, T)[:, :channels]
    assert rel_l2(got, job.want(T)) < 3e-7


def test_a_cut_and_company_change_no_bit_of_a_scan(
    kernels: ModuleType, rng: np.random.Generator
) -> None:
    job = Scan(rng, 2, 21, 40)
    alone, state = job.run(kernels, [first := job.zeros()], [(0, 40)]), job.zeros()
    pieces = [job.run(kernels, [state], [(a, b)])[:, a:b] for a, b in ((0, 1), (1, 17), (17, 40))]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), alone)
    np.testing.assert_array_equal(state, first)
    a, b = job.zeros(), job.zeros()
    both = job.run(kernels, [a, b], [(0, 10), (10, 40)], threads=2)
    np.testing.assert_array_equal(both[:, :10], alone[:, :10])
    later = replaced(job, slice(10, 40)).run(kernels, [job.zeros()], [(0, 30)])
    np.testing.assert_array_equal(both[:, 10:], later)


def replaced(job: Scan, rows: slice) -> Scan:
    """The job of some of its rows alone."""
    part = object.__new__(Scan)
    part.__dict__ |= job.__dict__
    part.z, part.pre, part.post = (
        np.ascontiguousarray(a[:, rows]) for a in (job.z, job.pre, job.post)
    )
    return part


def test_gates_may_be_absent_and_out_in_place(
    kernels: ModuleType, rng: np.random.Generator
) -> None:
    job = Scan(rng, 1, 16, 9)
    ones = np.ones_like(job.z)
    want = job.run(kernels, [job.zeros()], [(0, 9)], pre=ones, post=ones)
    np.testing.assert_array_equal(
        job.run(kernels, [job.zeros()], [(0, 9)], pre=None, post=None), want
    )
    want = job.run(kernels, [job.zeros()], [(0, 9)])
    got = job.run(kernels, [job.zeros()], [(0, 9)], out=job.z)
    assert got is job.z
    np.testing.assert_array_equal(got, want)


def test_what_the_kernels_refuse(kernels: ModuleType, rng: np.random.Generator) -> None:
    job = Scan(rng, 2, 16, 9)
    state = job.zeros()
    with pytest.raises(ValueError, match="a state appears twice"):
        job.run(kernels, [state, state], [(0, 3), (3, 9)])
    with pytest.raises(ValueError, match="1 states but 2 spans"):
        job.run(kernels, [state], [(0, 3), (3, 9)])
    for spans in ([(0, 10)], [(-1, 2)], [(3, 2)]):
        with pytest.raises(ValueError, match="within the 9 rows"):
            job.run(kernels, [state], spans)
    with pytest.raises(ValueError, match="a state has shape"):
        job.run(kernels, [state[:1]], [(0, 9)])
    job.parts = 3
    with pytest.raises(ValueError, match="z has 2 groups"):
        job.run(kernels, [state], [(0, 9)])
    poles = np.zeros((2, 3), complex)
    with pytest.raises(ValueError, match=r"residues has shape \[2, 2\] but needs \[2, 3\]"):
        kernels.modal_taps(poles, poles[:, :2].copy(), 0, 3)
    with pytest.raises(ValueError, match=r"times \[3, 2\)"):
        kernels.modal_taps(poles, poles, 3, 2)


# ---- models


@pytest.mark.parametrize("name", ["h3", "h3_heads", "s4d"])
def test_a_recurrence_does_not_see_how_it_was_cut(name: str) -> None:
    """Bits of a state are those of its tokens: MARK and other cuts, steps, rewinds."""
    config = CAUSAL[name]
    m, ids = model(replace(config, layers=config.layers[:1])), tokens(700)
    wanted = m.prefill(ids)
    state = m.new_state()
    for part in np.split(ids, [1, MARK - 1, MARK, MARK + 1, 2 * MARK, 300, 301, 3 * MARK + 1]):
        m.extend(state, part)
    state.rewind(600)
    for token in ids[600:]:
        m.step(state, int(token))
    mine, its = state.layers[0], wanted.layers[0]
    assert isinstance(mine, ModalState)
    assert isinstance(its, ModalState)
    np.testing.assert_array_equal(mine.modes, its.modes)


@pytest.mark.parametrize("name", ["h3", "h3_heads", "s4d"])
def test_a_prompt_has_the_bits_of_a_whole_sequence(name: str) -> None:
    m, ids = model(CAUSAL[name]), tokens(300)
    np.testing.assert_array_equal(m.extend(m.new_state(), ids), m.logits(ids))


def test_the_size_of_a_state_does_not_grow() -> None:
    m = model(CAUSAL["h3_heads"])
    short, long = m.prefill(tokens(300)), m.prefill(tokens(3000))
    assert short.nbytes == long.nbytes


def test_sequences_that_go_on_need_no_memory_for_filters() -> None:
    m = model(replace(CAUSAL["h3"], layers=(layer(H3Config(16)),)))
    first, later = (dict(planner.plan(m, 4000, new=n).rows) for n in (4000, 10))
    names = ("filter transforms kept", "filters for steps", "filter in the making")
    assert [later.get(name, 0) for name in names] == [0, 0, 0]
    assert first["filter transforms kept"] > 0 == first["filters for steps"]
    assert isinstance(m.blocks[0].mixer.taps[-1].bank.source, ModalFilter)


def test_saved_states_that_do_not_fit(tmp_path: Path) -> None:
    """Whatever a file holds in the place of a state, an error names it."""
    m = model(replace(CAUSAL["s4d"], layers=CAUSAL["s4d"].layers[:1]))
    state = m.prefill(tokens(300))
    saved = state.layers[0].parts()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"marks": saved["marks"][:1]}, r"has marks at \[128\] for position 300"),
        ({"marks": []}, r"has marks at \[\]"),
        ({"position": 100}, r"has marks at \[128, 256\] for position 100"),
        ({"rows": saved["rows"][1:]}, r"rows is float32 of shape \[171, 20\], must be float32"),
        ({"marks": [one | {"modes": None} for one in saved["marks"]]}, "modes is null"),
        (
            {"marks": [one | {"modes": one["modes"].astype(np.float32)} for one in saved["marks"]]},
            r"modes is float32 of shape .* must be float64 \[1, 2, 4, 2, 16\]",
        ),
    ]
    for change, message in wrong:
        tree = {
            "position": 300,
            "logits": None,
            "tokens": None,
            "layers": [saved | change],
        }
        state_file.write(tmp_path / "s", tree, fingerprint=m.fingerprint, isa=the_kernels.build)
        with pytest.raises(InputError, match=message):
            m.load_state(tmp_path / "s")
