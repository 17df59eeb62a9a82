/* Choosing the next token of each row: argmax(log p + g) over the tokens that survive the filters, with
 * Gumbel noise g addressed by (state of the row's stream, token), or g = 0 for temperature 0. */
#ifndef SB_SAMPLE_H
#define SB_SAMPLE_H

#include <stdint.h>

/* How one row samples. */
typedef struct {
    int64_t place;         /* which row of the logits */
    double temperature;    /* 0 for the most likely token */
    double penalty;        /* 1 for none: repetition penalty on `history` */
    double top_p, min_p;   /* 1 and 0 for none */
    int64_t top_k;         /* 0 for none */
    uint64_t state;        /* SplitMix64 state whose output number t is token t's */
    const int64_t *history; /* distinct tokens */
    int64_t history_count;
} sb_sample_row;

typedef struct {
    const float *logits; /* [logit_rows, width] */
    sb_sample_row *of;   /* [rows] */
    int64_t *out;        /* [rows] token, -1 where logits hold NaN or no finite maximum */
    int64_t rows, logit_rows, width;
} sb_sample;

#endif
