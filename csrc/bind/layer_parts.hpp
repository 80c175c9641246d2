// Parameters of dense parts of a layer, as Python hands them over.
#pragma once

#include "bind/rows.hpp"
#include "tokenwise.hpp"

namespace hyena {

/// Parameters of a norm; keeps the arrays they live in.
struct NormWeights {
  std::string kind;
  FloatArray weight;
  MaybeArray bias;
  float eps;

  Norm norm(const std::string& op, std::int64_t D) const {
    return {kind == "rmsnorm", floats(op, "norm weight", weight, {D}),
            bias ? floats(op, "norm bias", *bias, {D}) : nullptr, eps};
  }
};

inline Dense dense(const std::string& op, const char* name, const PackedLinear& weight, const MaybeArray& bias) {
  return {&weight, bias ? floats(op, name, *bias, {weight.out_features()}) : nullptr};
}

/// The MLP x += down(act(up(norm(x)))) of a width, checked.
struct Mlp {
  Dense up, down;
  Wide act;

  Mlp(const std::string& op, std::int64_t D, const PackedLinear& up_weight, const MaybeArray& up_bias,
      const std::string& kind, const PackedLinear& down_weight, const MaybeArray& down_bias)
      : up(dense(op, "up_bias", up_weight, up_bias)), down(dense(op, "down_bias", down_weight, down_bias)) {
    if (kind != "gelu_tanh" && kind != "gelu_erf" && kind != "swiglu")
      reject(op, "kind is '" + kind + "' but needs to be gelu_tanh, gelu_erf or swiglu");
    act = kind == "swiglu" ? Wide::swiglu : kind == "gelu_erf" ? Wide::gelu_erf : Wide::gelu_tanh;
    const std::int64_t wide = down_weight.in_features() * (act == Wide::swiglu ? 2 : 1);
    if (up_weight.in_features() != D)
      reject(op, "up has " + std::to_string(up_weight.in_features()) + " inputs but needs " + std::to_string(D));
    if (up_weight.out_features() != wide || down_weight.out_features() != D)
      reject(op, "up has " + std::to_string(up_weight.out_features()) + " outputs but down needs " +
                     std::to_string(wide) + ", and its own " + std::to_string(down_weight.out_features()) +
                     " outputs must be " + std::to_string(D));
  }
};

}  // namespace hyena
