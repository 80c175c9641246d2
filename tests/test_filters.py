"""Long filters: worked numbers, arrays of the originals, float64 statements."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyena_cpu.config import FilterConfig, HyenaConfig
from hyena_cpu.filters import LongFilter, build_filter
from hyena_cpu.reference import filters as reference
from hyena_cpu.weights import backbone, load_files, load_operator

GOLDEN = Path(__file__).parent / "golden"


def random_filter(
    config: FilterConfig, channels: int, seed: int = 0, gain: float = 1.5
) -> dict[str, np.ndarray]:
    """Tensors of any family with random numbers of realistic size."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    if config.kind == "explicit":
        return {"taps": normal(channels, config.taps)}
    if config.kind == "modal":
        radius = rng.uniform(0.5, 0.999, (channels, config.modes))
        angle = rng.uniform(-3, 3, (channels, config.modes))
        poles = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
        return {
            "poles": poles.astype(np.float32),
            "residues": normal(channels, config.modes, 2),
        }
    if config.kind == "shift":
        return {name: normal(channels, config.taps, scale=0.3) for name in "BC"}
    if config.kind == "ssm_diag":
        single = (channels, config.modes)
        return {
            "B": normal(*single, 2),
            "C": normal(*single, 2),
            "log_decay": normal(*single) - 1,
            "frequency": 3 * normal(*single),
            "log_dt": normal(channels) - 2,
        }
    E, P = 2 * config.bands + 1, config.width
    if config.kind == "relu_mlp":
        return {
            "features": backbone.positional_features(config.taps, E),
            "linear.0.weight": normal(P, E),
            "linear.0.bias": normal(P),
            "linear.1.weight": normal(channels, P, scale=P**-0.5),
            "linear.1.bias": normal(channels),
        }
    found = {}
    if config.kind == "implicit":
        found["features"] = backbone.positional_features(config.taps, E)
        found["times"] = backbone.linspace(0, 1, config.taps)
    for k in range(config.sine_layers):
        columns = P if k else E
        found[f"linear.{k}.weight"] = normal(P, columns, scale=gain / 10 / columns**0.5)
        found[f"linear.{k}.bias"] = normal(P, scale=0.1)
        found[f"freq.{k}"] = 10 + normal(P)
    found[f"linear.{config.sine_layers}.weight"] = normal(channels, P, scale=P**-0.5)
    if config.modulate and config.kind == "implicit":
        found["deltas"] = backbone.decay_rates(channels)
    elif config.modulate:
        found["log_rate"] = -np.log(np.linspace(2, config.taps, channels)).astype(np.float32)
    return found


FILTERS = {
    "implicit": FilterConfig("implicit", 100, width=7, bands=2, sine_layers=3, shift=0.05),
    "no window": FilterConfig("implicit", 97, width=8, bands=1, sine_layers=2, modulate=False),
    "channel_l1": FilterConfig(
        "implicit", 77, width=9, bands=2, sine_layers=2, normalize="channel_l1"
    ),
    "sine_window": FilterConfig(
        "sine_window", 130, width=32, bands=8, sine_layers=2, normalize="time_l2"
    ),
    "sine_window plain": FilterConfig("sine_window", 16, width=5, bands=1, sine_layers=1),
    "explicit": FilterConfig("explicit", 33, threshold=0.3),
    "modal": FilterConfig("modal", 50, modes=3),
    "ssm_diag": FilterConfig("ssm_diag", 150, modes=5),
    "ssm_diag zoh": FilterConfig("ssm_diag", 50, modes=1, discretization="zoh"),
    "shift": FilterConfig("shift", 20),
    "relu_mlp": FilterConfig("relu_mlp", 61, width=5, bands=1),
}
CHANNELS = 19


# ---- worked numbers ----


