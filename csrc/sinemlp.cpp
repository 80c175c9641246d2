#include "sinemlp.hpp"

#include <algorithm>

#include "aligned.hpp"
#include "parallel.hpp"
#include "simd64.hpp"
#include "sizes.hpp"
#include "tiles.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kTilesPerPiece = 16;  // 256 times: a megabyte-sized filter has thousands of pieces
constexpr int kUnits = 4;                    // units of a layer computed together
constexpr int kSide = 2;                     // vectors of times beside each other: 8 chains hide the latency
static_assert(kTile % (kSide * kLanes64) == 0);

/// R units of a layer for all lanes of one tile; in [columns][16], out [R][16].
template <int R>
void sine_units(const SineLayer& layer, std::int64_t unit, const double* in, double* out) {
  const double* weight = layer.weight + unit * layer.columns;
  for (int lane = 0; lane < kTile; lane += kSide * kLanes64) {
    vd sum[R][kSide];
    for (int r = 0; r < R; r++)
      for (int s = 0; s < kSide; s++) sum[r][s] = splat64(layer.bias[unit + r]);
    for (std::int64_t e = 0; e < layer.columns; e++)
      for (int s = 0; s < kSide; s++) {
        const vd x = load64(in + e * kTile + lane + s * kLanes64);
        for (int r = 0; r < R; r++) sum[r][s] = fma(splat64(weight[r * layer.columns + e]), x, sum[r][s]);
      }
    for (int r = 0; r < R; r++)
      for (int s = 0; s < kSide; s++)
        store64(out + r * kTile + lane + s * kLanes64, sin(sum[r][s] * layer.freq[unit + r]));
  }
}

void sine_layer(const SineLayer& layer, const double* in, double* out) {
  std::int64_t unit = 0;
  for (; unit + kUnits <= layer.rows; unit += kUnits) sine_units<kUnits>(layer, unit, in, out + unit * kTile);
  for (; unit < layer.rows; unit++) sine_units<1>(layer, unit, in, out + unit * kTile);
}

/// One tile through all layers; a and b are scratch [widest][16].
void sine_tile(const double* features, std::int64_t times, const std::vector<SineLayer>& layers, double* a, double* b,
               float* out) {
  const std::int64_t E = layers.front().columns;
  for (std::int64_t e = 0; e < E; e++)
    for (std::int64_t t = 0; t < kTile; t++) a[e * kTile + t] = t < times ? features[t * E + e] : 0.0;
  for (const SineLayer& layer : layers) {
    sine_layer(layer, a, b);
    std::swap(a, b);
  }
  for (std::int64_t p = 0; p < layers.back().rows; p++)
    for (std::int64_t t = 0; t < kTile; t++)
      out[p * kTile + t] = t < times ? static_cast<float>(a[p * kTile + t]) : 0.0f;
}

}  // namespace

void sine_mlp(const double* features, std::int64_t L, const std::vector<SineLayer>& layers, float* out, int threads) {
  const std::int64_t tiles = pieces_of(L, kTile);
  const std::int64_t pieces = pieces_of(tiles, kTilesPerPiece);
  const std::int64_t E = layers.front().columns, P = layers.back().rows;
  std::int64_t widest = E;
  for (const SineLayer& layer : layers) widest = std::max(widest, layer.rows);
  const auto scratch = aligned_array<double>(workers(pieces, threads) * 2 * widest * kTile);
  parallel_for(pieces, threads, [&](std::int64_t piece, int worker) {
    double* a = scratch.get() + worker * 2 * widest * kTile;
    const std::int64_t end = std::min(tiles, (piece + 1) * kTilesPerPiece);
    for (std::int64_t g = piece * kTilesPerPiece; g < end; g++)
      sine_tile(features + g * kTile * E, std::min<std::int64_t>(kTile, L - g * kTile), layers, a, a + widest * kTile,
                out + g * P * kTile);
  });
}

namespace {

constexpr int kChannels = 8;

/// R channels of one tile into out [R][16].
template <int R>
void filter_tile(const float* hidden, std::int64_t P, const float* weight, const float* times, const float* rates,
                 float shift, float* out) {
  for (int lane = 0; lane < kTile; lane += kLanes) {
    vf sum[R];
    for (int r = 0; r < R; r++) sum[r] = vf{};
    for (std::int64_t p = 0; p < P; p++) {
      const vf x = load<kLanes>(hidden + p * kTile + lane);
      for (int r = 0; r < R; r++) sum[r] = fma(splat<kLanes>(weight[r * P + p]), x, sum[r]);
    }
    for (int r = 0; r < R; r++) {
      if (times != nullptr) sum[r] = sum[r] * (exp<kLanes>(load<kLanes>(times + lane) * -rates[r]) + shift);
      store(out + r * kTile + lane, sum[r]);
    }
  }
}

/// R channels for the times [t0, t1), tile after tile, so that every row is written in order.
template <int R>
void filter_rows(const float* hidden, std::int64_t P, const float* weight, const Window& window, const float* rates,
                 std::int64_t t0, std::int64_t t1, float* out, std::int64_t out_stride) {
  for (std::int64_t t = t0; t < t1;) {
    const std::int64_t g = t / kTile, end = std::min(t1, (g + 1) * kTile);
    float times[kTile] = {};
    if (window.times != nullptr) std::copy_n(window.times + t, end - t, times + (t - g * kTile));
    float block[R * kTile];
    filter_tile<R>(hidden + g * P * kTile, P, weight, window.times != nullptr ? times : nullptr, rates, window.shift,
                   block);
    for (int r = 0; r < R; r++)
      std::copy_n(block + r * kTile + (t - g * kTile), end - t, out + r * out_stride + (t - t0));
    t = end;
  }
}

}  // namespace

void filter_block(const float* hidden, std::int64_t P, const float* weight, std::int64_t C, const Window& window,
                  std::int64_t t0, std::int64_t t1, float* out, int threads) {
  const std::int64_t step = kTile * kTilesPerPiece, start = t0 / step;
  const std::int64_t pieces = pieces_of(t1, step) - start;
  const bool windowed = window.times != nullptr;
  parallel_for(pieces, threads, [&](std::int64_t piece, int) {
    const std::int64_t from = std::max(t0, (start + piece) * step), to = std::min(t1, (start + piece + 1) * step);
    for (std::int64_t c = 0; c < C;) {
      const bool whole = c + kChannels <= C;
      (whole ? filter_rows<kChannels> : filter_rows<1>)(hidden, P, weight + c * P, window,
                                                        windowed ? window.rates + c : nullptr, from, to,
                                                        out + c * (t1 - t0) + (from - t0), t1 - t0);
      c += whole ? kChannels : 1;
    }
  });
}

}  // namespace hyena
