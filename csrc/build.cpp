#include "build.hpp"

#include "vec.hpp"

namespace hyena {

const char* build_name() noexcept { return HYENA_BUILD; }

int build_lanes() noexcept { return kLanes; }

}  // namespace hyena