def test_positional_features_worked_example() -> None:
    z = [
        [0, 1, 1, 0, 0],
        [0.33333333, 0.99999999, 0, -0.00015708, -1],
        [0.66666667, 0.99999995, -1, -0.00031416, 0],
        [1, 0.99999989, 0, -0.00047124, 1],
    ]
    np.testing.assert_allclose(reference.positional_features(4, 5), z, atol=1e-8)
    np.testing.assert_allclose(backbone.positional_features(4, 5), z, atol=2e-7)


def test_decay_rates_worked_example() -> None:
    four = [-3.07011346, -7.16359807, -11.25708268, -15.35056729]
    np.testing.assert_allclose(reference.decay_rates(4), four, atol=1e-8)
    np.testing.assert_allclose(reference.decay_rates(2), [four[0], four[3]], atol=1e-8)
    np.testing.assert_allclose(backbone.decay_rates(4), four, atol=1e-6)
    window = np.exp(-np.outer(np.arange(4) / 3, np.abs(four)))
    np.testing.assert_allclose(window[:, 0], [1, 0.35938137, 0.12915497, 0.04641589], atol=1e-8)
    np.testing.assert_allclose(window[:, 3], [1, 0.00599484, 0.00003594, 0.00000022], atol=1e-8)


WORKED = {
    "shift .05": (
        {"shift": 0.05},
        [
            [1.33283483, -0.16488831],
            [0.51020386, -0.00846550],
            [0.20096850, -0.00836041],
            [0.08282483, -0.01053305],
        ],
    ),
    "shift 0": (
        {},
        [
            [1.26936651, -0.15703648],
            [0.44788986, -0.00090632],
            [0.14488060, -0.00000600],
            [0.03987297, -0.00000005],
        ],
    ),
    "no window": (
        {"modulate": False},
        [
            [1.26936651, -0.15703648],
            [1.24628013, -0.15118350],
            [1.12175788, -0.16708820],
            [0.85903719, -0.21066008],
        ],
    ),
    "normalized": (
        {"normalize": "channel_l1"},
        [
            [0.88990735, -0.11009265],
            [0.99798055, -0.00201945],
            [0.99995855, -0.00004145],
            [0.99999886, -0.00000114],
        ],
    ),
}


@pytest.mark.parametrize("name", WORKED)
def test_whole_filter_worked_example(name: str) -> None:
    options, expected = WORKED[name]
    config = FilterConfig("implicit", 4, width=2, bands=1, sine_layers=2, **options)
    exact = {
        "features": reference.positional_features(4, 3),
        "times": np.arange(4) / 3,
        "linear.0.weight": np.array([[0.1, 0.2, -0.1], [0.05, -0.1, 0.2]]),
        "linear.0.bias": np.array([0.01, -0.02]),
        "linear.1.weight": np.array([[0.1, -0.05], [0.02, 0.08]]),
        "linear.1.bias": np.array([0.03, 0.0]),
        "linear.2.weight": np.array([[1, -0.5], [0.25, 0.75]]),
        "freq.0": np.full(2, 10.0),
        "freq.1": np.full(2, 10.0),
        "deltas": reference.decay_rates(2),
    }
    np.testing.assert_allclose(reference.long_filter(config, exact).T, expected, atol=1e-8)
    tensors = {key: value.astype(np.float32) for key, value in exact.items()}
    taps = build_filter(config, tensors, 2).block(0, 2, 0, 4)
    np.testing.assert_allclose(taps.T, expected, atol=1e-6)
    hidden = [
        [0.99829330, -0.54214641],
        [0.98184954, -0.52886118],
        [0.86602779, -0.51146019],
        [0.61594040, -0.48619357],
    ]
    layers = [[exact[f"{part}.{k}{end}"] for k in (0, 1)] for part, end in MLP_PARTS]
    np.testing.assert_allclose(reference.sine_mlp(exact["features"], *layers), hidden, atol=1e-8)


MLP_PARTS = (("linear", ".weight"), ("linear", ".bias"), ("freq", ""))


# ---- the originals' arrays ----


