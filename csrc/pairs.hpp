// bfloat16 numbers in pairs: neighbouring ones share 32 bits, the first in the low half.
#pragma once

#include <cstdint>

namespace hyena {

/// Whether this CPU multiplies pairs itself. Elsewhere they are widened to float32, which costs time.
bool multiplies_pairs() noexcept;

/// to [ceil(n / 2)] = x [n] as pairs, to the nearest and to even; the half that is missing is zero.
void to_pairs(const float* x, std::int64_t n, float* to) noexcept;

}  // namespace hyena
