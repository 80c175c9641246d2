// Reading numpy arrays: every kernel's shape and type checks, worded the same way.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "bind/bind.hpp"
#include "tiles.hpp"

namespace hyena {

using FloatArray = py::array_t<float>;

/// An array of this shape, strides in bytes, in the memory of `owner`. Sizes of numpy are of another type on some
/// systems.
inline FloatArray view_of(std::initializer_list<std::int64_t> shape, std::initializer_list<std::int64_t> strides,
                          const float* data, py::handle owner) {
  using Sizes = std::vector<py::ssize_t>;
  return FloatArray(Sizes(shape.begin(), shape.end()), Sizes(strides.begin(), strides.end()), data, owner);
}

[[noreturn]] inline void reject(const std::string& op, const std::string& what) {
  throw py::value_error(op + ": " + what);
}

inline std::string shape_text(const py::array& a) {
  std::string text = "[";
  for (py::ssize_t i = 0; i < a.ndim(); i++) text += (i ? ", " : "") + std::to_string(a.shape(i));
  return text + "]";
}

/// Requires `name` to be a C-contiguous float32 array of this shape; -1 accepts any size there.
inline const float* floats(const std::string& op, const char* name, const FloatArray& a,
                           std::initializer_list<std::int64_t> shape) {
  bool fits = a.ndim() == static_cast<py::ssize_t>(shape.size());
  std::string wanted = "[";
  py::ssize_t i = 0;
  for (const std::int64_t size : shape) {
    wanted += (i ? ", " : "") + (size < 0 ? std::string("any") : std::to_string(size));
    if (fits && size >= 0 && a.shape(i) != size) fits = false;
    i++;
  }
  if (!fits) reject(op, std::string(name) + " has shape " + shape_text(a) + " but needs " + wanted + "]");
  if (!(a.flags() & py::array::c_style)) reject(op, std::string(name) + " must be C-contiguous");
  return a.data();
}

inline TileView tiles(const std::string& op, const char* name, const FloatArray& a) {
  const bool rows = a.ndim() == 3 && a.shape(2) == kTile &&
                    (a.size() == 0 || (a.strides(2) == sizeof(float) &&
                                       (a.shape(1) == 1 || a.strides(1) == kTile * py::ssize_t{sizeof(float)})));
  if (!rows) reject(op, std::string(name) + " has shape " + shape_text(a) + " but needs tiles [groups, T, 16]");
  return {const_cast<float*>(a.data()), a.shape(0), a.shape(1), a.strides(0) / static_cast<py::ssize_t>(sizeof(float))};
}

inline TileView tiles(const std::string& op, const char* name, const FloatArray& a, std::int64_t groups,
                      std::int64_t length) {
  const TileView view = tiles(op, name, a);
  if (view.groups != groups || view.length != length)
    reject(op, std::string(name) + " has shape " + shape_text(a) + " but needs [" + std::to_string(groups) + ", " +
                   std::to_string(length) + ", 16]");
  return view;
}

inline int thread_count(const std::string& op, int threads) {
  if (threads < 1) reject(op, "threads is " + std::to_string(threads) + " but needs to be at least 1");
  return threads;
}

}  // namespace hyena
