// Reading and making numpy arrays of rows whose rows may lie any distance apart.
#pragma once

#include <pybind11/stl.h>

#include <optional>

#include "bind/arrays.hpp"
#include "rows.hpp"

namespace hyena {

using MaybeArray = std::optional<FloatArray>;

/// Requires float32 [rows, cols] with adjacent columns; -1 accepts any size there.
inline ConstRows rows(const std::string& op, const char* name, const FloatArray& a, std::int64_t rows,
                      std::int64_t cols) {
  const auto wanted = [](std::int64_t n) { return n < 0 ? std::string("any") : std::to_string(n); };
  if (a.ndim() != 2 || (rows >= 0 && a.shape(0) != rows) || (cols >= 0 && a.shape(1) != cols))
    reject(op, std::string(name) + " has shape " + shape_text(a) + " but needs [" + wanted(rows) + ", " + wanted(cols) +
                   "]");
  const auto size = static_cast<py::ssize_t>(sizeof(float));
  const bool apart = a.shape(0) > 1 && a.shape(1) > 0;
  if ((a.shape(0) > 0 && a.shape(1) > 1 && a.strides(1) != size) || (apart && a.strides(0) % size != 0) ||
      reinterpret_cast<std::uintptr_t>(a.data()) % alignof(float) != 0)
    reject(op, std::string(name) + " must have the columns of a row next to each other");
  return {a.data(), a.shape(0), a.shape(1), apart ? a.strides(0) / size : a.shape(1)};
}

/// As `rows`, of an array that is written; numpy's ValueError if it is read-only.
inline Rows writable_rows(const std::string& op, const char* name, FloatArray& a, std::int64_t row_count,
                          std::int64_t cols) {
  const ConstRows view = rows(op, name, a, row_count, cols);
  return {a.mutable_data(), view.rows, view.cols, view.stride};
}

/// The caller's `out`, or a new array [rows, cols].
inline FloatArray output(MaybeArray& out, std::int64_t rows, std::int64_t cols) {
  return out ? *out : FloatArray({static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(cols)});
}

}  // namespace hyena
