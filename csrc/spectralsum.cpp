#include "spectralsum.hpp"

#include "modular_leaves.hpp"

namespace hyena {

void transform_part(const RowCells& rows, std::int64_t length, std::int64_t size, int part, float scale, float* out) {
  const auto plan = modular_plan(size, 1);
  const int lane = part * kLanes;
  modular_transform<kLanes>(*plan, ChannelLeaf<kLanes>{*plan}, out, length,
                            [&rows, lane, scale](std::int64_t t) { return scale * load(rows.row(t) + lane); });
}

void add_product(const float* a, const float* b, std::int64_t size, bool first, float* sums) noexcept {
  constexpr int L = kLanes;
  for (std::int64_t i = 0; i < part_floats(size); i += 2 * L) {
    const Complex<L> x = load_complex<L>(a + i);
    Complex<L> product = turn<1, L>(x, load(b + i), load(b + i + L));
    if (!first) product = load_complex<L>(sums + i) + product;
    store_complex<L>(sums + i, product);
  }
}

void transform_back(float* sums, std::int64_t size, int part, std::int64_t begin, std::int64_t end, float* out) {
  const auto plan = modular_plan(size, 1);
  float* const to = out + part * kLanes;
  modular_inverse<kLanes>(*plan, ChannelLeaf<kLanes>{*plan}, sums, begin, end,
                          [=](std::int64_t t, vf v) { store(to + (t - begin) * kTile, v); });
}

}  // namespace hyena
