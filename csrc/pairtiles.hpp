// Products of bfloat16 pairs in tile registers.
#pragma once

#include "tileregisters.hpp"

namespace hyena {

/// c [rows][32] = (add ? c : 0) + a [rows][depth] b for words of pairs, 1 <= rows <= 32. Only where a build has
/// tile registers, and they have begun.
///
/// Every element sums the first and the second halves of sixteen words each by itself, then both, then these over k.
/// a and c are read up to the next sixteen rows, a up to the next sixteen words, which must be zero; but of one row
/// nothing more than that row. b has rows of 32 words.
void pair_tile_product(const float* a, std::int64_t a_row, const float* b, std::int64_t depth, std::int64_t rows,
                       float* c, std::int64_t c_row, bool add) noexcept;

}  // namespace hyena
