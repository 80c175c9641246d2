// What the kernels of this build are compiled for.
#pragma once

namespace hyena {

const char* build_name() noexcept;
/// Numbers in a vector.
int build_lanes() noexcept;

}  // namespace hyena
