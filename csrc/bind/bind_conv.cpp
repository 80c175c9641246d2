#include "bind/arrays.hpp"

void bind_conv(py::module_& m) { (void)m; }
