// How the numbers of a matrix product are multiplied: what a block of rows is copied to, and the tile of sums that it
// makes with a panel.
#pragma once

#include "linear.hpp"
#include "vec.hpp"

namespace hyena {

constexpr std::int64_t kPanel = 2 * kLanes;  // columns: two vectors
constexpr std::int64_t kMostRows = 144;      // of x worked at once; a multiple of every tile's
constexpr std::int64_t kGroup = 8;           // panels whose sums are kept from one block of K to the next
constexpr std::int64_t kDepth = 256;  // of a block of K, in words: it makes a panel 32 KiB on AVX-512, 16 on AVX2
constexpr std::int64_t kDepthOfOne = 1 << 14;  // one row uses every weight once, so a panel is read from end to end
constexpr std::int64_t kSums = kGroup * kPanel + 16;  // distance of rows of sums: no power of two, for the cache's sake
constexpr std::int64_t kPadded = 16;                  // sums are written up to a multiple of so many rows

struct Format {
  std::int64_t rows, row_unit;  // of a tile: at most, and what it costs the same up to
  std::int64_t depth_unit;      // a block of K is a multiple of so many words
  std::int64_t depth_of_one;    // words of K that are one block where there is one row
  bool one_as_it_is;            // one row needs no copy
  int (*panels_at_once)(std::int64_t rows);
  /// Floats that `copy` needs.
  std::int64_t (*copied)(std::int64_t rows, std::int64_t depth);
  /// Words [from, from + depth) of all rows of x.
  void (*copy)(ConstRows x, std::int64_t from, std::int64_t depth, float* to);
  std::int64_t word_floats;  // of a panel
  /// c [rows][panels * kPanel] = (add ? c : 0) + a b for copied rows row .. row + rows, row a multiple of this->rows.
  void (*multiply)(const float* a, std::int64_t row, const float* b, std::int64_t b_panel, std::int64_t depth,
                   std::int64_t rows, int panels, float* c, bool add);
  void (*begin)();
  void (*end)();
};

const Format& format_of(Numbers numbers);

}  // namespace hyena
