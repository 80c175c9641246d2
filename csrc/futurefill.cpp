#include "futurefill.hpp"

#include <algorithm>
#include <vector>

#include "aligned.hpp"
#include "longconv.hpp"
#include "simd.hpp"

namespace hyena {
namespace {

// As in directconv.cpp: chains of 16 products, whose sums are added up, keep the error small.
constexpr std::int64_t kChain = 16;
constexpr int kOutputs = 8;  // computed together: enough chains to hide the latency

// Few past rows: direct sums cost less than transforms of the future's size.
constexpr std::int64_t kFewRows = 48;

/// R outputs of one lane part; h points at the tap of input 0 for output 0.
template <int R>
inline void carry_outputs(const float* z, std::int64_t past, const float* h, float* out) {
  vf total[R] = {};
  std::int64_t m = 0;
  for (; m + kChain <= past; m += kChain) {
    vf value[R] = {};
#pragma GCC unroll 16
    for (int i = 0; i < kChain; i++) {
      const vf w = load(z + (m + i) * kTile);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) value[r] = fma(w, load(h + (r - m - i) * kTile), value[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) total[r] += value[r];
  }
  vf value[R] = {};
  for (; m < past; m++) {
    const vf w = load(z + m * kTile);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) value[r] = fma(w, load(h + (r - m) * kTile), value[r]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) store(out + r * kTile, total[r] + value[r]);
}

/// Transform size for blocks of the past when T outputs are wanted: three quarters of a transform
/// of 4 T are new rows, and larger ones leave the caches sooner than they save work.
std::int64_t block_transform(std::int64_t past, std::int64_t future) {
  return transform_size(std::min(past + future, 4 * future));
}

/// One worker's memory for future_fill.
struct FillScratch {
  FillScratch(std::int64_t future, std::int64_t size)
      : part(aligned_array<float>(future * kTile)), spectrum(aligned_array<float>(size * kTile)) {}
  AlignedArray<float> part, spectrum;
};

}  // namespace

void carry_direct(const float* z, std::int64_t past, const float* taps, float* out, std::int64_t future) noexcept {
  for (int lane = 0; lane < kTile; lane += kLanes) {
    const float* h = taps + past * kTile + lane;
    std::int64_t j = 0;
    for (; j + kOutputs <= future; j += kOutputs)
      carry_outputs<kOutputs>(z + lane, past, h + j * kTile, out + j * kTile + lane);
    for (; j < future; j++) carry_outputs<1>(z + lane, past, h + j * kTile, out + j * kTile + lane);
  }
}

void carry_transform(const float* z, std::int64_t past, const TileView& spectrum, float* out, std::int64_t future) {
  const std::int64_t rows = past + future - 1;
  const AlignedArray<float> padded = aligned_array<float>(rows * kTile);
  std::copy_n(z, past * kTile, padded.get());
  std::fill_n(padded.get() + past * kTile, (future - 1) * kTile, 0.0f);
  carry_padded(padded.get(), past, spectrum, out, future);
}

void carry_padded(const float* padded, std::int64_t past, const TileView& spectrum, float* out, std::int64_t future) {
  // Row P - 1 + j of the product with h[1 ..] is output j; the wrap-around ends before row P - 1.
  const std::int64_t rows = past + future - 1;
  GatedConv job{};
  job.z = {const_cast<float*>(padded), 1, rows, rows * kTile};
  job.start = past - 1;
  job.out = {out, 1, future, future * kTile};
  long_conv(job, spectrum, 1);
}

void future_fill(const TileView& z, const TileView& taps, std::int64_t ahead, const TileView& out, int threads) {
  // The last tap is what the first output sees furthest back, and the last output nearest by.
  const std::int64_t future = std::min(out.length, taps.length - 1 - ahead);
  if (future <= 0 || z.length == 0) return;
  const std::int64_t oldest = std::max<std::int64_t>(0, z.length + ahead - (taps.length - 1)), past = z.length - oldest;
  const bool direct = past <= kFewRows && ahead == 0 && past + future <= taps.length;
  const std::int64_t size = direct ? 0 : block_transform(past, future), block = size - future;
  std::vector<FillScratch> scratch;
  for (int i = 0; i < workers(z.groups, threads); i++) scratch.emplace_back(future, size);

  parallel_for_throwing(z.groups, threads, [&](std::int64_t g, int worker) {
    float* part = scratch[worker].part.get();
    const auto add = [&] {
      float* to = out.group(g);
      for (std::int64_t i = 0; i < future * kTile; i += kLanes) store(to + i, load(to + i) + load(part + i));
    };
    if (direct) {
      carry_direct(z.group(g) + oldest * kTile, past, taps.group(g), part, future);
      return add();
    }
    for (std::int64_t end = z.length; end > oldest; end -= block) {
      const std::int64_t rows = std::min(block, end - oldest), first = ahead + (z.length - end) + 1;
      const std::int64_t lags = std::min(rows + future - 1, taps.length - first);
      const std::int64_t points = transform_size(rows + future);
      const TileView segment{taps.group(g) + first * kTile, 1, lags, taps.stride};
      const TileView transformed{scratch[worker].spectrum.get(), 1, points, points * kTile};
      spectrum(segment, transformed, 1);
      carry_transform(z.group(g) + (end - rows) * kTile, rows, transformed, part, future);
      add();
    }
  });
}

}  // namespace hyena
