// The tile registers of AMX: sixteen rows of sixteen words, a word being a pair of bfloat16 numbers or a float32 sum.
#pragma once

#include <cstdint>

namespace hyena {

constexpr std::int64_t kSide = 16;  // rows, and words of a row

#if defined(__AMX_BF16__)
/// Whether this build has them.
constexpr bool kTileRegisters = true;

/// The registers of this thread can be used from here on; and its values are given up.
inline void begin_tile_registers() {
  struct alignas(64) Shapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static const Shapes shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes));
}
inline void end_tile_registers() { asm volatile("tilerelease"); }

// Written out: the compiler's own names for these do not tell it that memory is read.
template <int T>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
/// Rows `row` words apart.
template <int T>
inline void load_tile(const float* from, std::int64_t row) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row * 4), "i"(T) : "memory");
}
template <int T>
inline void store_tile(float* to, std::int64_t row) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row * 4), "i"(T) : "memory");
}
/// C += A B for A [16][16 words] and B [16 words][16].
template <int C, int A, int B>
inline void add_tile_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

/// Sums [R * 16][32] in registers 0-3: two tiles a row of tiles.
template <int R>
class TileSums {
 public:
  TileSums(float* c, std::int64_t row) : c_(c), row_(row) {}
  void begin(bool add) const {
    if (!add) return zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
    load_tile<0>(c_, row_), load_tile<1>(c_ + kSide, row_);
    if constexpr (R == 2) load_tile<2>(below(), row_), load_tile<3>(below() + kSide, row_);
  }
  /// += registers 4 and 5, one below the other, times registers 6 and 7 side by side.
  static void add() {
    add_tile_product<0, 4, 6>(), add_tile_product<1, 4, 7>();
    if constexpr (R == 2) add_tile_product<2, 5, 6>(), add_tile_product<3, 5, 7>();
  }
  void end() const {
    store_tile<0>(c_, row_), store_tile<1>(c_ + kSide, row_);
    if constexpr (R == 2) store_tile<2>(below(), row_), store_tile<3>(below() + kSide, row_);
  }

 private:
  float* below() const { return c_ + kSide * row_; }

  float* const c_;
  const std::int64_t row_;
};
#else
constexpr bool kTileRegisters = false;
inline void begin_tile_registers() {}
inline void end_tile_registers() {}
#endif

}  // namespace hyena
