#include "bind/arrays.hpp"

void bind_attention(py::module_& m) { (void)m; }
