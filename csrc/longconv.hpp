// Convolution with a long filter through a transform: gates and skip fused into load and store.
//
// Spectra are opaque outside longconv.cpp: two engines lay them out in their own ways, and which one
// serves a size is fixed by the size and the build.
#pragma once

#include "gatedconv.hpp"
#include "modular.hpp"
#include "rowconv.hpp"

namespace hyena {

/// out [G, M, 16] = transforms of taps [G, K, 16], K <= M, padded with zeros to the supported size
/// M and scaled. Throws std::bad_alloc.
void spectrum(const TileView& taps, const TileView& out, int threads);

/// c is the product of w and the filter behind spectrum [G, M, 16] modulo t^M + 1, z.length <= M:
/// what reaches past M comes back at the start with its sign turned. out may be the very rows of
/// z, pre or post. Throws std::bad_alloc.
void long_conv(const GatedConv& job, const TileView& spectrum, int threads);
/// The same for several sequences, none of which shares rows with another.
void long_conv(const GatedConvs& jobs, const TileView& spectrum, int threads);

/// The same for rows [C, T]: fast where channels come in whole vectors, as row_conv with a spectrum of
/// rows where there are few. Throws std::bad_alloc.
void row_conv(const GatedRows& job, const TileView& spectrum, int threads);

/// Floats of working memory that long_conv of `length` rows takes, on at most `threads` threads.
std::int64_t conv_scratch(std::int64_t size, std::int64_t length, int threads);

/// How to convolve `added` tokens that follow `history` ones with `taps` taps: 0 for direct sums,
/// else the smallest size of long_conv whose wrap-around misses the new outputs; -1 if no
/// supported size is large enough.
std::int64_t conv_plan(std::int64_t added, std::int64_t history, std::int64_t taps);

}  // namespace hyena
