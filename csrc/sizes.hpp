// Lengths in whole pieces.
#pragma once

#include <cstdint>

namespace hyena {

/// Pieces of `size` that n fills, the last one maybe in part.
constexpr std::int64_t pieces_of(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }
/// n rounded up to whole pieces.
constexpr std::int64_t round_up(std::int64_t n, std::int64_t size) { return pieces_of(n, size) * size; }

}  // namespace hyena
