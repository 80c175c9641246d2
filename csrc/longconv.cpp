#include "longconv.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "aligned.hpp"
#include "parallel.hpp"

namespace hyena {
namespace {

/// Lanes that one transform of this size runs on: fewer once the two buffers outgrow the caches.
int transform_lanes(std::int64_t size) {
  const int wanted = size <= 8192 ? 16 : size <= 131072 ? 8 : 4;
  return std::min(wanted, kLanes);
}

/// Two arrays [size] of vectors for every worker, allocated before the threads start.
std::vector<AlignedArray<float>> scratch(std::int64_t pieces, int threads, std::int64_t floats) {
  std::vector<AlignedArray<float>> arrays;
  for (int worker = 0; worker < workers(pieces, threads); worker++) arrays.push_back(aligned_array<float>(floats));
  return arrays;
}

/// x *= filter, both in halfcomplex order.
template <int L>
void multiply_spectra(vec<L>* x, const float* filter, std::int64_t size) {
  x[0] *= load<L>(filter);
  for (std::int64_t k = 1; k + 1 < size; k += 2) {
    const vec<L> xr = x[k], xi = x[k + 1], hr = load<L>(filter + k * L), hi = load<L>(filter + (k + 1) * L);
    x[k] = fma(xr, hr, -(xi * hi));
    x[k + 1] = fma(xr, hi, xi * hr);
  }
  x[size - 1] *= load<L>(filter + (size - 1) * L);
}

template <int L>
void spectrum_lanes(const TileView& taps, const TileView& out, int threads) {
  const std::int64_t size = out.length, pieces = out.groups * (kTile / L);
  const std::shared_ptr<const Rfft> plan = rfft_plan(size);
  const auto buffers = scratch(pieces, threads, 2 * size * L);
  const float scale = 1.0f / static_cast<float>(size);
  parallel_for(pieces, threads, [&](std::int64_t piece, int worker) {
    const std::int64_t g = piece % out.groups, part = piece / out.groups;
    vec<L>* x = reinterpret_cast<vec<L>*>(buffers[worker].get());
    const float* from = taps.group(g) + part * L;
    for (std::int64_t t = 0; t < taps.length; t++) x[t] = scale * load<L>(from + t * kTile);
    std::fill(x + taps.length, x + size, vec<L>{});
    plan->forward<L>(x, x + size);
    std::copy_n(reinterpret_cast<const float*>(x), size * L, out.group(g) + part * size * L);
  });
}

template <int L>
void long_conv_lanes(const GatedConv& job, const TileView& spectrum, int threads) {
  const std::int64_t size = spectrum.length, length = job.z.length, pieces = job.z.groups * (kTile / L);
  const std::shared_ptr<const Rfft> plan = rfft_plan(size);
  const auto buffers = scratch(pieces, threads, 2 * size * L);
  parallel_for(pieces, threads, [&](std::int64_t piece, int worker) {
    const std::int64_t g = piece % job.z.groups, part = piece / job.z.groups;
    const int lane = static_cast<int>(part) * L;
    vec<L>* x = reinterpret_cast<vec<L>*>(buffers[worker].get());
    for (std::int64_t t = 0; t < length; t++) x[t] = gated_input<L>(job, g, t, lane);
    std::fill(x + length, x + size, vec<L>{});
    plan->forward<L>(x, x + size);
    multiply_spectra<L>(x, spectrum.group(g) + part * size * L, size);
    plan->backward<L>(x, x + size);
    for (std::int64_t t = job.start; t < length; t++) store_gated<L>(job, g, t, lane, x[t]);
  });
}

/// f<L>() with the lanes of this size, among those the build has.
template <class F>
void with_lanes(std::int64_t size, F&& f) {
  switch (transform_lanes(size)) {
#if defined(__AVX512F__)
    case 16:
      return f(std::integral_constant<int, 16>{});
#endif
#if defined(__AVX2__)
    case 8:
      return f(std::integral_constant<int, 8>{});
#endif
    default:
      return f(std::integral_constant<int, 4>{});
  }
}

}  // namespace

void spectrum(const TileView& taps, const TileView& out, int threads) {
  with_lanes(out.length, [&](auto lanes) { spectrum_lanes<lanes>(taps, out, threads); });
}

void long_conv(const GatedConv& job, const TileView& spectrum, int threads) {
  with_lanes(spectrum.length, [&](auto lanes) { long_conv_lanes<lanes>(job, spectrum, threads); });
}

std::int64_t conv_plan(std::int64_t added, std::int64_t history, std::int64_t taps) {
  const std::int64_t length = history + added, lags = std::min(taps, length);
  const std::int64_t size = transform_size(std::max(length, added + lags - 1));
  // Multiply-adds per lane of the direct sums; outputs near the start have fewer lags.
  const double missing = static_cast<double>(std::max<std::int64_t>(0, lags - 1 - history));
  const double direct = static_cast<double>(added) * static_cast<double>(lags) - missing * (missing + 1) / 2;
  if (size == 0) return added == 1 ? 0 : -1;
  const double through = static_cast<double>(size) * std::log2(static_cast<double>(size));
  return added == 1 || direct <= 7.0 * through ? 0 : size;
}

}  // namespace hyena
