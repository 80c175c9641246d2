// A sum of convolutions in the spectral domain, of one vector of channels at a time: each of them adds its product
// to the same spectrum, and one transform back gives the sum of all.
//
// A part is kLanes channels of a tile. A spectrum [M, 16] of longconv.hpp, M as small as it is here, holds one part
// after the other, part_floats(M) each.
#pragma once

#include "rowcells.hpp"
#include "vec.hpp"

namespace hyena {

constexpr int kParts = kTile / kLanes;
constexpr std::int64_t part_floats(std::int64_t size) { return size * kLanes; }

/// out = the transform of `length` rows, times scale: a part of `size` points. Throws std::bad_alloc.
void transform_part(const RowCells& rows, std::int64_t length, std::int64_t size, int part, float scale, float* out);

/// What spectra of filters are multiplied by, so that the way back needs no factor.
inline float filter_scale(std::int64_t size) { return 2.0f / static_cast<float>(size); }

/// sums += a b, or sums = a b if `first`: parts of `size` points.
void add_product(const float* a, const float* b, std::int64_t size, bool first, float* sums) noexcept;

/// Rows [begin, end) of the part behind `sums`, which is scratch afterwards, to out [end - begin, 16].
/// Throws std::bad_alloc.
void transform_back(float* sums, std::int64_t size, int part, std::int64_t begin, std::int64_t end, float* out);

}  // namespace hyena
