#include "format.hpp"

#include <algorithm>

#include "pairtiles.hpp"
#include "pairwords.hpp"
#include "thirds.hpp"
#include "tile.hpp"

namespace hyena {
namespace {

constexpr int kCopied = kDepth + 16;  // distance of copied rows; as for sums

using TileCall = void (*)(const float* a, const float* b, std::int64_t b_panel, std::int64_t depth, float* c, bool add);

template <class Words, int R, int P>
void tile(const float* a, const float* b, std::int64_t b_panel, std::int64_t depth, float* c, bool add) {
  tile_product<R, 2, P, kCopied, 1, Words>(a, b, kPanel, b_panel, depth, c, kSums, add);
}
template <class Words>
struct OnePanel {
  template <int R>
  struct Of {
    static constexpr TileCall call = &tile<Words, R, 1>;
  };
};

/// Tiles of few rows take several panels at once: an fma takes 4 cycles, two begin in each, so 8
/// chains have to run side by side.
int panels_at_once(std::int64_t rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
int one_panel(std::int64_t) { return 1; }

template <class Words>
void multiply(const float* a, std::int64_t row, const float* b, std::int64_t b_panel, std::int64_t depth,
              std::int64_t rows, int panels, float* c, bool add) {
  static constexpr auto one = by_rows<OnePanel<Words>::template Of>();
  static constexpr TileCall several[] = {&tile<Words, 1, 4>, &tile<Words, 2, 2>, &tile<Words, 3, 2>};
  (panels == 1 ? one[rows - 1] : several[rows - 1])(a + row * kCopied, b, b_panel, depth, c, add);
}
void multiply_pair_tiles(const float* a, std::int64_t row, const float* b, std::int64_t, std::int64_t depth,
                         std::int64_t rows, int, float* c, bool add) {
  pair_tile_product(a + row * kCopied, kCopied, b, depth, rows, c, kSums, add);
}
void multiply_thirds(const float* a, std::int64_t, const float* b, std::int64_t, std::int64_t depth, std::int64_t rows,
                     int, float* c, bool add) {
  thirds_product(a, b, depth, rows, c, kSums, add);
}

/// Words, and zeros up to a whole unit.
template <class Words, std::int64_t Unit>
void copy(ConstRows x, std::int64_t from, std::int64_t depth, float* to) {
  constexpr int n = Words::kNumbers;
  for (std::int64_t r = 0; r < x.rows; r++, to += kCopied) {
    Words::copy(x.row(r) + n * from, std::min(n * depth, x.cols - n * from), to);
    std::fill(to + depth, to + round_up(depth, Unit), 0.0f);
  }
}

std::int64_t copied(std::int64_t rows, std::int64_t depth) {
  return rows == 1 ? depth : round_up(rows, kPadded) * kCopied;
}
void nothing() {}

template <class Words>
constexpr Format kChain{kTileRows,       kTileRows, kPadded,         kDepthOfOne, Words::kNumbers == 1,
                        &panels_at_once, &copied,   &copy<Words, 1>, kPanel,      &multiply<Words>,
                        &nothing,        &nothing};
constexpr Format kPairTiles{2 * kSide,
                            kSide,
                            kSide,
                            kDepthOfOne,
                            false,
                            &one_panel,
                            &copied,
                            &copy<HardwarePairs, kSide>,
                            kPanel,
                            &multiply_pair_tiles,
                            &begin_tile_registers,
                            &end_tile_registers};
constexpr Format kThirds{kMostRows,
                         kSide,
                         kThirdsDepth,
                         kDepth,
                         false,
                         &one_panel,
                         &thirds_of_rows,
                         &rows_to_thirds,
                         thirds_of_panel(kThirdsDepth) / kThirdsDepth,
                         &multiply_thirds,
                         &begin_tile_registers,
                         &end_tile_registers};

}  // namespace

const Format& format_of(Numbers numbers) {
  if (numbers == Numbers::float32) return kChain<FloatWords>;
  if (numbers == Numbers::thirds) return kThirds;
  if (kTileRegisters) return kPairTiles;
  return multiplies_pairs() ? kChain<HardwarePairs> : kChain<WidenedPairs>;
}

}  // namespace hyena
