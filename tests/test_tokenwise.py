"""Fused token-wise parts: the bits of the kernels one by one, for every length and thread count."""

from __future__ import annotations

import itertools
from types import ModuleType

import numpy as np
import pytest
from conftest import THREADS, over_threads, rel_l2, strided_rows

from hyena_cpu.reference import tokenwise as reference

LENGTHS = [1, 2, 3, 31, 127, 128, 129, 130, 255, 257, 400]  # around blocks of 128
D = 24  # a tile and a half


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("taps_count", [1, 3, 7])
@pytest.mark.parametrize("length", LENGTHS)
def test_project_conv(
    kernels: ModuleType, rng: np.random.Generator, length: int, taps_count: int
) -> None:
    x, scale = strided_rows(normal(rng, length, D)), 1 + 0.1 * normal(rng, D)
    weight, bias = normal(rng, 4 * D, D), normal(rng, 4 * D)
    taps, short_bias = normal(rng, taps_count, 4 * D), normal(rng, 4 * D)
    tail = normal(rng, taps_count - 1, 4 * D)
    packed, norm = kernels.PackedLinear(weight), kernels.NormWeights("rmsnorm", scale, None, 1e-5)

    projected = kernels.linear(kernels.rms_norm(x, scale, 1e-5), packed, bias=bias)
    want = kernels.short_conv(projected, taps, short_bias, tail, 4)
    newest = np.concatenate([tail, projected])[len(projected) :]

    for threads in THREADS:
        tails, offsets = tail[None].copy(), np.array([0, length])
        gates, product = kernels.project_conv(
            x, norm, packed, bias, taps, short_bias, tails, offsets, 4, threads=threads
        )
        assert np.array_equal(gates, want[:2])
        assert np.array_equal(product, want[2] * want[3])
        assert np.array_equal(tails[0], newest)
    plain = reference.project_conv(
        x, ("rmsnorm", scale, None, 1e-5), weight, bias, taps, short_bias, tail, 4
    )
    assert rel_l2(gates, plain[0]) < 1e-6
    assert rel_l2(product, plain[1]) < 1e-6


@over_threads
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [200, 1, 2, 3, 126, 128, 7], [2, 300]])
def test_project_conv_of_sequences_is_that_of_each(
    kernels: ModuleType, rng: np.random.Generator, lengths: list[int], kept: bool, threads: int
) -> None:
    x, scale, shift = normal(rng, sum(lengths), D), normal(rng, D), normal(rng, D)
    packed = kernels.PackedLinear(normal(rng, 3 * D, D))
    norm = kernels.NormWeights("layernorm", scale, shift, 1e-5)
    taps, tails = normal(rng, 4, 3 * D), normal(rng, len(lengths), 3, 3 * D)
    offsets = np.cumsum([0, *lengths])
    together = tails.copy() if kept else None
    gates, product = kernels.project_conv(
        x, norm, packed, None, taps, None, together, offsets, 3, threads=threads
    )
    for b, (first, last) in enumerate(itertools.pairwise(offsets)):
        own = tails[b : b + 1].copy() if kept else np.zeros((1, 3, 3 * D), np.float32)
        alone = kernels.project_conv(
            x[first:last], norm, packed, None, taps, None, own, np.array([0, last - first]), 3
        )
        assert np.array_equal(gates[:, :, first:last], alone[0])
        assert np.array_equal(product[:, first:last], alone[1])
        assert together is None or np.array_equal(together[b], own[0])


@over_threads
@pytest.mark.parametrize("length", LENGTHS)
def test_add_tiles(
    kernels: ModuleType, rng: np.random.Generator, length: int, threads: int
) -> None:
    rows, residual = normal(rng, length, D), normal(rng, length, 10)
    weight, bias = normal(rng, 10, D), normal(rng, 10)
    packed = kernels.PackedLinear(weight)
    z = kernels.rows_to_tiles(rows)
    want = kernels.linear(rows, packed, bias=bias, residual=residual)
    got = residual.copy()
    kernels.add_tiles(got, z, packed, bias, threads=threads)
    assert np.array_equal(got, want)
    assert rel_l2(got, reference.add_tiles(residual, z, weight, bias)) < 1e-6


