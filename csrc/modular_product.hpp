// A modular product: one pass, the smaller products, the pass undone.
#pragma once

#include <type_traits>

#include "modular.hpp"
#include "modular_passes.hpp"

namespace hyena {

/// Which half of a product is done.
enum class Way { down, up, product };

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

/// Nodes b, b + 1, ... (`count` of them, m rows each) of `level`: down to the leaves, up from them, or down, times
/// h and up again. On the way up each level multiplies by its radix.
template <int L, Way way, class Leaf>
void descend(const ModularPlan& plan, const Leaf& leaf, float* x, const float* h, std::int64_t m, std::size_t level,
             std::int64_t b, std::int64_t count) {
  const ModularPlan::Level& at = plan.levels()[level];
  if (level + 1 == plan.levels().size()) return leaf.template finish<way>(x, h, b, count);
  for (std::int64_t q = b; q < b + count; q++, x += m * 2 * L, h += m * 2 * L) {
    if (way != Way::up) with_radix(at.radix, [&](auto R) { split_pass<L, R>(x, m / R, at.node(q)); });
    descend<L, way>(plan, leaf, x, h, m / at.radix, level + 1, q * at.radix, at.radix);
    if (way != Way::down) with_radix(at.radix, [&](auto R) { join_pass<L, R>(x, m / R, at.node(q)); });
  }
}

/// x = the residues of w(r), r < length, at the leaves, in the order of the leaves.
template <int L, class Leaf, class Input>
void modular_transform(const ModularPlan& plan, const Leaf& leaf, float* x, std::int64_t length, Input&& w) {
  const ModularPlan::Level& top = plan.levels().front();
  const std::int64_t m = plan.rows() / top.radix;
  with_top_radix(top.radix, [&](auto R) { first_pass<L, R>(x, m, top.node(0), length, w); });
  descend<L, Way::down>(plan, leaf, x, x, m, 1, 0, top.radix);
}

/// Calls y(r, value) for r in [begin, end) with N times what modular_transform makes x of. x is scratch.
template <int L, class Leaf, class Output>
void modular_inverse(const ModularPlan& plan, const Leaf& leaf, float* x, std::int64_t begin, std::int64_t end,
                     Output&& y) {
  const ModularPlan::Level& top = plan.levels().front();
  const std::int64_t m = plan.rows() / top.radix;
  descend<L, Way::up>(plan, leaf, x, x, m, 1, 0, top.radix);
  with_top_radix(top.radix, [&](auto R) { last_pass<L, R>(x, m, top.node(0), begin, end, y); });
}

/// Calls y(r, value) for r in [begin, end) with N times the product of w(r), r < length, and the
/// sequence behind h = modular_transform. x is scratch.
template <int L, class Leaf, class Input, class Output>
void modular_product(const ModularPlan& plan, const Leaf& leaf, float* x, const float* h, std::int64_t length,
                     Input&& w, std::int64_t begin, std::int64_t end, Output&& y) {
  const ModularPlan::Level& top = plan.levels().front();
  const std::int64_t m = plan.rows() / top.radix;
  with_top_radix(top.radix, [&](auto R) { first_pass<L, R>(x, m, top.node(0), length, w); });
  descend<L, Way::product>(plan, leaf, x, h, m, 1, 0, top.radix);
  with_top_radix(top.radix, [&](auto R) { last_pass<L, R>(x, m, top.node(0), begin, end, y); });
}

}  // namespace hyena
