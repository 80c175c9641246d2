#include "pairtiles.hpp"

#include <algorithm>

namespace hyena {

#if defined(__AMX_BF16__)
namespace {

constexpr std::int64_t kRow = 2 * kSide;  // of b

template <int R>
void add_words(const float* a, std::int64_t a_row, const float* b) {
  load_tile<4>(a, a_row), load_tile<6>(b, kRow), load_tile<7>(b + kSide, kRow);
  if constexpr (R == 2) load_tile<5>(a + kSide * a_row, a_row);
  TileSums<R>::add();
}

template <int R>
void product(const float* a, std::int64_t a_row, const float* b, std::int64_t depth, TileSums<R> sums, bool add) {
  sums.begin(add);
  std::int64_t k = 0;
  for (; k + kSide <= depth; k += kSide) add_words<R>(a + k, a_row, b + k * kRow);
  if (k < depth) {  // what follows the last row of b may be no numbers, which times zero are not zero
    float rest[kSide * kRow] = {};
    std::copy(b + k * kRow, b + depth * kRow, rest);
    add_words<R>(a + k, a_row, rest);
  }
  sums.end();
}

}  // namespace

void pair_tile_product(const float* a, std::int64_t a_row, const float* b, std::int64_t depth, std::int64_t rows,
                       float* c, std::int64_t c_row, bool add) noexcept {
  // One row stands for all rows of its tile.
  if (rows <= kSide)
    product(a, rows == 1 ? 0 : a_row, b, depth, TileSums<1>(c, rows == 1 ? 0 : c_row), add);
  else
    product(a, a_row, b, depth, TileSums<2>(c, c_row), add);
}
#else
void pair_tile_product(const float*, std::int64_t, const float*, std::int64_t, std::int64_t, float*, std::int64_t,
                       bool) noexcept {}
#endif

}  // namespace hyena
