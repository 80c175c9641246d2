// What both convolution kernels compute, whichever way they sum.
#pragma once

#include "tiles.hpp"

namespace hyena {

/// out[t - start] = post[t - start] * (c[t] + skip * w[t]) for t in [start, S), where w = pre * z
/// and c is the convolution of w with a filter. z and pre are [G, S, 16], post and out
/// [G, S - start, 16], skip [G, 16]; pre.data, post.data and skip may be null.
struct GatedConv {
  TileView z;
  std::int64_t start;
  const float* skip;
  TileView pre, post, out;
};

/// Row t of w, lanes [lane, lane + L), in group g.
template <int L>
inline vec<L> gated_input(const GatedConv& job, std::int64_t g, std::int64_t t, int lane) {
  const std::int64_t at = t * kTile + lane;
  const vec<L> z = load<L>(job.z.group(g) + at);
  return job.pre.data == nullptr ? z : load<L>(job.pre.group(g) + at) * z;
}

/// Stores the outputs of row t >= start from its sums c.
template <int L>
inline void store_gated(const GatedConv& job, std::int64_t g, std::int64_t t, int lane, vec<L> c) {
  const std::int64_t at = (t - job.start) * kTile + lane;
  if (job.skip != nullptr) c = fma(load<L>(job.skip + g * kTile + lane), gated_input<L>(job, g, t, lane), c);
  if (job.post.data != nullptr) c = load<L>(job.post.group(g) + at) * c;
  store(job.out.group(g) + at, c);
}

}  // namespace hyena
