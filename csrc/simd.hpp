// Functions of vectors: reductions, e^x and what decays by it.
#pragma once

#include "arith.hpp"

namespace hyena {

/// Sum of the lanes by halves: the same tree in every call.
template <int L>
inline float sum(vec<L> v) {
  if constexpr (L > 4)
    return sum<L / 2>(half_of<L>(v, 0) + half_of<L>(v, 1));
  else
    return (v[0] + v[2]) + (v[1] + v[3]);
}

/// Largest lane.
template <int L>
inline float max_lane(vec<L> v) {
  if constexpr (L > 4) {
    return max_lane<L / 2>(max<L / 2>(half_of<L>(v, 0), half_of<L>(v, 1)));
  } else {
    const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
  }
}

/// e^x = scale (1 + p r): what `exp` and `Power` are made of. Cody-Waite reduction by ln 2 in two
/// parts, then 1 + r + r^2 q(r) on [-ln2/2, ln2/2] with q the minimax polynomial of degree 4 (relative
/// error 3.1e-9). Arguments outside [-87, 88] are clamped to that range, NaN passes.
template <int L>
struct ExpParts {
  vec<L> p, r, scale;
  explicit ExpParts(vec<L> x) {
    const float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
    // In this order NaN passes.
    x = max<L>(splat<L>(-87.0f), x);
    x = min<L>(splat<L>(88.0f), x);
    const vec<L> shifted = fma(x, splat<L>(1.44269504f), splat<L>(kMagic));
    const vec<L> n = shifted - kMagic;
    r = fma(n, splat<L>(-0.693359375f), x);
    r = fma(n, splat<L>(2.12194440e-4f), r);
    p = splat<L>(0.00138145406f);
    p = fma(p, r, splat<L>(0.00836874545f));
    p = fma(p, r, splat<L>(0.0416683890f));
    p = fma(p, r, splat<L>(0.166665211f));
    p = fma(p, r, splat<L>(0.49999994f));
    p = fma(p, r, splat<L>(1.0f));
    scale = (vec<L>)(((ivec<L>)shifted - (std::int32_t)0x4B400000 + 127) << 23);
  }
};

/// e^x within 2 ulp for x in [-87, 88]; arguments outside are clamped to that range, NaN passes.
/// exp(0) is exactly 1.
template <int L>
inline vec<L> exp(vec<L> x) {
  const ExpParts<L> e(x);
  return fma(e.p, e.r, splat<L>(1.0f)) * e.scale;
}

/// e^x for x <= 0 as a factor, zero below -80. A factor near 1 is never rounded by itself: a state
/// that is multiplied by it thousands of times would show that error as many times.
template <int L>
class Decay {
 public:
  explicit Decay(vec<L> x) {
    const ExpParts<L> e(x);
    less_ = e.p * e.r;
    scale_ = x < splat<L>(-80.0f) ? vec<L>{} : e.scale;
  }
  vec<L> times(vec<L> s) const { return fma(less_, s, s) * scale_; }

 private:
  vec<L> less_, scale_;  // e^x = scale (1 + less)
};

/// x, or zero where |x| is below 1e-30: a sum that decays never gets to the subnormal numbers, on which
/// processors are many times slower.
template <int L>
inline vec<L> settle(vec<L> x) {
  return ((x < splat<L>(1e-30f)) & (x > splat<L>(-1e-30f))) ? vec<L>{} : x;
}

}  // namespace hyena