def golden_filters() -> list[tuple[str, str, int]]:
    found = []
    for path in sorted(GOLDEN.glob("*/*.npz")):
        with np.load(path) as arrays:
            found += [
                (path.parent.name, path.stem, int(key.removeprefix("filter_layer")))
                for key in arrays
                if key.startswith("filter_layer") and key[-1].isdigit() and "float" not in key
            ]
    return found


@pytest.mark.parametrize(("folder", "name", "layer"), golden_filters())
def test_golden_filter(folder: str, name: str, layer: int) -> None:
    path = GOLDEN / folder
    weights = load_files(path / f"{name}.config.json", path / f"{name}.safetensors")
    mixer = weights.config.layers[layer].mixer
    assert isinstance(mixer, HyenaConfig)
    prefix = f"layers.{layer}.mixer.filter."
    tensors = {
        k.removeprefix(prefix): v for k, v in weights.tensors.items() if k.startswith(prefix)
    }
    D, steps = weights.config.d_model, mixer.order - 1
    taps = build_filter(mixer.filter, tensors, steps * D).block(0, steps * D, 0, mixer.filter.taps)
    original_order = taps.reshape(steps, D, -1).swapaxes(0, 1).reshape(steps * D, -1).T
    with np.load(path / f"{name}.npz") as arrays:
        single = arrays[f"filter_layer{layer}"]
        double = arrays.get(f"filter_layer{layer}_float64")
    # The ill-conditioned MLP is 4e-4 away from itself in float32; float64 decides there.
    expected = single if double is None else double
    bound = 2e-5 * max(1.0, float(np.abs(expected).max()))
    assert np.abs(original_order - expected).max() <= bound


def test_golden_thresholded_kernel() -> None:
    path = GOLDEN / "safari"
    mixer, tensors = load_operator(
        path / "op_longconv.config.json", path / "op_longconv.safetensors"
    )
    assert mixer.kind == "long_conv"
    taps = build_filter(mixer.filter, {"taps": tensors["filter.taps"]}, 16).block(0, 16, 0, 20)
    with np.load(path / "op_longconv.npz") as arrays:
        np.testing.assert_array_equal(taps, arrays["kernel"].reshape(16, 20))


# ---- filters as objects ----


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("threads", [1, 3])
def test_filter_equals_reference(name: str, threads: int) -> None:
    config = FILTERS[name]
    tensors = random_filter(config, CHANNELS)
    found = build_filter(config, tensors, CHANNELS)
    assert (found.channels, found.taps) == (CHANNELS, config.taps)
    taps = found.block(0, CHANNELS, 0, config.taps, threads)
    expected = reference.long_filter(config, tensors)
    assert taps.dtype == np.float32
    assert np.abs(taps - expected).max() <= 2e-6 * max(1.0, float(np.abs(expected).max()))


@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_block_is_a_part_of_the_whole(name: str, data: st.DataObject) -> None:
    config = FILTERS[name]
    tensors = random_filter(config, CHANNELS)
    whole = np.zeros((CHANNELS, 2 * config.taps), np.float32)
    whole[:, : config.taps] = build_filter(config, tensors, CHANNELS).block(
        0, CHANNELS, 0, config.taps
    )
    fresh = build_filter(config, tensors, CHANNELS)
    for _ in range(3):
        fresh.prepare(data.draw(st.integers(0, 2 * config.taps)), data.draw(st.integers(1, 3)))
        c0 = data.draw(st.integers(0, CHANNELS))
        c1 = data.draw(st.integers(c0, CHANNELS))
        t0 = data.draw(st.integers(0, 2 * config.taps))
        t1 = data.draw(st.integers(t0, 2 * config.taps))
        got = fresh.block(c0, c1, t0, t1)
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, whole[c0:c1, t0:t1])


def test_pieces_of_the_preparation_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("implicit", "channel_l1", "sine_window"):
        config = FILTERS[name]
        tensors = random_filter(config, CHANNELS)
        whole = build_filter(config, tensors, CHANNELS).block(0, CHANNELS, 0, config.taps)
        with monkeypatch.context() as patch:
            patch.setattr("hyena_cpu.filters._PIECE", 32)
            patch.setattr("hyena_cpu.filters._CHANNELS", 5)
            pieces = build_filter(config, tensors, CHANNELS).block(0, CHANNELS, 0, config.taps)
        np.testing.assert_array_equal(whole, pieces)


