// What both convolution kernels compute, whichever way they sum.
#pragma once

#include <vector>

#include "tiles.hpp"

namespace hyena {

/// out[t - start] = post[t - start] * (c[t] + skip * w[t] + add[t - start]) for t in [start, S), where
/// w = pre * z and c is the convolution of w with a filter. z and pre are [G, S, 16], post, add and out
/// [G, S - start, 16], skip [G, 16]; pre.data, post.data, add.data and skip may be null.
struct GatedConv {
  TileView z;
  std::int64_t start;
  const float* skip;
  TileView pre, post, add, out;
};

/// The jobs of one convolution for sequences that lie in the same tiles.
using GatedConvs = std::vector<GatedConv>;

/// The job of rows [begin, end) alone, a sequence by themselves; job.start is 0. What is added is the
/// same for all of them.
inline GatedConv cut(const GatedConv& job, std::int64_t begin, std::int64_t end) {
  const auto rows = [=](const TileView& z) {
    return TileView{z.data == nullptr ? nullptr : z.data + begin * kTile, z.groups, end - begin, z.stride};
  };
  return {rows(job.z), 0, job.skip, rows(job.pre), rows(job.post), job.add, rows(job.out)};
}

}  // namespace hyena
