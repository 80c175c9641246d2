// Products of bfloat16 pairs in the tile registers of AMX: sixteen rows of sixteen words each.
#pragma once

#include <cstdint>

namespace hyena {

/// Whether this build has them.
#if defined(__AMX_BF16__)
constexpr bool kPairTiles = true;
#else
constexpr bool kPairTiles = false;
#endif

constexpr std::int64_t kPairTile = 16;  // rows, words of depth, and columns of a tile

/// Shapes the tile registers of this thread, for pair_tile_product; and gives them back.
void begin_pair_tiles() noexcept;
void end_pair_tiles() noexcept;

/// c [rows][2 * kPairTile] = (add ? c : 0) + a [rows][depth] b for words of pairs, rows <= 2 * kPairTile.
///
/// Every element sums the first and the second halves of kPairTile words each by itself, then both, then
/// these over k. a and c are read up to the next kPairTile rows, a up to the next kPairTile words, which
/// must be zero; but of one row nothing more than that row. b has rows of 2 * kPairTile words.
void pair_tile_product(const float* a, std::int64_t a_row, const float* b, std::int64_t depth, std::int64_t rows,
                       float* c, std::int64_t c_row, bool add) noexcept;

}  // namespace hyena
