// The product modulo t^M + 1 through pocketfft: an implementation by others to check and time ours against.
#pragma once

#include "tiles.hpp"

namespace hyena {

/// out [G, S, 16] = z [G, S, 16] times taps [G, K, 16] modulo t^M + 1, S and K <= M, M any even size.
/// One thread. Throws std::bad_alloc.
void pocket_conv(const TileView& z, const TileView& taps, std::int64_t size, const TileView& out);

}  // namespace hyena
