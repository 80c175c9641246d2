// The small Fourier transforms that a block is split with.
#pragma once

#include <utility>

#include "complex.hpp"

namespace hyena {

namespace detail {
template <int Sign, int L>
HYENA_INLINE void dft3(Complex<L>* a) {
  const Complex<L> sum = a[1] + a[2], d = quarter_turn<Sign, L>(a[1] - a[2]);
  const Complex<L> mean = add_scaled<L>(a[0], -0.5f, sum);
  a[0] = a[0] + sum;
  a[1] = add_scaled<L>(mean, 0.8660254037844386f, d);
  a[2] = add_scaled<L>(mean, -0.8660254037844386f, d);
}

template <int Sign, int L>
HYENA_INLINE void dft4(Complex<L>& a0, Complex<L>& a1, Complex<L>& a2, Complex<L>& a3) {
  const Complex<L> t0 = a0 + a2, t1 = a0 - a2, t2 = a1 + a3, t3 = quarter_turn<Sign, L>(a1 - a3);
  a0 = t0 + t2;
  a1 = t1 + t3;
  a2 = t0 - t2;
  a3 = t1 - t3;
}

template <int Sign, int L>
HYENA_INLINE void dft5(Complex<L>* a) {
  constexpr float c1 = 0.30901699437494745f, c2 = -0.8090169943749475f;  // cos(2 pi / 5), cos(4 pi / 5)
  constexpr float s1 = 0.9510565162951535f, s2 = 0.5877852522924731f;    // and their sines
  const Complex<L> p1 = a[1] + a[4], p2 = a[2] + a[3];
  const Complex<L> d1 = quarter_turn<Sign, L>(a[1] - a[4]), d2 = quarter_turn<Sign, L>(a[2] - a[3]);
  const Complex<L> m1 = add_scaled<L>(add_scaled<L>(a[0], c1, p1), c2, p2);
  const Complex<L> m2 = add_scaled<L>(add_scaled<L>(a[0], c2, p1), c1, p2);
  a[0] = a[0] + (p1 + p2);
  a[1] = add_scaled<L>(add_scaled<L>(m1, s1, d1), s2, d2);
  a[4] = add_scaled<L>(add_scaled<L>(m1, -s1, d1), -s2, d2);
  a[2] = add_scaled<L>(add_scaled<L>(m2, s2, d1), -s1, d2);
  a[3] = add_scaled<L>(add_scaled<L>(m2, -s2, d1), s1, d2);
}

template <int Sign, int L>
HYENA_INLINE void dft8(Complex<L>* a) {
  constexpr float h = 0.7071067811865476f;
  dft4<Sign, L>(a[0], a[2], a[4], a[6]);
  dft4<Sign, L>(a[1], a[3], a[5], a[7]);
  // Odd outputs times (1 + Sign i) h and (-1 + Sign i) h: the h goes into the last additions.
  const Complex<L> i3 = quarter_turn<Sign, L>(a[3]), i7 = quarter_turn<Sign, L>(a[7]);
  const Complex<L> e0 = a[0], e1 = a[2], e2 = a[4], e3 = a[6];
  const Complex<L> o0 = a[1], o1 = a[3] + i3, o2 = quarter_turn<Sign, L>(a[5]), o3 = i7 - a[7];
  a[0] = e0 + o0;
  a[4] = e0 - o0;
  a[1] = add_scaled<L>(e1, h, o1);
  a[5] = add_scaled<L>(e1, -h, o1);
  a[2] = e2 + o2;
  a[6] = e2 - o2;
  a[3] = add_scaled<L>(e3, h, o3);
  a[7] = add_scaled<L>(e3, -h, o3);
}

template <int Sign, int L>
HYENA_INLINE void dft16(Complex<L>* a) {
  constexpr float c = 0.9238795325112867f, s = 0.3826834323650898f, h = 0.7071067811865476f;
  for (int k = 0; k < 4; k++) dft4<Sign, L>(a[k], a[k + 4], a[k + 8], a[k + 12]);
  a[5] = turn<Sign, L>(a[5], c, s);
  a[6] = turn<Sign, L>(a[6], h, h);
  a[7] = turn<Sign, L>(a[7], s, c);
  a[9] = turn<Sign, L>(a[9], h, h);
  a[10] = quarter_turn<Sign, L>(a[10]);
  a[11] = turn<Sign, L>(a[11], -h, h);
  a[13] = turn<Sign, L>(a[13], s, c);
  a[14] = turn<Sign, L>(a[14], -h, h);
  a[15] = turn<Sign, L>(a[15], -c, -s);
  for (int q = 0; q < 4; q++) dft4<Sign, L>(a[4 * q], a[4 * q + 1], a[4 * q + 2], a[4 * q + 3]);
  for (int q = 0; q < 4; q++)
    for (int p = q + 1; p < 4; p++) std::swap(a[4 * q + p], a[4 * p + q]);
}
}  // namespace detail

/// a[q] = sum over k of a[k] exp(Sign 2 pi i q k / R).
template <int R, int Sign, int L>
HYENA_INLINE void dft(Complex<L>* a) {
  static_assert((R >= 1 && R <= 5) || R == 8 || R == 16);
  if constexpr (R == 2) {
    const Complex<L> sum = a[0] + a[1];
    a[1] = a[0] - a[1];
    a[0] = sum;
  }
  if constexpr (R == 3) detail::dft3<Sign, L>(a);
  if constexpr (R == 4) detail::dft4<Sign, L>(a[0], a[1], a[2], a[3]);
  if constexpr (R == 5) detail::dft5<Sign, L>(a);
  if constexpr (R == 8) detail::dft8<Sign, L>(a);
  if constexpr (R == 16) detail::dft16<Sign, L>(a);
}

}  // namespace hyena
