#include "bind/arrays.hpp"

void bind_dense(py::module_& m) { (void)m; }
