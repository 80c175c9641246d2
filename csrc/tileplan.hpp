// Which tiles an online convolution computes, and when.
//
// A sequence's tokens are numbered s = 0, 1, .. from its base. Every unit (one group of 16 channels
// of one convolution) reads its own clock w = s + phase. The clock is cut into blocks of kBase
// steps, and those pair up into blocks of size(k) = kBase 2^k. When a second (odd) half of a pair
// begins, one tile carries all inputs of the first half to all outputs of the second. Two inputs
// and outputs in different base blocks meet in exactly one tile: that of the largest blocks which
// still tell them apart. (Relaxed multiplication, van der Hoeven 2002; Oncescu et al. 2025, "Flash
// Inference".)
#pragma once

#include <cstdint>

namespace hyena {

constexpr std::int64_t kBase = 16;  // inside a block lags are summed directly
constexpr std::int64_t kDirect =
    64;  // largest tile by direct sums: 1.1 us against 1.9 by transform, at 128 4.3 against 3.7

/// Smallest kBase 2^k >= n.
constexpr std::int64_t tile_ceil(std::int64_t n) {
  std::int64_t size = kBase;
  while (size < n) size *= 2;
  return size;
}

struct TilePlan {
  std::int64_t horizon;  // steps there is room for
  int levels;            // tiles of size(0) .. size(levels - 1)
  /// The filter reaches no further than the largest tile, which is then due whenever a block of
  /// its size begins: the schedule goes on for ever. Otherwise horizon = 2 top(), and what lies
  /// before clock `horizon` is carried over it by one cross tile, of level `levels`.
  bool endless;

  static constexpr TilePlan make(std::int64_t horizon, std::int64_t taps) {
    const std::int64_t reach = tile_ceil(taps - 1), half = tile_ceil((horizon + 1) / 2);
    TilePlan plan{reach <= half ? horizon : 2 * half, 1, reach <= half};
    while (plan.top() < (plan.endless ? reach : half)) plan.levels++;
    return plan;
  }
  static constexpr std::int64_t size(int level) { return kBase << level; }
  constexpr std::int64_t top() const { return size(levels - 1); }

  /// After so many steps the schedule repeats, so phases lie in [0, period).
  constexpr std::int64_t period() const { return endless ? top() : 2 * top(); }

  /// Level of the tile that is due when a block begins at clock w > 0.
  constexpr int due(std::int64_t w) const {
    int level = 0;
    while (level < levels && w % size(level + 1) == 0) level++;
    return endless && level == levels ? levels - 1 : level;
  }

  /// Clock at which the tile of this level whose outputs cover clock w began; -1 if there is none.
  constexpr std::int64_t began(int level, std::int64_t w) const {
    if (level == levels) return !endless && w >= 2 * top() ? 2 * top() : -1;
    const std::int64_t block = w / size(level);
    const bool covered = block % 2 == 1 || (endless && level == levels - 1);
    return covered ? block * size(level) : -1;
  }
};

}  // namespace hyena
