// The arrays of a cache of keys and values.
#pragma once

#include "attention.hpp"
#include "bind/rows.hpp"

namespace hyena {

/// Checks keys [H, slots/16, hd, 16] against values [H, slots, hd].
inline CacheOf<const float> cache_of(const std::string& op, const FloatArray& keys, const FloatArray& values) {
  const float* k = floats(op, "keys", keys, {-1, -1, -1, kTile});
  const std::int64_t heads = keys.shape(0), slots = keys.shape(1) * kTile, width = keys.shape(2);
  if (heads < 1 || width < 1) reject(op, "keys has shape " + shape_text(keys) + " and is empty");
  return {k, floats(op, "values", values, {heads, slots, width}), heads, slots, width};
}

}  // namespace hyena
