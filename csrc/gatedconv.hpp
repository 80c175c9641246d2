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

/// Lanes [lane, lane + L) of group g of such a job. Pointers are kept by value: read through the job
/// they would be loaded again after every store.
template <int L>
class GatedLanes {
 public:
  GatedLanes(const GatedConv& job, std::int64_t g, int lane)
      : z_(job.z.group(g) + lane),
        pre_(job.pre.data == nullptr ? nullptr : job.pre.group(g) + lane),
        post_(job.post.data == nullptr ? nullptr : job.post.group(g) + lane - job.start * kTile),
        add_(job.add.data == nullptr ? nullptr : job.add.group(g) + lane - job.start * kTile),
        skip_(job.skip == nullptr ? nullptr : job.skip + g * kTile + lane),
        out_(job.out.group(g) + lane - job.start * kTile) {}

  /// Row t of w.
  vec<L> input(std::int64_t t) const {
    const vec<L> z = load<L>(z_ + t * kTile);
    return pre_ == nullptr ? z : load<L>(pre_ + t * kTile) * z;
  }
  /// Stores the outputs of row t >= start from its sums c.
  void finish(std::int64_t t, vec<L> c) const {
    if (skip_ != nullptr) c = fma(load<L>(skip_), input(t), c);
    gate(t, c);
  }
  /// The same where c has the skip.
  void gate(std::int64_t t, vec<L> c) const {
    if (add_ != nullptr) c = load<L>(add_ + t * kTile) + c;
    if (post_ != nullptr) c = load<L>(post_ + t * kTile) * c;
    store(out_ + t * kTile, c);
  }

 private:
  const float *z_, *pre_, *post_, *add_, *skip_;
  float* out_;
};

}  // namespace hyena
