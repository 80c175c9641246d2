#include "modular.hpp"

#include <cmath>
#include <map>
#include <mutex>
#include <utility>

namespace hyena {
namespace {

constexpr double kPi = 3.14159265358979323846;

/// Radices whose product is `rows`. Radix 8 everywhere: even with 16 registers, which its data fill,
/// it is 1.1 times as fast as radix 4 on 8 lanes and equal on 4. Small radices come last, where blocks
/// are in the nearest cache, but for the odd ones: their blocks are short there, which costs a tenth at
/// 9 * 2^9 rows. with_top_radix() has to know the first one, of at least two.
std::vector<int> radices_of(std::int64_t rows) {
  int twos = 0;
  for (; rows % 2 == 0; rows /= 2) twos++;
  const int eights = twos % 3 == 1 && twos > 1 ? twos / 3 - 1 : twos / 3;  // 8 2 becomes 4 4
  std::vector<int> radices(eights, 8);
  for (twos -= 3 * eights; twos >= 2; twos -= 2) radices.push_back(4);
  if (twos == 1) radices.push_back(2);
  if (radices.empty() || radices[0] < 4) radices.insert(radices.begin(), 1);
  for (const int odd : {3, 5})
    for (; rows % odd == 0; rows /= odd) radices.insert(radices.begin() + 1, odd);
  if (radices.size() == 1) radices.push_back(1);
  return radices;
}

/// exp(i angle) as p[0] + i p[stride].
void set_turn(float* p, int stride, double angle) {
  p[0] = static_cast<float>(std::cos(angle));
  p[stride] = static_cast<float>(std::sin(angle));
}

}  // namespace

std::int64_t transform_size(std::int64_t minimum) {
  if (minimum > kLargestTransform) return 0;
  std::int64_t best = kLargestTransform;
  for (const std::int64_t odd : {1, 3, 5, 9, 15, 27}) {
    std::int64_t size = (odd <= 5 ? 2 : 64) * odd;
    while (size < minimum) size *= 2;
    if (size < best) best = size;
  }
  return best;
}

ModularPlan::ModularPlan(std::int64_t size, int block) : points_(size / 2), block_(block) {
  std::vector<int> radices = radices_of(block == 1 ? rows() : rows() / block);
  if (block > 1) radices.push_back(block);
  std::vector<double> angles{kPi / 2}, above;  // of the nodes of this level, and of the one above
  for (const int radix : radices) {
    Level level{radix, aligned_array<float>(static_cast<std::int64_t>(angles.size()) * 2 * (radix - 1))};
    float* twiddle = level.twiddles.get();
    above.clear();
    above.swap(angles);
    for (const double theta : above) {
      for (int k = 1; k < radix; k++, twiddle += 2) set_turn(twiddle, 1, theta * k / radix);
      for (int q = 0; q < radix; q++) angles.push_back((theta + 2 * kPi * q) / radix);
    }
    levels_.push_back(std::move(level));
  }
  if (block == 1) return;
  const std::int64_t leaves = static_cast<std::int64_t>(above.size());
  lane_twist_ = aligned_array<float>(leaves * 2 * block);
  square_twist_ = aligned_array<float>(2 * block * block);
  for (int k = 0; k < block; k++) {
    for (std::int64_t b = 0; b < leaves; b++)
      set_turn(&lane_twist_[2 * b * block + k], block, above[b] * k / (block * block));
    for (int q = 0; q < block; q++)
      set_turn(&square_twist_[2 * k * block + q], block, 2 * kPi * k * q / (block * block));
  }
}

std::shared_ptr<const ModularPlan> modular_plan(std::int64_t size, int block) {
  static std::mutex lock;
  static std::map<std::pair<std::int64_t, int>, std::shared_ptr<const ModularPlan>> plans;
  const std::lock_guard<std::mutex> hold(lock);
  std::shared_ptr<const ModularPlan>& plan = plans[{size, block}];
  if (!plan) plan = std::make_shared<const ModularPlan>(size, block);
  return plan;
}

}  // namespace hyena
