#include "longconv.hpp"

#include <algorithm>
#include <cmath>

#include "gatedlanes.hpp"
#include "modular_leaves.hpp"
#include "parallel.hpp"
#include "rowconv.hpp"
#include "scratch.hpp"
#include "sizes.hpp"
#include "transpose.hpp"

namespace hyena {
namespace {

/// Whether a vector holds neighbouring times of one channel, as in rowconv.cpp, and not one time of
/// kLanes channels. By channel a tile is transposed on both sides and a leaf has 1.4 times the work,
/// but the rows worked on are 16 times smaller: from here on those of 16 channels pass through main
/// memory at every level near the top (measured at M = 2^21: 13 against 19 ms a channel).
constexpr bool by_channel(std::int64_t size) { return size >= (kLanes == 16 ? 1 << 18 : 1 << 20); }

/// Times in whole vectors, and the distance between the channels of an unpacked tile: not a power of two.
std::int64_t channel_stride(std::int64_t length) { return round_up(length, kLanes) + kTile; }

/// Calls channel(c, t, v) for c < kLanes with v = lane c of the rows row(t) .. row(t + kLanes - 1), zero from `end` on.
template <class Row, class Channel>
HYENA_INLINE void rows_to_channels(std::int64_t begin, std::int64_t end, Row row, Channel channel) {
  for (std::int64_t t = begin; t < end; t += kLanes) {
    vf square[kLanes];
    const bool whole = t + kLanes <= end;
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; r++) square[r] = whole || t + r < end ? row(t + r) : vf{};
    transpose<kLanes>(square);
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; c++) channel(c, t, square[c]);
  }
}

/// Calls row(t, v) for t in [begin, end) with v = lane t of channel(c, .), c < kLanes; channel(c, t) is kLanes
/// neighbouring times.
template <class Channel, class Row>
HYENA_INLINE void channels_to_rows(std::int64_t begin, std::int64_t end, Channel channel, Row row) {
  for (std::int64_t t = begin / kLanes * kLanes; t < end; t += kLanes) {
    vf square[kLanes];
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; c++) square[c] = channel(c, t);
    transpose<kLanes>(square);
    const bool whole = t >= begin && t + kLanes <= end;
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; r++)
      if (whole || (t + r >= begin && t + r < end)) row(t + r, square[r]);
  }
}

/// channels [kLanes, stride] = the rows row(t) for t in [begin, end), then zeros to whole vectors.
template <class Row>
void unpack(std::int64_t begin, std::int64_t end, Row row, float* channels, std::int64_t stride) {
  rows_to_channels(begin, end, row, [=](int c, std::int64_t t, vf v) { store(channels + c * stride + t, v); });
}

/// Calls y(t, value) for t in [begin, end) of channels [kLanes, stride].
template <class Output>
void pack(const float* channels, std::int64_t stride, std::int64_t begin, std::int64_t end, Output y) {
  channels_to_rows(begin, end, [=](int c, std::int64_t t) { return load(channels + c * stride + t); }, y);
}

void spectrum_by_time(const TileView& taps, const TileView& out, int threads) {
  constexpr int L = kLanes, parts = kTile / L;
  const auto plan = modular_plan(out.length, 1);
  const float scale = 1.0f / static_cast<float>(plan->points());
  parallel_for(out.groups * parts, threads, [&](std::int64_t piece, int) {
    const std::int64_t g = piece / parts, part = piece % parts;
    const float* from = taps.group(g) + part * L;
    modular_transform<L>(*plan, ChannelLeaf<L>{*plan}, out.group(g) + part * out.length * L, taps.length,
                         [=](std::int64_t t) { return scale * load<L>(from + t * kTile); });
  });
}

/// Times of one piece of a tile that is unpacked or packed, whole vectors of them.
constexpr std::int64_t kPiece = 1 << 14;

/// f(begin, end) for pieces of [0, length).
template <class F>
void for_pieces(std::int64_t length, int threads, F f) {
  parallel_for(pieces_of(length, kPiece), threads,
               [&](std::int64_t piece, int) { f(piece * kPiece, std::min((piece + 1) * kPiece, length)); });
}

// Threads share one tile of 16 channels after the other: a tile of a million rows is 64 MiB.
void spectrum_by_channel(const TileView& taps, const TileView& out, int threads) {
  const auto plan = row_plan(out.length);
  const std::int64_t stride = channel_stride(taps.length);
  const Scratch channels(kTile * stride, 1);
  float* const w = channels.of(0);
  for (std::int64_t g = 0; g < out.groups; g++) {
    for_pieces(taps.length, threads, [&](std::int64_t begin, std::int64_t end) {
      for (int lane = 0; lane < kTile; lane += kLanes) {
        const float* from = taps.group(g) + lane;
        unpack(begin, end, [=](std::int64_t t) { return load(from + t * kTile); }, w + lane * stride, stride);
      }
    });
    parallel_for(kTile, threads, [&](std::int64_t c, int) {
      transform_row(*plan, w + c * stride, taps.length, out.group(g) + c * out.length);
    });
  }
}

