#include "pairtiles.hpp"

#include <algorithm>

namespace hyena {

#if defined(__AMX_BF16__)
namespace {

constexpr std::int64_t kFloat = sizeof(float);

/// Shapes of the registers, as the CPU reads them.
struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Written out: the compiler's own names for these do not tell it that memory is read.
template <int T>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
inline void load(const float* from, std::int64_t row) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row * kFloat), "i"(T) : "memory");
}
template <int T>
inline void store(float* to, std::int64_t row) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row * kFloat), "i"(T) : "memory");
}
/// Register C += A B.
template <int C, int A, int B>
inline void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

/// R tiles of rows, two of columns: sums in registers 0-3, a in 4 and 5, b in 6 and 7.
template <int R>
class Block {
 public:
  Block(const float* a, std::int64_t a_row, float* c, std::int64_t c_row)
      : a_(a), c_(c), a_row_(a_row), c_row_(c_row) {}

  void begin(bool add) const {
    if (add) {
      load<0>(c_, c_row_), load<1>(c_ + kPairTile, c_row_);
      if constexpr (R == 2) load<2>(below(), c_row_), load<3>(below() + kPairTile, c_row_);
    } else {
      zero<0>(), zero<1>(), zero<2>(), zero<3>();
    }
  }
  /// Adds kPairTile words from k on, which b begins with.
  void add(std::int64_t k, const float* b) const {
    load<4>(a_ + k, a_row_), load<6>(b, 2 * kPairTile), load<7>(b + kPairTile, 2 * kPairTile);
    add_product<0, 4, 6>(), add_product<1, 4, 7>();
    if constexpr (R == 1) return;
    load<5>(a_ + kPairTile * a_row_ + k, a_row_);
    add_product<2, 5, 6>(), add_product<3, 5, 7>();
  }
  void end() const {
    store<0>(c_, c_row_), store<1>(c_ + kPairTile, c_row_);
    if constexpr (R == 2) store<2>(below(), c_row_), store<3>(below() + kPairTile, c_row_);
  }

 private:
  float* below() const { return c_ + kPairTile * c_row_; }

  const float* const a_;
  float* const c_;
  const std::int64_t a_row_, c_row_;
};

template <int R>
void product(const Block<R>& block, const float* b, std::int64_t depth, bool add) {
  constexpr std::int64_t kRow = 2 * kPairTile;
  block.begin(add);
  std::int64_t k = 0;
  for (; k + kPairTile <= depth; k += kPairTile) block.add(k, b + k * kRow);
  if (k < depth) {  // what follows the last row of b may be no numbers, which times zero are not zero
    float rest[kPairTile * kRow] = {};
    std::copy(b + k * kRow, b + depth * kRow, rest);
    block.add(k, rest);
  }
  block.end();
}

}  // namespace

void begin_pair_tiles() noexcept {
  static const Shapes shapes;
  asm volatile("ldtilecfg %0" ::"m"(shapes));
}

void end_pair_tiles() noexcept { asm volatile("tilerelease"); }

void pair_tile_product(const float* a, std::int64_t a_row, const float* b, std::int64_t depth, std::int64_t rows,
                       float* c, std::int64_t c_row, bool add) noexcept {
  // One row stands for all rows of its tile.
  if (rows <= kPairTile)
    product(Block<1>(a, rows == 1 ? 0 : a_row, c, rows == 1 ? 0 : c_row), b, depth, add);
  else
    product(Block<2>(a, a_row, c, c_row), b, depth, add);
}

#else

void begin_pair_tiles() noexcept {}
void end_pair_tiles() noexcept {}
void pair_tile_product(const float*, std::int64_t, const float*, std::int64_t, std::int64_t, float*, std::int64_t,
                       bool) noexcept {}

#endif

}  // namespace hyena
