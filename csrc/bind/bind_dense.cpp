// Products with packed weights, norms and activations.
#include <pybind11/stl.h>

#include "activation.hpp"
#include "bind/rows.hpp"
#include "linear.hpp"
#include "norm.hpp"
#include "pairs.hpp"

namespace hyena {
namespace {

Activation activation_named(const std::string& name) {
  if (name == "none") return Activation::none;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "gelu_erf") return Activation::gelu_erf;
  if (name == "silu") return Activation::silu;
  reject("linear", "activation is '" + name + "' but needs to be none, gelu_tanh, gelu_erf or silu");
}

Numbers numbers_named(const std::string& dtype) {
  if (dtype == "float32") return Numbers::float32;
  if (dtype == "thirds") return Numbers::thirds;
  if (dtype == "bfloat16") return Numbers::bfloat16;
  reject("PackedLinear", "dtype is '" + dtype + "' but needs to be float32, thirds or bfloat16");
}

PackedLinear pack(const FloatArray& weight, const std::string& dtype, Shelf* shelf) {
  const ConstRows w = rows("PackedLinear", "weight", weight, -1, -1);
  if (w.rows < 1 || w.cols < 1) reject("PackedLinear", "weight has shape " + shape_text(weight) + " and is empty");
  const Numbers numbers = numbers_named(dtype);
  const py::gil_scoped_release release;
  return PackedLinear(w, numbers, shelf);
}

FloatArray linear_call(const FloatArray& x, const PackedLinear& packed, const MaybeArray& bias,
                       const std::string& activation, const MaybeArray& residual, MaybeArray out, int threads) {
  const std::string op = "linear";
  const ConstRows in = rows(op, "x", x, -1, packed.in_features());
  const std::int64_t T = in.rows, N = packed.out_features();
  Epilogue epilogue;
  if (bias) epilogue.bias = floats(op, "bias", *bias, {N});
  epilogue.activation = activation_named(activation);
  if (residual) epilogue.residual = rows(op, "residual", *residual, T, N);
  FloatArray result = output(out, T, N);
  const Rows y = writable_rows(op, "out", result, T, N);
  if (y.data == in.data && T > 0) reject(op, "out must not be x");
  thread_count(op, threads);
  {
    const py::gil_scoped_release release;
    linear(in, packed, epilogue, y, threads);
  }
  return result;
}

FloatArray layer_norm_call(const FloatArray& x, const FloatArray& weight, const MaybeArray& bias, float eps,
                           MaybeArray out, int threads) {
  const std::string op = "layer_norm";
  const ConstRows in = rows(op, "x", x, -1, -1);
  const float* w = floats(op, "weight", weight, {in.cols});
  const float* b = bias ? floats(op, "bias", *bias, {in.cols}) : nullptr;
  FloatArray result = output(out, in.rows, in.cols);
  const Rows y = writable_rows(op, "out", result, in.rows, in.cols);
  if (in.cols < 1) reject(op, "x has shape " + shape_text(x) + " but needs at least one column");
  thread_count(op, threads);
  const py::gil_scoped_release release;
  layer_norm(in, w, b, eps, y, threads);
  return result;
}

FloatArray rms_norm_call(const FloatArray& x, const FloatArray& weight, float eps, MaybeArray out, int threads) {
  const std::string op = "rms_norm";
  const ConstRows in = rows(op, "x", x, -1, -1);
  const float* w = floats(op, "weight", weight, {in.cols});
  FloatArray result = output(out, in.rows, in.cols);
  const Rows y = writable_rows(op, "out", result, in.rows, in.cols);
  if (in.cols < 1) reject(op, "x has shape " + shape_text(x) + " but needs at least one column");
  thread_count(op, threads);
  const py::gil_scoped_release release;
  rms_norm(in, w, eps, y, threads);
  return result;
}

/// A kernel y = f(x) of one array; the output has x.cols / shrink columns.
template <class F>
void bind_map(py::module_& m, const char* name, std::int64_t shrink, const char* doc, F kernel) {
  const std::string op = name;
  m.def(
      name,
      [op, shrink, kernel](const FloatArray& x, MaybeArray out, int threads) {
        const ConstRows in = rows(op, "x", x, -1, -1);
        if (in.cols % shrink != 0) reject(op, "x has shape " + shape_text(x) + " but needs an even number of columns");
        FloatArray result = output(out, in.rows, in.cols / shrink);
        const Rows y = writable_rows(op, "out", result, in.rows, in.cols / shrink);
        thread_count(op, threads);
        const py::gil_scoped_release release;
        kernel(in, y, threads);
        return result;
      },
      py::arg("x").noconvert(), py::arg("out").noconvert() = py::none(), py::kw_only(), py::arg("threads") = 1, doc);
}

}  // namespace
}  // namespace hyena

