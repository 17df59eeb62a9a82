/* Choosing the next token of each row: argmax(log p + g) over the tokens that survive the filters, with
 * Gumbel noise g addressed by (state of the row's stream, token), or g = 0 for temperature 0. */
#ifndef SB_SAMPLE_H
#define SB_SAMPLE_H

#include <stdint.h>

typedef struct {
    const float *logits;            /* [rows, width] */
    const double *temperature;      /* [rows], 0 for the most likely token */
    const double *penalty;          /* [rows], 1 for none: repetition penalty on `history` */
    const double *top_p, *min_p;    /* [rows], 1 and 0 for none */
    const int64_t *top_k;           /* [rows], 0 for none */
    const uint64_t *state;          /* [rows] SplitMix64 state whose output number t is token t's */
    const int64_t *history_offsets; /* [rows + 1] each row's part of `history` */
    const int64_t *history;         /* distinct tokens per row */
    int64_t *out;                   /* [rows] token, -1 where logits hold NaN or no finite maximum */
    int64_t rows, width;
} sb_sample;

#endif
