#include "rotary.hpp"

#include <cmath>
#include <vector>

#include "parallel.hpp"
#include "sizes.hpp"

namespace hyena {
namespace {

constexpr std::int64_t kAngles = 1024;  // of a piece: a sine and cosine cost about 40 ns

void turn(float* first, float* second, const float* cosine, const float* sine, std::int64_t half) {
  for (std::int64_t i = 0; i < half; i++) {
    const float a = first[i], b = second[i];
    first[i] = a * cosine[i] - b * sine[i];
    second[i] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace

std::vector<double> rotary_rates(double base, std::int64_t dims) {
  std::vector<double> rates(static_cast<std::size_t>(dims / 2));
  for (std::size_t i = 0; i < rates.size(); i++)
    rates[i] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
  return rates;
}

void rotate_row(float* x, std::int64_t position, std::int64_t heads, std::int64_t width,
                const std::vector<double>& rates, float* turns) noexcept {
  const auto half = static_cast<std::int64_t>(rates.size());
  float *const cosine = turns, *const sine = turns + half;
  for (std::int64_t i = 0; i < half; i++) {
    const double angle = static_cast<double>(position) * rates[static_cast<std::size_t>(i)];
    cosine[i] = static_cast<float>(std::cos(angle));
    sine[i] = static_cast<float>(std::sin(angle));
  }
  for (std::int64_t h = 0; h < heads; h++) turn(x + h * width, x + h * width + half, cosine, sine, half);
}

void rotary(Rows x, const std::int64_t* positions, std::int64_t heads, double base, std::int64_t dims, int threads) {
  const std::int64_t width = x.cols / heads, half = dims / 2;
  const std::int64_t block = half < kAngles ? kAngles / half : 1;
  const std::int64_t pieces = pieces_of(x.rows, block);
  const std::vector<double> rates = rotary_rates(base, dims);
  std::vector<float> turns(workers(pieces, threads) * dims);

  parallel_for(pieces, threads, [&](std::int64_t piece, int worker) {
    const std::int64_t end = (piece + 1) * block < x.rows ? (piece + 1) * block : x.rows;
    for (std::int64_t t = piece * block; t < end; t++)
      rotate_row(x.row(t), positions[t], heads, width, rates, turns.data() + worker * dims);
  });
}

}  // namespace hyena