def test_pieces_of_a_relu_filter_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    config = FILTERS["relu_mlp"]
    tensors = random_filter(config, CHANNELS)
    whole = build_filter(config, tensors, CHANNELS).block(0, CHANNELS, 3, 80)
    monkeypatch.setattr("hyena_cpu.relu_filter._PIECE", 16)
    pieces = build_filter(config, tensors, CHANNELS).block(0, CHANNELS, 3, 80)
    np.testing.assert_array_equal(whole, pieces)


def test_relu_filter_worked_example() -> None:
    config = FilterConfig("relu_mlp", 4, width=2, bands=1)
    exact = {
        "features": reference.positional_features(4, 3),
        "linear.0.weight": np.array([[1, -1, 0.5], [-0.5, 0.25, 1]]),
        "linear.0.bias": np.array([0.1, 0.2]),
        "linear.1.weight": np.array([[1, -2], [0.5, 0.5]]),
        "linear.1.bias": np.array([0.05, -0.05]),
    }
    expected = [
        [-0.85, 0.175],
        [-0.51635250, 0.09158813],
        [-0.18270499, 0.00817625],
        [0.14976449, -0.00011775],
    ]
    np.testing.assert_allclose(reference.long_filter(config, exact).T, expected, atol=1e-8)
    tensors = {key: value.astype(np.float32) for key, value in exact.items()}
    taps = build_filter(config, tensors, 2).block(0, 2, 0, 4)
    np.testing.assert_allclose(taps.T, expected, atol=1e-6)


def test_time_l2_has_unit_energy_and_uses_all_taps() -> None:
    config = FILTERS["sine_window"]
    found = build_filter(config, random_filter(config, CHANNELS), CHANNELS)
    found.prepare(1, 1)
    energy = np.square(found.block(0, CHANNELS, 0, config.taps), dtype=np.float64).sum(axis=1)
    np.testing.assert_allclose(energy, 1, atol=1e-4)


@pytest.mark.parametrize("name", FILTERS)
def test_nbytes_is_what_prepare_keeps(name: str) -> None:
    config = FILTERS[name]
    for length in (0, 1, 16, 40, 10_000):
        found = build_filter(config, random_filter(config, CHANNELS), CHANNELS)
        found.prepare(length, 1)
        assert found.nbytes(length) == held(found)


def held(found: LongFilter) -> int:
    shared = getattr(found, "_shared", None)
    arrays = [] if shared is None else [shared.hidden, shared.time_norm, shared.channel_norm]
    return sum(a.nbytes for a in arrays if a is not None)


def test_threads_may_share_one_filter() -> None:
    config = FILTERS["channel_l1"]
    tensors = random_filter(config, CHANNELS)
    whole = build_filter(config, tensors, CHANNELS).block(0, CHANNELS, 0, config.taps)
    shared = build_filter(config, tensors, CHANNELS)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for t1 in np.random.default_rng(seed).integers(0, config.taps, 20):
            if not np.array_equal(shared.block(0, CHANNELS, 0, int(t1)), whole[:, :t1]):
                wrong.append(int(t1))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_modal_filter_follows_its_poles() -> None:
    poles = np.array([[[0.5, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]], np.float32)
    residues = np.array([[[1.0, 3.0], [2.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]], np.float32)
    config = FilterConfig("modal", 5, modes=2)
    taps = build_filter(config, {"poles": poles, "residues": residues}, 2).block(0, 2, 0, 6)
    # A pole at 0 acts at t = 0 only; a pole at i turns by a quarter each step.
    np.testing.assert_allclose(taps[0], [3, 0.5, 0.25, 0.125, 0.0625, 0], atol=1e-7)
    np.testing.assert_allclose(taps[1], [1, 0, -1, 0, 1, 0], atol=1e-7)
