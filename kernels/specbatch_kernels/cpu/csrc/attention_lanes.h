/* The vectors that scores are computed in: with AVX-512 those of two keys side by side.
 *
 * The eight lanes of a key and the tree that adds them up are part of a result, so a wider vector holds more
 * keys, not more of one.
 */
#ifndef SB_ATTENTION_LANES_H
#define SB_ATTENTION_LANES_H

#include "lanes.h"

/* Eight floats from d on; lanes past the end of the row are 0. */
SB_INLINE v8 load_row(const float *row, int64_t d, int64_t dim) {
    return d + 8 <= dim ? v8_load(row + d) : v8_load_first(row + d, dim - d);
}

#ifdef SB_AVX512
/* Part of a query, once for each key of a vector. */
SB_INLINE vt load_query(const float *query, int64_t d, int64_t dim) {
    return (vt)_mm512_broadcast_f32x8((__m256)load_row(query, d, dim));
}
/* Part of keys number j and, in the upper lanes, j + 4. */
SB_INLINE vt load_key(const float *const *key, const int j, int64_t d, int64_t dim) {
    __m512 lower = _mm512_castps256_ps512((__m256)load_row(key[j], d, dim));
    return (vt)_mm512_insertf32x8(lower, (__m256)load_row(key[j + 4], d, dim), 1);
}

/* The sums of the lower halves of four vectors, then of the upper ones, each by the tree of v8_sum. */
SB_INLINE void add_lanes(float *out, const vt *x) {
    __m512 half[2];
    SB_FOR(2, i, 2, { /* four lanes: lower half of x[2i], upper half, both of x[2i + 1] */
        const __m512 a = (__m512)x[2 * i];
        const __m512 b = (__m512)x[2 * i + 1];
        half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
    })
    __m512d a = _mm512_castps_pd(half[0]), b = _mm512_castps_pd(half[1]);
    __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xB1)); /* pairs of equal lanes: x0, x2 twice; x1, x3 twice */
    const __m512i order = _mm512_setr_epi32(0, 8, 2, 10, 4, 12, 6, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    v8_store(out, (v8)_mm512_castps512_ps256(_mm512_permutexvar_ps(order, all)));
}
#else
SB_INLINE vt load_query(const float *query, int64_t d, int64_t dim) { return load_row(query, d, dim); }
SB_INLINE vt load_key(const float *const *key, const int j, int64_t d, int64_t dim) {
    return load_row(key[j], d, dim);
}
SB_INLINE void add_lanes(float *out, const vt *x) { v8_sum4(out, x); }
#endif

/* Keys that are scored together, and queries: four sums each. */
#define SCORE_KEYS (VT_LANES / 2)
#define SCORE_QUERIES (SUMS / 4)

#endif
