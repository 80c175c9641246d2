// What a short convolution remembers of one sequence.
#include "bind/rows.hpp"
#include "convtail.hpp"

namespace hyena {
namespace {

std::unique_ptr<ConvTail> new_tail(std::int64_t before, std::int64_t channels, std::int64_t width, std::int64_t kept) {
  if (before < 0 || channels < 1 || width < 1 || kept < 1)
    reject("ConvTail", "needs before >= 0 and channels, width, kept >= 1");
  return std::make_unique<ConvTail>(before, channels, width, kept);
}

FloatArray copy_of(ConstRows from) {
  FloatArray to({from.rows, from.cols});
  for (std::int64_t i = 0; i < from.rows; i++) std::copy_n(from.row(i), from.cols, to.mutable_data() + i * from.cols);
  return to;
}

std::optional<FloatArray> rows_py(const ConvTail& tail) {
  if (!tail.known()) return std::nullopt;
  return copy_of(tail.rows());
}

void set_rows_py(ConvTail& tail, const FloatArray& given) {
  const ConstRows now = tail.rows();
  tail.set_rows(rows("ConvTail", "rows", given, now.rows, now.cols));
}

void take_in_py(ConvTail& tail, const FloatArray& x) { tail.take_in(rows("take_in", "x", x, -1, tail.inputs().cols)); }

void rewind_py(ConvTail& tail, std::int64_t position) {
  if (position < tail.oldest() || position > tail.position())
    reject("rewind", "position is " + std::to_string(position) + " but needs to be within [" +
                         std::to_string(tail.oldest()) + ", " + std::to_string(tail.position()) + "]");
  tail.rewind(position);
}

void resume_py(ConvTail& tail, std::int64_t position, const FloatArray& inputs) {
  const ConstRows given = rows("resume", "inputs", inputs, -1, tail.inputs().cols);
  if (tail.position() != 0 || given.rows > tail.capacity() || given.rows > position)
    reject("resume", "needs a new tail and inputs that one of its kind can hold, not " + shape_text(inputs) +
                         " at position " + std::to_string(position));
  tail.resume(position, given);
}

}  // namespace
}  // namespace hyena

void bind_tail(py::module_& m) {
  using namespace hyena;
  m.def("conv_tail_bytes", &conv_tail_bytes, py::arg("before"), py::arg("channels"), py::arg("width"), py::arg("kept"),
        "Bytes that a ConvTail of these sizes holds.");
  py::class_<ConvTail>(m, "ConvTail", py::module_local(),
                       "What a short convolution of K taps remembers of one sequence: its last K - 1 = `before`\n"
                       "inputs (projected rows of C = `channels`), zeros at first, and what the layer itself was\n"
                       "given last: float32 [m, D], D = `width`, at least `kept` rows if there were so many.")
      .def(py::init(&new_tail), py::arg("before"), py::arg("channels"), py::arg("width"), py::arg("kept"))
      .def_property_readonly("position", &ConvTail::position)
      .def_property_readonly("oldest", &ConvTail::oldest, "The earliest position that rewind() can go back to.")
      .def_property_readonly("nbytes", &ConvTail::nbytes)
      .def_property_readonly("capacity", &ConvTail::capacity, "Most rows of `inputs`.")
      .def_property("rows", &rows_py, &set_rows_py,
                    "A copy of the last inputs [K - 1, C], or None: after take_in and rewind they have to be set.")
      .def_property_readonly(
          "inputs", [](const ConvTail& tail) { return copy_of(tail.inputs()); },
          "A copy of what the layer was given last.")
      .def("take_in", &take_in_py, py::arg("x").noconvert(),
           "Appends what the layer was given, float32 [n, D]. Raises ValueError for other shapes.")
      .def("rewind", &rewind_py, py::arg("position"), "Back to `position`. Raises ValueError before `oldest`.")
      .def("resume", &resume_py, py::arg("position"), py::arg("inputs").noconvert(),
           "A new tail to where one is that has these `inputs`; rows have to be set. Raises ValueError.")
      .def("fork", [](const ConvTail& tail) { return std::make_unique<ConvTail>(tail); });
}
