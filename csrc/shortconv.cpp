#include "shortconv.hpp"

#include <algorithm>

#include "parallel.hpp"
#include "simd.hpp"
#include "sizes.hpp"

namespace hyena {
namespace {

// Rows of one piece: with all channels of 768-wide projections they stay in the second-level cache.
constexpr std::int64_t kRows = 64;

/// Inputs of the output at time t, oldest first: row k - (K - 1) before x comes from the tail.
struct Inputs {
  const ShortConv& job;
  const float* row(std::int64_t t, std::int64_t k) const {
    const std::int64_t from = t - job.taps.rows + 1 + k;
    return from < 0 ? job.tail.row(from + job.taps.rows - 1) : job.x.row(from);
  }
};

/// kLanes channels from `channel` on, K taps: rows go in one after the other, and the last few stay in registers.
template <int K>
class Window {
 public:
  Window(const ShortConv& job, std::int64_t channel, std::int64_t t)
      : bias_(job.bias != nullptr ? load(job.bias + channel) : vf{}) {
    const Inputs inputs{job};
    for (int k = 0; k < K; k++) taps_[k] = load(job.taps.row(k) + channel);
    for (int k = 0; k < K - 1; k++) past_[k] = load(inputs.row(t, k) + channel);
  }
  vf next(vf row) {
    vf sum = bias_;
    for (int k = 0; k < K - 1; k++) sum = fma(taps_[k], past_[k], sum);
    for (int k = 0; k + 1 < K - 1; k++) past_[k] = past_[k + 1];
    if constexpr (K > 1) past_[K - 2] = row;
    return fma(taps_[K - 1], row, sum);
  }

 private:
  vf bias_, taps_[K], past_[K > 1 ? K - 1 : 1];
};

/// Row t of the 16 channels from `channel` on, any number of taps.
void whole_tile(const ShortConv& job, std::int64_t channel, std::int64_t t, float* to) {
  const Inputs inputs{job};
  vf sum[kTile / kLanes] = {};
  for (int i = 0; i < kTile / kLanes; i++)
    if (job.bias != nullptr) sum[i] = load(job.bias + channel + i * kLanes);
  for (std::int64_t k = 0; k < job.taps.rows; k++) {
    const float* tap = job.taps.row(k) + channel;
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
    for (std::int64_t k = 0; k < job.taps.rows; k++)
      sum = fma(job.taps.row(k)[channel + i], inputs.row(t, k)[channel + i], sum);
    to[i] = sum;
  }
}

void tile_row(const ShortConv& job, std::int64_t channel, int width, std::int64_t t, float* to) {
  width == kTile ? whole_tile(job, channel, t, to) : part_tile(job, channel, width, t, to);
}

/// Rows [begin, end) of the 16 channels from `channel` on, into tile rows at `to`.
template <int K>
void slide(const ShortConv& job, std::int64_t channel, std::int64_t begin, std::int64_t end, float* to) {
  for (int i = 0; i < kTile; i += kLanes) {
    Window<K> window(job, channel + i, begin);
    for (std::int64_t t = begin; t < end; t++) store(to + t * kTile + i, window.next(load(job.x.row(t) + channel + i)));
  }
}

/// The same times those `back` channels before them.
template <int K>
void slide_product(const ShortConv& job, std::int64_t channel, std::int64_t back, std::int64_t begin, std::int64_t end,
                   float* to) {
  for (int i = 0; i < kTile; i += kLanes) {
    Window<K> gate(job, channel - back + i, begin), value(job, channel + i, begin);
    for (std::int64_t t = begin; t < end; t++) {
      const float* row = job.x.row(t) + channel + i;
      store(to + t * kTile + i, gate.next(load(row - back)) * value.next(load(row)));
    }
  }
}

/// Rows [begin, end) of group g of one part.
void filter(const ShortConv& job, std::int64_t part, std::int64_t g, std::int64_t begin, std::int64_t end, float* to) {
  const std::int64_t D = job.x.cols / job.parts, channel = part * D + g * kTile;
  const int width = tile_width(D, g);
  if (width == kTile && job.taps.rows == 3) return slide<3>(job, channel, begin, end, to);
  if (width == kTile && job.taps.rows == 4) return slide<4>(job, channel, begin, end, to);
  for (std::int64_t t = begin; t < end; t++) tile_row(job, channel, width, t, to + t * kTile);
}

/// The same of the last part times the one before it.
void filter_product(const ShortConv& job, std::int64_t g, std::int64_t begin, std::int64_t end, float* to) {
  const std::int64_t D = job.x.cols / job.parts, channel = (job.parts - 1) * D + g * kTile;
  const int width = tile_width(D, g);
  if (width == kTile && job.taps.rows == 3) return slide_product<3>(job, channel, D, begin, end, to);
  if (width == kTile && job.taps.rows == 4) return slide_product<4>(job, channel, D, begin, end, to);
  alignas(4 * kTile) float gate[kTile];
  for (std::int64_t t = begin; t < end; t++) {
    float* row = to + t * kTile;
    tile_row(job, channel - D, width, t, gate);
    tile_row(job, channel, width, t, row);
    for (int i = 0; i < kTile; i += kLanes) store(row + i, load(gate + i) * load(row + i));
  }
}

/// Rows [begin, end) of group g of every part.
void filter_group(const ShortConv& job, std::int64_t g, std::int64_t begin, std::int64_t end) {
  const std::int64_t G = tile_groups(job.x.cols / job.parts);
  const std::int64_t alone = job.product.data == nullptr ? job.parts : job.parts - 2;
  for (std::int64_t p = 0; p < alone; p++) filter(job, p, g, begin, end, job.out.group(p * G + g));
  if (alone < job.parts) filter_product(job, g, begin, end, job.product.group(g));
}

}  // namespace

void short_conv(const ShortConv& job, int threads) {
  const std::int64_t G = tile_groups(job.x.cols / job.parts), T = job.x.rows;
  const std::int64_t work = T * job.x.cols * job.taps.rows;
  parallel_for(pieces_of(T, kRows), worth(work, threads), [&](std::int64_t piece, int) {
    const std::int64_t begin = piece * kRows, end = std::min(begin + kRows, T);
    for (std::int64_t g = 0; g < G; g++) filter_group(job, g, begin, end);
  });
}

void short_conv_group(const ShortConv& job, std::int64_t g) noexcept { filter_group(job, g, 0, job.x.rows); }

}  // namespace hyena
