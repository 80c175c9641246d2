// A gated convolution as vectors: reading what is convolved, finishing what comes out.
#pragma once

#include "gatedconv.hpp"
#include "simd.hpp"

namespace hyena {

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
