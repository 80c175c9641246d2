// Arrays of rows: float32 [rows, cols], lanes of a row adjacent, rows any distance apart.
#pragma once

#include <cstdint>

namespace hyena {

template <class Float>
struct RowsOf {
  Float* data;
  std::int64_t rows, cols, stride;
  Float* row(std::int64_t i) const { return data + i * stride; }
};

using Rows = RowsOf<float>;
using ConstRows = RowsOf<const float>;

}  // namespace hyena
