#include "longconv.hpp"

#include <algorithm>
#include <cmath>

#include "modular_leaves.hpp"
#include "parallel.hpp"
#include "rowconv.hpp"
#include "scratch.hpp"
#include "transpose.hpp"

namespace hyena {
namespace {

/// Whether a vector holds neighbouring times of one channel, as in rowconv.cpp, and not one time of
/// kLanes channels. By channel a tile is transposed on both sides and a leaf has 1.4 times the work,
/// but the rows worked on are 16 times smaller: from here on those of 16 channels pass through main
/// memory at every level near the top (measured at M = 2^21: 13 against 19 ms a channel).
constexpr bool by_channel(std::int64_t size) { return size >= (kLanes == 16 ? 1 << 18 : 1 << 20); }

/// Times in whole vectors, and the distance between the channels of an unpacked tile: not a power of two.
std::int64_t whole_vectors(std::int64_t length) { return (length + kLanes - 1) / kLanes * kLanes; }
std::int64_t channel_stride(std::int64_t length) { return whole_vectors(length) + kTile; }

/// channels [kLanes, stride] = the rows row(t) for t in [begin, end), then zeros to whole vectors.
template <class Row>
void unpack(std::int64_t begin, std::int64_t end, Row row, float* channels, std::int64_t stride) {
  for (std::int64_t t = begin; t < end; t += kLanes) {
    vf square[kLanes];
    const bool whole = t + kLanes <= end;
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; r++) square[r] = whole || t + r < end ? row(t + r) : vf{};
    transpose<kLanes>(square);
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; c++) store(channels + c * stride + t, square[c]);
  }
}

/// Calls y(t, value) for t in [begin, end) of channels [kLanes, stride].
template <class Output>
void pack(const float* channels, std::int64_t stride, std::int64_t begin, std::int64_t end, Output y) {
  for (std::int64_t t = begin / kLanes * kLanes; t < end; t += kLanes) {
    vf square[kLanes];
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; c++) square[c] = load(channels + c * stride + t);
    transpose<kLanes>(square);
    const bool whole = t >= begin && t + kLanes <= end;
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; r++)
      if (whole || (t + r >= begin && t + r < end)) y(t + r, square[r]);
  }
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
  parallel_for((length + kPiece - 1) / kPiece, threads,
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
      const GatedRow whole{row, nullptr, nullptr, skip, row, job.start, whole_vectors(S)};
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
