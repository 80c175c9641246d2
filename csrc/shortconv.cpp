#include "shortconv.hpp"

#include <algorithm>

#include "parallel.hpp"

namespace hyena {
namespace {

// Rows of one piece: with all channels of 768-wide projections they stay in the second-level cache.
constexpr std::int64_t kRows = 64;

/// Inputs of the output at time t, oldest first: row k - (K - 1) before x comes from the tail.
struct Inputs {
  const ShortConv& job;
  const float* row(std::int64_t t, std::int64_t k) const {
    const std::int64_t from = t - job.short_taps + 1 + k;
    return from < 0 ? job.tail + (from + job.short_taps - 1) * job.x.cols : job.x.row(from);
  }
};

/// Row t of the 16 channels from `channel` on.
void whole_tile(const ShortConv& job, std::int64_t channel, std::int64_t t, float* to) {
  const Inputs inputs{job};
  vf sum[kTile / kLanes] = {};
  for (int i = 0; i < kTile / kLanes; i++)
    if (job.bias != nullptr) sum[i] = load(job.bias + channel + i * kLanes);
  for (std::int64_t k = 0; k < job.short_taps; k++) {
    const float* tap = job.taps + k * job.x.cols + channel;
    const float* row = inputs.row(t, k) + channel;
    for (int i = 0; i < kTile / kLanes; i++) sum[i] = fma(load(tap + i * kLanes), load(row + i * kLanes), sum[i]);
  }
  for (int i = 0; i < kTile / kLanes; i++) store(to + i * kLanes, sum[i]);
}

/// Row t of the last channels, fewer than 16; the other lanes become zero.
void part_tile(const ShortConv& job, std::int64_t channel, int width, std::int64_t t, float* to) {
  const Inputs inputs{job};
  std::fill_n(to, kTile, 0.0f);
  for (int i = 0; i < width; i++) {
    float sum = job.bias != nullptr ? job.bias[channel + i] : 0.0f;
    for (std::int64_t k = 0; k < job.short_taps; k++)
      sum = fma(job.taps[k * job.x.cols + channel + i], inputs.row(t, k)[channel + i], sum);
    to[i] = sum;
  }
}

/// Rows [begin, end) of the `width` channels from `channel` on, into tile rows at `to`.
void filter(const ShortConv& job, std::int64_t channel, int width, std::int64_t begin, std::int64_t end, float* to) {
  for (std::int64_t t = begin; t < end; t++) {
    if (width == kTile)
      whole_tile(job, channel, t, to + t * kTile);
    else
      part_tile(job, channel, width, t, to + t * kTile);
  }
}

}  // namespace

void short_conv(const ShortConv& job, int threads) {
  const std::int64_t D = job.x.cols / job.parts, G = tile_groups(D), T = job.x.rows;
  const std::int64_t work = T * job.x.cols * job.short_taps;
  parallel_for((T + kRows - 1) / kRows, worth(work, threads), [&](std::int64_t piece, int) {
    const std::int64_t begin = piece * kRows, end = std::min(begin + kRows, T);
    for (std::int64_t p = 0; p < job.parts; p++)
      for (std::int64_t g = 0; g < G; g++)
        filter(job, p * D + g * kTile, tile_width(D, g), begin, end, job.out.group(p * G + g));
  });
}

}  // namespace hyena