@over_threads
@pytest.mark.parametrize("width", [1, 16, D, 32, 40])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_project_conv_leaves_chunks_out(
    kernels: ModuleType, rng: np.random.Generator, dtype: str, width: int, threads: int
) -> None:
    x, weight, bias = normal(rng, 300, D), normal(rng, 4 * width, D), normal(rng, 4 * width)
    packed, norm = (
        kernels.PackedLinear(weight, dtype),
        kernels.NormWeights("rmsnorm", normal(rng, D), None, 1e-5),
    )
    taps, short_bias = normal(rng, 3, 4 * width), normal(rng, 4 * width)
    offsets, tails = np.array([0, 1, 150, 300]), normal(rng, 3, 2, 4 * width)
    project = (x, norm, packed, bias, taps, short_bias)
    newest = tails.copy()
    gates, product = kernels.project_conv(*project, newest, offsets, 4)
    for first in (0, 1, 2):
        own = tails.copy()
        some = kernels.project_conv(*project, own, offsets, 4, first=first, threads=threads)
        assert np.array_equal(some[0], gates[first:])
        assert np.array_equal(some[1], product)
        cut = first * width
        assert np.array_equal(own[:, :, cut:], newest[:, :, cut:])
        assert np.array_equal(own[:, :, :cut], tails[:, :, :cut])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("taps_count", [1, 3, 5, 140])
@pytest.mark.parametrize("length", LENGTHS)
def test_add_gated_tiles(
    kernels: ModuleType, rng: np.random.Generator, length: int, taps_count: int, dtype: str
) -> None:
    x, scale, shift = strided_rows(normal(rng, length, D)), 1 + 0.1 * normal(rng, D), normal(rng, D)
    width = 40  # of x_0 and z
    weight, bias = normal(rng, 3 * width, D), normal(rng, 3 * width)
    taps, short_bias = normal(rng, taps_count, 3 * width), normal(rng, 3 * width)
    tail = normal(rng, taps_count - 1, 3 * width)
    out_weight, out_bias = normal(rng, D, width), normal(rng, D)
    packed, out = kernels.PackedLinear(weight, dtype), kernels.PackedLinear(out_weight, dtype)
    norm, z = (
        kernels.NormWeights("layernorm", scale, shift, 1e-5),
        kernels.rows_to_tiles(normal(rng, length, width)),
    )

    projected = kernels.linear(kernels.layer_norm(x, scale, shift, 1e-5), packed, bias=bias)
    gated = kernels.short_conv(projected, taps, short_bias, tail, 3)[0] * z
    rows = kernels.tiles_to_rows(gated, width)
    want = kernels.linear(rows, out, bias=out_bias, residual=x)
    newest = np.concatenate([tail, projected])[len(projected) :]

    given = (norm, packed, bias, taps, short_bias)
    for threads in THREADS:
        got, tails, offsets = x.copy(), tail[None].copy(), np.array([0, length])
        kernels.add_gated_tiles(got, *given, tails, offsets, z, out, out_bias, threads=threads)
        assert np.array_equal(got, want)
        assert np.array_equal(tails[0, :, :width], newest[:, :width])
        assert np.array_equal(tails[0, :, width:], tail[:, width:])
    if dtype == "float32":
        plain = reference.add_gated_tiles(
            x,
            ("layernorm", scale, shift, 1e-5),
            weight,
            bias,
            taps,
            short_bias,
            tail,
            z,
            out_weight,
            out_bias,
        )
        assert rel_l2(got, plain) < 2e-6


