#include "thirds.hpp"

#include <algorithm>

#include "simd.hpp"

namespace hyena {

#if defined(__AMX_BF16__)
namespace {

constexpr std::int64_t kTileWords = kSide * kSide;
constexpr std::int64_t kStepOfRows = 3 * kTileWords, kStepOfPanel = 2 * kStepOfRows;

std::int64_t steps_of(std::int64_t depth) { return pieces_of(depth, kThirdsDepth); }

/// Thirds of pairs (even[i], odd[i]), as words `distance` floats apart.
inline void store_thirds(__m512 even, __m512 odd, float* to, std::int64_t distance) {
  alignas(64) static constexpr std::uint16_t kSideBySide[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                                21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                                11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(kSideBySide);
  constexpr std::int32_t kHigh = static_cast<std::int32_t>(0xffff0000u);
  for (int p = 0; p < 3; p++) {
    const __m512i words = _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
    _mm512_store_si512(to + p * distance, words);
    even -= (__m512)((ivec<16>)words << 16);
    odd -= (__m512)((ivec<16>)words & kHigh);
  }
}

inline __m512 at(const float* p, std::int64_t count) {
  return count >= kSide ? (__m512)load<16>(p) : count <= 0 ? __m512{} : (__m512)load_part<16>(p, count);
}

/// Adds one step: products from the smallest to the largest, of which two in a row share a factor.
template <int R>
void add_step(const float* a, std::int64_t below, const float* b) {
  const auto rows = [=](int third) {
    load_tile<4>(a + third * kTileWords, kSide);
    if constexpr (R == 2) load_tile<5>(a + below + third * kTileWords, kSide);
  };
  const auto panel = [=](int third) {
    load_tile<6>(b + third * 2 * kTileWords, 2 * kSide), load_tile<7>(b + third * 2 * kTileWords + kSide, 2 * kSide);
  };
  rows(0), panel(2), TileSums<R>::add();
  panel(1), TileSums<R>::add();
  rows(1), TileSums<R>::add();
  panel(0), TileSums<R>::add();
  rows(2), TileSums<R>::add();
  rows(0), TileSums<R>::add();
}

/// Steps [from, to) of `steps`.
template <int R>
void add_steps(const float* a, const float* b, std::int64_t from, std::int64_t to, std::int64_t steps, TileSums<R> sums,
               bool add) {
  sums.begin(add);
  for (std::int64_t s = from; s < to; s++) add_step<R>(a + s * kStepOfRows, steps * kStepOfRows, b + s * kStepOfPanel);
  sums.end();
}

}  // namespace

void rows_to_thirds(ConstRows x, std::int64_t from, std::int64_t depth, float* to) noexcept {
  alignas(64) static constexpr std::int32_t kEven[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  const __m512i even = _mm512_load_si512(kEven), odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const std::int64_t steps = steps_of(depth);
  for (std::int64_t r = 0; r < x.rows; r++) {
    const float* row = x.row(r) + from;
    float* out = to + r / kSide * steps * kStepOfRows + r % kSide * kSide;
    for (std::int64_t k = 0; k < depth; k += kThirdsDepth, row += kThirdsDepth, out += kStepOfRows) {
      const __m512 first = at(row, depth - k), second = at(row + kSide, depth - k - kSide);
      store_thirds(_mm512_permutex2var_ps(first, even, second), _mm512_permutex2var_ps(first, odd, second), out,
                   kTileWords);
    }
  }
}

void panel_to_thirds(const float* panel, std::int64_t depth, float* to) noexcept {
  constexpr std::int64_t kRow = 2 * kSide;
  for (std::int64_t k = 0; k < round_up(depth, kThirdsDepth); k += 2) {
    float* out = to + k / kThirdsDepth * kStepOfPanel + k % kThirdsDepth / 2 * kRow;
    for (std::int64_t c = 0; c < kRow; c += kSide) {
      const auto row = [=](std::int64_t i) { return i < depth ? (__m512)load<16>(panel + i * kRow + c) : __m512{}; };
      store_thirds(row(k), row(k + 1), out + c, 2 * kTileWords);
    }
  }
}

void thirds_product(const float* a, const float* b, std::int64_t depth, std::int64_t rows, float* c, std::int64_t c_row,
                    bool add) noexcept {
  // So few steps of a panel, and the sums, stay in the first-level cache while the rows pass by.
  constexpr std::int64_t kAtOnce = 2, kLine = kCacheLine / sizeof(float);
  const std::int64_t steps = steps_of(depth), row_tiles = pieces_of(rows, 2 * kSide);
  const std::int64_t share = round_up(kAtOnce * kStepOfPanel, kLine * row_tiles) / row_tiles;
  for (std::int64_t s = 0; s < steps; s += kAtOnce) {
    const std::int64_t end = std::min(s + kAtOnce, steps);
    for (std::int64_t tile = 0; tile < row_tiles; tile++) {
      const std::int64_t r = tile * 2 * kSide;
      // What comes next, of this panel or another, is on its way meanwhile: 3 % of a prefill.
      const float* const next = b + end * kStepOfPanel + tile * share;
      for (std::int64_t i = 0; i < share; i += kLine) __builtin_prefetch(next + i);
      const float* const own = a + r / kSide * steps * kStepOfRows;
      if (rows - r <= kSide)
        add_steps(own, b, s, end, steps, TileSums<1>(c + r * c_row, c_row), add || s > 0);
      else
        add_steps(own, b, s, end, steps, TileSums<2>(c + r * c_row, c_row), add || s > 0);
    }
  }
}
#else
void rows_to_thirds(ConstRows, std::int64_t, std::int64_t, float*) noexcept {}
void panel_to_thirds(const float*, std::int64_t, float*) noexcept {}
void thirds_product(const float*, const float*, std::int64_t, std::int64_t, float*, std::int64_t, bool) noexcept {}
#endif

}  // namespace hyena
