// Rotary positions.
#pragma once

#include <cstdint>

#include "rows.hpp"

namespace hyena {

/// Turns x [T, H * hd] in place: in every head, elements i and i + hd/2 by the angle
/// positions[t] * base^(-2i/hd), computed in float64. hd is even. Throws std::bad_alloc before any work.
void rotary(Rows x, const std::int64_t* positions, std::int64_t heads, double base, int threads);

}  // namespace hyena
