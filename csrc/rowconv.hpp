// Convolution with a long filter of one channel at a time: vectors hold neighbouring times.
#pragma once

#include "modular.hpp"
#include "tiles.hpp"

namespace hyena {

/// out[t] = post[t] * (c[t] + skip * w[t]) for t in [start, length), where w = pre * z and c is the product
/// of w and the filter modulo t^M + 1. pre and post may be null; out may be z, pre or post.
struct GatedRow {
  const float *z, *pre, *post;
  float skip;
  float* out;
  std::int64_t start, length;
};

/// h [M] = the scaled transform of taps [length], length <= M, for convolve_row.
void transform_row(const ModularPlan& plan, const float* taps, std::int64_t length, float* h) noexcept;
/// x [M] is overwritten. Rounds start down to whole vectors.
void convolve_row(const ModularPlan& plan, const GatedRow& row, const float* h, float* x) noexcept;

/// Divides every M of these two: two squares of the widest vectors.
constexpr std::int64_t kRowTransformUnit = 2 * kTile * kTile;
/// The plan for these two.
std::shared_ptr<const ModularPlan> row_plan(std::int64_t size);

/// Rows [C, T] of a GatedRow each; pre.data, post.data and skip [C] may be null.
struct GatedRows {
  ConstRows z;
  const float* skip;
  ConstRows pre, post;
  Rows out;
};

/// Channels [first, first + count) of a job.
inline GatedRows cut(const GatedRows& job, std::int64_t first, std::int64_t count) {
  const auto part = [=](ConstRows a) {
    return ConstRows{a.data == nullptr ? nullptr : a.row(first), count, a.cols, a.stride};
  };
  return {part(job.z),
          job.skip == nullptr ? nullptr : job.skip + first,
          part(job.pre),
          part(job.post),
          {job.out.row(first), count, job.out.cols, job.out.stride}};
}

/// out [C, M] = transforms of taps [C, K], K <= M. Throws std::bad_alloc.
void row_spectrum(ConstRows taps, Rows out, int threads);
/// Every channel with its row of spectrum [C, M], z.cols <= M. Throws std::bad_alloc.
void row_conv(const GatedRows& job, ConstRows spectrum, int threads);

}  // namespace hyena
