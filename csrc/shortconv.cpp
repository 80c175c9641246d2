#include "shortconv.hpp"

#include <algorithm>

#include "parallel.hpp"

namespace hyena {
namespace {

// Rows of one piece: with all channels of 768-wide projections they stay in the second-level cache.
constexpr std::int64_t kRows = 64;

/// Adds tap * row to the 16 sums at `sum`; lanes from `width` on are not read.
inline void accumulate(float* sum, const float* tap, const float* row, int width) {
  if (width == kTile) {
    for (int i = 0; i < kTile; i += kLanes) store(sum + i, fma(load(tap + i), load(row + i), load(sum + i)));
  } else {
    for (int i = 0; i < width; i++) sum[i] = fma(tap[i], row[i], sum[i]);
  }
}

/// Rows [begin, end) of the `width` channels from `channel` on, into tile rows at `to`.
void filter(const ShortConv& job, std::int64_t channel, int width, std::int64_t begin, std::int64_t end, float* to) {
  const std::int64_t K = job.short_taps, C = job.x.columns;
  for (std::int64_t t = begin; t < end; t++) {
    alignas(64) float sum[kTile] = {};
    if (job.bias != nullptr) std::copy_n(job.bias + channel, width, sum);
    for (std::int64_t k = 0; k < K; k++) {
      const std::int64_t from = t - K + 1 + k;
      const float* row = from < 0 ? job.tail + (from + K - 1) * C : job.x.row(from);
      accumulate(sum, job.taps + k * C + channel, row + channel, width);
    }
    std::copy_n(sum, kTile, to + t * kTile);
  }
}

}  // namespace

void short_conv(const ShortConv& job, int threads) {
  const std::int64_t D = job.x.columns / job.parts, G = tile_groups(D), T = job.x.rows;
  parallel_for((T + kRows - 1) / kRows, threads, [&](std::int64_t piece, int) {
    const std::int64_t begin = piece * kRows, end = std::min(begin + kRows, T);
    for (std::int64_t p = 0; p < job.parts; p++)
      for (std::int64_t g = 0; g < G; g++)
        filter(job, p * D + g * kTile, tile_width(D, g), begin, end, job.out.group(p * G + g));
  });
}

}  // namespace hyena
