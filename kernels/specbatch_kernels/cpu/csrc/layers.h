/* The parts of a decoder between attention and linear layers. */
#ifndef SB_LAYERS_H
#define SB_LAYERS_H

#include <stdint.h>

#include "matrix.h"

typedef struct {
    const float *x;      /* [tokens, width] */
    const float *weight; /* [width] */
    float *out;          /* [tokens, width] */
    int64_t tokens, width;
    float eps;
} sb_norm;

/* Rotates queries in place and stores rotated keys and plain values in the cache. */
typedef struct {
    float *heads;             /* [tokens, num_heads + 2 * kv_heads, head_dim]: queries, keys, values */
    const float *rotary;      /* [positions, 2, head_dim / 2]: cosines, sines */
    const int64_t *positions; /* [tokens] */
    const int64_t *slots;     /* [tokens] */
    const float *q_norm;      /* [head_dim] weights of an RMSNorm of every query, or NULL for none */
    const float *k_norm;      /* the same for keys */
    float *k_cache, *v_cache; /* [slots, kv_heads, head_dim] */
    int64_t tokens, num_heads, kv_heads, head_dim;
    float eps;
} sb_rotary;

typedef struct {
    sb_matrix matrix;
    const int64_t *index; /* [tokens] rows of the matrix */
    float *out;           /* [tokens, cols] */
    int64_t tokens;
} sb_lookup;

typedef struct {
    const float *x; /* [tokens, width] */
    int64_t *out;   /* [tokens]: lowest index of the largest element, -1 where any is not a number */
    int64_t tokens, width;
} sb_argmax;

#endif
