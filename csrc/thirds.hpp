// Products of float32 numbers as sums of three bfloat16 numbers each, in tile registers.
//
// x = h + m + l to the last of its 24 bits, each of the three having 8 and a sign. Of the nine products of two such
// sums six are added up, in float32: the others are below 2^-25 of the whole. So the error is that of float32 sums,
// and less than that of one chain over k, since these are added in blocks. Sixteen times the products an fma does
// in the same time pay for six. Numbers beyond 3.389e38 and infinite ones give no number, those below 1e-33 lose
// digits.
#pragma once

#include "aligned.hpp"
#include "rows.hpp"
#include "sizes.hpp"
#include "tileregisters.hpp"

namespace hyena {

constexpr std::int64_t kThirdsDepth = 2 * kSide;  // of K in one step; what is left is filled up with zeros

/// Floats of rows_to_thirds and panel_to_thirds.
constexpr std::int64_t thirds_of_rows(std::int64_t rows, std::int64_t depth) {
  return round_up(rows, kSide) * round_up(depth, kThirdsDepth) / 2 * 3;
}
constexpr std::int64_t thirds_of_panel(std::int64_t depth) { return thirds_of_rows(2 * kSide, depth); }

/// Columns [from, from + depth) of x as tiles [rows / 16][steps][3][16][16 words]; `to` on a cache line.
void rows_to_thirds(ConstRows x, std::int64_t from, std::int64_t depth, float* to) noexcept;
/// Panel [depth][32] as [steps][3][16 words][32]; `to` on a cache line. Steps k / 32 on are those of rows k on.
void panel_to_thirds(const float* panel, std::int64_t depth, float* to) noexcept;
/// c [rows][32] = (add ? c : 0) + a [rows][depth] b. c is written up to the next sixteen rows. Only where tile
/// registers have begun.
void thirds_product(const float* a, const float* b, std::int64_t depth, std::int64_t rows, float* c, std::int64_t c_row,
                    bool add) noexcept;

}  // namespace hyena
