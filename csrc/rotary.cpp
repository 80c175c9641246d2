#include "rotary.hpp"

#include <cmath>
#include <vector>

#include "parallel.hpp"

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

void rotary(Rows x, const std::int64_t* positions, std::int64_t heads, double base, std::int64_t dims, int threads) {
  const std::int64_t width = x.cols / heads, half = dims / 2;
  const std::int64_t block = half < kAngles ? kAngles / half : 1;
  const std::int64_t pieces = (x.rows + block - 1) / block;
  std::vector<double> rate(half);
  for (std::int64_t i = 0; i < half; i++)
    rate[i] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
  std::vector<float> turns(workers(pieces, threads) * dims);

  parallel_for(pieces, threads, [&](std::int64_t piece, int worker) {
    float* cosine = turns.data() + worker * dims;
    float* sine = cosine + half;
    const std::int64_t end = (piece + 1) * block < x.rows ? (piece + 1) * block : x.rows;
    for (std::int64_t t = piece * block; t < end; t++) {
      for (std::int64_t i = 0; i < half; i++) {
        const double angle = static_cast<double>(positions[t]) * rate[i];
        cosine[i] = static_cast<float>(std::cos(angle));
        sine[i] = static_cast<float>(std::sin(angle));
      }
      for (std::int64_t h = 0; h < heads; h++)
        turn(x.row(t) + h * width, x.row(t) + h * width + half, cosine, sine, half);
    }
  });
}

}  // namespace hyena
