#include "tiles.hpp"

#include <algorithm>

#include "parallel.hpp"
#include "sizes.hpp"
#include "transpose.hpp"

namespace hyena {
namespace {

// Rows of one piece: 64 rows of a few thousand channels still fit the second-level cache.
constexpr std::int64_t kRows = 64;
// Times of one piece where a piece holds a single group: 64 KiB of tile rows.
constexpr std::int64_t kTimes = 1024;

/// to[j][i] = from[i][j] for a square of kLanes.
inline void transpose_square(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  vf row[kLanes];
  for (int i = 0; i < kLanes; i++) row[i] = load(from + i * from_stride);
  transpose<kLanes>(row);
  for (int i = 0; i < kLanes; i++) store(to + i * to_stride, row[i]);
}

/// The same for 16 x 16.
void transpose_tile(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  for (int i = 0; i < kTile; i += kLanes)
    for (int j = 0; j < kTile; j += kLanes)
      transpose_square(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
}

}  // namespace

void rows_to_tiles(ConstRows x, const TileView& z, int threads) {
  parallel_for(pieces_of(x.rows, kRows), worth(x.rows * x.cols, threads), [&](std::int64_t piece, int) {
    const std::int64_t begin = piece * kRows, end = std::min(begin + kRows, x.rows);
    for (std::int64_t g = 0; g < z.groups; g++) {
      const int width = tile_width(x.cols, g);
      for (std::int64_t t = begin; t < end; t++) {
        const float* from = x.row(t) + g * kTile;
        float* to = z.group(g) + t * kTile;
        if (width == kTile) {
          std::memcpy(to, from, kTile * sizeof(float));
        } else {
          std::fill(std::copy_n(from, width, to), to + kTile, 0.0f);
        }
      }
    }
  });
}

void tiles_to_rows(const TileView& z, Rows x, int threads) {
  parallel_for(pieces_of(x.rows, kRows), worth(x.rows * x.cols, threads), [&](std::int64_t piece, int) {
    const std::int64_t begin = piece * kRows, end = std::min(begin + kRows, x.rows);
    for (std::int64_t g = 0; g < z.groups; g++) {
      const int width = tile_width(x.cols, g);
      for (std::int64_t t = begin; t < end; t++) {
        const float* from = z.group(g) + t * kTile;
        float* to = x.row(t) + g * kTile;
        if (width == kTile) {
          std::memcpy(to, from, kTile * sizeof(float));
        } else {
          std::copy_n(from, width, to);
        }
      }
    }
  });
}

void channels_to_tiles(ConstRows x, const TileView& z, int threads) {
  const std::int64_t per_group = pieces_of(x.cols, kTimes);
  parallel_for(z.groups * per_group, worth(x.rows * x.cols, threads), [&](std::int64_t piece, int) {
    const std::int64_t g = piece / per_group, begin = piece % per_group * kTimes;
    const std::int64_t end = std::min(begin + kTimes, x.cols);
    const int width = tile_width(x.rows, g);
    for (std::int64_t t = begin; t < end; t += kTile) {
      const std::int64_t times = std::min<std::int64_t>(kTile, end - t);
      const float* from = x.row(g * kTile) + t;
      float* to = z.group(g) + t * kTile;
      if (width == kTile && times == kTile) {
        transpose_tile(from, x.stride, to, kTile);
      } else {
        std::fill_n(to, times * kTile, 0.0f);
        for (int c = 0; c < width; c++)
          for (std::int64_t i = 0; i < times; i++) to[i * kTile + c] = from[c * x.stride + i];
      }
    }
  });
}

void tiles_to_channels(const TileView& z, Rows x, int threads) {
  const std::int64_t per_group = pieces_of(x.cols, kTimes);
  parallel_for(z.groups * per_group, worth(x.rows * x.cols, threads), [&](std::int64_t piece, int) {
    const std::int64_t g = piece / per_group, begin = piece % per_group * kTimes;
    const std::int64_t end = std::min(begin + kTimes, x.cols);
    const int width = tile_width(x.rows, g);
    for (std::int64_t t = begin; t < end; t += kTile) {
      const std::int64_t times = std::min<std::int64_t>(kTile, end - t);
      const float* from = z.group(g) + t * kTile;
      float* to = x.row(g * kTile) + t;
      if (width == kTile && times == kTile) {
        transpose_tile(from, kTile, to, x.stride);
      } else {
        for (int c = 0; c < width; c++)
          for (std::int64_t i = 0; i < times; i++) to[c * x.stride + i] = from[i * kTile + c];
      }
    }
  });
}

void multiply_tiles(const TileView& a, const TileView& b, const TileView& out, int threads) {
  const std::int64_t per_group = pieces_of(a.length, kTimes);
  parallel_for(a.groups * per_group, worth(a.groups * a.length * kTile, threads), [&](std::int64_t piece, int) {
    const std::int64_t g = piece / per_group, begin = piece % per_group * kTimes;
    const std::int64_t end = std::min(begin + kTimes, a.length);
    const float *left = a.group(g), *right = b.group(g);
    float* to = out.group(g);
    for (std::int64_t i = begin * kTile; i < end * kTile; i += kLanes) store(to + i, load(left + i) * load(right + i));
  });
}

}  // namespace hyena
