// Rotary positions.
#pragma once

#include <cstdint>
#include <vector>

#include "rows.hpp"

namespace hyena {

/// Turns the first `dims` elements of every head of x [T, H * hd] in place: elements i and i + dims/2
/// by the angle positions[t] * base^(-2i/dims), computed in float64. dims is even and at most hd. Throws
/// std::bad_alloc before any work.
void rotary(Rows x, const std::int64_t* positions, std::int64_t heads, double base, std::int64_t dims, int threads);

/// The base^(-2i/dims), i < dims / 2. Throws std::bad_alloc.
std::vector<double> rotary_rates(double base, std::int64_t dims);

/// One row x [H * hd] at a position, on the calling thread; turns is memory for `dims` floats.
void rotate_row(float* x, std::int64_t position, std::int64_t heads, std::int64_t width,
                const std::vector<double>& rates, float* turns) noexcept;

}  // namespace hyena
