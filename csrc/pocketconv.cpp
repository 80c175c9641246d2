#include "pocketconv.hpp"

#include <algorithm>
#include <complex>
#include <vector>

#include HYENA_POCKETFFT_HEADER

namespace hyena {

void pocket_conv(const TileView& z, const TileView& taps, std::int64_t size, const TileView& out) {
  const std::size_t both = 2 * static_cast<std::size_t>(size), rows = static_cast<std::size_t>(size) + 1;
  const pocketfft::shape_t shape{both, kTile}, axes{0};
  const std::ptrdiff_t real = sizeof(float), pair = sizeof(std::complex<float>);
  const pocketfft::stride_t reals{real * kTile, real}, pairs{pair * kTile, pair};
  std::vector<float> padded(both * kTile);
  const auto transform = [&](const float* rows_in, std::int64_t length, std::vector<std::complex<float>>& to) {
    std::fill(std::copy_n(rows_in, length * kTile, padded.begin()), padded.end(), 0.0f);
    pocketfft::r2c(shape, reals, pairs, axes, true, padded.data(), to.data(), 1.0f);
  };
  std::vector<std::complex<float>> product(rows * kTile), filter(rows * kTile);
  for (std::int64_t g = 0; g < z.groups; g++) {
    transform(z.group(g), z.length, product);
    transform(taps.group(g), taps.length, filter);
    for (std::size_t i = 0; i < product.size(); i++) product[i] *= filter[i];
    pocketfft::c2r(shape, pairs, reals, axes, false, product.data(), padded.data(), 1.0f / static_cast<float>(both));
    // The circle of 2 M points holds the whole product; what lies beyond M returns with its sign turned.
    for (std::int64_t i = 0; i < out.length * kTile; i++) out.group(g)[i] = padded[i] - padded[i + size * kTile];
  }
}

}  // namespace hyena