void conv_by_time(const GatedConvs& jobs, const TileView& spectrum, int threads) {
  constexpr int L = kLanes, parts = kTile / L;
  const auto plan = modular_plan(spectrum.length, 1);
  const std::int64_t count = static_cast<std::int64_t>(jobs.size()), pieces = count * spectrum.groups * parts;
  const Scratch rows(2 * L * plan->rows(), workers(pieces, threads));
  parallel_for(pieces, threads, [&](std::int64_t piece, int worker) {
    // One filter after the other, while its spectrum is in the cache.
    const GatedConv& job = jobs[static_cast<std::size_t>(piece % count)];
    const std::int64_t g = piece / count / parts, part = piece / count % parts;
    const GatedLanes<L> lanes(job, g, static_cast<int>(part) * L);
    modular_product<L>(
        *plan, ChannelLeaf<L>{*plan}, rows.of(worker), spectrum.group(g) + part * spectrum.length * L, job.z.length,
        [=](std::int64_t t) { return lanes.input(t); }, job.start, job.z.length,
        [=](std::int64_t t, vec<L> c) { lanes.finish(t, c); });
  });
}

/// The skip is added while a channel is unpacked: w is in the cache there.
void conv_by_channel(const GatedConv& job, const TileView& spectrum, int threads) {
  const auto plan = row_plan(spectrum.length);
  const std::int64_t S = job.z.length, stride = channel_stride(S);
  const Scratch channels(kTile * stride, 1), rows(spectrum.length, workers(kTile, threads));
  float* const w = channels.of(0);
  for (std::int64_t g = 0; g < job.z.groups; g++) {
    for_pieces(S, threads, [&](std::int64_t begin, std::int64_t end) {
      for (int lane = 0; lane < kTile; lane += kLanes) {
        const GatedLanes<kLanes> lanes(job, g, lane);
        unpack(begin, end, [=](std::int64_t t) { return lanes.input(t); }, w + lane * stride, stride);
      }
    });
    parallel_for(kTile, threads, [&](std::int64_t c, int worker) {
      float* row = w + c * stride;
      const float skip = job.skip == nullptr ? 0.0f : job.skip[g * kTile + c];
      const GatedRow whole{row, nullptr, nullptr, skip, row, job.start, round_up(S, kLanes)};
      convolve_row(*plan, whole, spectrum.group(g) + c * spectrum.length, rows.of(worker));
    });
    for_pieces(S, threads, [&](std::int64_t begin, std::int64_t end) {
      for (int lane = 0; lane < kTile; lane += kLanes) {
        const GatedLanes<kLanes> lanes(job, g, lane);
        pack(w + lane * stride, stride, std::max(begin, job.start), end,
             [=](std::int64_t t, vf y) { lanes.gate(t, y); });
      }
    });
  }
}

/// kLanes channels of rows [C, T], or the last few. Rows are read and written kRun times at once: rows that
/// lie a power of two apart share few places of the cache, and line by line they would push one another out.
class RowLanes {
 public:
  RowLanes(const GatedRows& job, std::int64_t first)
      : job_(cut(job, first, std::min<std::int64_t>(kLanes, job.z.rows - first))) {}

  /// Calls row(t, w) with row t of w = pre * z; lanes without a channel are zero.
  template <class Row>
  void gather(Row row) const {
    alignas(kCacheLine) float runs[kLanes * kStride] = {};
    for (std::int64_t begin = 0; begin < job_.z.cols; begin += kRun) {
      const std::int64_t end = std::min(begin + kRun, job_.z.cols);
      for (std::int64_t c = 0; c < job_.z.rows; c++)
        each(begin, end, [&, run = runs + c * kStride - begin](std::int64_t t, std::int64_t n) {
          write(run + t, input(c, t, n), n);
        });
      pack(runs, kStride, 0, end - begin, [&](std::int64_t t, vf v) { row(begin + t, v); });
    }
  }
  /// out = post * (c + skip * w), row(t) being row t of c.
  template <class Row>
  void scatter(Row row) const {
    alignas(kCacheLine) float runs[kLanes * kStride];
    for (std::int64_t begin = 0; begin < job_.z.cols; begin += kRun) {
      const std::int64_t end = std::min(begin + kRun, job_.z.cols);
      unpack(0, end - begin, [&](std::int64_t t) { return row(begin + t); }, runs, kStride);
      for (std::int64_t c = 0; c < job_.z.rows; c++)
        each(begin, end, [&, run = runs + c * kStride - begin](std::int64_t t, std::int64_t n) {
          vf v = read(run + t, n);
          if (job_.skip != nullptr) v = fma(splat(job_.skip[c]), input(c, t, n), v);
          if (job_.post.data != nullptr) v = read(job_.post.row(c) + t, n) * v;
          write(job_.out.row(c) + t, v, n);
        });
    }
  }