void bind_dense(py::module_& m) {
  using namespace hyena;
  py::class_<Shelf>(m, "Shelf", py::module_local(),
                    "Memory for the weights of one model, side by side. It lives as long as any of them.")
      .def(py::init<>());
  py::class_<PackedLinear>(m, "PackedLinear", py::module_local(),
                           "A weight float32 [N, K] packed once for `linear` (y = x W^T).")
      .def(py::init(&pack), py::arg("weight").noconvert(), py::arg("dtype") = "float32", py::arg("shelf") = py::none(),
           "Packs weight float32 [N, K], rounded to the nearest if dtype is bfloat16: inputs are rounded too\n"
           "then, sums stay float32. thirds: float32 as sums of bfloat16 numbers, as exact, where the build\n"
           "multiplies those faster. On a shelf it lies beside others. Raises ValueError for other shapes or types.")
      .def_property_readonly("out_features", &PackedLinear::out_features, "N")
      .def_property_readonly("in_features", &PackedLinear::in_features, "K")
      .def_property_readonly("nbytes", &PackedLinear::nbytes, "Bytes of the packed copy.");

  m.def("multiplies_thirds", &multiplies_thirds, "Whether this build has products of thirds.");
  m.def("multiplies_pairs", &multiplies_pairs,
        "Whether this CPU has products of bfloat16 numbers; without them they are widened to float32.");
  m.def("linear", &linear_call, py::arg("x").noconvert(), py::arg("packed"), py::arg("bias").noconvert() = py::none(),
        py::arg("activation") = "none", py::arg("residual").noconvert() = py::none(),
        py::arg("out").noconvert() = py::none(), py::kw_only(), py::arg("threads") = 1,
        R"(act(x W^T + bias) + residual.

Every output is one chain of multiply-adds over increasing k, so the bits of a row depend neither
on the other rows nor on threads.

Args:
    x: float32 [T, K]; rows may lie any distance apart.
    packed: PackedLinear of the weight [N, K].
    bias: float32 [N] or None.
    activation: "none", "gelu_tanh", "gelu_erf" or "silu".
    residual: float32 [T, N] or None, added after the activation.
    out: float32 [T, N] to write, e.g. the residual itself; it must not overlap x.
    threads: at most this many threads work.

Returns:
    out, or a new float32 [T, N].

Raises:
    ValueError: shapes that do not fit, or an unknown activation.)");
  m.def("layer_norm", &layer_norm_call, py::arg("x").noconvert(), py::arg("weight").noconvert(),
        py::arg("bias").noconvert(), py::arg("eps"), py::arg("out").noconvert() = py::none(), py::kw_only(),
        py::arg("threads") = 1,
        "(x - mean) / sqrt(var + eps) * weight + bias over each row of x float32 [T, D], var biased; weight\n"
        "float32 [D], bias float32 [D] or None; out may be x. Raises ValueError for other shapes.");
  m.def("rms_norm", &rms_norm_call, py::arg("x").noconvert(), py::arg("weight").noconvert(), py::arg("eps"),
        py::arg("out").noconvert() = py::none(), py::kw_only(), py::arg("threads") = 1,
        "x / sqrt(mean(x^2) + eps) * weight over each row of x float32 [T, D]; weight float32 [D]; out may\n"
        "be x. Raises ValueError for other shapes.");

  for (const auto& [name, act, doc] :
       {std::tuple("gelu_tanh", Activation::gelu_tanh,
                   "0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) of x float32 [T, D] (arXiv 1606.08415)."),
        std::tuple("gelu_erf", Activation::gelu_erf,
                   "0.5 x (1 + erf(x / sqrt 2)) of x float32 [T, D] (arXiv 1606.08415); error below 3e-7 |x|."),
        std::tuple("silu", Activation::silu, "x / (1 + e^-x) of x float32 [T, D].")})
    bind_map(m, name, 1, doc, [act = act](ConstRows x, Rows y, int threads) { activate(act, x, y, threads); });
  bind_map(m, "swiglu", 2, "silu(a) * b, where x float32 [T, 2F] is a beside b (arXiv 2002.05202).",
           [](ConstRows x, Rows y, int threads) { gate(Gate::swiglu, x, y, threads); });
  bind_map(m, "glu", 2, "a * sigmoid(b), where x float32 [T, 2F] is a beside b (arXiv 1612.08083).",
           [](ConstRows x, Rows y, int threads) { gate(Gate::glu, x, y, threads); });
  bind_map(m, "exponential", 1, "e^x of x float32 [T, D] within 2 ulp; x is clamped to [-87, 88].", &exponential);
}
