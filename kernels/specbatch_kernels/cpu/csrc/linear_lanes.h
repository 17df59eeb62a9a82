/* The vectors that linear layers compute in, and how many of them the registers hold.
 *
 * A vector has a lane per output row: with AVX-512 one vector is a whole tile, elsewhere a tile is two.
 * Lanes never meet, so that the width is no part of the result: what is fused decides.
 */
#ifndef SB_LINEAR_LANES_H
#define SB_LINEAR_LANES_H

#include "matrix.h"
#include "simd.h"

#ifdef SB_AVX512
typedef uint32_t vtu __attribute__((vector_size(64)));
typedef float vt __attribute__((vector_size(64)));

SB_INLINE vt vt_load(const float *p) { return (vt)_mm512_loadu_ps(p); }
SB_INLINE vtu vtu_load(const uint8_t *p) { return (vtu)_mm512_loadu_si512(p); }
SB_INLINE void vt_store(float *p, vt x) { _mm512_storeu_ps(p, (__m512)x); }
SB_INLINE vt vt_zero(void) { return (vt)_mm512_setzero_ps(); }
SB_INLINE vt vt_set1(float x) { return (vt)_mm512_set1_ps(x); }
SB_INLINE vt vt_fma(vt a, vt b, vt c) { return (vt)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
SB_INLINE vt vt_float(vtu a) { return (vt)_mm512_cvtepi32_ps((__m512i)a); }
SB_INLINE vt vt_load_half(const uint8_t *p) { return (vt)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

/* 24 sums leave room for weights, an input and some of what weights are decoded with.  12 tokens by two tiles
 * read an input once for both; 16 by one tile still save a panel. */
#define REGISTERS 32
#define SUMS 24
#define DIRECT_TOKENS 16
#define PANEL_TOKENS 12
#define PANEL_TILES 2
#define SB_FOR_SUMS SB_FOR_24
#define SB_FOR_TOKENS SB_FOR_16
#define SB_EACH_PANEL(X, ...)                                                                                          \
    X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)        \
    X(7, __VA_ARGS__) X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__)
#define SB_EACH_DIRECT(X, ...)                                                                                         \
    SB_EACH_PANEL(X, __VA_ARGS__) X(13, __VA_ARGS__) X(14, __VA_ARGS__) X(15, __VA_ARGS__) X(16, __VA_ARGS__)
#else
typedef v8u vtu;
typedef v8 vt;

SB_INLINE vt vt_load(const float *p) { return v8_load(p); }
SB_INLINE vtu vtu_load(const uint8_t *p) { return v8u_load(p); }
SB_INLINE void vt_store(float *p, vt x) { v8_store(p, x); }
SB_INLINE vt vt_zero(void) { return v8_zero(); }
SB_INLINE vt vt_set1(float x) { return v8_set1(x); }
SB_INLINE vt vt_fma(vt a, vt b, vt c) { return v8_fma(a, b, c); }
SB_INLINE vt vt_float(vtu a) { return v8_float((v8i)a); }
SB_INLINE vt vt_load_half(const uint8_t *p) { return v8_load_half(p); }

/* 12 sums leave room for two weights and an input: 6 tokens by one tile. */
#define REGISTERS 16
#define SUMS 12
#define DIRECT_TOKENS 6
#define PANEL_TOKENS 6
#define PANEL_TILES 1
#define SB_FOR_SUMS SB_FOR_12
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

#define VT_LANES ((int)(sizeof(vt) / sizeof(float)))
/* Vectors of a tile. */
#define VT_PARTS (SB_TILE / VT_LANES)

/* Where vector `part` of a row of several tiles lies that are `stride` bytes apart. */
SB_INLINE int64_t part_at(const int part, int64_t stride) {
    return part / VT_PARTS * stride + part % VT_PARTS * (int64_t)sizeof(vt);
}

#endif
