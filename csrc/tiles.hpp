// Tiles: 16 channels side by side, time-major, the layout inside every mixer.
#pragma once

#include <cstdint>

#include "rows.hpp"
#include "sizes.hpp"

namespace hyena {

constexpr int kTile = 16;  // in every build, so that data layouts and file formats do not depend on it

/// Rows of kTile lanes in time order, one group after another: float32 [G, T, 16] whose groups
/// may lie any distance apart (so that the distance need not be a power of two).
struct TileView {
  float* data;
  std::int64_t groups, length, stride;
  float* group(std::int64_t g) const { return data + g * stride; }
};

/// Tiles that hold `channels` channels.
constexpr std::int64_t tile_groups(std::int64_t channels) { return pieces_of(channels, kTile); }

/// Channels in use in group g of `channels`: 16, or fewer in the last group.
constexpr int tile_width(std::int64_t channels, std::int64_t g) {
  return channels - g * kTile < kTile ? static_cast<int>(channels - g * kTile) : kTile;
}

/// x [T, C] to z [G, T, 16] and back. Lanes that have no channel are written as zero.
void rows_to_tiles(ConstRows x, const TileView& z, int threads);
void tiles_to_rows(const TileView& z, Rows x, int threads);

/// x [C, T] to z [G, T, 16] and back: transposes of 16 x 16 blocks in registers.
void channels_to_tiles(ConstRows x, const TileView& z, int threads);
void tiles_to_channels(const TileView& z, Rows x, int threads);

/// out = a * b, elementwise; out may be a or b.
void multiply_tiles(const TileView& a, const TileView& b, const TileView& out, int threads);

}  // namespace hyena
