/* The vectors that linear layers compute in, and how many of them the registers hold.
 *
 * A vector has a lane per output row: with AVX-512 one vector is a whole tile, elsewhere a tile is two.
 * Lanes never meet, so that the width is no part of the result: what is fused decides.
 */
#ifndef SB_LINEAR_LANES_H
#define SB_LINEAR_LANES_H

#include "lanes.h"
#include "matrix.h"

#ifdef SB_AVX512
/* 24 sums leave room for weights, an input and some of what weights are decoded with.  12 tokens by two tiles
 * read an input once for both; 16 by one tile still save a panel. */
#define DIRECT_TOKENS 16
#define PANEL_TOKENS 12
#define PANEL_TILES 2
#define SB_FOR_TOKENS SB_FOR_16
#define SB_EACH_PANEL(X, ...)                                                                                          \
    X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)        \
    X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__)
#define SB_EACH_DIRECT(X, ...)                                                                                         \
    SB_EACH_PANEL(X, __VA_ARGS__) X(13, __VA_ARGS__) X(14, __VA_ARGS__) X(15, __VA_ARGS__) X(16, __VA_ARGS__)
#else
/* 12 sums leave room for two weights and an input: 6 tokens by one tile. */
#define DIRECT_TOKENS 6
#define PANEL_TOKENS 6
#define PANEL_TILES 1
#define SB_FOR_TOKENS SB_FOR_6
#define SB_EACH_PANEL(X, ...)                                                                                          \
    X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
#define SB_EACH_DIRECT SB_EACH_PANEL
#endif

/* With inputs of eight bits, the tokens from which on AMX wins (measured), and those of its groups: as many as a
 * tile register has rows. */
#ifdef SB_AMX
#define AMX_TOKENS 24
#define AMX_GROUP 16
#endif

/* Vectors of a tile. */
#define VT_PARTS (SB_TILE / VT_LANES)

/* Where vector `part` of a row of several tiles lies that are `stride` bytes apart. */
SB_INLINE int64_t part_at(const int part, int64_t stride) {
    return part / VT_PARTS * stride + part % VT_PARTS * (int64_t)sizeof(vt);
}

#endif
