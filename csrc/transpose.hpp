// Transposing squares of registers.
#pragma once

#include <utility>

#include "vec.hpp"

namespace hyena {

/// Elements a0 b0 a1 b1 of the lower (upper) halves of every four lanes: one cheap instruction where
/// mixing lanes across a register needs three cycles and a register of indices.
template <int L>
inline vec<L> zip_low(vec<L> a, vec<L> b) {
  if constexpr (L == 4) return __builtin_shufflevector(a, b, 0, 4, 1, 5);
  if constexpr (L == 8) return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
  if constexpr (L == 16) return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
template <int L>
inline vec<L> zip_high(vec<L> a, vec<L> b) {
  if constexpr (L == 4) return __builtin_shufflevector(a, b, 2, 6, 3, 7);
  if constexpr (L == 8) return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  if constexpr (L == 16)
    return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}

/// Even (odd) groups of four lanes: those of a, then those of b.
template <int L>
inline vec<L> even_groups(vec<L> a, vec<L> b) {
  if constexpr (L == 8) return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  if constexpr (L == 16) return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
template <int L>
inline vec<L> odd_groups(vec<L> a, vec<L> b) {
  if constexpr (L == 8) return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  if constexpr (L == 16)
    return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

/// row[i][j] becomes row[j][i]: squares of four inside the groups of lanes, then the groups.
template <int L>
inline __attribute__((always_inline)) void transpose(vec<L>* row) {
#pragma GCC unroll 16
  for (int i = 0; i < L; i += 4) {
    vec<L>* r = row + i;
    const vec<L> a = zip_low<L>(r[0], r[2]), b = zip_high<L>(r[0], r[2]);
    const vec<L> c = zip_low<L>(r[1], r[3]), d = zip_high<L>(r[1], r[3]);
    r[0] = zip_low<L>(a, c);
    r[1] = zip_high<L>(a, c);
    r[2] = zip_low<L>(b, d);
    r[3] = zip_high<L>(b, d);
  }
  if constexpr (L > 4) {
    // Pairs of rows L / 4 apart in a round of even and odd groups; log2(L / 4) rounds.
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      vec<L>* r = row + i;
      if constexpr (L == 8) {
        const vec<L> a = r[0], b = r[4];
        r[0] = even_groups<L>(a, b);
        r[4] = odd_groups<L>(a, b);
      } else {
        const vec<L> a = even_groups<L>(r[0], r[4]), b = odd_groups<L>(r[0], r[4]);
        const vec<L> c = even_groups<L>(r[8], r[12]), d = odd_groups<L>(r[8], r[12]);
        r[0] = even_groups<L>(a, c);
        r[4] = even_groups<L>(b, d);
        r[8] = odd_groups<L>(a, c);
        r[12] = odd_groups<L>(b, d);
      }
    }
  }
}

}  // namespace hyena
