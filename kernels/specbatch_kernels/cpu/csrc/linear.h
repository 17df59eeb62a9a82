/* Linear layers on packed matrices.
 *
 * With float32 inputs every output is one chain of multiply-adds over the inputs in ascending order; with inputs
 * of eight bits it is a chain over blocks of inputs, whose products are added up exactly. Whichever path computes
 * it and however many tokens the pass has: a row of the result never depends on the batch.
 */
#ifndef SB_LINEAR_H
#define SB_LINEAR_H

#include "matrix.h"
#include "pool.h"

typedef enum {
    SB_STORE,      /* out = y */
    SB_ACCUMULATE, /* out = out + y */
    SB_GATE,       /* out = silu(gate) * up; tiles hold 8 gate rows, then their 8 up rows */
} sb_epilogue;

typedef struct {
    sb_matrix matrix;
    const float *x;       /* rows of matrix.cols inputs */
    const int64_t *index; /* [tokens] row of x that a token reads, or NULL for its own */
    const float *norm;    /* [cols] weights of an RMSNorm of the inputs, or NULL for none */
    float eps;            /* of that norm */
    float *packed;        /* [tokens, cols] to regroup or round the inputs in; unused for one token */
    float *out;           /* [tokens, rows], [tokens, rows / 2] for SB_GATE */
    int64_t tokens;
    sb_epilogue epilogue;
} sb_linear;

#endif
