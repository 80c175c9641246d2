#include "pairs.hpp"

#include <algorithm>
#include <cstring>

namespace hyena {
namespace {

std::uint16_t nearest(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  // Rounding must not carry the digits of a NaN into its exponent.
  const bool number = (bits & 0x7fffffffu) <= 0x7f800000u;
  return static_cast<std::uint16_t>(number ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : 0x7fc0u);
}

}  // namespace

bool multiplies_pairs() noexcept {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

void to_pairs(const float* x, std::int64_t n, float* to) noexcept {
  constexpr std::int64_t kPiece = 64;
  std::uint16_t piece[kPiece];
  for (std::int64_t i = 0; i < n; i += kPiece, to += kPiece / 2) {
    const std::int64_t count = std::min(kPiece, n - i);
    for (std::int64_t j = 0; j < count; j++) piece[j] = nearest(x[i + j]);
    if (count % 2 == 1) piece[count] = 0;
    std::memcpy(to, piece, static_cast<std::size_t>(count + count % 2) * sizeof *piece);
  }
}

}  // namespace hyena