 private:
  static constexpr std::int64_t kRun = 128, kStride = kRun + kTile;

  /// f(t, n) for vectors of n = kLanes times, and what is left.
  template <class F>
  HYENA_INLINE static void each(std::int64_t begin, std::int64_t end, F f) {
    std::int64_t t = begin;
    for (; t + kLanes <= end; t += kLanes) f(t, kLanes);
    if (t < end) f(t, end - t);
  }
  HYENA_INLINE static vf read(const float* p, std::int64_t n) { return n == kLanes ? load(p) : load_part(p, n); }
  HYENA_INLINE static void write(float* p, vf v, std::int64_t n) { n == kLanes ? store(p, v) : store_part(p, v, n); }
  HYENA_INLINE vf input(std::int64_t c, std::int64_t t, std::int64_t n) const {
    const vf z = read(job_.z.row(c) + t, n);
    return job_.pre.data == nullptr ? z : read(job_.pre.row(c) + t, n) * z;
  }

  const GatedRows job_;
};

/// Inputs and outputs lie where the product has them itself: row t in the real part of coefficient t, or in the
/// imaginary one of coefficient t - N.
void rows_by_time(const GatedRows& job, const TileView& spectrum, int threads) {
  constexpr int L = kLanes, parts = kTile / L;
  const auto plan = modular_plan(spectrum.length, 1);
  const std::int64_t pieces = pieces_of(job.z.rows, L), N = plan->rows();
  const Scratch scratch(2 * L * N, workers(pieces, threads));
  parallel_for(pieces, threads, [&](std::int64_t piece, int worker) {
    float* const x = scratch.of(worker);
    const auto at = [=](std::int64_t t) { return t < N ? x + t * 2 * L : x + (t - N) * 2 * L + L; };
    const auto read = [=](std::int64_t t) { return load(at(t)); };
    const auto write = [=](std::int64_t t, vf v) { store(at(t), v); };
    const RowLanes lanes(job, piece * L);
    lanes.gather(write);
    const float* h = spectrum.group(piece / parts) + piece % parts * spectrum.length * L;
    modular_product<L>(*plan, ChannelLeaf<L>{*plan}, x, h, job.z.cols, read, 0, job.z.cols, write);
    lanes.scatter(read);
  });
}

}  // namespace

void spectrum(const TileView& taps, const TileView& out, int threads) {
  by_channel(out.length) ? spectrum_by_channel(taps, out, threads) : spectrum_by_time(taps, out, threads);
}

void long_conv(const GatedConv& job, const TileView& spectrum, int threads) {
  long_conv(GatedConvs{job}, spectrum, threads);
}

void long_conv(const GatedConvs& jobs, const TileView& spectrum, int threads) {
  if (!by_channel(spectrum.length)) return conv_by_time(jobs, spectrum, threads);
  for (const GatedConv& job : jobs) conv_by_channel(job, spectrum, threads);
}

void row_conv(const GatedRows& job, const TileView& spectrum, int threads) {
  if (!by_channel(spectrum.length)) return rows_by_time(job, spectrum, threads);
  for (std::int64_t g = 0; g < spectrum.groups; g++) {
    const std::int64_t first = g * kTile, count = std::min<std::int64_t>(kTile, job.z.rows - first);
    row_conv(cut(job, first, count), ConstRows{spectrum.group(g), count, spectrum.length, spectrum.length}, threads);
  }
}

std::int64_t conv_scratch(std::int64_t size, std::int64_t length, int threads) {
  if (by_channel(size)) return kTile * channel_stride(length) + threads * size;
  return threads * 2 * kLanes * modular_plan(size, 1)->rows();
}

std::int64_t conv_plan(std::int64_t added, std::int64_t history, std::int64_t taps) {
  // kCrossover M log2 M multiply-adds of direct sums cost as much as one convolution of size M:
  // 2.6 to 4.5 measured at M = 512 .. 32,768 with 16 lanes, 2.3 to 3.5 with 8, 1.4 to 2.2 with 4.
  constexpr double kCrossover = kLanes >= 8 ? 3.0 : 1.8;
  const std::int64_t length = history + added, lags = std::min(taps, length);
  if (added == 1) return 0;
  const std::int64_t size = transform_size(std::max(length, added + lags - 1));
  if (size == 0) return -1;
  // Outputs near the start of a sequence have fewer lags.
  const double missing = static_cast<double>(std::max<std::int64_t>(0, lags - 1 - history));
  const double direct = static_cast<double>(added) * static_cast<double>(lags) - missing * (missing + 1) / 2;
  const double through = static_cast<double>(size) * std::log2(static_cast<double>(size));
  return direct <= kCrossover * through ? 0 : size;
}

}  // namespace hyena
