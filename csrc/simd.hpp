// Functions of vectors: extremes, reductions and e^x.
#pragma once

#include "vec.hpp"

namespace hyena {

template <int L>
inline vec<L> min(vec<L> a, vec<L> b) {
  return a < b ? a : b;
}
template <int L>
inline vec<L> max(vec<L> a, vec<L> b) {
  return a > b ? a : b;
}

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

/// e^x within 2 ulp for x in [-87, 88]; arguments outside are clamped to that range, NaN passes.
/// Cody-Waite reduction by ln 2 in two parts, then 1 + r + r^2 q(r) on [-ln2/2, ln2/2] with q the
/// minimax polynomial of degree 4 (relative error 3.1e-9). exp(0) is exactly 1.
template <int L>
inline vec<L> exp(vec<L> x) {
  const float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  // Written so that NaN fails both comparisons and passes through the arithmetic.
  x = x < splat<L>(-87.0f) ? splat<L>(-87.0f) : x;
  x = x > splat<L>(88.0f) ? splat<L>(88.0f) : x;
  const vec<L> shifted = fma(x, splat<L>(1.44269504f), splat<L>(kMagic));
  const vec<L> n = shifted - kMagic;
  vec<L> r = fma(n, splat<L>(-0.693359375f), x);
  r = fma(n, splat<L>(2.12194440e-4f), r);
  vec<L> p = splat<L>(0.00138145406f);
  p = fma(p, r, splat<L>(0.00836874545f));
  p = fma(p, r, splat<L>(0.0416683890f));
  p = fma(p, r, splat<L>(0.166665211f));
  p = fma(p, r, splat<L>(0.49999994f));
  p = fma(p, r, splat<L>(1.0f));
  p = fma(p, r, splat<L>(1.0f));
  const ivec<L> exponent = ((ivec<L>)shifted - (std::int32_t)0x4B400000 + 127) << 23;
  return p * (vec<L>)exponent;
}

}  // namespace hyena
