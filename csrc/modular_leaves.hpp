// Where the recursion of a modular product ends: transform, product and the way back in registers.
#pragma once

#include "modular_product.hpp"
#include "transpose.hpp"

namespace hyena {

/// x[k] *= h[k] for R rows.
template <int L, int R>
HYENA_INLINE void multiply(Complex<L>* a, const float* h) {
#pragma GCC unroll 16
  for (int k = 0; k < R; k++) a[k] = turn<1, L>(a[k], load<L>(h + k * 2 * L), load<L>(h + k * 2 * L + L));
}

/// Each lane is a channel: a leaf has R rows and splits into single coefficients.
template <int L>
struct ChannelLeaf {
  const ModularPlan& plan;

  template <Way way>
  void finish(float* x, const float* h, std::int64_t b, std::int64_t count) const {
    const ModularPlan::Level& level = plan.levels().back();
    with_radix(level.radix, [&](auto R) { blocks<R, way>(x, h, level.node(b), count); });
  }

 private:
  template <int R, Way way>
  HYENA_PASS static void blocks(float* x, const float* h, const float* twiddles, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i++, x += R * 2 * L, h += R * 2 * L, twiddles += 2 * (R - 1)) {
      Complex<L> a[R];
#pragma GCC unroll 16
      for (int k = 0; k < R; k++) a[k] = load_complex<L>(x + k * 2 * L);
      if (way != Way::up) {
        twiddle<R, 1, L>(a, twiddles);
        dft<R, 1, L>(a);
      }
      if (way == Way::product) multiply<L, R>(a, h);
      if (way != Way::down) {
        dft<R, -1, L>(a);
        twiddle<R, -1, L>(a, twiddles);
      }
#pragma GCC unroll 16
      for (int k = 0; k < R; k++) store_complex<L>(x + k * 2 * L, a[k]);
    }
  }
};

/// A row is L neighbouring coefficients of one channel: a leaf is L rows modulo t^(L L) - c. It
/// splits by L into rows modulo t^L - c', is transposed, and splits by L across what was a row. The
/// twiddles of the second split, c'^(l/L) = c^(l/L^2) exp(2 pi i l q/L^2), are the same for all leaves
/// but for the first factor, which multiplies lane l before the transposition: so a leaf reads 16
/// times less than a table of them all would hold.
template <int L>
struct LaneLeaf {
  const ModularPlan& plan;

  template <Way way>
  HYENA_PASS void finish(float* x, const float* h, std::int64_t b, std::int64_t count) const {
    static_assert(way != Way::up);
    const float* twiddles = plan.levels().back().node(b);
    const float* lanes = plan.lane_twist() + b * 2 * L;
    const float* square = plan.square_twist();
    for (std::int64_t i = 0; i < count; i++, x += 2 * L * L, h += 2 * L * L, twiddles += 2 * (L - 1), lanes += 2 * L) {
      Complex<L> a[L];
      const vec<L> c = load<L>(lanes), s = load<L>(lanes + L);
#pragma GCC unroll 16
      for (int k = 0; k < L; k++) a[k] = turn<1, L>(load_complex<L>(x + k * 2 * L), c, s);
      twiddle<L, 1, L>(a, twiddles);
      dft<L, 1, L>(a);
      transpose_complex(a);
      turn_square<1>(a, square);
      dft<L, 1, L>(a);
      if (way == Way::product) {
        multiply<L, L>(a, h);
        dft<L, -1, L>(a);
        turn_square<-1>(a, square);
        transpose_complex(a);
        dft<L, -1, L>(a);
        twiddle<L, -1, L>(a, twiddles);
#pragma GCC unroll 16
        for (int k = 0; k < L; k++) a[k] = turn<-1, L>(a[k], c, s);
      }
#pragma GCC unroll 16
      for (int k = 0; k < L; k++) store_complex<L>(x + k * 2 * L, a[k]);
    }
  }

 private:
  HYENA_INLINE static void transpose_complex(Complex<L>* a) {
    vec<L> part[L];
#pragma GCC unroll 16
    for (int k = 0; k < L; k++) part[k] = a[k].re;
    transpose<L>(part);
#pragma GCC unroll 16
    for (int k = 0; k < L; k++) a[k].re = part[k], part[k] = a[k].im;
    transpose<L>(part);
#pragma GCC unroll 16
    for (int k = 0; k < L; k++) a[k].im = part[k];
  }
  template <int Sign>
  HYENA_INLINE static void turn_square(Complex<L>* a, const float* square) {
#pragma GCC unroll 16
    for (int k = 1; k < L; k++)
      a[k] = turn<Sign, L>(a[k], load<L>(square + k * 2 * L), load<L>(square + k * 2 * L + L));
  }
};

}  // namespace hyena
