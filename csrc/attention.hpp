// Causal attention over a cache of keys and values.
#pragma once

#include <cstdint>

#include "rows.hpp"

namespace hyena {

/// The cache of one sequence: keys [H][slots/16][hd][16], 16 consecutive positions in lanes so
/// that their scores are plain chains of fma, and values [H][slots][hd]. slots is a multiple of 16.
template <class Float>
struct CacheOf {
  Float *keys, *values;
  std::int64_t heads, slots, width;
  Float* head_keys(std::int64_t h) const { return keys + h * slots * width; }
  Float* head_values(std::int64_t h) const { return values + h * slots * width; }
};

/// Writes k, v [n, H * hd] to slots at .. at + n.
void kv_append(CacheOf<float> cache, ConstRows k, ConstRows v, std::int64_t at) noexcept;

/// What query i sees: slots max(start, own - window + 1) .. own, where own is the slot of the query
/// itself: at[i], increasing, or first + i if there is no such list. Window 0 is no window.
struct Span {
  std::int64_t first, start, window;
  const std::int64_t* at = nullptr;
  std::int64_t own(std::int64_t i) const { return at != nullptr ? at[i] : first + i; }
  std::int64_t low(std::int64_t i) const {
    const std::int64_t edge = window > 0 ? own(i) - window + 1 : start;
    return edge > start ? edge : start;
  }
  std::int64_t end(std::int64_t i) const { return own(i) + 1; }
};

/// y [n, H * hd] = softmax(q k^T / sqrt(hd)) v over the slots of `span`. A query's arithmetic
/// depends on its slots alone, not on n, nor on the other queries. Throws std::bad_alloc before any
/// work.
void attend(ConstRows q, CacheOf<const float> cache, Span span, Rows y, int threads);

/// Head h of one query alone, on the calling thread; memory of attend_scratch(hd) floats, 64-byte aligned.
void attend_head(ConstRows q, CacheOf<const float> cache, Span span, std::int64_t h, Rows y, float* memory) noexcept;
std::int64_t attend_scratch(std::int64_t width);

}  // namespace hyena
