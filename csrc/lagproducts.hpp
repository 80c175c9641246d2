// Inner products of rows with rows a little before them.
#pragma once

#include <cstdint>

#include "rows.hpp"

namespace hyena {

/// p [n, reach], n = x.rows - first: p[i][l - 1] = <x[first + i], x[first + i - l]> for l = 1 .. reach,
/// zero where there is no such row. Each product has one order of sums, whatever is beside it.
void lag_products(ConstRows x, std::int64_t first, Rows p, int threads);

}  // namespace hyena
