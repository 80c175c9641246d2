// Passes over the rows of a modular product.
//
// x is [rows, 2, L]: complex vectors. The caller's sequence is w(r), r < 2 rows: row r is the real
// and row r + rows the imaginary part of coefficient r.
#pragma once

#include <cstdint>

#include "butterfly.hpp"

namespace hyena {

/// a[k] *= c^(Sign k / R), k >= 1.
template <int R, int Sign, int L>
HYENA_INLINE void twiddle(Complex<L>* a, const float* twiddles) {
#pragma GCC unroll 16
  for (int k = 1; k < R; k++) a[k] = turn<Sign, L>(a[k], twiddles[2 * k - 2], twiddles[2 * k - 1]);
}

// The passes are kept out of line: inlined into one another they share 32 registers badly.
#define HYENA_PASS __attribute__((noinline))

/// A block of R m rows splits into R blocks of m rows.
template <int L, int R>
HYENA_PASS void split_pass(float* x, std::int64_t m, const float* twiddles) {
  for (std::int64_t j = 0; j < m; j++) {
    Complex<L> a[R];
#pragma GCC unroll 16
    for (int k = 0; k < R; k++) a[k] = load_complex<L>(x + (j + k * m) * 2 * L);
    twiddle<R, 1, L>(a, twiddles);
    dft<R, 1, L>(a);
#pragma GCC unroll 16
    for (int k = 0; k < R; k++) store_complex<L>(x + (j + k * m) * 2 * L, a[k]);
  }
}

/// Undoes split_pass but for a factor R.
template <int L, int R>
HYENA_PASS void join_pass(float* x, std::int64_t m, const float* twiddles) {
  for (std::int64_t j = 0; j < m; j++) {
    Complex<L> a[R];
#pragma GCC unroll 16
    for (int k = 0; k < R; k++) a[k] = load_complex<L>(x + (j + k * m) * 2 * L);
    dft<R, -1, L>(a);
    twiddle<R, -1, L>(a, twiddles);
#pragma GCC unroll 16
    for (int k = 0; k < R; k++) store_complex<L>(x + (j + k * m) * 2 * L, a[k]);
  }
}

/// Which of the rows that a column of the first pass combines may be there.
enum class Reading { all_real, some_real, any };

/// Columns [begin, end) of first_pass. some_real: the first `present` rows of each, imaginary parts
/// zero; any: those of w(r) with r < length.
template <int L, int R, Reading rows, class Input>
HYENA_INLINE void first_columns(float* x, std::int64_t m, const float* twiddles, std::int64_t length, Input&& w,
                                std::int64_t begin, std::int64_t end, std::int64_t present) {
  for (std::int64_t j = begin; j < end; j++) {
    Complex<L> a[R];
#pragma GCC unroll 16
    for (int k = 0; k < R; k++) {
      const std::int64_t r = j + k * m;
      vec<L> re{};
      if (rows == Reading::all_real || k < present) re = w(r);
      a[k] = {re, vec<L>{}};
      if (rows == Reading::any && r + R * m < length) a[k].im = w(r + R * m);
      if (rows != Reading::any && k > 0) a[k] = {re * twiddles[2 * k - 2], re * twiddles[2 * k - 1]};
    }
    if (rows == Reading::any) twiddle<R, 1, L>(a, twiddles);
    dft<R, 1, L>(a);
#pragma GCC unroll 16
    for (int k = 0; k < R; k++) store_complex<L>(x + (j + k * m) * 2 * L, a[k]);
  }
}

/// split_pass of w(r), zero from `length` on, into x.
template <int L, int R, class Input>
HYENA_PASS void first_pass(float* x, std::int64_t m, const float* twiddles, std::int64_t length, Input w) {
  if (length == R * m) return first_columns<L, R, Reading::all_real>(x, m, twiddles, length, w, 0, m, R);
  if (length > R * m) return first_columns<L, R, Reading::any>(x, m, twiddles, length, w, 0, m, R);
  const std::int64_t rest = length % m;
  first_columns<L, R, Reading::some_real>(x, m, twiddles, length, w, 0, rest, length / m + 1);
  first_columns<L, R, Reading::some_real>(x, m, twiddles, length, w, rest, m, length / m);
}

/// Columns [from, to) of last_pass; all_real: every real part and no imaginary one is wanted.
template <int L, int R, Reading rows, class Output>
HYENA_INLINE void last_columns(const float* x, std::int64_t m, const float* twiddles, std::int64_t begin,
                               std::int64_t end, Output&& y, std::int64_t from, std::int64_t to) {
  for (std::int64_t j = from; j < to; j++) {
    Complex<L> a[R];
#pragma GCC unroll 16
    for (int k = 0; k < R; k++) a[k] = load_complex<L>(x + (j + k * m) * 2 * L);
    dft<R, -1, L>(a);
    if (rows == Reading::any) twiddle<R, -1, L>(a, twiddles);
#pragma GCC unroll 16
    for (int k = 0; k < R; k++) {
      const std::int64_t r = j + k * m;
      if (rows != Reading::any && k > 0)
        a[k].re = fma(a[k].re, splat<L>(twiddles[2 * k - 2]), a[k].im * twiddles[2 * k - 1]);
      if (rows == Reading::all_real || (r >= begin && r < end)) y(r, a[k].re);
      if (rows == Reading::any && r + R * m >= begin && r + R * m < end) y(r + R * m, a[k].im);
    }
  }
}

/// join_pass of x that calls y(r, value) for r in [begin, end) and stores nothing itself.
template <int L, int R, class Output>
HYENA_PASS void last_pass(const float* x, std::int64_t m, const float* twiddles, std::int64_t begin, std::int64_t end,
                          Output y) {
  if (begin == 0 && end == R * m) return last_columns<L, R, Reading::all_real>(x, m, twiddles, begin, end, y, 0, m);
  if (end > R * m) return last_columns<L, R, Reading::any>(x, m, twiddles, begin, end, y, 0, m);
  last_columns<L, R, Reading::some_real>(x, m, twiddles, begin, end, y, 0, m);
}

}  // namespace hyena
