// Products of real polynomials modulo t^M + 1 by splitting the modulus.
//
// A real polynomial of M coefficients is determined modulo t^M + 1 = (t^N - i)(t^N + i), N = M / 2,
// by its residue modulo t^N - i alone, which has the N complex coefficients x[t] + i x[t + N].
// The modulus splits by a radix R,
//   t^n - c = product over q < R of (t^(n/R) - c^(1/R) w^q),  w = exp(2 pi i / R),
// and residue q has the coefficients sum over k of x[j + k n/R] c^(k/R) w^(qk). So each block has
// one root, its twiddles are R - 1 scalars, all happens in place, and the spectrum stays in the
// order in which the recursion makes it: no bit reversal, no padding, no real-to-complex step.
// A product goes down the tree, is multiplied at each leaf while in registers, and comes back up,
// depth first, so that only the topmost levels touch more than the caches hold.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "aligned.hpp"

namespace hyena {

constexpr std::int64_t kLargestTransform = std::int64_t{1} << 31;

/// Smallest supported size >= minimum; 0 if there is none. Sizes are c 2^k with c = 1, 3 or 5, even, and
/// with c = 9, 15 or 27 and k >= 6, up to kLargestTransform: each at most 1.25 times, and from 576 on 1.125
/// times the one before it.
std::int64_t transform_size(std::int64_t minimum);

/// The moduli of one size, level by level. Node b of a level with root exp(i theta) has the children
/// b R + q with roots exp(i (theta + 2 pi q) / R); the first node has theta = pi / 2.
class ModularPlan {
 public:
  struct Level {
    int radix;
    AlignedArray<float> twiddles;  // [nodes, radix - 1, 2]: cosine and sine of theta k / radix, k >= 1
    const float* node(std::int64_t b) const { return twiddles.get() + b * 2 * (radix - 1); }
  };

  /// `size` is a supported M. With block == 1 a row is one complex coefficient, with block == L it
  /// holds L neighbouring ones: then the last level has radix L and LaneLeaf finishes the rows.
  /// Throws std::bad_alloc.
  ModularPlan(std::int64_t size, int block);

  std::int64_t points() const { return points_; }               // N
  std::int64_t rows() const { return points_ / block_; }        // what the levels split
  const std::vector<Level>& levels() const { return levels_; }  // at least two
  /// For block == L, leaf b with root exp(i theta): cos and sin(theta l / L^2), l < L, as [leaves, 2, L].
  const float* lane_twist() const { return lane_twist_.get(); }
  /// cos and sin(2 pi k q / L^2) as [k, 2, q].
  const float* square_twist() const { return square_twist_.get(); }

 private:
  std::int64_t points_;
  int block_;
  std::vector<Level> levels_;
  AlignedArray<float> lane_twist_, square_twist_;
};

/// The plan from one cache, kept for the life of the process: 4 bytes * size when block is 1, else 8 / block
/// bytes * size, small beside the spectra. Locked; throws std::bad_alloc.
std::shared_ptr<const ModularPlan> modular_plan(std::int64_t size, int block);

}  // namespace hyena
