// Which tiles an online convolution computes, and when.
//
// A sequence's tokens are numbered s = 0, 1, .. from its base. Every unit (one group of 16 channels
// of one convolution) reads its own clock w = s + phase. The clock is cut into periods, those into
// blocks of kBase steps, and blocks pair up into blocks of size(k) = kBase 2^k, up to half a period.
// When a second (odd) half of a pair begins, one tile carries all inputs of the first half to all
// outputs of the second. Two inputs and outputs in different base blocks of one period meet in exactly
// one tile: that of the largest blocks which still tell them apart. (Relaxed multiplication, van der
// Hoeven 2002; Oncescu et al. 2025, "Flash Inference".) What lies before a period reaches it when
// the period begins, all at once:
//
//   closed    There is one whole period in the sequence, its horizon, on a clock that ends within the second.
//             What lies before the base is known for all outputs.
//   endless   The filter reaches no further than a period, so one tile carries each to the next.
//   rolling   A sum over all blocks before the last period is got ready during that one, a block at a time, and
//             the last one is added to it (pastsums.cpp). As the sequence grows periods double, so that there are
//             always about as many blocks.
//   direct    A period is one block, and what lies before it comes by plain sums over all of it.
#pragma once

#include <cstdint>

#include "sizes.hpp"

namespace hyena {

constexpr std::int64_t kBase = 16;  // inside a block lags are summed directly
constexpr std::int64_t kDirect =
    64;  // largest tile by direct sums: 1.1 us against 1.9 by transform, at 128 4.3 against 3.7
constexpr std::int64_t kBlocks = 12;                      // rolling: periods double from so many blocks on
constexpr std::int64_t kForEver = std::int64_t{1} << 48;  // a horizon that nobody reaches

/// Smallest kBase 2^k >= n.
constexpr std::int64_t tile_ceil(std::int64_t n) {
  std::int64_t size = kBase;
  while (size < n) size *= 2;
  return size;
}

enum class Kind { closed, endless, rolling, direct };

struct Period {
  std::int64_t begin, length;
  constexpr std::int64_t end() const { return begin + length; }
};

struct TilePlan {
  Kind kind;
  std::int64_t horizon;  // steps there is room for
  std::int64_t period;   // length of the first one, kBase 2^k
  std::int64_t longest;  // of the last ones
  std::int64_t base;     // rolling: rows before the sequence's base
  /// What lies before a period is known only when it begins.
  constexpr bool goes_back() const { return kind == Kind::rolling || kind == Kind::direct; }

  /// Closed for at least `horizon` steps, or endless where the filter is short beside that.
  static constexpr TilePlan make(std::int64_t horizon, std::int64_t taps) {
    const std::int64_t reach = tile_ceil(taps - 1), half = tile_ceil((horizon + 1) / 2);
    if (reach <= half) return {Kind::endless, kForEver, reach, reach, 0};
    return {Kind::closed, 2 * half, 2 * half, 2 * half, 0};
  }

  static constexpr std::int64_t size(int level) { return kBase << level; }
  /// Tiles within a period of this length have size(0) .. size(levels - 1). Level `levels` carries what lies
  /// before the period to it.
  static constexpr int levels(std::int64_t period) {
    int count = 0;
    while (size(count) < period) count++;
    return count;
  }
  /// Taps that tiles need: those of a closed plan reach over half a period.
  constexpr std::int64_t taps() const { return kind == Kind::closed ? period : 2 * longest; }

  /// Level of the tile that is due when a block begins at clock w > 0 of a period.
  static constexpr int due(std::int64_t w, std::int64_t period) {
    int level = 0;
    while (size(level) < period && w % size(level + 1) == 0) level++;
    return level;
  }
  /// Clock at which the tile of this level within a period that covers clock w began; -1 if there is none.
  static constexpr std::int64_t began(int level, std::int64_t w) {
    const std::int64_t block = w / size(level);
    return block % 2 == 1 ? block * size(level) : -1;
  }

  /// The period that clock w >= 0 lies in.
  constexpr Period period_at(std::int64_t w) const {
    std::int64_t length = period, since = 0;
    while (length < longest) {
      // The sums for a period are begun one period before it.
      std::int64_t doubles = since + length;
      if (doubles < (kBlocks + 1) * length - base) doubles = (kBlocks + 1) * length - base;
      doubles = round_up(doubles, 2 * length);
      if (w < doubles) break;
      since = doubles, length *= 2;
    }
    return {w / length * length, length};
  }
};

}  // namespace hyena