@over_threads
@pytest.mark.parametrize("taps_count", [1, 3, 5])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [200, 1, 2, 3, 126, 128, 7], [2, 300]])
def test_add_gated_tiles_of_sequences_is_that_of_each(
    kernels: ModuleType,
    rng: np.random.Generator,
    lengths: list[int],
    kept: bool,
    taps_count: int,
    threads: int,
) -> None:
    x, norm = (
        normal(rng, sum(lengths), D),
        kernels.NormWeights("rmsnorm", normal(rng, D), None, 1e-5),
    )
    packed, out = (
        kernels.PackedLinear(normal(rng, 3 * D, D)),
        kernels.PackedLinear(normal(rng, D, D)),
    )
    taps, tails = normal(rng, taps_count, 3 * D), normal(rng, len(lengths), taps_count - 1, 3 * D)
    z, offsets = kernels.rows_to_tiles(normal(rng, len(x), D)), np.cumsum([0, *lengths])
    together, got = tails.copy() if kept else None, x.copy()
    kernels.add_gated_tiles(
        got, norm, packed, None, taps, None, together, offsets, z, out, None, threads=threads
    )
    for b, (first, last) in enumerate(itertools.pairwise(offsets)):
        own = tails[b : b + 1].copy() if kept else np.zeros_like(tails[:1])
        alone, whole = x[first:last].copy(), np.array([0, last - first])
        part = z[:, first:last]
        kernels.add_gated_tiles(alone, norm, packed, None, taps, None, own, whole, part, out, None)
        assert np.array_equal(got[first:last], alone)
        assert together is None or np.array_equal(together[b], own[0])


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("kind", ["gelu_tanh", "gelu_erf", "swiglu"])
@pytest.mark.parametrize("length", LENGTHS)
def test_add_mlp(
    kernels: ModuleType, rng: np.random.Generator, length: int, kind: str, norm: str
) -> None:
    x, scale = normal(rng, length, D), 1 + 0.1 * normal(rng, D)
    shift = normal(rng, D) if norm == "layernorm" else None
    width = 40
    up = normal(rng, width * (2 if kind == "swiglu" else 1), D)
    down, up_bias, down_bias = normal(rng, D, width), normal(rng, len(up)), normal(rng, D)
    first, second = kernels.PackedLinear(up), kernels.PackedLinear(down)

    if norm == "layernorm":
        h = kernels.layer_norm(x, scale, shift, 1e-5)
    else:
        h = kernels.rms_norm(x, scale, 1e-5)
    if kind == "swiglu":
        wide = kernels.swiglu(kernels.linear(h, first, bias=up_bias))
    else:
        wide = kernels.linear(h, first, bias=up_bias, activation=kind)
    want = kernels.linear(wide, second, bias=down_bias, residual=x)

    weights = kernels.NormWeights(norm, scale, shift, 1e-5)
    for threads in THREADS:
        got = x.copy()
        kernels.add_mlp(got, weights, first, up_bias, kind, second, down_bias, threads=threads)
        assert np.array_equal(got, want)
    plain = reference.add_mlp(x, (norm, scale, shift, 1e-5), up, up_bias, kind, down, down_bias)
    assert rel_l2(got, plain) < 2e-6


def test_misfits_are_named(kernels: ModuleType, rng: np.random.Generator) -> None:
    square, wide = kernels.PackedLinear(normal(rng, D, D)), kernels.PackedLinear(normal(rng, 40, D))
    norm = kernels.NormWeights("rmsnorm", normal(rng, D), None, 1e-5)
    x = normal(rng, 5, D)
    with pytest.raises(ValueError, match="kind is 'batchnorm'"):
        kernels.NormWeights("batchnorm", normal(rng, D), None, 1e-5)
    with pytest.raises(ValueError, match="add_mlp: kind is 'relu'"):
        kernels.add_mlp(x, norm, square, None, "relu", square, None)
    with pytest.raises(ValueError, match="up has 40 outputs but down needs 24"):
        kernels.add_mlp(x, norm, wide, None, "gelu_tanh", square, None)
    with pytest.raises(ValueError, match="add_tiles: z has shape"):
        kernels.add_tiles(x, normal(rng, 1, 5, 16), square, None)
    two, one = np.array([0, 5]), np.array([0, 4])
    taps, tails = normal(rng, 3, D), normal(rng, 1, 2, D)
    with pytest.raises(ValueError, match="no multiple of 3"):
        kernels.project_conv(x, norm, wide, None, normal(rng, 3, 40), None, None, two, 3)
    with pytest.raises(ValueError, match="project_conv: tails has shape"):
        kernels.project_conv(x, norm, square, None, taps, None, tails[:, :1].copy(), two, 3)
    for offsets in (one, np.array([0, 0, 5]), np.array([1, 5]), np.array([5])):
        with pytest.raises(ValueError, match="offsets must grow from 0 to the 5 rows"):
            kernels.project_conv(x, norm, square, None, taps, None, None, offsets, 3)
    with pytest.raises(ValueError, match=r"first is 2 but needs to be in 0\.\.1"):
        kernels.project_conv(x, norm, square, None, taps, None, None, two, 3, first=2)
    z = normal(rng, 2, 5, 16)
    gate = (x, norm, square, None, taps, None)
    with pytest.raises(ValueError, match="add_gated_tiles: tails has shape"):
        kernels.add_gated_tiles(*gate, tails[:, :1].copy(), two, z, square, None)
    with pytest.raises(ValueError, match="add_gated_tiles: z has shape"):
        kernels.add_gated_tiles(*gate, None, two, z[:, :4].copy(), square, None)
    with pytest.raises(ValueError, match="its own 40 outputs must be 24"):
        kernels.add_gated_tiles(*gate, None, two, z, wide, None)
    with pytest.raises(ValueError, match="add_gated_tiles: offsets must grow"):
        kernels.add_gated_tiles(*gate, None, one, z, square, None)
