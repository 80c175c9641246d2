// A modular product: one pass, the smaller products, the pass undone.
#pragma once

#include <type_traits>

#include "modular.hpp"
#include "modular_passes.hpp"

namespace hyena {

/// f(R) with the radix as a constant, among those that a level may have.
template <class F>
inline void with_radix(int radix, F&& f) {
  switch (radix) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 5:
      return f(std::integral_constant<int, 5>{});
    default:
      return f(std::integral_constant<int, 8>{});
  }
}

/// The same for the first level.
template <class F>
inline void with_top_radix(int radix, F&& f) {
  switch (radix) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    default:
      return f(std::integral_constant<int, 8>{});
  }
}

/// Nodes b, b + 1, ... (`count` of them, m rows each) of `level`: down to the leaves, and for a
/// product times h and back up, where each level but the leaves multiplies by its radix.
template <int L, bool Product, class Leaf>
void descend(const ModularPlan& plan, const Leaf& leaf, float* x, const float* h, std::int64_t m, std::size_t level,
             std::int64_t b, std::int64_t count) {
  const ModularPlan::Level& at = plan.levels()[level];
  if (level + 1 == plan.levels().size()) return leaf.template finish<Product>(x, h, b, count);
  for (std::int64_t q = b; q < b + count; q++, x += m * 2 * L, h += m * 2 * L) {
    with_radix(at.radix, [&](auto R) { split_pass<L, R>(x, m / R, at.node(q)); });
    descend<L, Product>(plan, leaf, x, h, m / at.radix, level + 1, q * at.radix, at.radix);
    if (Product) with_radix(at.radix, [&](auto R) { join_pass<L, R>(x, m / R, at.node(q)); });
  }
}

/// x = the residues of w(r), r < length, at the leaves, in the order of the leaves.
template <int L, class Leaf, class Input>
void modular_transform(const ModularPlan& plan, const Leaf& leaf, float* x, std::int64_t length, Input&& w) {
  const ModularPlan::Level& top = plan.levels().front();
  const std::int64_t m = plan.rows() / top.radix;
  with_top_radix(top.radix, [&](auto R) { first_pass<L, R>(x, m, top.node(0), length, w); });
  descend<L, false>(plan, leaf, x, x, m, 1, 0, top.radix);
}

/// Calls y(r, value) for r in [begin, end) with N times the product of w(r), r < length, and the
/// sequence behind h = modular_transform. x is scratch.
template <int L, class Leaf, class Input, class Output>
void modular_product(const ModularPlan& plan, const Leaf& leaf, float* x, const float* h, std::int64_t length,
                     Input&& w, std::int64_t begin, std::int64_t end, Output&& y) {
  const ModularPlan::Level& top = plan.levels().front();
  const std::int64_t m = plan.rows() / top.radix;
  with_top_radix(top.radix, [&](auto R) { first_pass<L, R>(x, m, top.node(0), length, w); });
  descend<L, true>(plan, leaf, x, h, m, 1, 0, top.radix);
  with_top_radix(top.radix, [&](auto R) { last_pass<L, R>(x, m, top.node(0), begin, end, y); });
}

}  // namespace hyena
